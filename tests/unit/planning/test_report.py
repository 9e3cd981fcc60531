from __future__ import annotations

from dataclasses import replace

from halfbyte.planning.conditions import Condition
from halfbyte.planning.report import (
    HISTORY,
    Findings,
    available,
    build_status,
    progress_status,
    without_nulls,
)
from support.models import NOW, model
from support.simulated_cluster import SimulatedCluster


def test_nulls_and_what_is_empty_without_them_are_left_out() -> None:
    found = without_nulls(
        {"a": None, "b": {"c": None}, "d": [], "e": [{"f": None, "g": 0}], "h": False, "i": ""}
    )
    assert found == {"e": [{"g": 0}], "h": False, "i": ""}


def test_progress_of_another_stage_is_not_shown() -> None:
    line = {
        "stage": "quantize",
        "done": 1.6,
        "total": None,
        "unit": "layers",
        "etaSeconds": -1,
        "message": "m" * 2000,
    }
    assert progress_status(line, "validate") is None
    assert progress_status(None, "quantize") is None
    found = progress_status(line, "quantize")
    assert found is not None
    assert (found["stage"], found["done"], found["total"], found["etaSeconds"]) == ("Quantize", 2, None, 0)
    assert len(found["message"]) == 1024


def test_history_has_an_end() -> None:
    cluster = SimulatedCluster(model())
    cluster.until_ready()
    history = [{"revision": f"r{index}"} for index in range(HISTORY)]
    status = {**cluster.model.status, "serving": {"revision": "before"}, "history": history}
    snapshot = replace(cluster.snapshot(), model=replace(cluster.model, status=status))
    found = build_status(snapshot, Findings(conditions=()), NOW)["history"]
    assert len(found) == HISTORY
    assert found[0]["revision"] == "before"
    assert found[-1]["revision"] == f"r{HISTORY - 2}"


def said(condition: Condition) -> tuple[str, str]:
    return condition.status, str(condition.reason)


def test_available_says_what_is_there() -> None:
    cluster = SimulatedCluster()
    assert said(available(cluster.snapshot())) == ("False", "Pending")
    cluster.until_ready()
    assert said(available(cluster.snapshot())) == ("True", "ReplicasReady")
    cluster.start_pods(ready=False)
    assert said(available(cluster.snapshot())) == ("False", "ReplicasUnavailable")
    cluster.deployments = {name: replace(each, replicas=0) for name, each in cluster.deployments.items()}
    assert said(available(cluster.snapshot())) == ("False", "ScaledToZero")
