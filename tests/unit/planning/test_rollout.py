"""Revisions: how one takes over from another, how it fails, and what never happens in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfbyte.api import labels
from halfbyte.planning.pipeline import plan
from halfbyte.planning.plan import Apply, Create, Delete
from halfbyte.planning.snapshot import PodFact, ResourceAmounts
from support.kstatus import assert_kstatus
from support.models import GIB, model, node, spec, worker_pod
from support.simulated_cluster import SimulatedCluster

CPU = {"accelerator": {"type": "cpu"}, "maxModelLen": 2048}
FULL = ResourceAmounts(2000, 22 * GIB, 0)


def serving(**fields: Any) -> dict[str, Any]:
    return spec(serving={**CPU, **fields})


def rollout(strategy: str = "Auto", **fields: Any) -> dict[str, Any]:
    return spec(serving={**CPU, **fields}, rollout={"strategy": strategy})


def served(raw: dict[str, Any] | None = None) -> SimulatedCluster:
    cluster = SimulatedCluster(model(raw))
    cluster.until_ready()
    return cluster


def reason(cluster: SimulatedCluster) -> str:
    return str(cluster.condition("Ready")["reason"])


def other_revision(cluster: SimulatedCluster) -> str:
    (found,) = (
        name
        for name, each in cluster.deployments.items()
        if each.labels[labels.REVISION] != cluster.selected()
    )
    return found


class TestTakingOver:
    def test_the_old_revision_serves_until_the_new_one_is_ready(self) -> None:
        cluster = served(serving())
        old = cluster.selected()
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        assert reason(cluster) == "RollingOut"
        assert len(cluster.deployments) == 2
        assert cluster.model.status["serving"]["targetRevision"] != old
        cluster.start_pods()
        cluster.reconcile()
        assert cluster.selected() != old
        assert len(cluster.deployments) == 2
        cluster.reconcile()
        assert len(cluster.deployments) == 1
        assert reason(cluster) == "RollingOut"
        cluster.start_pods()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        entry = cluster.model.status["history"][0]
        assert entry["revision"] == old
        assert entry["servedUntil"] == cluster.model.status["serving"]["servedFrom"]

    def test_ready_waits_for_the_last_old_pod(self) -> None:
        cluster = served(serving())
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        cluster.start_pods()
        old = cluster.pods[f"smollm2-{cluster.selected()}"]
        cluster.reconcile()
        cluster.reconcile()
        cluster.start_pods()
        cluster.pods["lingering"] = old
        cluster.reconcile()
        assert reason(cluster) == "RollingOut"
        assert "last pods" in cluster.condition("Ready")["message"]
        del cluster.pods["lingering"]
        cluster.reconcile()
        assert reason(cluster) == "Serving"

    def test_going_back_in_the_middle_keeps_what_serves(self) -> None:
        cluster = served(serving())
        old = cluster.selected()
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        cluster.change(serving())
        cluster.reconcile()
        assert cluster.selected() == old
        assert cluster.serving_capacity() == 1
        cluster.start_pods()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert list(cluster.deployments) == [f"smollm2-{old}"]

    def test_an_abandoned_rollout_is_removed_while_the_next_is_prepared(self) -> None:
        cluster = served(serving())
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        abandoned = other_revision(cluster)
        cluster.change(spec(quantization={"method": "GPTQ", "groupSize": 64}, serving=CPU))
        cluster.reconcile()
        assert reason(cluster) == "Quantizing"
        assert abandoned not in cluster.deployments
        assert cluster.serving_capacity() == 1

    def test_a_new_request_to_look_again_touches_no_server(self) -> None:
        cluster = served(serving())
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        running = dict(cluster.deployments)
        cluster.annotate(requested_at="again")
        cluster.reconcile()
        assert reason(cluster) == "Inspecting"
        assert cluster.deployments == running

    def test_replicas_are_scaled_in_place(self) -> None:
        cluster = served(serving())
        revision = cluster.selected()
        cluster.change(serving(replicas=3))
        cluster.reconcile()
        assert cluster.deployments[f"smollm2-{revision}"].replicas == 3
        cluster.reconcile()
        assert reason(cluster) == "Scaling"
        assert cluster.condition("Ready")["message"] == "1 of 3 replicas answer"
        assert_kstatus(cluster.model.status, cluster.model.generation)
        cluster.start_pods()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.selected() == revision
        assert cluster.model.status["serving"]["readiness"] == "3/3"

    def test_zero_replicas_are_what_was_asked_for(self) -> None:
        cluster = served(serving())
        cluster.change(serving(replicas=0))
        for _ in range(3):
            cluster.reconcile()
            cluster.start_pods()
        assert cluster.condition("Ready")["status"] == "True"
        assert reason(cluster) == "ScaledToZero"

    def test_an_autoscaler_owns_replicas(self) -> None:
        cluster = served(serving())
        cluster.autoscaled = True
        name = next(iter(cluster.deployments))
        cluster.deployments[name] = replace(cluster.deployments[name], replicas=4)
        cluster.reconcile()
        applied = [each.manifest for each in cluster.last.actions if isinstance(each, Apply)]
        deployments = [each for each in applied if each["kind"] == "Deployment"]
        assert all("replicas" not in each["spec"] for each in deployments)
        cluster.start_pods()
        cluster.reconcile()
        assert cluster.condition("Ready")["message"].startswith("4 of 4 replicas")

    def test_a_lost_service_is_made_again(self) -> None:
        cluster = served(serving())
        revision = cluster.selected()
        cluster.service = None
        cluster.until_ready()
        assert cluster.selected() == revision

    @pytest.mark.parametrize("text", ["yesterday", "2026-11-30T16:00:00", "9999-01-01T00:00:00+00:00", ""])
    def test_a_time_that_somebody_else_wrote_delays_nothing(self, text: str) -> None:
        cluster = served(serving())
        assert cluster.service is not None
        cluster.service["metadata"]["annotations"][labels.ACTIVATED] = text
        cluster.deployments = {
            name: replace(each, annotations={**each.annotations, labels.STARTED: text})
            for name, each in cluster.deployments.items()
        }
        cluster.reconcile()
        assert reason(cluster) == "Serving"

    def test_lost_annotations_orphan_nothing(self) -> None:
        cluster = served(serving())
        revision = cluster.selected()
        cluster.deployments = {
            name: replace(each, annotations={}) for name, each in cluster.deployments.items()
        }
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.selected() == revision
        cluster.deployments = {
            name: replace(each, annotations={**each.annotations, labels.RENDERED: "[]", labels.FAILED: "{"})
            for name, each in cluster.deployments.items()
        }
        cluster.until_ready()
        assert cluster.selected() == revision


class TestStrategy:
    def test_surge_where_there_is_room(self) -> None:
        cluster = served(serving())
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        assert "Surge: 1 x 4.69 GiB memory, 250m CPU fit" in cluster.condition("Ready")["message"]

    def test_replace_where_there_is_none(self) -> None:
        cluster = served(serving())
        old = f"smollm2-{cluster.selected()}"
        cluster.nodes = (node(requested=FULL),)
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        assert "Replace: 1 x 4.69 GiB memory, 250m CPU do not fit" in cluster.condition("Ready")["message"]
        assert cluster.deployments[old].replicas == 0
        cluster.start_pods()
        cluster.reconcile()
        assert (
            cluster.selected() == cluster.deployments[other_revision_or_self(cluster)].labels[labels.REVISION]
        )

    def test_replace_lets_the_old_gpu_go(self) -> None:
        accelerator = {"type": "nvidia", "perReplica": 1, "memory": "80Gi"}
        cluster = SimulatedCluster(model(spec(serving={"accelerator": accelerator, "maxModelLen": 2048})))
        cluster.nodes = (node(allocatable=ResourceAmounts(8000, 100 * GIB, 1)),)
        cluster.until_ready()
        cluster.nodes = (
            node(allocatable=ResourceAmounts(8000, 100 * GIB, 1), requested=ResourceAmounts(1000, GIB, 1)),
        )
        cluster.change(spec(serving={"accelerator": accelerator, "maxModelLen": 1024}))
        cluster.reconcile()
        assert "Replace: 1 x 1 GPUs" in cluster.condition("Ready")["message"]

    def test_unknown_nodes_never_end_what_serves(self) -> None:
        cluster = served(serving())
        cluster.nodes = None
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        assert "Surge: what is free is unknown" in cluster.condition("Ready")["message"]
        assert cluster.serving_capacity() == 1

    @pytest.mark.parametrize("strategy", ["Surge", "Replace"])
    def test_the_spec_decides(self, strategy: str) -> None:
        cluster = served(rollout(strategy))
        cluster.change(rollout(strategy, maxModelLen=1024))
        cluster.reconcile()
        assert f"{strategy}: as spec.rollout.strategy says" in cluster.condition("Ready")["message"]

    def test_is_decided_once(self) -> None:
        cluster = served(serving())
        cluster.change(serving(maxModelLen=1024))
        cluster.reconcile()
        cluster.nodes = (node(requested=FULL),)
        cluster.reconcile()
        assert "Surge" in cluster.condition("Ready")["message"]
        assert cluster.serving_capacity() == 1


def other_revision_or_self(cluster: SimulatedCluster) -> str:
    return max(cluster.deployments, key=lambda name: cluster.deployments[name].replicas)


class TestRollingBack:
    def failing(self, strategy: str = "Surge") -> tuple[SimulatedCluster, str]:
        cluster = served(rollout(strategy))
        old = cluster.selected()
        assert old
        cluster.change(rollout(strategy, maxModelLen=1024))
        cluster.reconcile()
        cluster.deployments = {
            name: each if each.labels[labels.REVISION] == old else replace(each, replicas=1, ready_replicas=0)
            for name, each in cluster.deployments.items()
        }
        return cluster, old

    def crash(self, cluster: SimulatedCluster, old: str) -> None:
        for name, each in cluster.deployments.items():
            if each.labels[labels.REVISION] != old:
                text = "Traceback\n  ...\nRuntimeError: no kernel for this\n"
                pod = next(iter(cluster.pods.get(name, ())), None)
                crashed = worker_pod(
                    name,
                    reason="CrashLoopBackOff",
                    exit_code=1,
                    restarts=5,
                    termination_message=text,
                    labels=each.labels,
                )
                assert pod is None or not pod.ready
                cluster.pods[name] = (crashed,)

    def test_a_revision_that_is_not_ready_in_time_ends_and_the_last_good_one_serves(self) -> None:
        cluster, old = self.failing()
        self.crash(cluster, old)
        cluster.reconcile()
        assert "RuntimeError: no kernel for this" in cluster.condition("Ready")["message"]
        assert_kstatus(cluster.model.status, cluster.model.generation)
        cluster.reconcile(seconds=2000)
        for _ in range(3):
            assert reason(cluster) == "RolloutFailed"
            assert cluster.condition("Stalled")["status"] == "True"
            assert "RuntimeError: no kernel for this" in cluster.condition("Ready")["message"]
            assert cluster.selected() == old
            assert cluster.condition("Available")["status"] == "True"
            assert cluster.deployments[other_revision(cluster)].replicas == 0
            assert_kstatus(cluster.model.status, cluster.model.generation)
            cluster.pods.pop(other_revision(cluster), None)
            cluster.reconcile(seconds=300)

    def test_after_replace_the_old_revision_comes_back(self) -> None:
        cluster, old = self.failing("Replace")
        assert cluster.deployments[f"smollm2-{old}"].replicas == 0
        cluster.reconcile(seconds=2000)
        assert cluster.deployments[f"smollm2-{old}"].replicas == 1
        cluster.start_pods()
        cluster.reconcile()
        assert reason(cluster) == "RolloutFailed"
        assert cluster.condition("Available")["status"] == "True"

    def test_after_replace_an_autoscaled_revision_comes_back_too(self) -> None:
        cluster, old = self.failing("Replace")
        cluster.autoscaled = True
        cluster.reconcile(seconds=2000)
        assert cluster.deployments[f"smollm2-{old}"].replicas == 1

    @pytest.mark.parametrize("lost", [False, True])
    def test_the_failure_outlives_status_and_ends_with_a_new_request(self, lost: bool) -> None:
        cluster, old = self.failing()
        cluster.reconcile(seconds=2000)
        if lost:
            cluster.lose_status()
        cluster.reconcile()
        assert reason(cluster) == "RolloutFailed"
        cluster.annotate(requested_at="again")
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        assert reason(cluster) == "RollingOut"
        cluster.until_ready()
        assert cluster.selected() != old

    def test_a_fixed_spec_removes_the_failed_revision(self) -> None:
        cluster, old = self.failing()
        cluster.reconcile(seconds=2000)
        cluster.change(rollout("Surge"))
        cluster.reconcile()
        cluster.start_pods()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.selected() == old
        assert len(cluster.deployments) == 1

    def test_a_first_revision_is_left_running_and_may_still_come_up(self) -> None:
        cluster = SimulatedCluster(model(serving()))
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.start_pods(ready=False)
        cluster.reconcile(seconds=2000)
        assert reason(cluster) == "RolloutFailed"
        assert "do not answer /v1/models" in cluster.condition("Ready")["message"]
        assert_kstatus(cluster.model.status, 1)
        (only,) = cluster.deployments.values()
        assert only.replicas == 1
        cluster.until_ready()

    def test_a_surge_that_finds_no_room_after_all_names_the_way_out(self) -> None:
        cluster, old = self.failing()
        for name, each in cluster.deployments.items():
            if each.labels[labels.REVISION] != old:
                words = "0/1 nodes are available: 1 Insufficient memory."
                pod = PodFact(name, "Pending", reason="Unschedulable", message=words, labels=each.labels)
                cluster.pods[name] = (pod,)
        cluster.reconcile()
        assert reason(cluster) == "Unschedulable"
        assert_kstatus(cluster.model.status, cluster.model.generation)
        cluster.reconcile(seconds=2000)
        assert reason(cluster) == "RolloutFailed"
        assert "Insufficient memory" in cluster.condition("Ready")["message"]
        assert "spec.rollout.strategy to Replace" in cluster.condition("Ready")["message"]

    def test_the_deadline_may_be_given(self) -> None:
        raw = spec(serving=CPU, rollout={"progressDeadline": 60})
        cluster = SimulatedCluster(model(raw))
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.start_pods(ready=False)
        cluster.reconcile(seconds=30)
        assert reason(cluster) == "RollingOut"
        cluster.reconcile(seconds=40)
        assert "within 60 s" in cluster.condition("Ready")["message"]


class TestWhatServesBreaks:
    def test_a_pod_that_stops_answering_is_not_taken_for_one_that_starts(self) -> None:
        cluster = served(serving())
        cluster.start_pods(ready=False, created=cluster.now)
        cluster.reconcile()
        assert reason(cluster) == "Scaling"
        cluster.reconcile(seconds=3600)
        assert reason(cluster) == "ReplicasUnavailable"
        assert cluster.condition("Ready")["message"] == "0 of 1 replicas answer"

    def test_ready_falls_when_pods_crash_later(self) -> None:
        cluster = served(serving())
        cluster.start_pods(ready=False, restarts=3, exit_code=137, reason="OOMKilled", termination_message="")
        cluster.reconcile()
        assert_kstatus(cluster.model.status, cluster.model.generation)
        assert reason(cluster) == "ReplicasUnavailable"
        assert "restarted 3 times (exit code 137, OOMKilled)" in cluster.condition("Ready")["message"]
        assert cluster.condition("Available")["status"] == "False"

    def test_a_pod_that_finds_no_node_says_so_in_the_schedulers_words(self) -> None:
        cluster = served(serving())
        words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        cluster.start_pods(ready=False, reason="Unschedulable", message=words)
        cluster.pods = {name: (replace(pods[0], phase="Pending"),) for name, pods in cluster.pods.items()}
        cluster.reconcile()
        assert reason(cluster) == "Unschedulable"
        assert words in cluster.condition("Ready")["message"]

    def test_a_deployment_that_somebody_deleted_comes_back(self) -> None:
        cluster = served(serving())
        revision = cluster.selected()
        cluster.deployments.clear()
        cluster.pods.clear()
        cluster.reconcile()
        assert cluster.condition("Available")["message"] == f"the Deployment of revision {revision} is gone"
        cluster.until_ready()
        assert cluster.selected() == revision

    def test_a_deployment_on_its_way_out_does_not_count(self) -> None:
        cluster = served(serving())
        (name,) = cluster.deployments
        cluster.deployments[name] = replace(cluster.deployments[name], deletion_timestamp=cluster.now)
        cluster.reconcile()
        assert reason(cluster) == "RollingOut"


def test_the_kernel_that_the_server_logged_is_kept_for_its_revision() -> None:
    cluster = served(serving())
    snapshot = replace(cluster.snapshot(), server_log_kernel="HalfbyteInt4LinearKernel")
    told = plan(snapshot, cluster.now, cluster.settings)
    assert told.status["serving"]["kernel"] == "HalfbyteInt4LinearKernel"
    cluster.model = replace(cluster.model, status=told.status)
    cluster.reconcile()
    assert cluster.model.status["serving"]["kernel"] == "HalfbyteInt4LinearKernel"


SPECS = {
    "a": serving(),
    "b": serving(maxModelLen=1024),
    "c": spec(quantization={"method": "GPTQ", "groupSize": 64}, serving=CPU),
    "d": spec(quantization={"method": "W8A8"}, serving={**CPU, "replicas": 2}),
}
MOMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("spec"), st.sampled_from(sorted(SPECS))),
        st.tuples(st.just("ask"), st.sampled_from(["1", "2"])),
        st.tuples(st.just("pass"), st.none()),
        st.tuples(st.just("die"), st.integers(0, 4)),
        st.tuples(st.just("jobs"), st.none()),
        st.tuples(st.just("pods"), st.booleans()),
        st.tuples(st.just("room"), st.booleans()),
        st.tuples(st.just("time"), st.sampled_from([30, 2000])),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=30,
)


def play(cluster: SimulatedCluster, kind: str, value: Any) -> None:
    """One thing that happens to a cluster."""
    if kind == "spec":
        cluster.change(SPECS[value])
    elif kind == "ask":
        cluster.annotate(requested_at=value)
    elif kind in ("pass", "die"):
        cluster.reconcile(die_after=value)
    elif kind == "jobs":
        for job in list(cluster.jobs.values()):
            if not job.condition_type:
                cluster.finish(job.labels[labels.STAGE]) if active(
                    cluster, job.labels[labels.STAGE]
                ) == 1 else None
    elif kind == "pods":
        cluster.start_pods(ready=value)
    elif kind == "room":
        cluster.nodes = (node(requested=ResourceAmounts() if value else FULL),)
    elif kind == "time":
        cluster.reconcile(seconds=value)
    else:
        cluster.lose_status()


def active(cluster: SimulatedCluster, stage: str) -> int:
    return sum(
        1 for each in cluster.jobs.values() if each.labels[labels.STAGE] == stage and not each.condition_type
    )


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(MOMENTS)
def test_whatever_happens_no_job_runs_twice_and_it_ends_ready(moments: list[tuple[str, Any]]) -> None:
    cluster = SimulatedCluster(model(SPECS["a"]))
    for kind, value in moments:
        before = dict(cluster.jobs)
        play(cluster, kind, value)
        made = {
            each.manifest["metadata"]["name"] for each in cluster.last.actions if isinstance(each, Create)
        }
        if kind in ("pass", "die", "time"):
            gone = {each.name for each in cluster.last.actions if isinstance(each, Delete)}
            assert not made & (set(before) - gone - set(cluster.config_maps)), "a Job was asked for twice"
            assert_kstatus(cluster.last.status, cluster.model.generation)
    for stage in ("quantize", "validate", "inspect"):
        assert active(cluster, stage) <= 2
    cluster.nodes = (node(),)
    cluster.annotate(requested_at="at last")
    cluster.until_ready()
    assert cluster.serving_capacity() == cluster.model.raw_spec["serving"].get("replicas", 1)
    done = dict(cluster.model.status)
    cluster.reconcile()
    assert cluster.model.status == done


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(MOMENTS)
def test_surge_never_takes_the_serving_revision_away(moments: list[tuple[str, Any]]) -> None:
    specs = {name: {**each, "rollout": {"strategy": "Surge"}} for name, each in SPECS.items()}
    cluster = SimulatedCluster(model(specs["a"]))
    cluster.until_ready()
    for kind, value in moments:
        if kind == "pods":
            value = True
        if kind == "spec":
            cluster.change(specs[value])
        else:
            play(cluster, kind, value)
        live = {each.labels[labels.REVISION]: each for each in cluster.deployments.values()}
        selected = cluster.selected()
        assert selected in live, "the Service selects a revision without a Deployment"
        assert live[selected].replicas >= 1
        failed = json.loads(live[selected].annotations.get(labels.FAILED, "null"))
        assert failed is None, "a revision that was rolled back serves"
