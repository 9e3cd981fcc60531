"""What the children look like: security, probes, determinism."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from halfbyte.api import labels
from halfbyte.api.spec import Resources
from halfbyte.planning.manifests.job import threads
from halfbyte.planning.manifests.meta import with_hash
from halfbyte.planning.plan import Apply, Create
from halfbyte.planning.settings import JobDefaults, PlanningSettings
from support.models import model, spec
from support.simulated_cluster import SimulatedCluster

PLACEMENT = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}],
}


def children(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every manifest that a model leads to, by kind and stage."""
    cluster = SimulatedCluster(model(raw))
    cluster.nodes = None
    found: dict[str, dict[str, Any]] = {}
    for _ in range(8):
        cluster.reconcile()
        for action in cluster.last.actions:
            if isinstance(action, Create | Apply):
                manifest = dict(action.manifest)
                stage = manifest["metadata"]["labels"].get(labels.STAGE, "")
                found[f"{manifest['kind']} {stage}".strip()] = manifest
        for job in list(cluster.jobs.values()):
            if not job.condition_type:
                cluster.finish(job.labels[labels.STAGE])
        cluster.start_pods()
    return found


SMALL = children(spec(placement=PLACEMENT, storage={"size": "1Gi"}))
PARALLEL = children(
    spec(serving={"accelerator": {"type": "nvidia", "perReplica": 3, "product": "X", "memory": "80Gi"}})
)


def pod_specs(found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for manifest in found.values():
        if manifest["kind"] in ("Job", "Deployment"):
            yield manifest["spec"]["template"]["spec"]


def test_there_is_one_of_each() -> None:
    assert set(SMALL) == {
        "PersistentVolumeClaim",
        *(
            f"{kind} {stage}"
            for kind in ("ConfigMap", "Job")
            for stage in ("inspect", "quantize", "validate")
        ),
        "Deployment serve",
        "Service serve",
    }


def test_every_pod_runs_without_rights() -> None:
    pods = list(pod_specs(SMALL))
    assert len(pods) == 4
    for pod in pods:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 65532
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"requests", "limits"} <= set(container["resources"])


def test_every_pod_inherits_placement() -> None:
    for pod in pod_specs(SMALL):
        for key, value in PLACEMENT.items():
            assert pod[key] == value


def test_every_child_is_labelled_owned_and_hashed() -> None:
    for name, manifest in SMALL.items():
        metadata = manifest["metadata"]
        assert metadata["labels"][labels.MANAGED_BY] == "halfbyte"
        assert metadata["labels"][labels.MODEL] == "smollm2"
        (owner,) = metadata["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("QuantizedModel", "uid-1")
        assert owner["controller"] is ("quantize" not in name)
        assert len(metadata["annotations"][labels.MANIFEST_HASH]) == 16
        assert len(metadata["name"]) <= 63


def test_the_hash_is_of_the_content() -> None:
    manifest = SMALL["Service serve"]
    assert with_hash(manifest) == manifest
    changed = copy.deepcopy(manifest)
    changed["spec"]["ports"][0]["port"] = 81
    key = labels.MANIFEST_HASH
    assert with_hash(changed)["metadata"]["annotations"][key] != manifest["metadata"]["annotations"][key]


def test_jobs_map_exit_codes_and_end_in_time() -> None:
    for stage in ("inspect", "quantize", "validate"):
        job = SMALL[f"Job {stage}"]["spec"]
        ignore, fail = job["podFailurePolicy"]["rules"]
        assert ignore["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert fail["onExitCodes"]["values"] == [2, 20, 30, 40, 50]
        assert (job["backoffLimit"], job["completions"], job["parallelism"]) == (3, 1, 1)
        assert job["podReplacementPolicy"] == "Failed"
        assert job["activeDeadlineSeconds"] >= 1800
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        container = job["template"]["spec"]["containers"][0]
        assert container["command"] == ["halfbyte-worker", stage, "--task", "/halfbyte/task/task.json"]
        mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
        assert mounts == {
            "/halfbyte/task": True,
            "/halfbyte/source": True,
            "/halfbyte/artifacts": False,
            "/tmp": False,
        }


def test_config_maps_are_immutable_and_named_like_their_job() -> None:
    for stage in ("inspect", "quantize", "validate"):
        config_map, job = SMALL[f"ConfigMap {stage}"], SMALL[f"Job {stage}"]
        assert config_map["immutable"] is True
        assert config_map["metadata"]["name"] == job["metadata"]["name"]
        assert json.loads(config_map["data"]["task.json"])["version"] == 1


def test_the_server_is_probed_and_drained() -> None:
    container = SMALL["Deployment serve"]["spec"]["template"]["spec"]["containers"][0]
    assert container["readinessProbe"]["httpGet"] == {"path": "/v1/models", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 120
    grace = SMALL["Deployment serve"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(container["lifecycle"]["preStop"]["exec"]["command"][1]) < grace
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts == {"/halfbyte/artifacts": True, "/tmp": False, "/dev/shm": False}


def test_the_strategy_is_explicit_and_cannot_deadlock() -> None:
    strategy = SMALL["Deployment serve"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


def test_service_and_deployment_meet_in_the_revision() -> None:
    deployment, service = SMALL["Deployment serve"], SMALL["Service serve"]
    pod_labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= pod_labels.items()
        assert labels.REVISION in selector
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}]


def test_parallel_servers_share_memory_and_ask_for_their_gpus() -> None:
    pod = PARALLEL["Deployment serve"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    shared = next(each for each in pod["volumes"] if each["name"] == "shared-memory")
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "3"
    assert container["image"].endswith("-cuda")
    assert "--tensor-parallel-size=3" in container["args"]
    assert "--enforce-eager" not in container["args"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "X"}
    assert "VLLM_CPU_KVCACHE_SPACE" not in {each["name"] for each in container["env"]}


def test_one_rank_on_a_cpu_has_room_for_the_message_queue_of_its_worker() -> None:
    pod = children(spec(serving={"accelerator": {"type": "cpu"}}))["Deployment serve"]["spec"]["template"][
        "spec"
    ]
    shared = next(each for each in pod["volumes"] if each["name"] == "shared-memory")
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}


def test_arguments_of_the_spec_come_last() -> None:
    found = children(spec(serving={"accelerator": {"type": "cpu"}, "extraArgs": ["--seed=1"]}))
    arguments = found["Deployment serve"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-1] == "--seed=1"
    assert arguments[0].startswith("--model=/halfbyte/artifacts/awq-")


@pytest.mark.parametrize(
    ("limit", "default", "count"), [(None, None, 0), ("1500m", None, 2), (None, 4000, 4), ("100m", 4000, 1)]
)
def test_threads_follow_the_cpu_limit(limit: str | None, default: int | None, count: int) -> None:
    resources = Resources.model_validate({"limits": {"cpu": limit}} if limit else {})
    settings = PlanningSettings(jobs=JobDefaults(cpu_limit_millis=default))
    assert threads(resources, settings) == count


def test_a_cpu_limit_of_a_job_is_kept_above_its_request() -> None:
    found = children(spec(quantization={"resources": {"limits": {"cpu": "200m"}}}))
    resources = found["Job quantize"]["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"] == "200m"


def test_claims_may_ask_for_a_mode() -> None:
    found = children(spec(storage={"size": "1Gi", "accessMode": "ReadWriteMany"}))
    assert found["PersistentVolumeClaim"]["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
