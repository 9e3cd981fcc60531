from __future__ import annotations

import json
from typing import Any

import pytest

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Forbidden
from halfbyte.adapters.gather import KERNEL_RETRY_SECONDS, Gatherer
from halfbyte.adapters.inventory import APIS_SECONDS, FORBIDDEN_SECONDS, NODES_SECONDS, Inventory
from halfbyte.planning.snapshot import Snapshot
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway
from support.manifests import a_deployment, a_job, a_model, a_pod, owned_by


class World:
    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.clock = FakeClock()
        self.inventory = Inventory(self.gateway, self.clock)
        self.gatherer = Gatherer(self.gateway, self.inventory, self.clock)
        self.model = self.gateway.put(a_model())

    async def look(self) -> Snapshot:
        snapshot = await self.gatherer.snapshot("models", "tiny")
        assert snapshot is not None
        return snapshot


@pytest.fixture
def world() -> World:
    return World()


async def test_a_model_that_does_not_exist_is_none(world: World) -> None:
    assert await world.gatherer.snapshot("models", "nobody") is None


async def test_children_are_owned_not_just_named(world: World) -> None:
    former = a_model(uid="the-former-model-of-this-name")
    world.gateway.put(a_job("mine", world.model, "inspect"))
    world.gateway.put(a_job("left-over", former, "inspect"))
    world.gateway.put(a_deployment("d-mine", world.model, "r1"))
    world.gateway.put(a_deployment("d-left-over", former, "r0"))
    snapshot = await world.look()
    assert [job.name for job in snapshot.jobs] == ["mine"]
    assert [each.name for each in snapshot.deployments] == ["d-mine"]


async def test_a_quantize_job_is_seen_by_every_model_and_its_pods_by_its_owners(world: World) -> None:
    other = world.gateway.put(a_model("other"))
    shared = a_job("quantize-1", other, "quantize", active=1)
    shared = world.gateway.put(shared)
    pod = a_pod("quantize-1-x", shared, "other", "quantize", phase="Running")
    pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "quantize-1"
    world.gateway.put(pod)

    (job,) = (await world.look()).jobs
    assert job.name == "quantize-1"
    assert job.pods == ()

    shared["metadata"]["ownerReferences"] = owned_by(other, world.model)
    world.gateway.put(shared)
    (job,) = (await world.look()).jobs
    assert [each.name for each in job.pods] == ["quantize-1-x"]


async def test_progress_is_the_last_line_of_the_running_pod(world: World) -> None:
    job = world.gateway.put(a_job("j", world.model, "inspect", active=1))
    world.gateway.put(a_pod("j-1", job, "tiny", "inspect", phase="Failed"))
    world.gateway.put(a_pod("j-2", job, "tiny", "inspect", phase="Running"))
    assert (await world.look()).progress is None
    world.gateway.logs["models", "j-2"] = json.dumps({"event": "progress", "done": 3, "total": 30})
    assert (await world.look()).progress == {"event": "progress", "done": 3, "total": 30}


async def test_a_finished_job_has_no_progress(world: World) -> None:
    job = world.gateway.put(a_job("j", world.model, "inspect", succeeded=1))
    world.gateway.put(a_pod("j-1", job, "tiny", "inspect", phase="Running"))
    world.gateway.logs["models", "j-1"] = json.dumps({"event": "progress", "done": 3})
    assert (await world.look()).progress is None


async def test_claims_and_secrets_are_looked_up_by_name(world: World) -> None:
    world.gateway.put(
        a_model(
            source={"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hf", "key": "token"}}},
            placement={"imagePullSecrets": [{"name": "pull"}]},
        )
    )
    world.gateway.put(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "artifacts", "namespace": "models"},
            "status": {"phase": "Bound"},
        }
    )
    world.gateway.put(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hf", "namespace": "models"},
            "data": {"token": "c2VjcmV0"},
        }
    )
    snapshot = await world.look()
    assert set(snapshot.claims) == {"artifacts"}
    assert snapshot.secrets["hf"] == {"token"}
    assert "c2VjcmV0" not in repr(snapshot)
    del world.gateway.objects["secrets", "models", "hf"]
    assert (await world.look()).secrets == {"hf": None}


async def test_a_secret_that_may_not_be_read_is_unknown_not_missing(world: World) -> None:
    world.gateway.put(
        a_model(source={"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hf", "key": "token"}}})
    )
    world.gateway.errors["get", "secrets"] = Forbidden(403, "Forbidden", "no")
    assert (await world.look()).secrets == {}


async def test_a_part_that_cannot_be_read_fails_the_whole(world: World) -> None:
    world.gateway.errors["list", "jobs"] = ApiError(503, "ServiceUnavailable", "busy")
    with pytest.raises(ApiError, match="busy"):
        await world.look()


async def test_the_kernel_is_read_once_a_pod(world: World) -> None:
    world.gateway.put(a_deployment("tiny-r1", world.model, "r1"))
    pod = a_pod("tiny-r1-x", world.model, "tiny", "serve", conditions=[{"type": "Ready", "status": "True"}])
    pod["metadata"]["labels"]["halfbyte.dev/revision"] = "r1"
    world.gateway.put(pod)
    assert (await world.look()).server_log_kernel is None
    world.gateway.logs["models", "tiny-r1-x"] = "halfbyte-kernels: kernel=K reason=r"
    assert (await world.look()).server_log_kernel is None, "not asked again at once"
    world.clock.advance(KERNEL_RETRY_SECONDS)
    assert (await world.look()).server_log_kernel == "K"
    del world.gateway.logs["models", "tiny-r1-x"]
    assert (await world.look()).server_log_kernel == "K"


async def test_an_autoscaler_of_the_deployment_is_noticed(world: World) -> None:
    world.gateway.put(a_deployment("tiny-r1", world.model, "r1"))
    assert not (await world.look()).autoscaled
    world.gateway.put(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "namespace": "models"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "tiny-r1"}},
        }
    )
    assert (await world.look()).autoscaled
    world.gateway.errors["list", "horizontalpodautoscalers"] = Forbidden(403, "Forbidden", "no")
    assert not (await world.look()).autoscaled


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}},
    }


async def test_nodes_are_remembered_for_a_short_while(world: World) -> None:
    world.gateway.put(node("n1"))
    bound = a_pod("p", world.model, "other", "x")
    bound["spec"] = {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    world.gateway.put(bound)
    (first,) = await world.inventory.nodes() or ()
    assert first.requested.cpu_millis == 1000
    world.gateway.put(node("n2"))
    assert len(await world.inventory.nodes() or ()) == 1
    world.clock.advance(NODES_SECONDS)
    assert len(await world.inventory.nodes() or ()) == 2


async def test_nodes_that_may_not_be_listed_are_unknown(world: World) -> None:
    world.gateway.put(node("n1"))
    world.gateway.errors["list", "nodes"] = Forbidden(403, "Forbidden", "no")
    assert (await world.look()).nodes is None
    world.gateway.errors.clear()
    assert await world.inventory.nodes() is None
    world.clock.advance(FORBIDDEN_SECONDS)
    assert len(await world.inventory.nodes() or ()) == 1


async def test_optional_apis_are_discovered_and_looked_at_again(world: World) -> None:
    def groups(*kinds: str) -> dict[str, Any]:
        return {
            "items": [
                {
                    "metadata": {"name": kind.split("/")[0]},
                    "versions": [
                        {"resources": [{"responseKind": {"kind": kind.split("/")[1]}}, {"resource": "x"}]}
                    ],
                }
                for kind in kinds
            ]
        }

    world.gateway.apis["/apis"] = groups("keda.sh/ScaledObject", "apps/Deployment")
    assert await world.inventory.optional_apis() == {"keda.sh/ScaledObject"}
    world.gateway.apis["/apis"] = groups("monitoring.coreos.com/PodMonitor")
    assert await world.inventory.optional_apis() == {"keda.sh/ScaledObject"}
    world.clock.advance(APIS_SECONDS)
    assert await world.inventory.optional_apis() == {"monitoring.coreos.com/PodMonitor"}
    world.gateway.errors["raw", "/apis"] = ApiError(503, "", "busy")
    world.clock.advance(APIS_SECONDS)
    assert await world.inventory.optional_apis() == frozenset()
    assert resources.NODES.namespaced is False
