"""Kubernetes Events about a model, (``events.k8s.io/v1``): one per transition, repeats counted in a series.

``kopf.event`` is not used: it has no series, cuts messages at 1024 and knows a type that the API refuses.
"""

import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from halfbyte.adapters.clock import micro_time
from halfbyte.adapters.gateway import ApiError, Clock, KubeGateway
from halfbyte.api import labels
from halfbyte.planning.plan import EventDraft
from halfbyte.planning.snapshot import ModelObject

log = logging.getLogger(__name__)

REMEMBERED: Final = 1000
SERIES_SECONDS: Final = 1800.0
"""A repeat within this time joins the series; a later one is a new Event (the old may have expired)."""
NOTE_LIMIT: Final = 1024
"""The API server's own limit, in bytes."""


@dataclass(slots=True)
class _Posted:
    manifest: dict[str, Any]
    count: int
    last: float


class EventRecorder:
    """Posts drafts; a failure is logged and never fails a reconcile."""

    def __init__(self, gateway: KubeGateway, clock: Clock, *, instance: str) -> None:
        """``instance`` names this process, at most 128 characters (``reportingInstance``)."""
        self._gateway = gateway
        self._clock = clock
        self._instance = instance[:128]
        self._posted: OrderedDict[tuple[str, str, str], _Posted] = OrderedDict()

    async def post(self, model: ModelObject, drafts: tuple[EventDraft, ...]) -> None:
        for draft in drafts:
            try:
                await self._post(model, draft)
            except ApiError as error:
                log.warning("event %s of %s/%s is lost: %s", draft.reason, model.namespace, model.name, error)

    async def _post(self, model: ModelObject, draft: EventDraft) -> None:
        key = (model.uid, draft.reason, draft.message)
        posted = self._posted.pop(key, None)
        moment = self._clock.monotonic()
        if posted is None or moment - posted.last > SERIES_SECONDS:
            posted = _Posted(self._manifest(model, draft), 1, moment)
        else:
            posted.count += 1
            posted.last = moment
            posted.manifest["series"] = {
                "count": posted.count,
                "lastObservedTime": micro_time(self._clock.now()),
            }
        self._posted[key] = posted
        while len(self._posted) > REMEMBERED:
            self._posted.popitem(last=False)
        await self._gateway.apply(posted.manifest, manager=labels.FIELD_MANAGER)

    def _manifest(self, model: ModelObject, draft: EventDraft) -> dict[str, Any]:
        now = micro_time(self._clock.now())
        digest = hashlib.sha256(
            "|".join((model.uid, draft.reason, draft.message, self._instance, now)).encode()
        ).hexdigest()
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{model.name[:200]}.{digest[:16]}", "namespace": model.namespace},
            "eventTime": now,
            "reportingController": f"{labels.GROUP}/operator",
            "reportingInstance": self._instance,
            "type": draft.type,
            "reason": draft.reason[:128],
            "action": draft.action[:128],
            "note": draft.message.encode()[:NOTE_LIMIT].decode("utf-8", "ignore"),
            "regarding": {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "name": model.name,
                "namespace": model.namespace,
                "uid": model.uid,
            },
        }
