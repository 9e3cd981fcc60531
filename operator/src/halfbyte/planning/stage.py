"""What one stage of the flow has to say: a condition, a value once it is done, and actions."""

from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

from halfbyte.api.conditions import Reason
from halfbyte.api.spec import Spec
from halfbyte.planning.plan import Action
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import ModelObject, Snapshot
from halfbyte.planning.violation import Violation

T = TypeVar("T")

WORKING: Final = 3.0
"""Seconds between two looks while a worker pod runs: its progress must reach status within ten."""
WAITING: Final = 30.0
"""Seconds between two looks while something outside is missing, or is to happen that an event tells of."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every stage may read."""

    snapshot: Snapshot
    spec: Spec
    settings: PlanningSettings

    @property
    def model(self) -> ModelObject:
        return self.snapshot.model


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """The outcome of one stage.

    Attributes:
        status: of the stage's condition.
        value: what later stages need; present exactly when the stage is done.
        terminal: nothing is tried again until a person changes something.
        requeue: seconds until the next look.
        running: a worker pod is at work, so progress in the snapshot is this stage's.
    """

    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str
    value: T | None = None
    actions: tuple[Action, ...] = ()
    requeue: float | None = None
    terminal: bool = False
    running: bool = False


def done(value: T, reason: Reason, message: str, actions: tuple[Action, ...] = ()) -> Stage[T]:
    return Stage("True", reason, message, value=value, actions=actions)


def working(
    reason: Reason, message: str, actions: tuple[Action, ...] = (), *, running: bool = False
) -> Stage[T]:
    """Something runs or is about to. Only a log tells of progress; hundreds of queued pods cost nothing."""
    requeue = WORKING if running else WAITING
    return Stage("False", reason, message, actions=actions, requeue=requeue, running=running)


def waiting(reason: Reason, message: str, actions: tuple[Action, ...] = ()) -> Stage[T]:
    """Something is missing or on its way; it is looked for again by itself if no event comes first."""
    return Stage("False", reason, message, actions=actions, requeue=WAITING)


def stalled(reason: Reason, message: str) -> Stage[T]:
    return Stage("False", reason, message, terminal=True)


def stopped(violation: Violation) -> Stage[T]:
    """A violation as the outcome of a stage."""
    if violation.terminal:
        return stalled(violation.reason, violation.message)
    return waiting(violation.reason, violation.message)


def pending(message: str) -> Stage[T]:
    return Stage("Unknown", Reason.PENDING, message)


def carry(stage: Stage[Any]) -> Stage[T]:
    """An unfinished outcome as that of another stage: everything but the value."""
    return replace(stage, value=None)
