"""The whole flow on a real API server: what the operator makes, says and leaves alone at each step."""

from __future__ import annotations

from typing import Any

import pytest

from halfbyte.adapters import resources
from halfbyte.adapters.execute import ActionFailed
from halfbyte.adapters.gateway import NotFound
from support.node import FACTS, artifact_result, evidence_result

from .conftest import Harness

Json = dict[str, Any]


async def inspected(harness: Harness, **spec: Any) -> None:
    await harness.apply(**spec)
    await harness.settle()
    await harness.node.succeed(await harness.node.job("inspect"), FACTS)
    await harness.settle()


async def quantized(harness: Harness, **spec: Any) -> None:
    await inspected(harness, **spec)
    job = await harness.node.job("quantize")
    await harness.node.succeed(job, artifact_result(await harness.node.task(job)))
    await harness.settle()


async def validated(harness: Harness, **spec: Any) -> None:
    await quantized(harness, **spec)
    await harness.node.succeed(await harness.node.job("validate"), evidence_result())
    await harness.settle()


async def served(harness: Harness, **spec: Any) -> None:
    await validated(harness, **spec)
    (deployment,) = await harness.node.deployments()
    await harness.node.serve(deployment)
    await harness.settle()


STAGES = {"inspect": inspected, "quantize": quantized, "validate": validated, "serve": served}


async def test_from_nothing_to_ready(harness: Harness) -> None:
    await harness.apply()
    await harness.settle()
    assert await harness.ready() == ("False", "Inspecting")

    job = await harness.node.job("inspect")
    assert (await harness.node.task(job))["model"] == {"name": "tiny", "namespace": harness.namespace}
    await harness.node.start(job)
    await harness.settle()
    await harness.node.succeed(job, FACTS)
    await harness.settle()
    assert await harness.ready() == ("False", "Quantizing")
    plan = (await harness.model())["status"]["plan"]
    assert plan["digest"]
    assert plan["artifact"]["bytes"] > 0

    job = await harness.node.job("quantize")
    task = await harness.node.task(job)
    assert task["source"]["revision"] == FACTS["source"]["revision"]
    await harness.node.succeed(job, artifact_result(task))
    await harness.settle()
    assert await harness.ready() == ("False", "Validating")
    assert (await harness.model())["status"]["artifact"]["key"] == task["artifact"]["key"]

    await harness.node.succeed(await harness.node.job("validate"), evidence_result())
    await harness.settle()
    assert await harness.ready() == ("False", "RollingOut")
    assert (await harness.model())["status"]["validation"]["verdict"] == "Passed"

    (deployment,) = await harness.node.deployments()
    await harness.node.serve(deployment)
    await harness.settle()
    assert await harness.ready() == ("True", "Serving")
    status = (await harness.model())["status"]
    assert status["observedGeneration"] == (await harness.model())["metadata"]["generation"]
    assert {each["type"] for each in status["conditions"]}.isdisjoint({"Reconciling", "Stalled"})
    revision = deployment["metadata"]["labels"]["halfbyte.dev/revision"]
    assert status["serving"]["revision"] == revision
    service = await harness.kube.get(resources.SERVICES, "tiny", harness.namespace)
    assert service["spec"]["selector"]["halfbyte.dev/revision"] == revision


@pytest.mark.parametrize("stage", STAGES)
async def test_a_state_at_rest_is_not_written_to(harness: Harness, stage: str) -> None:
    await STAGES[stage](harness)
    version = (await harness.model())["metadata"]["resourceVersion"]
    writes = harness.writes()
    await harness.reconcile()
    harness.restart()
    await harness.reconcile()
    assert harness.writes() == writes
    assert (await harness.model())["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize("stage", STAGES)
async def test_a_lost_status_is_derived_again(harness: Harness, stage: str) -> None:
    await STAGES[stage](harness)
    before = (await harness.model())["status"]
    jobs = {job["metadata"]["uid"] for job in await harness.kube.list(resources.JOBS, harness.namespace)}
    lost = {**await harness.model(), "status": {"observedGeneration": -1}}
    lost["metadata"].pop("managedFields")
    path = lost["metadata"]["name"]
    await harness.kube._json(
        "PUT",
        "quantizedmodels",
        f"/apis/halfbyte.dev/v1alpha1/namespaces/{harness.namespace}/quantizedmodels/{path}/status",
        body=lost,
    )
    assert "conditions" not in (await harness.model())["status"]
    harness.restart()
    await harness.settle()
    after = (await harness.model())["status"]
    for status in (before, after):
        for each in status["conditions"]:
            each.pop("lastTransitionTime")
    assert after["conditions"] == before["conditions"]
    assert {
        job["metadata"]["uid"] for job in await harness.kube.list(resources.JOBS, harness.namespace)
    } == jobs, "no Job was run twice"


@pytest.mark.parametrize("stage", STAGES)
async def test_a_model_that_is_being_deleted_gets_nothing_new(harness: Harness, stage: str) -> None:
    await STAGES[stage](harness)
    held = await harness.model()
    held["metadata"] = {
        "name": "tiny",
        "namespace": harness.namespace,
        "finalizers": ["tests.halfbyte.dev/hold"],
    }
    held.pop("status")
    held.pop("spec")
    await harness.node.kube.apply(held, manager="test-hold")
    model = await harness.model()
    await harness.node.kube.delete(
        resources.MODELS, "tiny", harness.namespace, uid=model["metadata"]["uid"], propagation="Background"
    )
    for job in await harness.kube.list(resources.JOBS, harness.namespace):
        await harness.node.kube.delete(
            resources.JOBS,
            job["metadata"]["name"],
            harness.namespace,
            uid=job["metadata"]["uid"],
            propagation="Background",
        )
    await harness.settle()
    assert await harness.kube.list(resources.JOBS, harness.namespace) == []

    held["metadata"]["finalizers"] = []
    await harness.node.kube.apply(held, manager="test-hold")
    with pytest.raises(NotFound):
        await harness.model()
    assert await harness.reconcile() is None
    assert harness.telemetry.models() == frozenset()


async def test_every_child_is_owned_by_its_model(harness: Harness) -> None:
    await served(harness)
    uid = (await harness.model())["metadata"]["uid"]
    children = [
        child
        for kind in (resources.JOBS, resources.DEPLOYMENTS, resources.SERVICES, resources.CONFIG_MAPS)
        for child in await harness.kube.list(
            kind, harness.namespace, labels="app.kubernetes.io/managed-by=halfbyte"
        )
    ]
    assert len(children) == 3 + 1 + 1 + 3
    for child in children:
        assert [each["uid"] for each in child["metadata"]["ownerReferences"]] == [uid]
        assert "finalizers" not in child["metadata"]
    assert "finalizers" not in (await harness.model())["metadata"]


async def test_a_missed_gate_blocks_and_keeps_the_older_revision(harness: Harness) -> None:
    await served(harness)
    (old,) = await harness.node.deployments()
    await harness.apply(
        quantization={"method": "GPTQ", "bits": 4, "groupSize": 64, "calibration": {"samples": 32}}
    )
    await harness.settle()
    job = next(
        each
        for each in await harness.node.jobs("quantize")
        if not (each.get("status") or {}).get("succeeded")
    )
    await harness.node.succeed(job, artifact_result(await harness.node.task(job)))
    await harness.settle()
    job = next(
        each
        for each in await harness.node.jobs("validate")
        if not (each.get("status") or {}).get("succeeded")
    )
    await harness.node.fail(job, 50, "GateFailed", "logits/cosine 0.947 < 0.985", evidence_result("Failed"))
    await harness.settle()

    assert await harness.ready() == ("False", "GateFailed")
    assert (await harness.condition("Stalled"))["status"] == "True"
    assert (await harness.condition("Available"))["status"] == "True"
    (kept,) = await harness.node.deployments()
    assert kept["metadata"]["uid"] == old["metadata"]["uid"]
    assert (await harness.model())["status"]["validation"]["verdict"] == "Failed"


async def test_a_failed_inspection_stalls_with_the_workers_words(harness: Harness) -> None:
    await harness.apply()
    await harness.settle()
    words = "weights/tiny has no config.json; found: README.md"
    await harness.node.fail(await harness.node.job("inspect"), 20, "SourceNotFound", words)
    await harness.settle()
    assert await harness.ready() == ("False", "SourceNotFound")
    assert words in (await harness.condition("Ready"))["message"]
    assert await harness.node.jobs("quantize") == []


async def test_a_missing_claim_is_named_and_waited_for(harness: Harness) -> None:
    await harness.apply(source={"pvc": {"claimName": "nowhere", "path": "x"}})
    after = await harness.reconcile()
    assert await harness.ready() == ("False", "ClaimNotFound")
    assert "nowhere" in (await harness.condition("Ready"))["message"]
    assert after is not None
    await harness.node.claim("nowhere")
    await harness.settle()
    assert await harness.ready() == ("False", "Inspecting")


async def test_two_models_with_one_recipe_share_one_quantize_job(harness: Harness) -> None:
    await inspected(harness)
    second = Harness(harness.kube, harness.telemetry, harness.namespace, "second", harness.node)
    await second.apply()
    await second.settle()
    job = next(
        each
        for each in await harness.node.jobs("inspect")
        if each["metadata"]["labels"]["halfbyte.dev/model"] == "second"
    )
    await harness.node.succeed(job, FACTS)
    await second.settle()
    await harness.settle()
    job = await harness.node.job("quantize")
    owners = {each["name"] for each in job["metadata"]["ownerReferences"]}
    assert owners == {"tiny", "second"}

    await harness.node.succeed(job, artifact_result(await harness.node.task(job)))
    await harness.settle()
    await second.settle()
    assert await harness.ready() == ("False", "Validating")
    assert await second.ready() == ("False", "Validating")


async def test_drift_in_a_field_that_is_ours_is_undone_and_a_foreign_field_stays(harness: Harness) -> None:
    await served(harness)
    service = await harness.kube.get(resources.SERVICES, "tiny", harness.namespace)
    drift = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "tiny", "namespace": harness.namespace, "annotations": {"team": "a"}},
        "spec": {"selector": {"halfbyte.dev/revision": "nobody"}},
    }
    await harness.node.kube.apply(drift, manager="somebody")
    harness.reconciler._repaired[harness.namespace, "tiny"] = -1e9
    await harness.reconcile()
    live = await harness.kube.get(resources.SERVICES, "tiny", harness.namespace)
    assert live["spec"]["selector"] == service["spec"]["selector"]
    assert live["metadata"]["annotations"]["team"] == "a"


async def test_a_resync_writes_nothing_when_nobody_changed_anything(harness: Harness) -> None:
    await served(harness)
    await harness.settle()
    before = harness.writes()
    harness.reconciler._repaired[harness.namespace, "tiny"] = -1e9
    await harness.reconcile()
    assert harness.writes() == before


async def test_a_refused_action_is_told_in_status_and_goes_on_when_it_is_allowed(
    harness: Harness,
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": harness.namespace},
        "spec": {"hard": {"count/jobs.batch": "0"}},
        "status": {"hard": {"count/jobs.batch": "0"}, "used": {"count/jobs.batch": "0"}},
    }
    path = f"/api/v1/namespaces/{harness.namespace}/resourcequotas"
    await harness.kube._json("POST", "resourcequotas", path, body=quota)
    await harness.kube._json("PUT", "resourcequotas", f"{path}/none/status", body=quota)
    await harness.apply()
    for _ in range(3):
        with pytest.raises(ActionFailed, match="exceeded quota"):
            await harness.reconcile()
    assert await harness.ready() == ("False", "ActionFailed")
    assert "exceeded quota" in (await harness.condition("Ready"))["message"]
    assert (await harness.condition("Reconciling"))["status"] == "True"
    version = (await harness.model())["metadata"]["resourceVersion"]
    with pytest.raises(ActionFailed):
        await harness.reconcile()
    assert (await harness.model())["metadata"]["resourceVersion"] == version, "no change at every retry"

    await harness.kube._request("DELETE", "resourcequotas", f"{path}/none")
    await harness.settle()
    assert await harness.ready() == ("False", "Inspecting")
    assert len(await harness.node.jobs("inspect")) == 1
