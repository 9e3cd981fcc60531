"""A queue of keys: each at most once in it, each with at most one worker, later again after a failure.

A key that is added while a worker has it is dirty, and comes back when that worker is done; so no change
between two looks is lost (kopf#1178). Whatever was added meanwhile, a key costs one reconcile.

Keys with news go before those that are merely due (a resync, a look at progress): a model that somebody just
applied does not wait behind 500 that have not changed.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

Key = tuple[str, str]
"""Namespace and name of a model."""

FIRST_DELAY: Final = 0.5
LAST_DELAY: Final = 120.0


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class WorkQueue:
    def __init__(
        self,
        call_later: CallLater | None = None,
        jitter: Callable[[], float] = random.random,
        on_depth: Callable[[int], None] = lambda _depth: None,
    ) -> None:
        """``call_later`` defaults to the running loop's; ``jitter`` draws from 0 to 1."""
        self._call_later: CallLater = call_later or (
            lambda delay, callback: asyncio.get_running_loop().call_later(delay, callback)
        )
        self._jitter = jitter
        self._on_depth = on_depth
        self._news: dict[Key, None] = {}
        self._due: dict[Key, None] = {}
        self._working: set[Key] = set()
        self._dirty: set[Key] = set()
        self._timers: dict[Key, tuple[float, Timer]] = {}
        self._failures: dict[Key, int] = {}
        self._wakeup = asyncio.Event()
        self._closed = False
        self._drained = asyncio.Event()
        self._drained.set()

    def add(self, key: Key) -> None:
        """Look at this key as soon as possible: something about it has changed."""
        self._cancel_timer(key)
        if key in self._working:
            self._dirty.add(key)
            return
        self._due.pop(key, None)
        self._news.setdefault(key)
        self._changed()

    def add_due(self, key: Key) -> None:
        """Look at this key when nothing with news waits. While a worker has it, it is being looked at."""
        self._cancel_timer(key)
        if key not in self._working and key not in self._news:
            self._due.setdefault(key)
            self._changed()

    def add_after(self, key: Key, delay: float) -> None:
        """Look at this key in ``delay`` seconds, unless something asks for it earlier."""
        if key in self._news or key in self._due or key in self._dirty:
            return
        planned = self._timers.get(key)
        if planned is not None and planned[0] <= delay:
            return
        self._cancel_timer(key)
        self._timers[key] = delay, self._call_later(delay, lambda: self.add_due(key))

    async def get(self) -> Key:
        """Take the next key; ``succeeded`` or ``failed`` must follow."""
        while self._closed or not len(self):
            self._wakeup.clear()
            await self._wakeup.wait()
        waiting = self._news or self._due
        key = next(iter(waiting))
        del waiting[key]
        self._working.add(key)
        self._drained.clear()
        self._on_depth(len(self))
        return key

    def succeeded(self, key: Key, requeue_after: float | None = None) -> None:
        self._failures.pop(key, None)
        self._finish(key, requeue_after)

    def failed(self, key: Key, at_least: float = 0.0) -> float:
        """Give the key back for a later try; the delay in seconds, doubled by every failure, with jitter."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LAST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 16))
        delay = max(at_least, delay * (0.75 + self._jitter() / 2))
        self._finish(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that no longer exists."""
        self._cancel_timer(key)
        self._failures.pop(key, None)

    def __len__(self) -> int:
        return len(self._news) + len(self._due)

    def close(self) -> None:
        """Give out no more keys."""
        self._closed = True

    async def drained(self) -> None:
        """Wait until nobody works on a key."""
        await self._drained.wait()

    def _finish(self, key: Key, delay: float | None) -> None:
        self._working.discard(key)
        if not self._working:
            self._drained.set()
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        elif delay is not None:
            self.add_after(key, delay)

    def _changed(self) -> None:
        self._wakeup.set()
        self._on_depth(len(self))

    def _cancel_timer(self, key: Key) -> None:
        planned = self._timers.pop(key, None)
        if planned is not None:
            planned[1].cancel()
