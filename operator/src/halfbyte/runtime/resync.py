"""Every so often all models are listed: each is looked at, and what no longer exists is forgotten.

A watch does not tell of an object that was deleted while it was reconnecting after a 410, so memory alone
would keep ghosts (seen with Kopf's indices and timers).
"""

import logging
from collections.abc import Sequence

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Clock, KubeGateway
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.runtime.health import Health
from halfbyte.runtime.queue import Key, WorkQueue
from halfbyte.runtime.reconciler import Reconciler

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0


class Resync:
    def __init__(
        self,
        gateway: KubeGateway,
        queue: WorkQueue,
        reconciler: Reconciler,
        telemetry: Telemetry,
        health: Health,
        clock: Clock,
        namespaces: Sequence[str],
        seconds: float,
    ) -> None:
        self._gateway = gateway
        self._queue = queue
        self._reconciler = reconciler
        self._telemetry = telemetry
        self._health = health
        self._clock = clock
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._seconds = seconds

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except ApiError as error:
                log.warning("models could not be listed: %s", error.message)
                await self._clock.sleep(min(RETRY_SECONDS, self._seconds))
            else:
                await self._clock.sleep(self._seconds)

    async def once(self) -> None:
        """Enqueue every model and forget the ghosts. Raises ApiError."""
        versions: dict[Key, str] = {}
        for namespace in self._namespaces:
            for raw in await self._gateway.list(resources.MODELS, namespace, metadata_only=True):
                metadata = raw["metadata"]
                versions[metadata["namespace"], metadata["name"]] = metadata["resourceVersion"]
        for ghost in self._telemetry.models() - versions.keys():
            self._reconciler.forget(ghost)
        self._health.listed(versions)
        for key in versions:
            self._queue.add_due(key)


async def probe_lists(gateway: KubeGateway, namespaces: Sequence[str]) -> str | None:
    """Why some watched kind cannot be listed somewhere; None when every one can."""
    for resource in resources.WATCHED:
        for namespace in namespaces or (None,):
            try:
                await gateway.list(resource, namespace, limit=1)
            except ApiError as error:
                return error.message
    return None
