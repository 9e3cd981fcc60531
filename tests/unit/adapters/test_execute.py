from __future__ import annotations

from typing import Any

import pytest

from halfbyte.adapters import facts, resources
from halfbyte.adapters.execute import ActionFailed, Executor, describe
from halfbyte.adapters.gateway import ApiError, Conflict, Forbidden
from halfbyte.planning.plan import Apply, Create, Delete
from halfbyte.planning.snapshot import Snapshot
from support.fake_gateway import FakeGateway
from support.manifests import a_job, a_model

HASH = "halfbyte.dev/manifest-hash"


def config_map(name: str, digest: str | None = "h1") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "models"}
    if digest is not None:
        metadata["annotations"] = {HASH: digest}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def snapshot(gateway: FakeGateway) -> Snapshot:
    live = gateway.put(config_map("live"))
    return Snapshot(
        model=facts.model_object(gateway.put(a_model())),
        config_maps={"live": facts.object_fact(live)},
        service={"metadata": {"name": "tiny", "annotations": {HASH: "s1"}}},
    )


async def test_an_apply_whose_hash_is_live_is_not_sent(gateway: FakeGateway, snapshot: Snapshot) -> None:
    metadata = {"name": "tiny", "annotations": {HASH: "s1"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
    written = await Executor(gateway).run((Apply(config_map("live")), Apply(service)), snapshot)
    assert written == 0
    assert gateway.writes == []


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(config_map("live", "h2"), id="other hash"),
        pytest.param(config_map("live", None), id="no hash"),
        pytest.param(config_map("new"), id="not there"),
    ],
)
async def test_everything_else_is_applied(
    gateway: FakeGateway, snapshot: Snapshot, manifest: dict[str, Any]
) -> None:
    assert await Executor(gateway).run((Apply(manifest),), snapshot) == 1
    assert gateway.writes == [("apply", "configmaps", manifest["metadata"]["name"])]


async def test_a_repair_applies_live_hashes_too(gateway: FakeGateway, snapshot: Snapshot) -> None:
    assert await Executor(gateway).run((Apply(config_map("live")),), snapshot, repair=True) == 1


async def test_a_repair_passes_over_what_is_as_this_process_left_it(gateway: FakeGateway) -> None:
    model = facts.model_object(gateway.put(a_model()))
    executor, apply = Executor(gateway), Apply(a_deployment())
    assert await executor.run((apply,), Snapshot(model=model)) == 1

    def seen(**changes: Any) -> Snapshot:
        raw = gateway.find(resources.DEPLOYMENTS, "tiny-r1")
        raw["metadata"].update(changes)
        return Snapshot(model=model, deployments=(facts.deployment_fact(raw),))

    generation = gateway.find(resources.DEPLOYMENTS, "tiny-r1")["metadata"]["generation"]
    ours = {HASH: "d1"}
    assert await executor.run((apply,), seen(), repair=True) == 0
    status = {"annotations": {**ours, "deployment.kubernetes.io/revision": "1"}, "resourceVersion": "999"}
    assert await executor.run((apply,), seen(**status), repair=True) == 0
    assert await executor.run((apply,), seen(generation=generation + 1), repair=True) == 1
    assert await executor.run((apply,), seen(annotations={**ours, "x": "y"}), repair=True) == 1
    executor.forget(("models", "tiny"))
    assert await executor.run((apply,), seen(), repair=True) == 1
    restarted = Executor(gateway)
    assert await restarted.run((apply,), seen(), repair=True) == 1


def a_deployment() -> dict[str, Any]:
    metadata = {"name": "tiny-r1", "namespace": "models", "annotations": {HASH: "d1"}}
    containers = [{"name": "server", "image": "i"}]
    spec = {"replicas": 1, "template": {"spec": {"containers": containers}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def test_creating_what_exists_is_a_success(gateway: FakeGateway, snapshot: Snapshot) -> None:
    await Executor(gateway).run((Create(config_map("live")), Create(config_map("new"))), snapshot)
    assert gateway.writes == [("create", "configmaps", "new")]


async def test_another_conflict_of_a_creation_is_a_failure(gateway: FakeGateway, snapshot: Snapshot) -> None:
    gateway.errors["create", "configmaps"] = Conflict(409, "Conflict", "the namespace is being deleted")
    with pytest.raises(ActionFailed, match="create ConfigMap new: the namespace is being deleted"):
        await Executor(gateway).run((Create(config_map("new")),), snapshot)


async def test_deleting_needs_the_uid_and_a_missing_object_is_a_success(
    gateway: FakeGateway, snapshot: Snapshot
) -> None:
    job = gateway.put(a_job("j", gateway.find(resources.MODELS, "tiny"), "inspect"))
    actions = (
        Delete("batch/v1", "Job", "j", "another-uid"),
        Delete("batch/v1", "Job", "gone", "some-uid"),
    )
    await Executor(gateway).run(actions, snapshot)
    assert gateway.writes == []
    await Executor(gateway).run((Delete("batch/v1", "Job", "j", job["metadata"]["uid"]),), snapshot)
    assert gateway.writes == [("delete", "jobs", "j")]


async def test_the_first_failure_stops_the_rest(gateway: FakeGateway, snapshot: Snapshot) -> None:
    gateway.errors["create", "jobs"] = Forbidden(403, "Forbidden", "exceeded quota: count/jobs.batch=0")
    job = a_job("j", gateway.find(resources.MODELS, "tiny"), "inspect")
    with pytest.raises(ActionFailed) as caught:
        await Executor(gateway).run((Create(job), Create(config_map("later"))), snapshot)
    assert "exceeded quota" in str(caught.value)
    assert not caught.value.error.transient
    assert gateway.writes == []


async def test_an_unknown_kind_is_a_bug_and_says_so(gateway: FakeGateway, snapshot: Snapshot) -> None:
    with pytest.raises(LookupError, match="v1 Sofa is not a kind"):
        await Executor(gateway).run((Delete("v1", "Sofa", "s", "u"),), snapshot)


async def test_a_status_is_written_only_when_it_differs(gateway: FakeGateway, snapshot: Snapshot) -> None:
    status = {"observedGeneration": 1, "conditions": []}
    executor = Executor(gateway)
    assert await executor.apply_status(snapshot.model, status)
    live = facts.model_object(gateway.find(resources.MODELS, "tiny"))
    assert live.status == status
    assert not await executor.apply_status(live, dict(status))
    assert gateway.writes == [("apply", "quantizedmodels/status", "tiny")]


async def test_a_status_never_reaches_a_model_of_the_same_name(
    gateway: FakeGateway, snapshot: Snapshot
) -> None:
    gateway.put(a_model(uid="the-next-one"))
    with pytest.raises(Conflict):
        await Executor(gateway).apply_status(snapshot.model, {"observedGeneration": 1})


def test_actions_are_described_in_words() -> None:
    assert describe(Create(config_map("a"))) == "create ConfigMap a"
    assert describe(Apply(config_map("a"))) == "apply ConfigMap a"
    assert describe(Delete("batch/v1", "Job", "j", "u")) == "delete Job j"


@pytest.mark.parametrize(
    ("status", "transient"), [(0, True), (429, True), (500, True), (503, True), (403, False), (422, False)]
)
def test_which_errors_pass_by_themselves(status: int, transient: bool) -> None:
    assert ApiError(status, "", "").transient is transient
