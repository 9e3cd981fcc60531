"""Is this process doing its work? Facts from its parts, answers for the probes.

``/livez`` fails when restarting would help: a worker or the resync hangs or has ended, or the watch has gone
silent. The last is proved, not assumed: each periodic LIST is compared with what the watch has delivered.
``/readyz`` fails until every kind that is watched could be listed, on the leader and on a standby alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from halfbyte.adapters.gateway import Clock
from halfbyte.runtime.queue import Key

STUCK_SECONDS: Final = 600.0
"""A single reconcile that takes longer hangs: every request in it has a time-out of its own."""


@dataclass(slots=True)
class Health:
    clock: Clock
    resync_seconds: float
    leading: bool = False
    resynced_at: float | None = None
    unlisted: str | None = "nothing was listed yet"
    """Why a watched kind cannot be listed; None when every one can."""
    busy_since: dict[int, float] = field(default_factory=dict)
    """Start of the current reconcile, by worker."""
    _led_since: float = 0.0
    _delivered: dict[Key, str] = field(default_factory=dict)
    _listed: dict[Key, str] = field(default_factory=dict)
    _undelivered: frozenset[Key] = frozenset()

    def lead(self) -> None:
        self.leading = True
        self._led_since = self.clock.monotonic()

    def delivered(self, key: Key, resource_version: str) -> None:
        """The watch told of a model in this version."""
        self._delivered[key] = resource_version

    def deleted(self, key: Key) -> None:
        self._delivered.pop(key, None)

    def listed(self, versions: Mapping[Key, str]) -> None:
        """A LIST showed these models. A version that two LISTs in a row show must have been delivered."""
        self._undelivered = frozenset(
            key
            for key, version in versions.items()
            if self._listed.get(key) == version and self._delivered.get(key) != version
        )
        self._listed = dict(versions)
        self.resynced_at = self.clock.monotonic()

    @property
    def resync_age(self) -> float:
        """Seconds since the last LIST, -1 before the first."""
        return -1.0 if self.resynced_at is None else self.clock.monotonic() - self.resynced_at

    def why_not_live(self) -> str | None:
        now = self.clock.monotonic()
        if self._undelivered:
            namespace, name = min(self._undelivered)
            return f"the watch has not delivered {len(self._undelivered)} models, e.g. {namespace}/{name}"
        hung = [now - since for since in self.busy_since.values() if now - since > STUCK_SECONDS]
        if hung:
            return f"a reconcile has been running for {max(hung):.0f} s"
        if self.leading:
            last = self._led_since if self.resynced_at is None else self.resynced_at
            if now - last > 2 * self.resync_seconds + 60:
                return f"models were last listed {now - last:.0f} s ago"
        return None

    def why_not_ready(self) -> str | None:
        return self.unlisted
