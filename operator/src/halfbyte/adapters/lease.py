"""Leader election on a Lease.

The holder renews every third of the duration and stops when it could not for two thirds; others take over
when they have not seen the record change for a whole duration. All of that is measured with the monotonic
clock of the one who waits: no two machines' clocks are compared, and the times inside the record are only
for people. (The client library's elector compares naive local wall-clock times.)

A process whose pod already holds the Lease takes it at once: the kubelet starts a container again only when
the one before has ended.
"""

import logging
from typing import Final

from halfbyte.adapters import resources
from halfbyte.adapters.clock import micro_time
from halfbyte.adapters.gateway import ApiError, Clock, Conflict, Json, KubeGateway, NotFound
from halfbyte.api import labels

log = logging.getLogger(__name__)

RENEWALS_PER_DURATION: Final = 3


class LeaseLost(Exception):
    """Somebody else holds the Lease, or it could not be renewed in time: this process must end now."""


class LeaseElector:
    def __init__(
        self,
        gateway: KubeGateway,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_seconds: int = 30,
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration_seconds
        self._period = duration_seconds / RENEWALS_PER_DURATION
        self._seen: tuple[str, float] | None = None
        """The foreign record last seen (holder and resourceVersion), and when it was first seen."""
        self._held: Json | None = None

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        announced = False
        while True:
            try:
                self._held = await self._try_to_take()
            except ApiError as error:
                log.warning("lease %s/%s: %s", self._namespace, self._name, error.message)
            if self._held is not None:
                log.info("leading: %s holds the lease %s/%s", self._identity, self._namespace, self._name)
                return
            if not announced and self._seen is not None:
                log.info("standing by: the lease is held by %s", self._seen[0].partition("@")[0])
                announced = True
            await self._clock.sleep(min(self._period, 5.0))

    async def hold(self) -> None:
        """Renew for ever; call it after ``acquire``.

        Raises:
            LeaseLost: always, in the end.
        """
        if self._held is None:
            raise LeaseLost("it was never acquired")
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._period)
            try:
                self._held = await self._renew(self._held)
                renewed = self._clock.monotonic()
            except ApiError as error:
                since = self._clock.monotonic() - renewed
                log.warning("lease not renewed for %.0f s: %s", since, error.message)
                if since >= self._duration * (RENEWALS_PER_DURATION - 1) / RENEWALS_PER_DURATION:
                    raise LeaseLost(f"not renewed for {since:.0f} s") from error

    async def release(self) -> None:
        """Let the next one take it without waiting; failing to is harmless."""
        if self._held is None:
            return
        released = self._manifest(self._held, holder="")
        self._held = None
        try:
            await self._gateway.replace(released)
        except ApiError as error:
            log.info("lease not released: %s", error.message)

    async def _try_to_take(self) -> Json | None:
        try:
            live = await self._gateway.get(resources.LEASES, self._name, self._namespace)
        except NotFound:
            ours = self._manifest(None, holder=self._identity)
            return await self._gateway.create(ours, manager=labels.FIELD_MANAGER)
        if not self._may_take(live):
            return None
        try:
            return await self._gateway.replace(self._manifest(live, holder=self._identity))
        except Conflict:
            return None

    def _may_take(self, live: Json) -> bool:
        spec = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in {"", self._identity}:
            return True
        record = f"{holder}@{live['metadata']['resourceVersion']}"
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != record:
            self._seen = record, now
        return now - self._seen[1] > (spec.get("leaseDurationSeconds") or self._duration)

    async def _renew(self, held: Json) -> Json:
        try:
            return await self._gateway.replace(self._manifest(held, holder=self._identity))
        except (Conflict, NotFound):
            live = await self._try_to_take()
            if live is None:
                raise LeaseLost("another process took it") from None
            return live

    def _manifest(self, live: Json | None, *, holder: str) -> Json:
        now = micro_time(self._clock.now())
        spec = dict((live or {}).get("spec") or {})
        if spec.get("holderIdentity") != holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + (1 if holder and live else 0)
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": self._duration, "renewTime": now}
        metadata = {"name": self._name, "namespace": self._namespace}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
