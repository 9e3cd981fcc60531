"""Everything observed about one model at one instant. Filled by ``adapters.gather``, read by every decision.

Times are aware UTC datetimes. Amounts are integers: memory and storage in bytes, CPU in thousandths of a
core.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelObject:
    """The QuantizedModel as stored: ``raw_spec`` and ``status`` are unparsed JSON."""

    name: str
    namespace: str
    uid: str
    generation: int
    created: datetime
    raw_spec: Json
    status: Json = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deletion_timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodFact:
    """One pod of a Job or of a server.

    Attributes:
        reason: why the pod does not run, the most specific known: a container's waiting reason (init
            containers first; ``ImagePullBackOff``, ``CrashLoopBackOff``, ``CreateContainerConfigError``),
            else its terminated reason (``OOMKilled``, ``Error``), else the pod's own (``Evicted``), else that
            of the PodScheduled condition while it is False (``Unschedulable``).
        message: the message that belongs to ``reason`` (for ``Unschedulable`` the scheduler's words).
        exit_code: of the main container's last termination (state, else lastState).
        termination_message: the text that the main container left, of the same termination.
        memory_limit: of the main container, as the pod states it, such as ``1900Mi``.
    """

    name: str
    phase: str
    ready: bool = False
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    termination_message: str | None = None
    restarts: int = 0
    node: str | None = None
    created: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    deletion_timestamp: datetime | None = None
    memory_limit: str | None = None


@dataclass(frozen=True, slots=True)
class JobFact:
    """One Job. ``condition_type`` is the terminal condition that is True: ``Complete``, ``Failed``, or None.

    ``SuccessCriteriaMet`` and ``FailureTarget`` precede those two and are not terminal.
    """

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_uids: frozenset[str] = frozenset()
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    condition_type: str | None = None
    condition_reason: str | None = None
    condition_message: str | None = None
    created: datetime | None = None
    completed: datetime | None = None
    deletion_timestamp: datetime | None = None
    pods: tuple[PodFact, ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentFact:
    """One server revision. ``replicas`` is the desired number in its spec; the other counts come from its
    status.
    """

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0
    observed_generation: int = 0
    replicas: int = 0
    status_replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    image: str | None = None
    arguments: tuple[str, ...] = ()
    created: datetime | None = None
    deletion_timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class ObjectFact:
    """Identity of a child whose content is never read back (ConfigMaps)."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_uids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimFact:
    """A PersistentVolumeClaim that exists; one that the spec names and the snapshot lacks does not."""

    name: str
    uid: str
    phase: str
    capacity_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_uids: frozenset[str] = frozenset()
    deletion_timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """CPU in thousandths of a core, memory in bytes, whole ``nvidia.com/gpu`` devices."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    effect: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A node. ``requested`` sums the effective requests of the pods bound to it that have not finished."""

    name: str
    ready: bool
    unschedulable: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: ResourceAmounts = ResourceAmounts()
    requested: ResourceAmounts = ResourceAmounts()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known now.

    Attributes:
        jobs: every Job in the namespace with our managed-by label that this model owns, plus all of stage
            ``quantize`` (two models with one recipe share the Job, whoever created it).
        deployments: ours (owner uid) of stage ``serve``.
        service: the raw live Service named like the model, or None.
        serving_pods: pods of all our Deployments; ``labels`` carry ``halfbyte.dev/revision``.
        config_maps: by name; ours, plus those of stage ``quantize``.
        claims: by name, every existing claim out of ``references(model).claims``.
        secrets: for every readable Secret out of ``references(model).secrets``: its keys (never values), None
            when it is missing.
        nodes: None when the operator may not list nodes.
        progress: the last progress line of the running worker pod, parsed.
        server_log_kernel: kernel class that the newest revision's server logged, None when unknown.
        autoscaled: an autoscaler targets this model's scale subresource or its Deployment.
        optional_apis: discovered, as ``group/kind`` (``leaderworkerset.x-k8s.io/LeaderWorkerSet``).
    """

    model: ModelObject
    jobs: tuple[JobFact, ...] = ()
    deployments: tuple[DeploymentFact, ...] = ()
    service: Json | None = None
    serving_pods: tuple[PodFact, ...] = ()
    config_maps: Mapping[str, ObjectFact] = field(default_factory=dict)
    claims: Mapping[str, ClaimFact] = field(default_factory=dict)
    secrets: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    nodes: tuple[NodeFact, ...] | None = None
    progress: Json | None = None
    server_log_kernel: str | None = None
    autoscaled: bool = False
    optional_apis: frozenset[str] = frozenset()
