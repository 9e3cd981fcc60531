"""A fake cluster for planning tests: carries out actions in memory and plays kubelet and controllers on
request.

It knows what matters to decisions: names are unique, an apply keeps the uid, a Delete with another uid does
nothing, a Job runs until told to end, a Deployment's pods become ready when told to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

from halfbyte.api import labels
from halfbyte.planning.pipeline import plan
from halfbyte.planning.plan import Action, Create, Delete, Plan
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import (
    ClaimFact,
    DeploymentFact,
    JobFact,
    ModelObject,
    NodeFact,
    ObjectFact,
    PodFact,
    Snapshot,
)

from .models import (
    NOW,
    SETTINGS,
    artifact_result,
    claim,
    evidence_result,
    facts,
    model,
    node,
    words,
    worker_pod,
)

SERIAL = count(1)
RESULTS = {
    labels.STAGE_INSPECT: facts,
    labels.STAGE_QUANTIZE: artifact_result,
    labels.STAGE_VALIDATE: evidence_result,
}


class SimulatedCluster:
    """State, and ``reconcile`` which plans once and carries the plan out."""

    def __init__(self, subject: ModelObject | None = None, settings: PlanningSettings = SETTINGS) -> None:
        self.model = subject or model()
        self.settings = settings
        self.now = NOW
        self.jobs: dict[str, JobFact] = {}
        self.config_maps: dict[str, ObjectFact] = {}
        self.deployments: dict[str, DeploymentFact] = {}
        self.service: Mapping[str, Any] | None = None
        self.pods: dict[str, tuple[PodFact, ...]] = {}
        self.claims: dict[str, ClaimFact] = {name: claim(name) for name in ("weights", "artifacts")}
        self.secrets: dict[str, frozenset[str] | None] = {}
        self.nodes: tuple[NodeFact, ...] | None = (node(),)
        self.progress: Mapping[str, Any] | None = None
        self.autoscaled = False
        self.created: list[str] = []
        self.last = Plan()

    def snapshot(self) -> Snapshot:
        uid = self.model.uid
        jobs = [
            each
            for each in self.jobs.values()
            if uid in each.owner_uids or each.labels.get(labels.STAGE) == labels.STAGE_QUANTIZE
        ]
        return Snapshot(
            model=self.model,
            jobs=tuple(jobs),
            deployments=tuple(self.deployments.values()),
            service=self.service,
            serving_pods=tuple(pod for pods in self.pods.values() for pod in pods),
            config_maps=dict(self.config_maps),
            claims=dict(self.claims),
            secrets=dict(self.secrets),
            nodes=self.nodes,
            progress=self.progress,
            autoscaled=self.autoscaled,
        )

    def reconcile(self, seconds: float = 1, die_after: int | None = None) -> Plan:
        """One pass: plan, write status, carry the actions out.

        ``die_after`` kills the operator after so many writes, of which that of status is the first.
        """
        self.now += timedelta(seconds=seconds)
        self.last = plan(self.snapshot(), self.now, self.settings)
        if die_after == 0:
            return self.last
        self.model = replace(self.model, status=self.last.status)
        for action in self.last.actions[: None if die_after is None else die_after - 1]:
            self.carry_out(action)
        return self.last

    def change(self, raw_spec: Mapping[str, Any]) -> None:
        """A user's edit of the spec."""
        self.model = replace(self.model, raw_spec=raw_spec, generation=self.model.generation + 1)

    def annotate(self, **annotations: str) -> None:
        named = {f"halfbyte.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.model = replace(self.model, annotations={**self.model.annotations, **named})

    def lose_status(self) -> None:
        self.model = replace(self.model, status={})

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Delete):
            self._delete(action)
            return
        manifest = action.manifest
        kind, metadata = manifest["kind"], manifest["metadata"]
        if isinstance(action, Create):
            if metadata["name"] not in (self.jobs if kind == "Job" else self.config_maps):
                self.created.append(f"{kind}/{metadata['name']}")
                self._store(kind, manifest)
            return
        if action.field_manager != labels.FIELD_MANAGER:
            self._adopt(kind, metadata)
            return
        self._store(kind, manifest)

    def start(self, stage: str) -> None:
        """Let a pod of the stage's Job run."""
        job = self.running(stage)
        self.jobs[job.name] = replace(job, pods=(worker_pod(job.name),))

    def finish(self, stage: str, result: Mapping[str, Any] | None = None) -> None:
        """Let the running Job of the stage succeed."""
        job = self.running(stage)
        text = words(ok=True, stage=stage, result=result if result is not None else RESULTS[stage]())
        pod = worker_pod(job.name, phase="Succeeded", exit_code=0, termination_message=text)
        done = replace(job, active=0, succeeded=1, condition_type="Complete", completed=self.now, pods=(pod,))
        self.jobs[job.name] = done

    def fail(
        self, stage: str, reason: str, message: str, code: int, result: Mapping[str, Any] | None = None
    ) -> None:
        """Let the running Job of the stage fail for good."""
        job = self.running(stage)
        text = words(ok=False, stage=stage, reason=reason, message=message, result=result)
        pod = worker_pod(job.name, phase="Failed", exit_code=code, termination_message=text, reason="Error")
        self.jobs[job.name] = replace(
            job, active=0, failed=1, condition_type="Failed", condition_reason="PodFailurePolicy", pods=(pod,)
        )

    def running(self, stage: str) -> JobFact:
        found = [
            each
            for each in self.jobs.values()
            if each.labels[labels.STAGE] == stage and not each.condition_type
        ]
        assert len(found) == 1, f"{len(found)} running {stage} Jobs: {sorted(self.jobs)}"
        return found[0]

    def start_pods(self, ready: bool = True, **fields: Any) -> None:
        """Give every Deployment its pods, ready or as ``fields`` say; pods without one go."""
        for name, each in list(self.deployments.items()):
            pods = tuple(
                PodFact(name=f"{name}-{index}", phase="Running", ready=ready, labels=each.labels, **fields)
                for index in range(each.replicas)
            )
            self.pods[name] = pods
            count = each.replicas if ready else 0
            self.deployments[name] = replace(
                each,
                observed_generation=each.generation,
                status_replicas=each.replicas,
                updated_replicas=each.replicas,
                ready_replicas=count,
            )
        self.pods = {name: pods for name, pods in self.pods.items() if name in self.deployments}

    def until_ready(self, passes: int = 40) -> None:
        """Play the whole flow: every Job succeeds, every pod becomes ready."""
        for _ in range(passes):
            self.reconcile()
            if self.condition("Ready")["status"] == "True":
                return
            for job in list(self.jobs.values()):
                if not job.condition_type and self.model.uid in job.owner_uids:
                    self.finish(job.labels[labels.STAGE])
            self.start_pods()
        raise AssertionError(f"not Ready after {passes} passes: {self.condition('Ready')}")

    def condition(self, kind: str) -> Mapping[str, Any]:
        return next((each for each in self.model.status.get("conditions", ()) if each["type"] == kind), {})

    def selected(self) -> str | None:
        return self.service["spec"]["selector"][labels.REVISION] if self.service else None

    def serving_capacity(self) -> int:
        """Ready pods behind the Service."""
        return sum(
            pod.ready
            for pods in self.pods.values()
            for pod in pods
            if pod.labels.get(labels.REVISION) == self.selected()
        )

    def _store(self, kind: str, manifest: Mapping[str, Any]) -> None:
        metadata = manifest["metadata"]
        identity: dict[str, Any] = {
            "name": metadata["name"],
            "uid": f"{kind}-{next(SERIAL)}",
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
        }
        owners = frozenset(each["uid"] for each in metadata["ownerReferences"])
        if kind == "Job":
            self.jobs[metadata["name"]] = JobFact(**identity, owner_uids=owners, active=1, created=self.now)
        elif kind == "ConfigMap":
            self.config_maps[metadata["name"]] = ObjectFact(**identity, owner_uids=owners)
        elif kind == "PersistentVolumeClaim":
            self.claims[metadata["name"]] = ClaimFact(**identity, phase="Bound", owner_uids=owners)
        elif kind == "Service":
            self.service = manifest
        else:
            self._store_deployment(identity, manifest)

    def _store_deployment(self, identity: dict[str, Any], manifest: Mapping[str, Any]) -> None:
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        live = self.deployments.get(identity["name"])
        replicas = manifest["spec"].get("replicas", live.replicas if live else 1)
        known: dict[str, Any] = {"image": container["image"], "arguments": tuple(container["args"])}
        if live is None:
            self.deployments[identity["name"]] = DeploymentFact(
                **identity, **known, replicas=replicas, generation=1, created=self.now
            )
            return
        changed = replicas != live.replicas
        self.deployments[identity["name"]] = replace(
            live,
            **known,
            annotations=identity["annotations"],
            replicas=replicas,
            generation=live.generation + changed,
        )

    def _adopt(self, kind: str, metadata: Mapping[str, Any]) -> None:
        store: dict[str, Any] = self.jobs if kind == "Job" else self.config_maps  # type: ignore[assignment]
        live = store[metadata["name"]]
        assert live.uid == metadata["uid"]
        store[metadata["name"]] = replace(
            live,
            owner_uids=live.owner_uids | {each["uid"] for each in metadata["ownerReferences"]},
            annotations={**live.annotations, **metadata["annotations"]},
        )

    def _delete(self, action: Delete) -> None:
        stores: dict[str, dict[str, Any]] = {
            "Job": self.jobs,
            "ConfigMap": self.config_maps,
            "Deployment": self.deployments,
        }  # type: ignore[assignment]
        store = stores[action.kind]
        if action.name in store and store[action.name].uid == action.uid:
            del store[action.name]
