"""files/argocd-health.lua under Lua 5.1, the language that Argo CD runs, on recorded kinds of status."""

from __future__ import annotations

from typing import Any

import pytest
from lupa import lua51

from support.helm import CHART
from support.models import evidence_result, spec
from support.models import model as subject
from support.simulated_cluster import SimulatedCluster

SCRIPT = (CHART / "files" / "argocd-health.lua").read_text()


def health(model: dict[str, Any]) -> dict[str, str]:
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(model, recursive=True)
    return dict(lua.execute(SCRIPT))


def model(
    *conditions: tuple[str, str, str], generation: int = 2, observed: int = 2, **spec: Any
) -> dict[str, Any]:
    return {
        "metadata": {"generation": generation},
        "spec": spec,
        "status": {
            "observedGeneration": observed,
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": f"message of {reason}"}
                for kind, status, reason in conditions
            ],
        },
    }


WORKING = (("Ready", "Unknown", "Quantizing"), ("Reconciling", "True", "Quantizing"))
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "never seen by an operator": (
        {"metadata": {"generation": 1}, "spec": {}},
        "Progressing",
        "Waiting for the operator",
    ),
    "schema default only": (
        {"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": -1}},
        "Progressing",
        "Waiting for the operator",
    ),
    "ready": (model(("Ready", "True", "Serving")), "Healthy", "message of Serving"),
    "ready for an older spec": (
        model(("Ready", "True", "Serving"), observed=1),
        "Progressing",
        "Waiting for the operator to see the newest spec",
    ),
    "working": (model(*WORKING), "Progressing", "message of Quantizing"),
    "stalled": (
        model(("Ready", "False", "GateFailed"), ("Stalled", "True", "GateFailed")),
        "Degraded",
        "message of GateFailed",
    ),
    "stalled was yesterday": (
        model(("Ready", "True", "Serving"), ("Stalled", "False", "GateFailed")),
        "Healthy",
        "message of Serving",
    ),
    "waits for a person": (
        model(("Ready", "False", "WaitingForApproval"), ("Reconciling", "True", "WaitingForApproval")),
        "Suspended",
        "message of WaitingForApproval",
    ),
    "suspended": (model(*WORKING, suspend=True), "Suspended", "spec.suspend is true"),
    "no summary yet": (
        model(("Inspected", "True", "FactsKnown")),
        "Progressing",
        "Waiting for the condition Ready",
    ),
}


@pytest.mark.parametrize(("obj", "status", "message"), CASES.values(), ids=CASES.keys())
def test_health(obj: dict[str, Any], status: str, message: str) -> None:
    assert health(obj) == {"status": status, "message": message}


def seen(cluster: SimulatedCluster) -> str:
    """What Argo CD shows for the object as the planner left it."""
    subject = cluster.model
    obj = {
        "metadata": {"generation": subject.generation},
        "spec": subject.raw_spec,
        "status": subject.status,
    }
    return health(obj)["status"]


def test_health_over_the_whole_flow() -> None:
    """The statuses are those that the planner writes, not ones that this test made up."""
    cluster = SimulatedCluster()
    for stage in ("inspect", "quantize", "validate"):
        cluster.reconcile()
        assert seen(cluster) == "Progressing", stage
        cluster.finish(stage)
    cluster.reconcile()
    assert seen(cluster) == "Progressing"
    cluster.start_pods()
    cluster.until_ready()
    assert seen(cluster) == "Healthy"

    cluster.change(spec(quantization={"method": "GPTQ", "bits": 4, "groupSize": 64}))
    assert seen(cluster) == "Progressing", "the newest spec was not looked at yet"
    cluster.reconcile()
    cluster.finish("quantize")
    cluster.reconcile()
    cluster.fail("validate", "GateFailed", "cosine 0.88, needed 0.985", 50, evidence_result("Failed", "0.88"))
    cluster.reconcile()
    assert cluster.condition("Ready")["reason"] == "GateFailed"
    assert seen(cluster) == "Degraded"

    cluster.change(spec())
    cluster.until_ready()
    assert seen(cluster) == "Healthy"


def test_a_plan_that_waits_for_approval_is_suspended() -> None:
    cluster = SimulatedCluster(subject(spec(approval="Manual")))
    cluster.reconcile()
    cluster.finish("inspect")
    cluster.reconcile()
    assert cluster.condition("Ready")["reason"] == "WaitingForApproval"
    assert seen(cluster) == "Suspended"
