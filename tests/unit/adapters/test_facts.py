from __future__ import annotations

from typing import Any

import pytest

from halfbyte.adapters import facts
from halfbyte.planning.snapshot import ResourceAmounts
from support.manifests import a_deployment, a_job, a_model, a_pod


def raw_pod(**status: Any) -> dict[str, Any]:
    pod = a_pod("p", a_model(uid="u"), "tiny", "inspect", **status)
    pod["metadata"]["uid"] = "pod-uid"
    return pod


WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": ""}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient memory.",
}


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        pytest.param({"phase": "Running"}, None, None, id="runs"),
        pytest.param(
            {"containerStatuses": [{"state": WAITING}]}, "ImagePullBackOff", "no such image", id="waits"
        ),
        pytest.param(
            {
                "initContainerStatuses": [{"state": WAITING}],
                "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "ImagePullBackOff",
            "no such image",
            id="init container waits",
        ),
        pytest.param(
            {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            None,
            None,
            id="just starting explains nothing",
        ),
        pytest.param({"containerStatuses": [{"state": KILLED}]}, "OOMKilled", "", id="killed"),
        pytest.param(
            {"containerStatuses": [{"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]},
            None,
            None,
            id="completed",
        ),
        pytest.param(
            {"reason": "Evicted", "message": "low on memory"}, "Evicted", "low on memory", id="evicted"
        ),
        pytest.param(
            {"conditions": [UNSCHEDULABLE]}, "Unschedulable", UNSCHEDULABLE["message"], id="unschedulable"
        ),
    ],
)
def test_the_most_specific_reason_of_a_pod_is_told(
    status: dict[str, Any], reason: str | None, message: str | None
) -> None:
    pod = facts.pod_fact(raw_pod(**status))
    assert (pod.reason, pod.message) == (reason, message)


def test_the_result_of_a_restarted_container_is_read_from_its_last_state() -> None:
    ended = {"terminated": {"exitCode": 10, "message": '{"ok": false}'}}
    pod = facts.pod_fact(
        raw_pod(containerStatuses=[{"state": {"running": {}}, "lastState": ended, "restartCount": 2}])
    )
    assert (pod.exit_code, pod.termination_message, pod.restarts) == (10, '{"ok": false}', 2)


def test_the_memory_limit_is_the_main_containers() -> None:
    raw = raw_pod()
    limited = {"name": "worker", "resources": {"limits": {"memory": "1900Mi"}}}
    raw["spec"] = {"containers": [limited, {"name": "sidecar"}]}
    assert facts.pod_fact(raw).memory_limit == "1900Mi"
    assert facts.pod_fact({**raw, "spec": {}}).memory_limit is None


@pytest.mark.parametrize("status", ["True", "False"])
def test_a_ready_pod_is_known_by_its_condition(status: str) -> None:
    conditions = [{"type": "DisruptionTarget", "status": "True"}, {"type": "Ready", "status": status}]
    assert facts.pod_fact(raw_pod(conditions=conditions)).ready == (status == "True")


@pytest.mark.parametrize("early", ["SuccessCriteriaMet", "FailureTarget"])
def test_a_job_is_only_over_by_a_terminal_condition(early: str) -> None:
    owner = a_model(uid="u")
    job = a_job("j", owner, "inspect", active=1, conditions=[{"type": early, "status": "True"}])
    job["metadata"]["uid"] = "job"
    assert facts.job_fact(job, []).condition_type is None
    job["status"]["conditions"].append(
        {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 20"}
    )
    fact = facts.job_fact(job, [])
    assert (fact.condition_type, fact.condition_reason) == ("Failed", "PodFailurePolicy")
    assert fact.owner_uids == {"u"}


def test_a_deployment_without_status_counts_nothing() -> None:
    raw = a_deployment("d", a_model(uid="u"), "r1")
    raw["metadata"]["uid"] = "d-uid"
    fact = facts.deployment_fact(raw)
    assert (fact.replicas, fact.ready_replicas, fact.observed_generation) == (1, 0, 0)
    assert fact.arguments == ("--model", "m")


def test_a_pod_requests_the_larger_of_its_start_and_its_run() -> None:
    pod = {
        "spec": {
            "initContainers": [
                {"resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            ],
            "containers": [
                {"resources": {"requests": {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "2"}}},
                {"resources": {"requests": {"cpu": "500m"}}},
                {},
            ],
            "overhead": {"memory": "64Mi"},
        }
    }
    assert facts.pod_requests(pod) == ResourceAmounts(3000, 2 * 2**30 + 64 * 2**20, 2)


def test_a_node_sums_what_its_pods_request() -> None:
    node = {
        "metadata": {"name": "n", "labels": {"gpu": "yes"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "4"},
        },
    }
    pod = {"spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "nvidia.com/gpu": "1"}}}]}}
    fact = facts.node_fact(node, [pod, pod])
    assert fact.ready
    assert fact.unschedulable
    assert fact.taints[0].key == "k"
    assert fact.allocatable == ResourceAmounts(2000, 8 * 2**30, 4)
    assert fact.requested == ResourceAmounts(500, 0, 2)


@pytest.mark.parametrize(
    ("log", "done"),
    [
        pytest.param("", None, id="empty"),
        pytest.param("Loading\n{broken", None, id="no progress"),
        pytest.param('{"event":"progress","done":1}\n{"event":"progress","done":2}\nbye', 2, id="the last"),
        pytest.param('{"event":"progress","done":1}\n{"event":"progress","do', 1, id="cut off"),
        pytest.param('{"event":"done","message":"no \\"progress\\" here"}', None, id="only mentioned"),
        pytest.param('["progress"]', None, id="not an object"),
    ],
)
def test_the_last_whole_progress_line_counts(log: str, done: int | None) -> None:
    found = facts.last_progress(log)
    assert (found or {}).get("done") == done


def test_the_kernel_is_found_in_the_servers_log() -> None:
    log = "INFO x\n(EngineCore) halfbyte-kernels: kernel=HalfbyteWNA16 reason=avx2 only\n"
    assert facts.logged_kernel(log) == "HalfbyteWNA16"
    own = "INFO Selected CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8"
    assert facts.logged_kernel(own) == "CPUInt8ScaledMMLinearKernel"
    assert facts.logged_kernel(f"{own}\n{log}") == "HalfbyteWNA16"
    assert facts.logged_kernel("INFO Using max model len 2048") is None


def test_of_a_secret_only_the_names_of_keys_are_kept() -> None:
    assert facts.secret_keys({"data": {"token": "aGZfc2VjcmV0"}}) == {"token"}
    assert facts.secret_keys({}) == frozenset()


def test_a_claim_without_a_volume_has_no_capacity() -> None:
    raw = {"metadata": {"name": "c", "uid": "u"}, "spec": {}}
    pending = facts.claim_fact(raw)
    assert (pending.phase, pending.capacity_bytes) == ("Pending", None)
    bound = facts.claim_fact({**raw, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}})
    assert (bound.phase, bound.capacity_bytes) == ("Bound", 2**30)


def test_only_our_kind_owns_a_child() -> None:
    raw = {
        "metadata": {
            "ownerReferences": [
                {"apiVersion": "halfbyte.dev/v1alpha1", "kind": "QuantizedModel", "name": "a", "uid": "1"},
                {"apiVersion": "halfbyte.dev/v1", "kind": "QuantizedModel", "name": "b", "uid": "2"},
                {"apiVersion": "other.dev/v1", "kind": "QuantizedModel", "name": "c", "uid": "3"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "d", "uid": "4"},
            ]
        }
    }
    assert facts.owner_models(raw) == ("a", "b")
    assert facts.owner_uids(raw) == {"1", "2", "3", "4"}


def test_only_autoscaled_deployments_are_named() -> None:
    autoscalers = [
        {"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}}},
        {"spec": {"scaleTargetRef": {"kind": "QuantizedModel", "name": "q"}}},
        {},
    ]
    assert facts.scaled_deployments(autoscalers) == {"d"}
