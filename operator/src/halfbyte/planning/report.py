"""Status and Events from what the stages said. Only what is known; absent is better than a guess.

Events are drafted on transitions between the status in the snapshot and the new one: a stage that became
done, and every change of Ready's reason. The first is Normal, the second a Warning when the model stalls or
waits for something outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from halfbyte.api import labels
from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.planning.conditions import Condition, merge, timestamp
from halfbyte.planning.plan import EventDraft
from halfbyte.planning.revisions import active_revision, find_revision, living, server_problem
from halfbyte.planning.snapshot import DeploymentFact, Snapshot

HISTORY: Final = 10

_ACTIONS: Final = {
    ConditionType.INSPECTED: "Inspect",
    ConditionType.PLANNED: "Plan",
    ConditionType.QUANTIZED: "Quantize",
    ConditionType.VALIDATED: "Validate",
    ConditionType.READY: "Serve",
}
_WARNINGS: Final = frozenset(
    {
        Reason.CLAIM_NOT_FOUND,
        Reason.CLAIM_NOT_BOUND,
        Reason.SECRET_NOT_FOUND,
        Reason.SECRET_KEY_NOT_FOUND,
        Reason.NAME_TAKEN,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL_FAILED,
        Reason.POD_CONFIG_ERROR,
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_DISK,
        Reason.INSUFFICIENT_GPUS,
        Reason.REPLICAS_UNAVAILABLE,
        Reason.ACTION_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What goes into status; None keeps nothing of a section, the previous status has to be passed on by the
    caller.
    """

    conditions: tuple[Condition, ...]
    facts: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None
    artifact: Mapping[str, Any] | None = None
    validation: Mapping[str, Any] | None = None
    target_revision: str | None = None
    replicas: int | None = None


def build_status(snapshot: Snapshot, findings: Findings, now: datetime) -> dict[str, Any]:
    """The complete desired status, without nulls: the API server would prune or refuse them."""
    model = snapshot.model
    serving, history = _serving(snapshot, findings, now)
    status = {
        "observedGeneration": model.generation,
        "conditions": merge(model.status.get("conditions") or (), findings.conditions, model.generation, now),
        "facts": findings.facts,
        "plan": findings.plan,
        "progress": findings.progress,
        "artifact": findings.artifact,
        "validation": findings.validation,
        "serving": serving,
        "history": history,
        "lastHandledReconcileAt": model.annotations.get(labels.REQUESTED_AT),
    }
    found = without_nulls(status)
    assert isinstance(found, dict)  # noqa: S101 - narrows the type of a value that is a dict by construction
    return found


def without_nulls(value: Any) -> Any:
    """The value without null members and without objects and lists that are empty once those are gone."""
    if isinstance(value, Mapping):
        children = {key: without_nulls(child) for key, child in value.items()}
        return {
            key: child for key, child in children.items() if child is not None and child != {} and child != []
        }
    if isinstance(value, list | tuple):
        return [without_nulls(child) for child in value]
    return value


def _serving(
    snapshot: Snapshot, findings: Findings, now: datetime
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    model, previous = snapshot.model, snapshot.model.status.get("serving") or {}
    active = active_revision(snapshot)
    live = find_revision(snapshot, active)
    shown = live or find_revision(snapshot, findings.target_revision)
    wanted = findings.replicas if findings.replicas is not None else (live.replicas if live else 0)
    ready = live.ready_replicas if live else 0
    same = bool(active) and previous.get("revision") == active
    serving = {
        "revision": active,
        "targetRevision": findings.target_revision if findings.target_revision != active else None,
        "artifactKey": live.labels.get(labels.ARTIFACT_KEY) if live else None,
        "url": f"http://{model.name}.{model.namespace}.svc/v1" if active else None,
        "replicas": sum(each.status_replicas for each in living(snapshot)),
        "readyReplicas": ready,
        "readiness": f"{ready}/{wanted}",
        "selector": f"{labels.MODEL}={model.name},{labels.STAGE}={labels.STAGE_SERVE}",
        "image": shown.image if shown else None,
        "kernel": snapshot.server_log_kernel or (previous.get("kernel") if same else None),
        "arguments": list(shown.arguments) if shown else None,
        "strategy": _strategy(snapshot, shown),
        "servedFrom": previous.get("servedFrom") if same else (timestamp(now) if active else None),
    }
    return serving, _history(snapshot, previous, active, now)


def _strategy(snapshot: Snapshot, shown: DeploymentFact | None) -> str | None:
    newest = max(living(snapshot), key=lambda each: each.annotations.get(labels.STARTED, ""), default=shown)
    return newest.annotations.get(labels.STRATEGY) if newest else None


def _history(
    snapshot: Snapshot, previous: Mapping[str, Any], active: str | None, now: datetime
) -> list[dict[str, Any]]:
    history = list(snapshot.model.status.get("history") or ())
    before = previous.get("revision")
    if not before or not active or before == active:
        return history
    entry = {
        "revision": before,
        "artifactKey": previous.get("artifactKey"),
        "servedFrom": previous.get("servedFrom"),
        "servedUntil": timestamp(now),
    }
    return [entry, *history][:HISTORY]


def available(snapshot: Snapshot) -> Condition:
    """Whether some revision answers, the asked for one or an older one."""
    active = active_revision(snapshot)
    live = find_revision(snapshot, active)
    kind = ConditionType.AVAILABLE
    if active is None:
        return Condition(kind, "False", Reason.PENDING, "no revision has served yet")
    if live is None:
        return Condition(
            kind, "False", Reason.REPLICAS_UNAVAILABLE, f"the Deployment of revision {active} is gone"
        )
    if live.ready_replicas:
        message = f"{live.ready_replicas} of {live.replicas} replicas of revision {active} answer"
        return Condition(kind, "True", Reason.REPLICAS_READY, message)
    if live.replicas == 0:
        return Condition(kind, "False", Reason.SCALED_TO_ZERO, f"revision {active} is scaled to 0")
    problem = server_problem(snapshot, active)
    words = f"; {problem[1]}" if problem else ""
    message = f"0 of {live.replicas} replicas of revision {active} answer{words}"
    return Condition(kind, "False", problem[0] if problem else Reason.REPLICAS_UNAVAILABLE, message)


def progress_status(progress: Mapping[str, Any] | None, stage: str) -> dict[str, Any] | None:
    """``status.progress`` when the worker's line belongs to the running stage."""
    if not progress or str(progress.get("stage", "")).lower() != stage:
        return None
    message = progress.get("message")
    return {
        "stage": stage.capitalize(),
        "done": _count(progress.get("done")),
        "total": _count(progress.get("total")),
        "unit": str(progress["unit"])[:64] if progress.get("unit") else None,
        "etaSeconds": _count(progress.get("etaSeconds")),
        "message": str(message)[:1024] if message else None,
    }


def _count(value: Any) -> int | None:
    return max(0, round(value)) if isinstance(value, int | float) else None


def draft_events(previous: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[EventDraft, ...]:
    """Events for what changed between two statuses."""
    before = {each["type"]: each for each in previous.get("conditions") or ()}
    events = []
    stalled = any(each["type"] == ConditionType.STALLED for each in status["conditions"])
    for condition in status["conditions"]:
        kind = condition["type"]
        old = before.get(kind, {})
        action = _ACTIONS.get(ConditionType(kind))
        if action is None:
            continue
        if kind == ConditionType.READY:
            if old.get("reason") != condition["reason"]:
                warning = stalled or condition["reason"] in _WARNINGS
                events.append(_event("Warning" if warning else "Normal", condition, action))
        elif condition["status"] == "True" and old.get("status") != "True":
            events.append(_event("Normal", condition, action))
    return tuple(events)


def _event(kind: Any, condition: Mapping[str, Any], action: str) -> EventDraft:
    return EventDraft(kind, condition["reason"], condition["message"][:1024], action)
