from __future__ import annotations

import asyncio

import pytest

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Conflict
from halfbyte.adapters.lease import LeaseElector, LeaseLost
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway

DURATION = 30


class Candidate(LeaseElector):
    def __init__(self, gateway: FakeGateway, clock: FakeClock, identity: str) -> None:
        super().__init__(
            gateway, clock, namespace="system", name="op", identity=identity, duration_seconds=DURATION
        )


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def spec(gateway: FakeGateway) -> dict[str, object]:
    return dict(gateway.find(resources.LEASES, "op", "system")["spec"])


async def test_the_first_candidate_leads_at_once(gateway: FakeGateway, clock: FakeClock) -> None:
    await Candidate(gateway, clock, "a").acquire()
    assert clock.slept == []
    assert spec(gateway)["holderIdentity"] == "a"
    assert spec(gateway)["leaseTransitions"] == 0


async def test_a_silent_holder_is_replaced_after_a_whole_duration(
    gateway: FakeGateway, clock: FakeClock
) -> None:
    await Candidate(gateway, clock, "dead").acquire()
    began = clock.monotonic()
    await Candidate(gateway, clock, "b").acquire()
    assert DURATION < clock.monotonic() - began < DURATION + 10
    assert spec(gateway)["holderIdentity"] == "b"
    assert spec(gateway)["leaseTransitions"] == 1


async def test_a_renewing_holder_keeps_it(gateway: FakeGateway, clock: FakeClock) -> None:
    holder = Candidate(gateway, clock, "a")
    await holder.acquire()
    holding = asyncio.create_task(holder.hold())
    waiting = asyncio.create_task(Candidate(gateway, clock, "b").acquire())
    for _ in range(200):
        await asyncio.sleep(0)
    assert clock.seconds > 3 * DURATION
    assert not waiting.done()
    assert not holding.done()
    assert spec(gateway)["holderIdentity"] == "a"
    for task in (holding, waiting):
        task.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_a_restarted_container_of_the_same_pod_takes_its_own_lease(
    gateway: FakeGateway, clock: FakeClock
) -> None:
    await Candidate(gateway, clock, "pod-1").acquire()
    await Candidate(gateway, clock, "pod-1").acquire()
    assert clock.slept == []


async def test_a_released_lease_is_taken_without_waiting(gateway: FakeGateway, clock: FakeClock) -> None:
    first = Candidate(gateway, clock, "a")
    await first.acquire()
    await first.release()
    await Candidate(gateway, clock, "b").acquire()
    assert clock.slept == []
    assert spec(gateway)["holderIdentity"] == "b"


async def test_releasing_what_is_not_held_writes_nothing(gateway: FakeGateway, clock: FakeClock) -> None:
    await Candidate(gateway, clock, "a").release()
    assert gateway.writes == []


async def test_a_failed_release_is_harmless(gateway: FakeGateway, clock: FakeClock) -> None:
    first = Candidate(gateway, clock, "a")
    await first.acquire()
    gateway.errors["replace", "leases"] = Conflict(409, "Conflict", "changed")
    await first.release()


async def test_a_holder_that_cannot_renew_gives_up_before_others_may_take_over(
    gateway: FakeGateway, clock: FakeClock
) -> None:
    holder = Candidate(gateway, clock, "a")
    await holder.acquire()
    began = clock.monotonic()
    gateway.errors["replace", "leases"] = ApiError(0, "Unreachable", "no route")
    with pytest.raises(LeaseLost, match="not renewed for 20 s"):
        await holder.hold()
    assert clock.monotonic() - began < DURATION


async def test_a_short_outage_is_survived(gateway: FakeGateway, clock: FakeClock) -> None:
    holder = Candidate(gateway, clock, "a")
    await holder.acquire()
    gateway.errors["replace", "leases"] = ApiError(503, "", "busy")
    holding = asyncio.create_task(holder.hold())
    while len(clock.slept) < 1:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    gateway.errors.clear()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not holding.done()
    holding.cancel()


async def test_a_holder_that_was_replaced_ends(gateway: FakeGateway, clock: FakeClock) -> None:
    holder = Candidate(gateway, clock, "a")
    await holder.acquire()
    live = gateway.find(resources.LEASES, "op", "system")
    await gateway.replace({**live, "spec": {**live["spec"], "holderIdentity": "b"}})
    with pytest.raises(LeaseLost, match="another process"):
        await holder.hold()


async def test_a_lease_that_somebody_deleted_is_made_again(gateway: FakeGateway, clock: FakeClock) -> None:
    holder = Candidate(gateway, clock, "a")
    await holder.acquire()
    gateway.objects.clear()
    holding = asyncio.create_task(holder.hold())
    while not gateway.objects:
        await asyncio.sleep(0)
    assert spec(gateway)["holderIdentity"] == "a"
    holding.cancel()


async def test_an_unreachable_server_is_asked_again(gateway: FakeGateway, clock: FakeClock) -> None:
    gateway.errors["get", "leases"] = ApiError(0, "Unreachable", "no route")
    candidate = Candidate(gateway, clock, "a")
    acquiring = asyncio.create_task(candidate.acquire())
    while len(clock.slept) < 3:
        await asyncio.sleep(0)
    gateway.errors.clear()
    await acquiring
    assert spec(gateway)["holderIdentity"] == "a"


async def test_holding_without_having_acquired_is_refused(gateway: FakeGateway, clock: FakeClock) -> None:
    with pytest.raises(LeaseLost, match="never acquired"):
        await Candidate(gateway, clock, "a").hold()
