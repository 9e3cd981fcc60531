"""Worker Jobs. A Job is never changed after its creation: another intent has another name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from halfbyte.api.spec import Resources, Spec
from halfbyte.planning.manifests.meta import (
    Manifest,
    build_metadata,
    container_security,
    pod_placement,
    pod_security,
    with_hash,
)
from halfbyte.planning.quantities import format_bytes, format_millis, parse_millis
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import ModelObject

CONTAINER: Final = "worker"
TASK_PATH: Final = "/halfbyte/task"
SOURCE_PATH: Final = "/halfbyte/source"
ARTIFACTS_PATH: Final = "/halfbyte/artifacts"
FINAL_EXIT_CODES: Final = (2, 20, 30, 40, 50)
"""Exit codes after which a retry cannot help: bad task, unsupported, out of memory, out of disk, gate failed.
"""


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What differs between the three Jobs."""

    name: str
    stage: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    claim: str
    memory_request: int
    memory_limit: int
    deadline_seconds: int
    resources: Resources
    shared: bool = False


def build_job(model: ModelObject, spec: Spec, job: WorkerJob, settings: PlanningSettings) -> Manifest:
    """One pod at a time, retried within bounds, never after an exit code that makes a retry useless."""
    return with_hash(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": build_metadata(
                model, job.name, job.labels, job.annotations, controller=not job.shared
            ),
            "spec": {
                "completions": 1,
                "parallelism": 1,
                "backoffLimit": settings.jobs.backoff_limit,
                "activeDeadlineSeconds": job.deadline_seconds,
                # The next pod starts only when the last has ended: two workers would write one staging
                # folder.
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": _failure_rules()},
                "template": {
                    "metadata": {"labels": dict(job.labels)},
                    "spec": _pod_spec(spec, job, settings),
                },
            },
        }
    )


def _failure_rules() -> list[Manifest]:
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(FINAL_EXIT_CODES)},
        },
    ]


def _pod_spec(spec: Spec, job: WorkerJob, settings: PlanningSettings) -> Manifest:
    mounts = [
        {"name": "task", "mountPath": TASK_PATH, "readOnly": True},
        {"name": "artifacts", "mountPath": ARTIFACTS_PATH},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the pod
    ]
    volumes: list[Manifest] = [
        {"name": "task", "configMap": {"name": job.name}},
        {"name": "artifacts", "persistentVolumeClaim": {"claimName": job.claim}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if spec.source.pvc:
        mounts.append({"name": "source", "mountPath": SOURCE_PATH, "readOnly": True})
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": spec.source.pvc.claim_name}})
    container: Manifest = {
        "name": CONTAINER,
        "image": settings.images.worker,
        "imagePullPolicy": settings.images.pull_policy,
        "command": ["halfbyte-worker", job.stage, "--task", f"{TASK_PATH}/task.json"],
        "env": _environment(spec),
        "resources": _resources(job, settings),
        "securityContext": container_security(),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 15,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
        **pod_placement(spec.placement),
    }


def _environment(spec: Spec) -> list[Manifest]:
    variables: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a path inside the pod
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    hub = spec.source.hugging_face
    if hub and hub.token_secret_ref:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def _resources(job: WorkerJob, settings: PlanningSettings) -> Manifest:
    limit = cpu_limit_millis(job.resources, settings)
    cpu = job.resources.requests.cpu
    request = (
        parse_millis(cpu)
        if cpu is not None
        else min(settings.jobs.cpu_millis, limit or settings.jobs.cpu_millis)
    )
    limits = {"memory": format_bytes(job.memory_limit)}
    if limit is not None:
        limits["cpu"] = format_millis(limit)
    return {
        "requests": {"cpu": format_millis(request), "memory": format_bytes(job.memory_request)},
        "limits": limits,
    }


def cpu_limit_millis(resources: Resources, settings: PlanningSettings) -> int | None:
    """CPU limit of a Job, from which the worker takes its threads; None leaves it unlimited."""
    if resources.limits.cpu is not None:
        return parse_millis(resources.limits.cpu)
    return settings.jobs.cpu_limit_millis


def threads(resources: Resources, settings: PlanningSettings) -> int:
    """Threads for the worker: the CPU limit in whole cores, 0 for as many as it may run on."""
    limit = cpu_limit_millis(resources, settings)
    return 0 if limit is None else max(1, -(-limit // 1000))


def build_adoption(
    model: ModelObject, api_version: str, kind: str, name: str, uid: str, annotations: Mapping[str, Any]
) -> Manifest:
    """The little that a second model adds to a Job or ConfigMap that it shares: itself as an owner.

    Applied with a field manager of the model's own, so that neither model's apply removes the other's entry.
    """
    metadata = build_metadata(model, name, {}, annotations, controller=False)
    del metadata["labels"]
    return {"apiVersion": api_version, "kind": kind, "metadata": {**metadata, "uid": uid}}
