from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from halfbyte.runtime.queue import FIRST_DELAY, LAST_DELAY, WorkQueue

A = ("ns", "a")
B = ("ns", "b")


class FakeTimer:
    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """``call_later`` whose timers go off when a test says so."""

    def __init__(self) -> None:
        self.made: list[FakeTimer] = []

    def __call__(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        self.made.append(FakeTimer(delay, callback))
        return self.made[-1]

    def pending(self) -> list[FakeTimer]:
        return [each for each in self.made if not each.cancelled]

    def fire(self) -> None:
        for each in self.pending():
            each.cancelled = True
            each.callback()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def queue(timers: Timers) -> WorkQueue:
    return WorkQueue(timers, jitter=lambda: 0.5)


async def test_a_key_is_in_the_queue_once(queue: WorkQueue) -> None:
    for key in (A, B, A, A):
        queue.add(key)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == [A, B]


async def test_news_go_before_what_is_merely_due(queue: WorkQueue) -> None:
    queue.add_due(A)
    queue.add_due(B)
    queue.add(B)
    queue.add_due(B)
    assert len(queue) == 2
    assert [await queue.get(), await queue.get()] == [B, A]


async def test_a_key_in_work_is_not_due_again(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.get()
    queue.add_due(A)
    queue.succeeded(A)
    assert len(queue) == 0


async def test_get_waits_for_a_key(queue: WorkQueue) -> None:
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.add(A)
    assert await waiting == A


async def test_a_key_has_one_worker_and_comes_back_when_it_was_touched_meanwhile(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.get()
    queue.add(A)
    queue.add(A)
    assert len(queue) == 0
    queue.succeeded(A)
    assert await queue.get() == A
    queue.succeeded(A)
    assert len(queue) == 0


async def test_a_touched_key_does_not_wait_for_its_delay(queue: WorkQueue, timers: Timers) -> None:
    queue.add(A)
    await queue.get()
    queue.add(A)
    queue.succeeded(A, requeue_after=300)
    assert timers.pending() == []
    assert len(queue) == 1


async def test_a_later_look_is_planned_and_an_event_overtakes_it(queue: WorkQueue, timers: Timers) -> None:
    queue.add(A)
    queue.succeeded(await queue.get(), requeue_after=30)
    assert [each.delay for each in timers.pending()] == [30]
    queue.add(A)
    assert timers.pending() == []
    assert len(queue) == 1


async def test_of_two_later_looks_the_earlier_counts(queue: WorkQueue, timers: Timers) -> None:
    queue.add_after(A, 30)
    queue.add_after(A, 300)
    assert [each.delay for each in timers.pending()] == [30]
    queue.add_after(A, 3)
    assert [each.delay for each in timers.pending()] == [3]
    timers.fire()
    assert await queue.get() == A


async def test_a_key_that_waits_already_gets_no_timer(queue: WorkQueue, timers: Timers) -> None:
    queue.add(A)
    queue.add_after(A, 3)
    assert timers.made == []


async def test_failures_back_off_and_a_success_starts_anew(queue: WorkQueue, timers: Timers) -> None:
    delays = []
    for _ in range(12):
        queue.add(A)
        delays.append(queue.failed(await queue.get()))
        timers.fire()
    assert delays[:4] == [FIRST_DELAY, FIRST_DELAY * 2, FIRST_DELAY * 4, FIRST_DELAY * 8]
    assert delays[-1] == LAST_DELAY
    queue.succeeded(await queue.get())
    queue.add(A)
    assert queue.failed(await queue.get()) == FIRST_DELAY


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, FIRST_DELAY * 0.75), (1.0, FIRST_DELAY * 1.25)])
async def test_delays_are_spread(timers: Timers, drawn: float, delay: float) -> None:
    queue = WorkQueue(timers, jitter=lambda: drawn)
    queue.add(A)
    assert queue.failed(await queue.get()) == delay


async def test_the_server_may_ask_for_a_longer_delay(queue: WorkQueue) -> None:
    queue.add(A)
    assert queue.failed(await queue.get(), at_least=17) == 17


async def test_a_forgotten_key_leaves_nothing(queue: WorkQueue, timers: Timers) -> None:
    queue.add(A)
    queue.failed(await queue.get())
    queue.forget(A)
    assert timers.pending() == []
    queue.add(A)
    assert queue.failed(await queue.get()) == FIRST_DELAY


async def test_a_closed_queue_gives_nothing_out_and_drains(queue: WorkQueue) -> None:
    queue.add(A)
    await queue.get()
    queue.add(B)
    queue.close()
    waiting = asyncio.create_task(queue.get())
    draining = asyncio.create_task(queue.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    queue.succeeded(A)
    await draining
    assert not waiting.done()
    waiting.cancel()


async def test_the_depth_is_told() -> None:
    depths: list[int] = []
    queue = WorkQueue(on_depth=depths.append)
    queue.add(A)
    queue.add(B)
    await queue.get()
    assert depths == [1, 2, 1]


async def test_the_running_loop_keeps_the_time_by_default() -> None:
    queue = WorkQueue()
    queue.add_after(A, 0.0)
    assert await queue.get() == A
