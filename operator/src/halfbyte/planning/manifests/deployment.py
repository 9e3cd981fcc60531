"""Server Deployments: one per revision, named by the content of its pod template.

The pod template of a Deployment never changes (another template is another revision), so its own update
strategy only matters when somebody edits it by hand. It is explicit all the same, and one that cannot
deadlock on full GPUs.
"""

from collections.abc import Mapping
from typing import Any, Final

from halfbyte.api import labels
from halfbyte.api.spec import Spec
from halfbyte.planning.decision import Decision
from halfbyte.planning.identity import canonical, deployment_name, digest
from halfbyte.planning.manifests.job import ARTIFACTS_PATH
from halfbyte.planning.manifests.meta import (
    Manifest,
    build_metadata,
    child_labels,
    container_security,
    pod_placement,
    pod_security,
    with_hash,
)
from halfbyte.planning.manifests.service import PORT_NAME
from halfbyte.planning.quantities import GIB, format_bytes, format_millis
from halfbyte.planning.server import ServerPlan
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import ModelObject

CONTAINER: Final = "server"
DRAIN_SECONDS: Final = 5
GRACE_SECONDS: Final = 60
# A started server is found within so many seconds; a refused connection costs next to nothing.
PROBE_PERIOD: Final = 2


def server_arguments(model: ModelObject, spec: Spec, decision: Decision) -> tuple[str, ...]:
    """The engine's arguments: a pure function of the plan, then those of the spec."""
    server = decision.server
    arguments = [
        f"--model={ARTIFACTS_PATH}/{decision.path}",
        f"--served-model-name={model.name}",
        "--host=0.0.0.0",
        f"--port={labels.SERVER_PORT}",
        f"--dtype={server.dtype}",
        f"--max-model-len={server.max_model_len}",
        f"--tensor-parallel-size={server.tensor_parallel}",
    ]
    if spec.serving.accelerator.type == "cpu":
        # torch.compile on a CPU needs a compiler in the image and more than a minute.
        arguments.append("--enforce-eager")
    else:
        arguments.append("--gpu-memory-utilization=0.90")
    return (*arguments, *spec.serving.extra_args)


def build_revision(
    model: ModelObject, spec: Spec, decision: Decision, claim: str, intent: str, settings: PlanningSettings
) -> Manifest:
    """The Deployment without replicas and without its hash: what is kept in its own annotation.

    Its revision, ``r`` and eight digits of the hash of the pod template, is in name and labels.
    """
    template = _pod_template(model, spec, decision, claim, settings)
    revision = f"r{digest(template, 8)}"
    more = {labels.REVISION: revision, labels.ARTIFACT_KEY: artifact_label_of(decision)}
    pod_labels = child_labels(model, labels.STAGE_SERVE, **more)
    metadata = build_metadata(
        model, deployment_name(model.name, revision), pod_labels, {labels.INTENT: intent}
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {labels.MODEL: model.name, labels.REVISION: revision}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "progressDeadlineSeconds": decision.server.progress_deadline_seconds,
            "revisionHistoryLimit": 1,
            "template": {**template, "metadata": {"labels": pod_labels}},
        },
    }


def artifact_label_of(decision: Decision) -> str:
    return decision.key.removeprefix("sha256-")[:16]


def finish_revision(rendered: Manifest, replicas: int | None, annotations: Mapping[str, str]) -> Manifest:
    """The Deployment to apply: the rendered one with replicas (None: an autoscaler owns them) and
    annotations.
    """
    metadata = rendered["metadata"]
    merged = {**metadata["annotations"], **annotations, labels.RENDERED: canonical(rendered)}
    spec = dict(rendered["spec"]) if replicas is None else {**rendered["spec"], "replicas": replicas}
    return with_hash({**rendered, "metadata": {**metadata, "annotations": merged}, "spec": spec})


def _pod_template(
    model: ModelObject, spec: Spec, decision: Decision, claim: str, settings: PlanningSettings
) -> Manifest:
    server = decision.server
    on_cpu = spec.serving.accelerator.type == "cpu"
    volumes: list[Manifest] = [
        {"name": "artifacts", "persistentVolumeClaim": {"claimName": claim}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        {"name": "artifacts", "mountPath": ARTIFACTS_PATH, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the pod
    ]
    if server.shared_memory:
        size = format_bytes(server.shared_memory)
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108 - a path inside the pod
    container: Manifest = {
        "name": CONTAINER,
        "image": settings.images.vllm if on_cpu else settings.images.vllm_cuda,
        "imagePullPolicy": settings.images.pull_policy,
        "args": list(server_arguments(model, spec, decision)),
        "env": _environment(server, on_cpu=on_cpu),
        "ports": [{"name": PORT_NAME, "containerPort": labels.SERVER_PORT, "protocol": "TCP"}],
        "resources": _resources(server),
        "securityContext": container_security(),
        # A server that dies at start says why in its last log lines, which then reach the condition's
        # message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DRAIN_SECONDS)]}}},
        **_probes(server),
    }
    selector = {}
    if spec.serving.accelerator.product:
        selector = {"nvidia.com/gpu.product": spec.serving.accelerator.product}
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": volumes,
            **pod_placement(spec.placement, selector),
        }
    }


def _environment(server: ServerPlan, *, on_cpu: bool) -> list[Manifest]:
    values: dict[str, Any] = {
        "HOME": "/tmp",  # noqa: S108 - a path inside the pod
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": "/tmp/vllm",  # noqa: S108
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/ti",  # noqa: S108
    }
    if on_cpu:
        values["VLLM_CPU_KVCACHE_SPACE"] = str((server.kv_cache or GIB) // GIB)
    return [{"name": name, "value": value} for name, value in values.items()]


def _probes(server: ServerPlan) -> Manifest:
    health = {"httpGet": {"path": "/health", "port": PORT_NAME}}
    return {
        "startupProbe": {
            **health,
            "periodSeconds": PROBE_PERIOD,
            "timeoutSeconds": 10,
            "failureThreshold": -(-server.startup_seconds // PROBE_PERIOD),
        },
        # The model itself must be listed, not only the port be open.
        "readinessProbe": {
            "httpGet": {"path": "/v1/models", "port": PORT_NAME},
            "periodSeconds": 5,
            "timeoutSeconds": 10,
            "failureThreshold": 3,
        },
        # Gentle: a server busy with a long prefill answers late, killing it would lose every request
        # (kserve#5062).
        "livenessProbe": {**health, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 6},
    }


def _resources(server: ServerPlan) -> Manifest:
    requests = {
        "cpu": format_millis(server.cpu_request_millis),
        "memory": format_bytes(server.memory_request),
    }
    limits: dict[str, str] = {}
    if server.memory_limit is not None:
        limits["memory"] = format_bytes(server.memory_limit)
    if server.cpu_limit_millis is not None:
        limits["cpu"] = format_millis(server.cpu_limit_millis)
    if server.gpus:
        limits["nvidia.com/gpu"] = str(server.gpus)
        requests["nvidia.com/gpu"] = str(server.gpus)
    return {"requests": requests, "limits": limits}
