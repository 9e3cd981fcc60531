"""One look at one model: gather, plan, tell (status), act, post events. No state but what saves requests."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from halfbyte.adapters.events import EventRecorder
from halfbyte.adapters.execute import ActionFailed, Executor
from halfbyte.adapters.gateway import ApiError, Clock, Conflict, NotFound
from halfbyte.adapters.gather import Gatherer
from halfbyte.adapters.schema import InstalledSchema
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.planning.pipeline import plan, report_failure
from halfbyte.planning.plan import EventDraft, Plan
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import Snapshot
from halfbyte.runtime.health import Health
from halfbyte.runtime.logs import MODEL
from halfbyte.runtime.queue import Key, WorkQueue

log = logging.getLogger(__name__)

CONFLICT_DELAY = 0.2
"""Seconds until the next look after the model changed under a reconcile."""
CRASH_DELAY = 5.0
"""Seconds, at least, until the next look after the operator itself failed."""


class Reconciler:
    def __init__(
        self,
        gatherer: Gatherer,
        executor: Executor,
        recorder: EventRecorder,
        telemetry: Telemetry,
        clock: Clock,
        settings: PlanningSettings,
        schema: InstalledSchema,
        forget: Callable[[Key], None] = lambda _key: None,
    ) -> None:
        """``forget`` is told the keys of models that do not exist any more."""
        self._gatherer = gatherer
        self._executor = executor
        self._recorder = recorder
        self._telemetry = telemetry
        self._clock = clock
        self._settings = settings
        self._schema = schema
        self._forget = forget
        self._repaired: dict[Key, float] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until the next look, None when an event or the resync is enough.

        Raises:
            ApiError, ActionFailed: look again after a backoff.
        """
        namespace, name = key
        snapshot = await self._gatherer.snapshot(namespace, name)
        if snapshot is None:
            self.forget(key)
            return None
        decided = plan(snapshot, self._clock.now(), self._settings)
        # Before the actions, so that what is spent was announced; but after a refusal only once they succeed,
        # else status would change twice with every try.
        refused = _refused(snapshot)
        try:
            if not refused:
                await self._tell(snapshot, decided)
            await self._executor.run(decided.actions, snapshot, repair=self._repair_due(key))
            if refused:
                await self._tell(snapshot, decided)
        except ActionFailed as failure:
            if isinstance(failure.error, Conflict):
                log.info("%s; looking again", failure)
                return CONFLICT_DELAY
            if not failure.error.transient:
                error, now = failure.error, self._clock.now()
                failed = report_failure(decided, snapshot, failure.action, error.reason, error.message, now)
                await self._tell(snapshot, failed)
                await self._recorder.post(snapshot.model, failed.events)
            raise
        except (NotFound, Conflict):
            log.info("the model was deleted or replaced meanwhile; looking again")
            return CONFLICT_DELAY
        await self._recorder.post(snapshot.model, decided.events)
        return decided.requeue_after

    async def _tell(self, snapshot: Snapshot, decided: Plan) -> None:
        model = snapshot.model
        if await self._executor.apply_status(model, self._schema.prune(decided.status)):
            before, after = _ready(model.status), _ready(decided.status)
            if before.get("reason") != after.get("reason"):
                log.info("Ready %s, %s: %s", *(after.get(each) for each in ("status", "reason", "message")))
        self._telemetry.conditions(model.namespace, model.name, decided.status)

    def forget(self, key: Key) -> None:
        """Drop everything that is remembered of a model that does not exist any more."""
        self._repaired.pop(key, None)
        self._executor.forget(key)
        self._telemetry.forget(*key)
        self._forget(key)

    async def report_crash(self, key: Key, error: Exception) -> None:
        """Tell the user of a model that the operator itself fails on it; the log has the trace."""
        snapshot = await self._gatherer.snapshot(*key)
        if snapshot is None:
            return
        note = f"The operator fails on this model ({type(error).__name__}: {error}); its log has the trace."
        draft = EventDraft("Warning", Reason.INTERNAL_ERROR, note, "Reconcile")
        await self._recorder.post(snapshot.model, (draft,))

    def _repair_due(self, key: Key) -> bool:
        # Not on the first look: a restarted operator writes nothing that it has written before.
        now = self._clock.monotonic()
        if now - self._repaired.setdefault(key, now) < self._settings.resync_seconds:
            return False
        self._repaired[key] = now
        return True


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each["type"] == ConditionType.READY), {})


def _refused(snapshot: Snapshot) -> bool:
    conditions = snapshot.model.status.get("conditions") or ()
    return any(each.get("reason") == Reason.ACTION_FAILED for each in conditions)


async def work(
    number: int,
    queue: WorkQueue,
    reconciler: Reconciler,
    telemetry: Telemetry,
    health: Health,
    clock: Clock,
) -> None:
    """Reconcile keys from the queue, for ever; one failing model never stops the others."""
    while True:
        key = await queue.get()
        token = MODEL.set("/".join(key))
        started = clock.monotonic()
        health.busy_since[number] = started
        result = "cancelled"
        try:
            after = await reconciler.reconcile(key)
        except (ApiError, ActionFailed) as error:
            result = "failed"
            api = error.error if isinstance(error, ActionFailed) else error
            delay = queue.failed(key, api.retry_after or 0.0)
            log.warning("%s; next try in %.1f s", error, delay)
        except Exception as error:
            result = "crashed"
            log.exception("reconcile crashed")
            try:
                await reconciler.report_crash(key, error)
            except ApiError as second:
                log.warning("the crash could not be reported: %s", second)
            queue.failed(key, CRASH_DELAY)
        else:
            result = "succeeded"
            queue.succeeded(key, after)
        finally:
            telemetry.reconciled(result, clock.monotonic() - started)
            health.busy_since.pop(number, None)
            MODEL.reset(token)
