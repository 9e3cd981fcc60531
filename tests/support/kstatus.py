"""The rules of kstatus and of Flux's condition checks (runtime/conditions/check), as an oracle for tests.

FAIL numbers are those of Flux where a rule is one of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.api.status import Status

_STATUS = TypeAdapter(Status)


def assert_kstatus(status: Mapping[str, Any], generation: int, *, suspended: bool = False) -> None:
    """Fails with the broken rule."""
    _STATUS.validate_python(status)
    _no_nulls(status, "status")
    conditions = {each["type"]: each for each in status["conditions"]}
    assert len(conditions) == len(status["conditions"]), "a condition type appears twice"
    ready = conditions.get("Ready")
    assert ready is not None, "FAIL0001: Ready is missing"
    reconciling, stalled = conditions.get("Reconciling"), conditions.get("Stalled")
    for abnormal in (reconciling, stalled):
        assert abnormal is None or abnormal["status"] == "True", (
            "FAIL0002: an abnormal condition is there and not True"
        )
    assert not (reconciling and stalled), "FAIL0003: Reconciling and Stalled at once"
    if ready["status"] == "True":
        assert not reconciling, "FAIL0004: Ready while Reconciling"
        assert not stalled, "FAIL0005: Ready while Stalled"
    elif not suspended:
        assert reconciling or stalled, "FAIL0006: not Ready, and neither Reconciling nor Stalled says why"
    if ready["status"] == "Unknown":
        assert reconciling, "FAIL0007: Ready Unknown without Reconciling"
    assert status["observedGeneration"] <= generation, "FAIL0008: observedGeneration is from the future"
    for condition in conditions.values():
        assert condition["observedGeneration"] == status["observedGeneration"], "FAIL0009: generations differ"
        assert condition["type"] in list(ConditionType), f"{condition['type']} is not documented"
        assert condition["reason"] in list(Reason), f"{condition['reason']} is not documented"
        assert len(condition["message"]) <= 1024
    if ready["status"] == "True":
        assert all(each["status"] != "False" for each in conditions.values()), (
            "Ready while something is False"
        )


def _no_nulls(value: Any, path: str) -> None:
    assert value is not None, f"{path} is null: the API server would refuse or prune it"
    if isinstance(value, Mapping):
        for key, child in value.items():
            _no_nulls(child, f"{path}.{key}")
    if isinstance(value, list):
        for index, child in enumerate(value):
            _no_nulls(child, f"{path}[{index}]")
