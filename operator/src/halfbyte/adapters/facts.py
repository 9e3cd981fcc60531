"""Raw JSON of the API server projected into the facts of a snapshot. Pure; tolerates missing fields."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from halfbyte.adapters.gateway import Json
from halfbyte.api import labels
from halfbyte.planning.quantities import parse_quantity
from halfbyte.planning.snapshot import (
    ClaimFact,
    DeploymentFact,
    JobFact,
    ModelObject,
    NodeFact,
    ObjectFact,
    PodFact,
    ResourceAmounts,
    Taint,
)

_PLUGIN_KERNEL = re.compile(r"halfbyte-kernels: kernel=(\S+)")
_ENGINE_KERNEL = re.compile(r"\b(?:Selected|Using) (\w+Kernel) for ")


def model_object(raw: Json) -> ModelObject:
    metadata = raw["metadata"]
    return ModelObject(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=_required_time(metadata["creationTimestamp"]),
        raw_spec=raw.get("spec") or {},
        status=raw.get("status") or {},
        annotations=metadata.get("annotations") or {},
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
    )


def job_fact(raw: Json, pods: Iterable[PodFact]) -> JobFact:
    metadata, status = raw["metadata"], raw.get("status") or {}
    terminal = next(
        (each for each in _true_conditions(status) if each["type"] in {"Complete", "Failed"}),
        {},
    )
    return JobFact(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owner_uids=owner_uids(raw),
        active=status.get("active") or 0,
        succeeded=status.get("succeeded") or 0,
        failed=status.get("failed") or 0,
        condition_type=terminal.get("type"),
        condition_reason=terminal.get("reason"),
        condition_message=terminal.get("message"),
        created=_time(metadata.get("creationTimestamp")),
        completed=_time(status.get("completionTime")),
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
        pods=tuple(sorted(pods, key=lambda pod: (str(pod.created), pod.name))),
    )


def pod_fact(raw: Json) -> PodFact:
    metadata, status = raw["metadata"], raw.get("status") or {}
    main: Json = next(iter(status.get("containerStatuses") or []), {})
    container = _main_container(raw.get("spec") or {})
    ended = _termination(main)
    reason, message = _why_not_running(status)
    conditions = {each["type"] for each in _true_conditions(status)}
    return PodFact(
        name=metadata["name"],
        phase=status.get("phase", "Pending"),
        ready="Ready" in conditions,
        reason=reason,
        message=message,
        exit_code=ended.get("exitCode"),
        termination_message=ended.get("message"),
        restarts=main.get("restartCount") or 0,
        node=(raw.get("spec") or {}).get("nodeName"),
        created=_time(metadata.get("creationTimestamp")),
        labels=metadata.get("labels") or {},
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
        memory_limit=((container.get("resources") or {}).get("limits") or {}).get("memory"),
    )


def _main_container(pod_spec: Json) -> Json:
    found: Json = next(iter(pod_spec.get("containers") or []), {})
    return found


def deployment_fact(raw: Json) -> DeploymentFact:
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    container = _main_container(spec["template"]["spec"])
    return DeploymentFact(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        generation=metadata.get("generation", 0),
        observed_generation=status.get("observedGeneration") or 0,
        replicas=spec.get("replicas", 1),
        status_replicas=status.get("replicas") or 0,
        ready_replicas=status.get("readyReplicas") or 0,
        updated_replicas=status.get("updatedReplicas") or 0,
        image=container.get("image"),
        arguments=tuple(container.get("args") or ()),
        created=_time(metadata.get("creationTimestamp")),
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
    )


def object_fact(raw: Json) -> ObjectFact:
    metadata = raw["metadata"]
    return ObjectFact(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owner_uids=owner_uids(raw),
    )


def claim_fact(raw: Json) -> ClaimFact:
    metadata, status = raw["metadata"], raw.get("status") or {}
    capacity = (status.get("capacity") or {}).get("storage")
    return ClaimFact(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", "Pending"),
        capacity_bytes=None if capacity is None else int(parse_quantity(capacity)),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        owner_uids=owner_uids(raw),
        deletion_timestamp=_time(metadata.get("deletionTimestamp")),
    )


def node_fact(raw: Json, pods: Iterable[Json]) -> NodeFact:
    """A node with what ``pods`` (raw, bound to it, unfinished) request of it."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    return NodeFact(
        name=metadata["name"],
        ready=any(each["type"] == "Ready" for each in _true_conditions(status)),
        unschedulable=bool(spec.get("unschedulable")),
        labels=metadata.get("labels") or {},
        taints=tuple(
            Taint(each["key"], each["effect"], each.get("value")) for each in spec.get("taints") or ()
        ),
        allocatable=_amounts(status.get("allocatable") or {}),
        requested=_sum(pod_requests(pod) for pod in pods),
    )


def pod_requests(raw: Json) -> ResourceAmounts:
    """What the scheduler counts for a pod: max(sum of containers, largest init container) + overhead.

    Init containers that restart always (sidecars) count beside the containers.
    Source: kubernetes.io/docs/concepts/workloads/pods/init-containers, "Resource sharing within containers".
    """
    spec = raw.get("spec") or {}
    init = spec.get("initContainers") or []
    sidecars = [each for each in init if each.get("restartPolicy") == "Always"]
    running = _sum(_requests(each) for each in [*(spec.get("containers") or []), *sidecars])
    starting = [_requests(each) for each in init if each.get("restartPolicy") != "Always"]
    peak = ResourceAmounts(
        max([running.cpu_millis, *(each.cpu_millis for each in starting)]),
        max([running.memory_bytes, *(each.memory_bytes for each in starting)]),
        max([running.gpus, *(each.gpus for each in starting)]),
    )
    return _sum([peak, _amounts(spec.get("overhead") or {})])


def owner_uids(raw: Json) -> frozenset[str]:
    return frozenset(each["uid"] for each in raw["metadata"].get("ownerReferences") or ())


def owner_models(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the QuantizedModels that own an object."""
    references = (raw.get("metadata") or {}).get("ownerReferences") or ()
    return tuple(
        each["name"]
        for each in references
        if each.get("kind") == labels.KIND and str(each.get("apiVersion")).startswith(f"{labels.GROUP}/")
    )


def secret_keys(raw: Json) -> frozenset[str]:
    """Names of the keys; the values are never kept."""
    return frozenset(raw.get("data") or {})


def last_progress(log: str) -> Json | None:
    """The last progress line of a worker's log (one JSON object a line; other lines are skipped)."""
    for line in reversed(log.splitlines()):
        if '"progress"' not in line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") == "progress":
            return entry
    return None


def logged_kernel(log: str) -> str | None:
    """Class of the linear kernel: the one that our plugin announced, else the one that vLLM says it took."""
    match = _PLUGIN_KERNEL.search(log) or _ENGINE_KERNEL.search(log)
    return match[1] if match else None


def scaled_deployments(autoscalers: Iterable[Json]) -> frozenset[str]:
    """Names of the Deployments that the autoscalers (of one namespace) scale."""
    targets = [(each.get("spec") or {}).get("scaleTargetRef") or {} for each in autoscalers]
    return frozenset(str(each.get("name")) for each in targets if each.get("kind") == "Deployment")


def _termination(container: Json) -> Json:
    for state in ("state", "lastState"):
        ended = (container.get(state) or {}).get("terminated")
        if ended:
            return dict(ended)
    return {}


def _why_not_running(status: Json) -> tuple[str | None, str | None]:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for state in ("waiting", "terminated"):
        for container in containers:
            found = (container.get("state") or {}).get(state) or {}
            # Of every pod that starts; it explains nothing.
            if found.get("reason") in {None, "Completed", "ContainerCreating", "PodInitializing"}:
                continue
            return found["reason"], found.get("message")
    if status.get("reason"):
        return status["reason"], status.get("message")
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each.get("status") == "False":
            return each.get("reason"), each.get("message")
    return None, None


def _true_conditions(status: Json) -> list[Json]:
    return [each for each in status.get("conditions") or [] if each.get("status") == "True"]


def _requests(container: Json) -> ResourceAmounts:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _amounts(raw: Mapping[str, Any]) -> ResourceAmounts:
    return ResourceAmounts(
        cpu_millis=int(parse_quantity(raw.get("cpu", 0)) * 1000),
        memory_bytes=int(parse_quantity(raw.get("memory", 0))),
        gpus=int(parse_quantity(raw.get("nvidia.com/gpu", 0))),
    )


def _sum(amounts: Iterable[ResourceAmounts]) -> ResourceAmounts:
    every = list(amounts)
    return ResourceAmounts(
        sum(each.cpu_millis for each in every),
        sum(each.memory_bytes for each in every),
        sum(each.gpus for each in every),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else _required_time(text)


def _required_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
