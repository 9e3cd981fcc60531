"""What the installation decides, as opposed to a model's spec."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Images:
    worker: str = "halfbyte.dev/worker:0.1.0"
    vllm: str = "halfbyte.dev/vllm:0.1.0"
    vllm_cuda: str = "halfbyte.dev/vllm:0.1.0-cuda"
    pull_policy: str = "IfNotPresent"


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """Requests and bounds of worker Jobs where the spec says nothing.

    Attributes:
        cpu_millis: CPU request; small enough for a two-core node that also serves.
        cpu_limit_millis: CPU limit, from which the worker takes its threads; None leaves it unlimited.
        backoff_limit: retries of failures that count.
        inspect_memory_bytes: memory of the Inspect Job, which reads headers only.
        inspect_deadline_seconds: activeDeadlineSeconds of the Inspect Job.
    """

    cpu_millis: int = 500
    cpu_limit_millis: int | None = None
    backoff_limit: int = 3
    inspect_memory_bytes: int = GIB // 2
    inspect_deadline_seconds: int = 1800


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """Settings of one operator installation.

    Attributes:
        operator_version: of the running operator. Nothing that is rendered holds it, or an upgrade would
            restart servers.
        resync_seconds: period of the runtime's own resync.
        matrix: ``kernels/matrix.yaml`` parsed: what kernels and engines support.
    """

    operator_version: str = "0.1.0"
    images: Images = Images()
    jobs: JobDefaults = JobDefaults()
    resync_seconds: float = 300.0
    matrix: Mapping[str, Any] = field(default_factory=dict)
