"""The whole flow, pass by pass, on a simulated cluster; every status is held against the kstatus rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from halfbyte.api import labels
from halfbyte.planning.pipeline import plan, report_failure
from halfbyte.planning.plan import Apply, Create, Delete
from halfbyte.planning.settings import Images
from halfbyte.planning.snapshot import ResourceAmounts
from support.kstatus import assert_kstatus
from support.models import (
    NOW,
    SETTINGS,
    artifact_result,
    claim,
    evidence_result,
    facts,
    large_facts,
    model,
    node,
    spec,
    words,
    worker_pod,
)
from support.simulated_cluster import SimulatedCluster

AWQ = {"method": "AWQ", "bits": 4, "groupSize": 64}
GPTQ = {"method": "GPTQ", "bits": 4, "groupSize": 64, "symmetric": True}


def reason(cluster: SimulatedCluster) -> str:
    return str(cluster.condition("Ready")["reason"])


def check(cluster: SimulatedCluster) -> None:
    assert_kstatus(cluster.model.status, cluster.model.generation)


def served(**fields: Any) -> SimulatedCluster:
    cluster = SimulatedCluster(model(**fields))
    cluster.until_ready()
    return cluster


def writes(cluster: SimulatedCluster) -> list[Any]:
    """Actions that would change something: an apply whose hash is live already would not be sent."""
    live = {each.annotations.get(labels.MANIFEST_HASH) for each in cluster.deployments.values()}
    if cluster.service:
        live.add(cluster.service["metadata"]["annotations"][labels.MANIFEST_HASH])
    return [
        each
        for each in cluster.last.actions
        if not (
            isinstance(each, Apply)
            and each.manifest["metadata"].get("annotations", {}).get(labels.MANIFEST_HASH) in live
        )
    ]


class TestTheFlow:
    def test_reads_well_from_nothing_to_serving(self) -> None:
        cluster = SimulatedCluster()
        seen = []
        for _ in range(12):
            cluster.reconcile()
            check(cluster)
            seen.append(reason(cluster))
            if seen[-1] == "Serving":
                break
            for job in list(cluster.jobs.values()):
                if not job.condition_type:
                    cluster.finish(job.labels[labels.STAGE])
            cluster.start_pods()
        assert seen == ["Inspecting", "Quantizing", "Validating", *["RollingOut"] * 3, "Serving"]
        assert len([each for each in cluster.created if each.startswith("Job/")]) == 3

    def test_says_what_serves_and_how_good_it_is(self) -> None:
        cluster = served()
        assert cluster.condition("Ready")["message"] == (
            "1 of 1 replicas answer; AWQ int4 g64 asym, cosine 0.9912, perplexity +3.5 %"
        )
        serving = cluster.model.status["serving"]
        assert serving["readiness"] == "1/1"
        assert serving["url"] == "http://smollm2.models.svc/v1"
        assert serving["revision"] == cluster.selected()
        assert "--dtype=float32" in serving["arguments"]

    def test_is_idempotent_once_served(self) -> None:
        cluster = served()
        before = dict(cluster.model.status)
        cluster.reconcile(seconds=600)
        assert writes(cluster) == []
        assert cluster.model.status == before
        assert cluster.last.events == ()
        assert cluster.last.requeue_after is None

    def test_puts_the_plan_into_status_before_the_quantize_job_exists(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        assert cluster.model.status["plan"]["artifact"]["bytes"] == pytest.approx(114_000_000, rel=0.005)
        assert [type(each) for each in cluster.last.actions] == [Create, Create]

    def test_ready_waits_for_the_service_and_until_the_nodes_route_to_it(self) -> None:
        cluster = SimulatedCluster()
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.start_pods()
        assert cluster.service is None
        cluster.reconcile()
        assert reason(cluster) == "RollingOut"
        assert cluster.service is not None
        assert cluster.last.requeue_after == 2  # no event tells of a Service
        cluster.reconcile(seconds=0.5)
        assert reason(cluster) == "RollingOut"
        assert "take up its Service" in cluster.condition("Ready")["message"]
        assert cluster.last.requeue_after == pytest.approx(1.5)
        cluster.reconcile(seconds=1.5)
        assert reason(cluster) == "Serving"

    def test_the_tasks_follow_the_contract_with_the_worker(self) -> None:
        cluster = SimulatedCluster()
        tasks: dict[str, Mapping[str, Any]] = {}
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            config_map, job = (each for each in cluster.last.actions if isinstance(each, Create))
            tasks[stage] = json.loads(config_map.manifest["data"]["task.json"])
            assert job.manifest["metadata"]["name"] == config_map.manifest["metadata"]["name"]
            cluster.finish(stage)
        revision = "sha256-" + "a" * 64
        assert tasks["inspect"] == {
            "version": 1,
            "model": {"name": "smollm2", "namespace": "models"},
            "source": {"type": "pvc", "path": "smollm2"},
            "compute": {"dtype": "float32", "threads": 0},
            "artifact": {"root": "/halfbyte/artifacts"},
        }
        assert tasks["quantize"]["source"] == {"type": "pvc", "path": "smollm2", "revision": revision}
        assert tasks["quantize"]["quantization"] == {
            "method": "AWQ",
            "bits": 4,
            "groupSize": 64,
            "symmetric": False,
            "ignore": ["lm_head"],
            "calibration": {"source": {"builtin": "prose"}, "samples": 256, "sequenceLength": 512, "seed": 0},
        }
        artifact = tasks["quantize"]["artifact"]
        assert artifact["key"].startswith("sha256-")
        assert "/" not in artifact["path"]
        assert tasks["validate"]["artifact"] == artifact
        assert tasks["validate"]["validation"] == {
            "logits": {"minCosineSimilarity": "0.985"},
            "perplexity": {"maxIncreasePercent": "5"},
            "generation": None,
            "corpus": {"builtin": "prose"},
            "samples": 16,
            "sequenceLength": 512,
            "onFailure": "Block",
        }

    def test_a_hub_source_is_pinned_and_its_token_stays_out_of_task_and_arguments(self) -> None:
        hub = {"repo": "org/m", "revision": "main", "tokenSecretRef": {"name": "hf", "key": "token"}}
        cluster = SimulatedCluster(model(spec(source={"huggingFace": hub})))
        cluster.secrets = {"hf": frozenset({"token"})}
        cluster.reconcile()
        cluster.finish("inspect", facts(source={"revision": "f" * 40, "bytes": 269_060_552}))
        cluster.reconcile()
        config_map, job = (each.manifest for each in cluster.last.actions if isinstance(each, Create))
        assert json.loads(config_map["data"]["task.json"])["source"]["revision"] == "f" * 40
        environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
        token = next(each for each in environment if each["name"] == "HF_TOKEN")
        assert token["valueFrom"]["secretKeyRef"] == {"name": "hf", "key": "token"}

    def test_an_own_claim_is_made_from_size_and_class(self) -> None:
        cluster = SimulatedCluster(model(spec(storage={"size": "5Gi", "storageClassName": "fast"})))
        cluster.reconcile()
        made = cluster.last.actions[0].manifest  # type: ignore[union-attr]
        assert made["kind"] == "PersistentVolumeClaim"
        assert made["metadata"]["name"] == "smollm2-artifacts"
        assert made["spec"]["storageClassName"] == "fast"
        assert made["spec"]["resources"]["requests"]["storage"] == "5Gi"

    def test_progress_of_the_running_stage_is_shown(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        cluster.reconcile()
        assert cluster.last.requeue_after == 30  # that the pod runs comes as an event
        cluster.start("quantize")
        cluster.progress = {"stage": "quantize", "done": 12, "total": 30, "unit": "layers", "etaSeconds": 40}
        cluster.reconcile()
        assert cluster.last.requeue_after == 3
        progress = {"stage": "Quantize", "done": 12, "total": 30, "unit": "layers", "etaSeconds": 40}
        assert cluster.model.status["progress"] == progress
        assert cluster.condition("Ready")["message"] == "12 of 30 layers, about 40 s left"
        cluster.finish("quantize")
        cluster.reconcile()
        assert "progress" not in cluster.model.status

    def test_nvidia_reports_unknown_health_without_metrics(self) -> None:
        accelerator = {
            "type": "nvidia",
            "perReplica": 1,
            "memory": "80Gi",
            "product": "NVIDIA-H100-80GB-HBM3",
        }
        cluster = SimulatedCluster(model(spec(serving={"accelerator": accelerator})))
        gpus = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        cluster.nodes = (node(labels=gpus, allocatable=ResourceAmounts(8000, 100 * 1024**3, 8)),)
        cluster.until_ready()
        assert cluster.condition("GPUHealthy")["status"] == "Unknown"
        check(cluster)


class TestNamesThatAreTaken:
    def test_somebody_elses_service_is_left_alone(self) -> None:
        cluster = SimulatedCluster()
        cluster.service = {"metadata": {"name": "smollm2"}, "spec": {"selector": {"app": "shop"}}}
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        check(cluster)
        assert reason(cluster) == "NameTaken"
        assert (
            "Service smollm2 in namespace models is not the operator's"
            in cluster.condition("Ready")["message"]
        )
        assert cluster.last.actions == ()
        cluster.service = None
        cluster.until_ready()

    @pytest.mark.parametrize(
        ("marks", "said"),
        [({}, "set spec.storage.claimName"), ({labels.MANAGED_BY: "halfbyte"}, "deleted model of this name")],
    )
    def test_somebody_elses_claim_is_left_alone(self, marks: dict[str, str], said: str) -> None:
        cluster = SimulatedCluster(model(spec(storage={"size": "5Gi"})))
        cluster.claims["smollm2-artifacts"] = claim("smollm2-artifacts", labels=marks)
        cluster.reconcile()
        check(cluster)
        assert reason(cluster) == "NameTaken"
        assert said in cluster.condition("Ready")["message"]
        assert cluster.last.actions == ()
        del cluster.claims["smollm2-artifacts"]
        cluster.until_ready()


class TestEvents:
    def test_tell_each_transition_once(self) -> None:
        cluster = SimulatedCluster()
        seen = []
        for _ in range(10):
            seen += [str(each.reason) for each in cluster.reconcile().events]
            for job in list(cluster.jobs.values()):
                if not job.condition_type:
                    cluster.finish(job.labels[labels.STAGE])
            cluster.start_pods()
        assert sorted(seen) == sorted(
            [
                "Inspecting",
                "FactsKnown",
                "PlanReady",
                "Quantizing",
                "ArtifactReady",
                "Validating",
                "GatesPassed",
                "RollingOut",
                "RevisionActivated",
                "Serving",
            ]
        )

    def test_problems_are_warnings(self) -> None:
        cluster = SimulatedCluster()
        del cluster.claims["artifacts"]
        assert [(each.type, str(each.reason)) for each in cluster.reconcile().events] == [
            ("Warning", "ClaimNotFound")
        ]
        assert cluster.reconcile().events == ()


class TestApprovalAndSuspend:
    def test_manual_approval_stops_after_the_plan(self) -> None:
        cluster = SimulatedCluster(model(spec(approval="Manual")))
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        check(cluster)
        assert reason(cluster) == "WaitingForApproval"
        assert cluster.last.actions == ()
        digest = cluster.model.status["plan"]["digest"]
        assert digest in cluster.condition("Ready")["message"]
        cluster.annotate(approve="something else")
        cluster.reconcile()
        assert reason(cluster) == "WaitingForApproval"
        cluster.annotate(approve=digest)
        cluster.reconcile()
        assert reason(cluster) == "Quantizing"

    def test_what_was_rolled_out_needs_no_second_approval(self) -> None:
        cluster = SimulatedCluster(model(spec(approval="Manual")))
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        cluster.annotate(approve=cluster.model.status["plan"]["digest"])
        cluster.until_ready()
        cluster.annotate(approve="")
        cluster.reconcile()
        assert reason(cluster) == "Serving"

    def test_free_amounts_do_not_change_the_digest(self) -> None:
        cluster = SimulatedCluster(model(spec(approval="Manual")))
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        digest = cluster.model.status["plan"]["digest"]
        cluster.nodes = (node(requested=ResourceAmounts(1999, 20 * 1024**3, 0)),)
        cluster.reconcile()
        assert cluster.model.status["plan"]["digest"] == digest

    def test_suspend_starts_nothing_and_serves_on(self) -> None:
        cluster = SimulatedCluster(model(spec(suspend=True)))
        cluster.reconcile()
        assert cluster.last.actions == ()
        assert reason(cluster) == "Suspended"
        assert_kstatus(cluster.model.status, 1, suspended=True)
        cluster = served()
        cluster.change(spec(suspend=True))
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.last.actions == ()
        cluster.change(spec(suspend=True, quantization=GPTQ))
        cluster.reconcile()
        assert reason(cluster) == "Suspended"
        assert cluster.condition("Available")["status"] == "True"
        assert cluster.last.actions == ()

    def test_suspend_holds_a_rollout(self) -> None:
        cluster = SimulatedCluster()
        for stage in ("inspect", "quantize", "validate"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.change(spec(suspend=True))
        cluster.reconcile()
        assert reason(cluster) == "Suspended"
        assert cluster.deployments == {}


class TestDeletion:
    @pytest.mark.parametrize("stages", [0, 1, 2, 3, 4])
    def test_takes_no_action_at_any_stage(self, stages: int) -> None:
        cluster = SimulatedCluster()
        for stage in ("inspect", "quantize", "validate")[:stages]:
            cluster.reconcile()
            cluster.finish(stage)
        if stages == 4:
            cluster.until_ready()
        cluster.model = replace(cluster.model, deletion_timestamp=NOW)
        before = cluster.model.status
        cluster.reconcile()
        assert cluster.last.actions == ()
        assert cluster.last.events == ()
        assert cluster.model.status == before


@dataclass(frozen=True)
class Waiting:
    """A thing outside that is missing: reported, looked for again, and the flow goes on once it is there."""

    break_it: Callable[[SimulatedCluster], None]
    reason: str
    words: tuple[str, ...]
    mend_it: Callable[[SimulatedCluster], None]
    spec: dict[str, Any] | None = None


HUB = {"huggingFace": {"repo": "org/m", "tokenSecretRef": {"name": "hf", "key": "token"}}}
WAITING = {
    "artifact claim": Waiting(
        lambda it: it.claims.pop("artifacts") and None,
        "ClaimNotFound",
        ("spec.storage.claimName", "artifacts", "models"),
        lambda it: it.claims.update(artifacts=claim("artifacts")),
    ),
    "source claim": Waiting(
        lambda it: it.claims.pop("weights") and None,
        "ClaimNotFound",
        ("spec.source.pvc.claimName", "weights"),
        lambda it: it.claims.update(weights=claim("weights")),
    ),
    "Secret": Waiting(
        lambda it: it.secrets.update(hf=None),
        "SecretNotFound",
        ("hf", "models"),
        lambda it: it.secrets.update(hf=frozenset({"token"})),
        spec(source=HUB),
    ),
    "key of a Secret": Waiting(
        lambda it: it.secrets.update(hf=frozenset({"other"})),
        "SecretKeyNotFound",
        ("hf", "token", "other"),
        lambda it: it.secrets.update(hf=frozenset({"token"})),
        spec(source=HUB),
    ),
}


@pytest.mark.parametrize("case", WAITING.values(), ids=WAITING.keys())
def test_what_is_missing_outside_is_waited_for(case: Waiting) -> None:
    cluster = SimulatedCluster(model(case.spec))
    case.break_it(cluster)
    cluster.reconcile()
    check(cluster)
    assert reason(cluster) == case.reason
    for word in case.words:
        assert word in cluster.condition("Ready")["message"]
    assert cluster.condition("Reconciling")["status"] == "True"
    assert cluster.last.requeue_after == 30
    assert cluster.jobs == {}
    case.mend_it(cluster)
    cluster.reconcile()
    assert reason(cluster) == "Inspecting"


def test_a_secret_that_may_not_be_read_is_taken_as_there() -> None:
    cluster = SimulatedCluster(model(spec(source=HUB)))
    cluster.reconcile()
    assert reason(cluster) == "Inspecting"


POD_PROBLEMS = {
    "image": ("ImagePullBackOff", "Back-off pulling image", "ImagePullFailed"),
    "scheduling": ("Unschedulable", "0/1 nodes are available: 1 Insufficient memory.", "Unschedulable"),
    "claim": (
        "Unschedulable",
        "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "ClaimNotBound",
    ),
    "configuration": ("CreateContainerConfigError", 'secret "hf" not found', "PodConfigError"),
}


@pytest.mark.parametrize("case", POD_PROBLEMS.values(), ids=POD_PROBLEMS.keys())
@pytest.mark.parametrize("stage", ["inspect", "quantize", "validate"])
def test_a_pod_that_cannot_start_is_explained(stage: str, case: tuple[str, str, str]) -> None:
    cluster = SimulatedCluster()
    for earlier in ("inspect", "quantize", "validate"):
        cluster.reconcile()
        if earlier == stage:
            break
        cluster.finish(earlier)
    job = cluster.running(stage)
    pod = worker_pod(job.name, phase="Pending", reason=case[0], message=case[1])
    cluster.jobs[job.name] = replace(job, pods=(pod,))
    cluster.reconcile()
    check(cluster)
    assert reason(cluster) == case[2]
    assert case[1] in cluster.condition("Ready")["message"]
    assert cluster.last.requeue_after == 30
    cluster.jobs[job.name] = job
    cluster.until_ready()


WORKER_FAILURES = {
    "SourceNotFound": ("inspect", 20, "SourceNotFound"),
    "RevisionNotFound": ("inspect", 20, "RevisionNotFound"),
    "GatedRepository": ("inspect", 20, "GatedRepository"),
    "SourceUnreachable": ("inspect", 10, "SourceUnreachable"),
    "SourceStalled": ("quantize", 10, "SourceStalled"),
    "SourceIncomplete": ("inspect", 20, "SourceIncomplete"),
    "UnsupportedArchitecture": ("quantize", 20, "UnsupportedArchitecture"),
    "GroupSizeIndivisible": ("quantize", 20, "GroupSizeIndivisible"),
    "OutOfMemory": ("quantize", 30, "OutOfMemory"),
    "OutOfDisk": ("quantize", 40, "OutOfDisk"),
    "ArtifactCorrupt": ("validate", 20, "ArtifactCorrupt"),
    "InvalidTask": ("validate", 2, "InvalidTask"),
    "NobodyKnowsThisReason": ("validate", 1, "InternalError"),
}


@pytest.mark.parametrize("told", WORKER_FAILURES.keys())
def test_a_failed_job_stalls_with_its_own_words_until_the_spec_or_the_annotation_changes(told: str) -> None:
    stage, code, expected = WORKER_FAILURES[told]
    cluster = SimulatedCluster()
    for earlier in ("inspect", "quantize", "validate"):
        cluster.reconcile()
        if earlier == stage:
            break
        cluster.finish(earlier)
    cluster.fail(stage, told, "what, where, needed against available", code)
    for _ in range(3):
        cluster.reconcile(seconds=300)
        check(cluster)
        assert reason(cluster) == expected
        assert cluster.condition("Stalled")["status"] == "True"
        assert "what, where, needed against available" in cluster.condition("Ready")["message"]
        assert cluster.last.actions == ()
        assert cluster.last.requeue_after is None
    cluster.annotate(requested_at="2026-11-30T13:00:00Z")
    cluster.until_ready()
    assert cluster.model.status["lastHandledReconcileAt"] == "2026-11-30T13:00:00Z"


def test_a_spec_change_resumes_a_failed_job_with_the_new_limit() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    cluster.finish("inspect")
    cluster.reconcile()
    cluster.fail("quantize", "OutOfMemory", "needed more", 30)
    cluster.reconcile()
    assert reason(cluster) == "OutOfMemory"
    cluster.change(spec(quantization={**AWQ, "resources": {"limits": {"memory": "8Gi"}}}))
    cluster.reconcile()
    assert reason(cluster) == "Quantizing"
    cluster.reconcile()
    job = next(
        each.manifest
        for each in cluster.last.actions
        if isinstance(each, Create) and each.manifest["kind"] == "Job"
    )
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi"}


def test_replicas_alone_do_not_retry_a_failure() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    cluster.fail("inspect", "SourceNotFound", "nothing at smollm2", 20)
    cluster.reconcile()
    cluster.change(spec(serving={**spec()["serving"], "replicas": 3}))
    cluster.reconcile()
    assert reason(cluster) == "SourceNotFound"
    assert cluster.last.actions == ()


def test_a_killed_pod_is_out_of_memory_whatever_it_could_not_say() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    cluster.finish("inspect")
    cluster.reconcile()
    job = cluster.running("quantize")
    pod = worker_pod(job.name, phase="Failed", exit_code=137, reason="OOMKilled", memory_limit="1900Mi")
    cluster.jobs[job.name] = replace(
        job, condition_type="Failed", condition_reason="BackoffLimitExceeded", pods=(pod,)
    )
    cluster.reconcile()
    assert reason(cluster) == "OutOfMemory"
    message = cluster.condition("Ready")["message"]
    assert "memory limit of 1900Mi; raise limits.memory in spec.quantization.resources" in message


def test_a_retry_in_progress_says_what_went_wrong_before() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    job = cluster.running("inspect")
    text = words(ok=False, stage="inspect", reason="SourceUnreachable", message="the hub answers 503")
    cluster.jobs[job.name] = replace(
        job, failed=1, pods=(worker_pod(job.name, phase="Failed", exit_code=10, termination_message=text),)
    )
    cluster.reconcile()
    assert "attempt 2 after: the hub answers 503" in cluster.condition("Ready")["message"]


def test_a_deadline_is_named() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    job = cluster.running("inspect")
    cluster.jobs[job.name] = replace(
        job,
        condition_type="Failed",
        condition_reason="DeadlineExceeded",
        condition_message="Job was active longer than specified deadline",
    )
    cluster.reconcile()
    assert reason(cluster) == "DeadlineExceeded"


def test_facts_that_lack_a_field_are_an_internal_error_and_not_a_crash() -> None:
    cluster = SimulatedCluster()
    cluster.reconcile()
    broken = facts()
    del broken["layers"]
    cluster.finish("inspect", broken)
    cluster.reconcile()
    assert reason(cluster) == "InternalError"
    assert "layers" in cluster.condition("Ready")["message"]


PLAN_REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "group size": (
        spec(quantization={"method": "GPTQ", "groupSize": 128}),
        facts(),
        "GroupSizeIndivisible",
        ("layers.0.self_attn.q_proj has 576 columns, not a multiple of groupSize 128", "32, 64"),
    ),
    "architecture": (
        spec(),
        facts(architecture="AbacusForCausalLM"),
        "UnsupportedArchitecture",
        ("AbacusForCausalLM", "LlamaForCausalLM"),
    ),
    "quantized source": (spec(), facts(quantized="gptq"), "AlreadyQuantized", ("gptq", "None")),
    "context": (
        spec(serving={"accelerator": {"type": "cpu"}, "maxModelLen": 100_000}),
        facts(),
        "ContextTooLong",
        ("100000", "8192"),
    ),
    "context that does not fit": (
        spec(serving={"accelerator": {"type": "cpu"}, "maxModelLen": 131072}),
        large_facts(),
        "ContextTooLong",
        ("131072", "lower it to"),
    ),
    "ranks": (
        spec(serving={"accelerator": {"type": "cpu"}, "tensorParallel": 2}),
        facts(),
        "IncompatiblePlan",
        ("spec.serving.tensorParallel is 2", "9 heads allow 1 or 3"),
    ),
    "server memory": (
        spec(
            serving={
                "accelerator": {"type": "cpu"},
                "maxModelLen": 512,
                "resources": {"requests": {"memory": "4000Gi"}},
            }
        ),
        facts(),
        "InsufficientMemory",
        ("4000Gi", "node-1", "22Gi", "spec.serving.resources"),
    ),
    "Job memory": (
        spec(),
        large_facts(),
        "InsufficientMemory",
        ("the quantize Job needs", "22Gi", "spec.quantization.resources"),
    ),
    "no GPU": (
        spec(serving={"accelerator": {"type": "nvidia", "perReplica": 1, "memory": "80Gi"}}),
        facts(),
        "InsufficientGPUs",
        ("1 GPUs", "has 0"),
    ),
    "claim too small": (spec(), facts(), "InsufficientDisk", ("114 MiB", "50 MiB", "artifacts")),
    "disk full": (
        spec(),
        facts(storage={"freeBytes": 1000}),
        "InsufficientDisk",
        ("1000 bytes", "requested-at"),
    ),
}


@pytest.mark.parametrize("name", PLAN_REFUSALS.keys())
def test_what_cannot_work_is_said_before_a_quantize_job_starts(name: str) -> None:
    raw, found, expected, said = PLAN_REFUSALS[name]
    cluster = SimulatedCluster(model(raw))
    if name == "claim too small":
        cluster.claims["artifacts"] = claim("artifacts", capacity_bytes=50 * 1024**2)
    cluster.reconcile()
    cluster.finish("inspect", found)
    for _ in range(3):
        cluster.reconcile()
        check(cluster)
    assert reason(cluster) == expected
    message = cluster.condition("Ready")["message"]
    for word in said:
        assert word in message
    assert cluster.condition("Planned")["status"] == "False"
    assert not [each for each in cluster.created if "quantize" in each]


def test_what_nothing_can_serve_is_refused_with_the_reason_of_the_matrix() -> None:
    matrix = {
        **SETTINGS.matrix,
        "serving": [row for row in SETTINGS.matrix["serving"] if "AWQ" not in row["methods"]],
        "refusals": [{"methods": ["AWQ"], "reason": "No 4-bit kernel runs here.", "instead": "Use W8A8."}],
    }
    cluster = SimulatedCluster(settings=replace(SETTINGS, matrix=matrix))
    cluster.reconcile()
    cluster.finish("inspect")
    cluster.reconcile()
    assert reason(cluster) == "IncompatiblePlan"
    assert cluster.condition("Ready")["message"] == "cpu-avx2: No 4-bit kernel runs here. Use W8A8."


def test_a_node_that_grows_resumes_by_itself() -> None:
    cluster = SimulatedCluster()
    cluster.nodes = (node(allocatable=ResourceAmounts(2000, 1024**3, 0)),)
    cluster.reconcile()
    cluster.finish("inspect")
    cluster.reconcile()
    assert reason(cluster) == "InsufficientMemory"
    assert cluster.last.requeue_after == 30
    cluster.nodes = (node(),)
    cluster.reconcile()
    assert reason(cluster) == "Quantizing"


class TestInvalidSpec:
    def test_is_stalled_and_touches_nothing(self) -> None:
        cluster = served()
        before = dict(cluster.deployments)
        cluster.change(spec(quantization={"method": "INT3"}))
        cluster.reconcile()
        check(cluster)
        assert reason(cluster) == "InvalidSpec"
        assert "INT3" in cluster.condition("Ready")["message"]
        assert cluster.condition("Available")["status"] == "True"
        assert cluster.last.actions == ()
        assert cluster.deployments == before
        cluster.change(spec())
        cluster.reconcile()
        assert reason(cluster) == "Serving"


class TestGates:
    def blocked(self) -> SimulatedCluster:
        cluster = SimulatedCluster()
        for stage in ("inspect", "quantize"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.fail("validate", "GateFailed", "cosine too low", 50, evidence_result("Failed", "0.8806"))
        cluster.reconcile()
        return cluster

    def test_a_missed_gate_blocks_with_its_numbers(self) -> None:
        cluster = self.blocked()
        check(cluster)
        assert reason(cluster) == "GateFailed"
        message = cluster.condition("Ready")["message"]
        assert "logits cosine is 0.8806, at least 0.985 is demanded" in message
        assert cluster.condition("Validated")["status"] == "False"
        assert cluster.model.status["validation"]["verdict"] == "Failed"
        assert cluster.condition("Stalled")["reason"] == "GateFailed"
        assert cluster.deployments == {}
        assert cluster.last.requeue_after is None

    def test_a_verdict_is_a_result_and_not_tried_again(self) -> None:
        cluster = self.blocked()
        cluster.annotate(requested_at="again")
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        assert reason(cluster) == "GateFailed"
        assert [each for each in cluster.created if "validate" in each and each.startswith("Job")] == [
            each for each in dict.fromkeys(cluster.created) if "validate" in each and each.startswith("Job")
        ]

    def test_other_thresholds_only_judge_again(self) -> None:
        cluster = self.blocked()
        cluster.change(spec(validation={"logits": {"minCosineSimilarity": "0.85"}}))
        cluster.reconcile()
        assert reason(cluster) == "Validating"
        assert len([each for each in cluster.created if each.startswith("Job/quantize")]) == 1

    def test_warn_serves_it_and_says_so(self) -> None:
        cluster = SimulatedCluster(model(spec(validation={"onFailure": "Warn"})))
        for stage in ("inspect", "quantize"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.finish("validate", evidence_result("Failed", "0.8806"))
        cluster.until_ready()
        assert cluster.condition("Validated")["reason"] == "GatesWarned"
        check(cluster)

    def test_the_old_revision_serves_on_and_going_back_computes_nothing(self) -> None:
        cluster = served()
        revision = cluster.selected()
        cluster.change(spec(quantization=GPTQ))
        cluster.reconcile()
        cluster.finish("quantize")
        cluster.reconcile()
        cluster.fail("validate", "GateFailed", "cosine too low", 50, evidence_result("Failed", "0.8806"))
        for _ in range(3):
            cluster.reconcile()
            check(cluster)
            assert reason(cluster) == "GateFailed"
            assert cluster.condition("Available")["status"] == "True"
            assert cluster.model.status["serving"]["revision"] == revision
            assert cluster.serving_capacity() == 1
        made = list(cluster.created)
        cluster.change(spec())
        cluster.reconcile()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.selected() == revision
        assert cluster.created == made


class TestASpecChangeWhileAJobRuns:
    def test_ends_the_old_job_and_starts_the_new(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        old = cluster.running("quantize")
        cluster.change(spec(quantization=GPTQ))
        cluster.reconcile()
        assert old.name not in cluster.jobs
        assert old.name not in cluster.config_maps
        assert cluster.running("quantize").name != old.name
        assert "JobReplaced" in [str(each.reason) for each in cluster.last.events]
        delete = next(each for each in cluster.last.actions if isinstance(each, Delete))
        assert (delete.propagation, delete.uid) == ("Background", old.uid)

    def test_leaves_a_job_that_another_model_shares(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        shared = cluster.running("quantize")
        cluster.jobs[shared.name] = replace(shared, owner_uids=shared.owner_uids | {"uid-2"})
        cluster.change(spec(quantization=GPTQ))
        cluster.reconcile()
        assert shared.name in cluster.jobs

    def test_a_new_source_that_cannot_be_inspected_ends_the_old_quantize_job_too(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.reconcile()
        old = cluster.running("quantize")
        cluster.change(spec(source={"pvc": {"claimName": "weights", "path": "nowhere"}}))
        cluster.reconcile()
        assert old.name in cluster.jobs
        cluster.fail("inspect", "SourceNotFound", "nothing there", 20)
        cluster.reconcile()
        assert old.name not in cluster.jobs


class TestSharedJobs:
    def second(self, first: SimulatedCluster) -> SimulatedCluster:
        other = SimulatedCluster(model(name="other", uid="uid-2"))
        other.jobs, other.config_maps = first.jobs, first.config_maps
        return other

    def test_two_models_with_one_recipe_share_the_job(self) -> None:
        first = SimulatedCluster()
        first.reconcile()
        first.finish("inspect")
        first.reconcile()
        job = first.running("quantize")
        other = self.second(first)
        other.reconcile()
        inspect = next(each for each in other.jobs.values() if "uid-2" in each.owner_uids)
        text = words(ok=True, stage="inspect", result=facts())
        pod = worker_pod(inspect.name, phase="Succeeded", exit_code=0, termination_message=text)
        other.jobs[inspect.name] = replace(inspect, condition_type="Complete", pods=(pod,))
        other.reconcile()
        assert reason(other) == "Quantizing"
        assert other.jobs[job.name].owner_uids == {"uid-1", "uid-2"}
        assert other.config_maps[job.name].owner_uids == {"uid-1", "uid-2"}
        adopted = [each for each in other.last.actions if isinstance(each, Apply)]
        assert {each.field_manager for each in adopted} == {"halfbyte-uid-2"}
        assert len([each for each in other.jobs if each.startswith("quantize-")]) == 1

    def test_a_job_of_a_deleted_model_of_the_same_name_is_made_anew(self) -> None:
        first = SimulatedCluster()
        first.reconcile()
        first.finish("inspect")
        first.reconcile()
        first.finish("quantize")
        old = next(each for each in first.jobs.values() if each.name.startswith("quantize-"))
        again = SimulatedCluster(model(uid="uid-2"))
        again.jobs = {old.name: old}
        again.config_maps = {old.name: first.config_maps[old.name]}
        again.reconcile()
        again.finish("inspect")
        again.reconcile()
        assert old.name not in again.jobs
        again.reconcile()
        assert again.running("quantize").uid != old.uid
        again.finish("quantize", artifact_result(reused=True))
        again.until_ready()
        assert again.model.status["artifact"]["reused"] is True

    def test_a_lost_config_map_is_made_again(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        cluster.config_maps.clear()
        cluster.reconcile()
        assert [each.split("/")[0] for each in cluster.created] == ["ConfigMap", "Job", "ConfigMap"]

    def test_a_failure_from_before_the_model_existed_is_tried_once(self) -> None:
        first = SimulatedCluster(model(created=NOW - timedelta(days=1)))
        first.now = NOW - timedelta(hours=2)
        first.reconcile()
        first.finish("inspect")
        first.reconcile()
        first.fail("quantize", "OutOfDisk", "full", 40)
        other = self.second(first)
        other.model = replace(other.model, created=NOW)
        other.reconcile()
        other.finish("inspect")
        other.reconcile()
        other.reconcile()
        assert other.running("quantize").annotations[f"{labels.ATTEMPT_PREFIX}uid-2"]
        other.fail("quantize", "OutOfDisk", "full", 40)
        for _ in range(4):
            other.reconcile()
            assert reason(other) == "OutOfDisk"
            assert other.last.actions == ()
        first.reconcile()
        first.reconcile()
        assert reason(first) == "OutOfDisk"
        assert len([each for each in other.jobs if each.startswith("quantize-")]) == 1


class TestLostThings:
    def test_status_is_derived_again_from_jobs(self) -> None:
        cluster = served()
        before = dict(cluster.model.status)
        cluster.lose_status()
        cluster.reconcile()
        assert cluster.created.count("Job/" + next(iter(cluster.jobs))) <= 1
        assert reason(cluster) == "Serving"
        for section in ("facts", "plan", "artifact", "validation"):
            assert cluster.model.status[section] == before[section]

    def test_deleted_jobs_are_not_run_again_when_status_knows_their_results(self) -> None:
        cluster = served()
        made = list(cluster.created)
        cluster.jobs.clear()
        cluster.config_maps.clear()
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        assert cluster.created == made

    def test_pods_that_took_the_result_with_them_cost_one_more_run_only_without_status(self) -> None:
        cluster = served()
        cluster.jobs = {name: replace(job, pods=()) for name, job in cluster.jobs.items()}
        cluster.reconcile()
        assert reason(cluster) == "Serving"
        cluster.lose_status()
        cluster.reconcile(seconds=10)
        assert reason(cluster) == "Inspecting"
        assert "reads the result" in cluster.condition("Ready")["message"]
        cluster.reconcile(seconds=120)
        assert "is lost, it runs again" in cluster.condition("Ready")["message"]
        cluster.until_ready()

    def test_a_job_on_its_way_out_is_waited_for(self) -> None:
        cluster = SimulatedCluster()
        cluster.reconcile()
        job = cluster.running("inspect")
        cluster.jobs[job.name] = replace(job, deletion_timestamp=NOW)
        cluster.reconcile()
        assert "waits for the deletion" in cluster.condition("Ready")["message"]
        assert cluster.last.actions == ()

    def test_a_corrupt_artifact_is_made_again_on_request(self) -> None:
        cluster = SimulatedCluster()
        for stage in ("inspect", "quantize"):
            cluster.reconcile()
            cluster.finish(stage)
        cluster.reconcile()
        cluster.fail("validate", "ArtifactCorrupt", "model.safetensors is cut off", 20)
        cluster.reconcile()
        assert reason(cluster) == "ArtifactCorrupt"
        cluster.annotate(requested_at="again")
        cluster.reconcile()
        cluster.finish("inspect")
        cluster.until_ready()
        assert len([each for each in cluster.created if each.startswith("Job/quantize-")]) == 2


class TestAnOperatorUpgrade:
    def test_restarts_no_server(self) -> None:
        cluster = served()
        images = Images(worker="w:2", vllm="v:2", vllm_cuda="c:2")
        cluster.settings = replace(cluster.settings, images=images, operator_version="0.2.0")
        cluster.reconcile()
        assert writes(cluster) == []
        assert reason(cluster) == "Serving"
        assert cluster.model.status["serving"]["image"] == "halfbyte.dev/vllm:0.1.0"
        assert cluster.model.status["artifact"]["createdBy"] == "halfbyte.dev/worker:0.1.0"

    def test_the_next_change_of_the_spec_takes_the_new_image(self) -> None:
        cluster = served()
        cluster.settings = replace(cluster.settings, images=Images(vllm="v:2"))
        cluster.change(spec(serving={**spec()["serving"], "maxModelLen": 1024}))
        cluster.until_ready()
        assert cluster.model.status["serving"]["image"] == "v:2"
        assert len([each for each in cluster.created if each.startswith("Job/quantize")]) == 1

    def test_new_nodes_restart_no_server(self) -> None:
        cluster = served()
        flags = {f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in ("AVX2", "AVX512F")}
        cluster.nodes = (node(labels=flags), node("node-2", labels=flags))
        cluster.reconcile()
        assert writes(cluster) == []


def test_a_refused_action_is_reported_in_the_servers_words() -> None:
    cluster = SimulatedCluster()
    snapshot = cluster.snapshot()
    made = plan(snapshot, NOW, SETTINGS)
    told = report_failure(made, snapshot, made.actions[1], "Forbidden", "exceeded quota: team", NOW)
    assert_kstatus(told.status, 1)
    ready = next(each for each in told.status["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "ActionFailed"
    assert ready["message"].startswith("Job smollm2-inspect-")
    assert "exceeded quota: team" in ready["message"]
    assert told.actions == ()
    assert [each.type for each in told.events] == ["Warning"]
    deletion = Delete("batch/v1", "Job", "old", "uid")
    told = report_failure(made, snapshot, deletion, "Forbidden", "no", NOW)
    assert "the deletion of Job old was refused (Forbidden): no" in told.status["conditions"][0]["message"]


@pytest.mark.parametrize(
    "raw",
    [spec(), spec(approval="Manual"), spec(storage={"size": "5Gi"}), spec(quantization={"method": "None"}),
     spec(quantization={"method": "W8A8"}), spec(quantization={"method": "GPTQ"})],
)  # fmt: skip
def test_one_snapshot_gives_one_plan(raw: dict[str, Any]) -> None:
    cluster = SimulatedCluster(model(raw))
    for _ in range(6):
        snapshot = cluster.snapshot()
        assert plan(snapshot, cluster.now, SETTINGS) == plan(snapshot, cluster.now, SETTINGS)
        cluster.reconcile()
        for job in list(cluster.jobs.values()):
            if not job.condition_type:
                cluster.finish(job.labels[labels.STAGE])
        cluster.start_pods()
