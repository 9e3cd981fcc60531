from __future__ import annotations

from datetime import timedelta

from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.planning.conditions import Condition, merge, summarize
from halfbyte.planning.stage import Stage, done, pending, stalled, waiting, working
from support.models import NOW


def types(stage: Stage[str]) -> list[str]:
    return [str(each.type) for each in summarize(stage)]


def test_one_summary_and_at_most_one_reason_for_concern() -> None:
    assert types(done("r1", Reason.SERVING, "")) == ["Ready"]
    assert types(working(Reason.QUANTIZING, "")) == ["Ready", "Reconciling"]
    assert types(waiting(Reason.CLAIM_NOT_FOUND, "")) == ["Ready", "Reconciling"]
    assert types(pending("")) == ["Ready", "Reconciling"]
    assert types(stalled(Reason.INVALID_SPEC, "")) == ["Ready", "Stalled"]
    assert types(Stage("False", Reason.SUSPENDED, "")) == ["Ready"]


def test_the_transition_time_moves_with_the_status_only() -> None:
    ready = Condition(ConditionType.READY, "False", Reason.INSPECTING, "a")
    first = merge((), [ready], 1, NOW)
    later = NOW + timedelta(hours=1)
    (same,) = merge(first, [Condition(ConditionType.READY, "False", Reason.QUANTIZING, "b")], 2, later)
    assert same["lastTransitionTime"] == first[0]["lastTransitionTime"] == "2026-11-30T12:00:00Z"
    assert (same["reason"], same["message"], same["observedGeneration"]) == ("Quantizing", "b", 2)
    (changed,) = merge(first, [Condition(ConditionType.READY, "True", Reason.SERVING, "c")], 2, later)
    assert changed["lastTransitionTime"] == "2026-11-30T13:00:00Z"


def test_conditions_that_nobody_wants_go_and_messages_are_cut() -> None:
    before = merge((), [Condition(ConditionType.STALLED, "True", Reason.INVALID_SPEC, "")], 1, NOW)
    (only,) = merge(before, [Condition(ConditionType.READY, "False", Reason.INSPECTING, "x" * 5000)], 1, NOW)
    assert only["type"] == "Ready"
    assert len(only["message"]) == 1024
