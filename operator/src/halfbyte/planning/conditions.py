"""Conditions by the rules of kstatus.

    Ready        the one summary. True only when the spec of this generation is served
    Reconciling  present, True, while work goes on or something outside is waited for
    Stalled      present, True, when nothing is tried again until a person changes something
Never both of the last two, and neither while Ready is True; a suspended model has neither.
``lastTransitionTime`` moves only when a condition's status does, so that an unchanged model writes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.planning.stage import Stage

MAX_MESSAGE: Final = 1024
_STILL: Final = (Reason.SUSPENDED,)


@dataclass(frozen=True, slots=True)
class Condition:
    type: ConditionType
    status: str
    reason: Reason
    message: str


def of_stage(kind: ConditionType, stage: Stage[Any]) -> Condition:
    return Condition(kind, stage.status, stage.reason, stage.message)


def summarize(blocking: Stage[Any]) -> tuple[Condition, ...]:
    """Ready, and Reconciling or Stalled where they apply, from the first stage that is not done or from the
    last.
    """
    if blocking.status == "True":
        return (Condition(ConditionType.READY, "True", blocking.reason, blocking.message),)
    ready = Condition(ConditionType.READY, "False", blocking.reason, blocking.message)
    if blocking.terminal:
        return ready, Condition(ConditionType.STALLED, "True", blocking.reason, blocking.message)
    if blocking.reason in _STILL:
        return (ready,)
    return ready, Condition(ConditionType.RECONCILING, "True", blocking.reason, blocking.message)


def merge(
    previous: Iterable[Mapping[str, Any]], wanted: Iterable[Condition], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """``status.conditions``: wanted ones only; an unchanged status keeps its transition time."""
    before = {each.get("type"): each for each in previous}
    merged = []
    for condition in wanted:
        old = before.get(condition.type)
        kept = old is not None and old.get("status") == condition.status and old.get("lastTransitionTime")
        merged.append(
            {
                "type": str(condition.type),
                "status": condition.status,
                "reason": str(condition.reason),
                "message": condition.message[:MAX_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if old and kept else timestamp(now),
            }
        )
    return merged


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
