"""The plan of one model: facts, spec and nodes in, sizes and a digest out, or the first reason why there can
be none.

The checks, in the order in which they are made; each stops before anything expensive starts:
    architecture known to the engine -> source not quantized already -> group size divides -> a kernel serves
    the recipe on the hardware -> ranks allowed -> context fits -> memory of Jobs and server within the
    largest node -> GPUs -> disk

The digest covers what a person approves: recipe, artifact, Jobs, replica and server hardware. It contains no
free amounts, so it does not change while somebody reads it.
"""

from dataclasses import dataclass
from typing import Any

from halfbyte.api.conditions import Reason
from halfbyte.api.spec import Spec
from halfbyte.planning.capacity import Gpu, admissible_nodes, cpu_flags, gpu_of, largest_memory
from halfbyte.planning.compatibility import (
    Hardware,
    Match,
    architecture_supported,
    cpu_hardware,
    find_kernel,
    gpu_hardware,
    supported_architectures,
)
from halfbyte.planning.facts import ModelFacts
from halfbyte.planning.identity import digest
from halfbyte.planning.quantities import describe_bytes, format_bytes, ratio
from halfbyte.planning.recipe import Recipe, artifact_key, artifact_path, indivisible, resolve_recipe
from halfbyte.planning.server import ServerPlan, plan_server
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.sizes import JobSize, artifact_bytes, disk_bytes, quantize_job_size, validate_job_size
from halfbyte.planning.snapshot import ClaimFact, NodeFact
from halfbyte.planning.violation import Violation

BASELINE = Hardware("cpu-baseline", "float32")
"""A CPU of which nothing is known: every one computes in float32."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything decided about a model before its quantize Job starts."""

    facts: ModelFacts
    recipe: Recipe
    key: str
    path: str
    job_dtype: str
    hardware: str
    compute_why: str
    artifact_bytes: int
    disk_bytes: int
    quantize: JobSize
    validate: JobSize
    server: ServerPlan
    kernel: str | None

    def to_status(self) -> dict[str, Any]:
        """``status.plan`` without its digest."""
        return {
            "recipe": {
                "method": self.recipe.method,
                "bits": self.recipe.bits,
                "groupSize": self.recipe.group_size,
                "symmetric": self.recipe.symmetric,
                "why": self.recipe.why,
            },
            "compute": {"hardware": self.hardware, "dtype": self.server.dtype, "why": self.compute_why},
            "quantizeJob": {**_job_status(self.quantize), "scratch": format_bytes(self.disk_bytes)},
            "validateJob": _job_status(self.validate),
            "artifact": {
                "key": self.key,
                "bytes": self.artifact_bytes,
                "ratio": ratio(self.artifact_bytes, self.facts.source_bytes),
            },
            "serving": _server_status(self.server, self.kernel),
        }

    def digest(self) -> str:
        """Sixteen digits that a person approves."""
        return digest(self.to_status(), 16)


def decide(
    spec: Spec,
    facts: ModelFacts,
    nodes: tuple[NodeFact, ...] | None,
    claim: ClaimFact | None,
    settings: PlanningSettings,
    artifact_exists: bool,
) -> Decision | Violation:
    """The plan, or the first reason against it. ``claim`` is the artifact claim."""
    engine = spec.serving.engine
    if not architecture_supported(settings.matrix, engine, facts.architecture):
        known = ", ".join(supported_architectures(settings.matrix, engine))
        return Violation.of(
            Reason.UNSUPPORTED_ARCHITECTURE,
            f"{engine} does not serve {facts.architecture} (config.json of the source); it serves {known}",
        )
    recipe = resolve_recipe(spec, facts)
    if facts.quantized and recipe.method != "None":
        return Violation.of(
            Reason.ALREADY_QUANTIZED,
            f"the source is already quantized ({facts.quantized}), {recipe.method} cannot be applied to it;"
            " use the unquantized model as the source, or method None",
        )
    problem = indivisible(facts, recipe)
    if problem:
        return Violation.of(Reason.GROUP_SIZE_INDIVISIBLE, problem)
    return _decide_sizes(spec, facts, recipe, nodes, claim, settings, artifact_exists)


def _decide_sizes(
    spec: Spec, facts: ModelFacts, recipe: Recipe, nodes: tuple[NodeFact, ...] | None,
    claim: ClaimFact | None, settings: PlanningSettings, artifact_exists: bool,
) -> Decision | Violation:  # fmt: skip
    job_nodes = admissible_nodes(nodes, spec.placement)
    server_nodes = admissible_nodes(nodes, spec.placement, spec.serving.accelerator)
    flags, flags_why = cpu_flags(job_nodes, facts)
    job_hardware = cpu_hardware(settings.matrix, flags) or BASELINE
    gpu = (
        gpu_of(server_nodes, spec.serving.accelerator) if spec.serving.accelerator.type == "nvidia" else None
    )
    hardware = _server_hardware(gpu, job_hardware, settings)
    if isinstance(gpu, Gpu) and gpu.memory_bytes is None and hardware and hardware.memory_bytes:
        gpu = Gpu(gpu.product, gpu.capability, hardware.memory_bytes, gpu.per_node)
    dtype = hardware.dtype if hardware else "bfloat16"
    server = plan_server(spec, facts, recipe, dtype, server_nodes, gpu)
    if isinstance(server, Violation):
        return server
    match = Match(None)
    if hardware is not None:
        match = find_kernel(
            settings.matrix, spec.serving.engine, hardware, facts, recipe, server.tensor_parallel
        )
        if match.kernel is None:
            return Violation.of(Reason.INCOMPATIBLE_PLAN, f"{hardware.name}: {match.refusal}")
    key = artifact_key(facts, recipe)
    decision = Decision(
        facts=facts,
        recipe=recipe,
        key=key,
        path=artifact_path(recipe, key),
        job_dtype=job_hardware.dtype,
        hardware=hardware.name if hardware else "unknown",
        compute_why=_compute_why(hardware, job_hardware, gpu, flags, flags_why),
        artifact_bytes=artifact_bytes(facts, recipe),
        disk_bytes=disk_bytes(spec, facts, recipe),
        quantize=quantize_job_size(spec, facts, recipe, job_hardware.dtype),
        validate=validate_job_size(spec, facts, recipe),
        server=server,
        kernel=match.kernel,
    )
    return (
        _memory_insufficient(spec, decision, job_nodes, server_nodes)
        or _gpus_insufficient(decision, server_nodes)
        or (None if artifact_exists else _disk_insufficient(spec, decision, claim))
        or decision
    )


def _server_hardware(gpu: Gpu | None, cpu: Hardware, settings: PlanningSettings) -> Hardware | None:
    if gpu is None:
        return cpu
    return gpu_hardware(settings.matrix, gpu.capability, gpu.product)


def _compute_why(
    server: Hardware | None, jobs: Hardware, gpu: Gpu | None, flags: frozenset[str], flags_why: str
) -> str:
    features = " ".join(sorted(flags)) or "no feature beyond the baseline"
    cpu = f"CPU has {features} {flags_why}: {jobs.name}, {jobs.dtype}"
    if jobs.dtype == "float32":
        cpu += " (bfloat16 is not native there and would be slower)"
    if gpu is None:
        return cpu
    if server is None:
        return f"GPU {gpu.product or 'of unknown product'}: bfloat16; Jobs: {cpu}"
    return f"GPU {gpu.product or gpu.capability}: {server.name}, {server.dtype}; Jobs: {cpu}"


def _memory_insufficient(
    spec: Spec,
    decision: Decision,
    job_nodes: tuple[NodeFact, ...] | None,
    server_nodes: tuple[NodeFact, ...] | None,
) -> Violation | None:
    needs = (
        ("the quantize Job", decision.quantize.memory_request, "spec.quantization.resources", job_nodes),
        ("the validate Job", decision.validate.memory_request, "spec.validation.resources", job_nodes),
        ("one server", decision.server.memory_request, "spec.serving.resources", server_nodes),
    )
    for what, need, field, nodes in needs:
        largest = largest_memory(nodes)
        if largest and need > largest[1]:
            return Violation(
                Reason.INSUFFICIENT_MEMORY,
                f"{what} needs {format_bytes(need)} of memory, the largest node that spec.placement admits is"
                f" {largest[0]} with {format_bytes(largest[1])}; add a larger node, choose a smaller model or"
                f" context, or set {field}.requests.memory",
                terminal=False,
            )
    return None


def _gpus_insufficient(decision: Decision, nodes: tuple[NodeFact, ...] | None) -> Violation | None:
    if nodes is None or not decision.server.gpus:
        return None
    most = max((each.allocatable.gpus for each in nodes), default=0)
    if decision.server.gpus <= most:
        return None
    return Violation(
        Reason.INSUFFICIENT_GPUS,
        f"one replica needs {decision.server.gpus} GPUs, the largest node that spec.placement and"
        f" spec.serving.accelerator admit has {most}; add such a node or lower"
        " spec.serving.accelerator.perReplica",
        terminal=False,
    )


def _disk_insufficient(spec: Spec, decision: Decision, claim: ClaimFact | None) -> Violation | None:
    need = decision.disk_bytes
    what = "artifact and download need" if spec.source.hugging_face else "the artifact needs"
    capacity = claim.capacity_bytes if claim else None
    if claim and capacity is not None and need > capacity:
        return Violation(
            Reason.INSUFFICIENT_DISK,
            f"{what} {describe_bytes(need)}, claim {claim.name} has {describe_bytes(capacity)}"
            " in all;"
            " enlarge the claim or use another",
            terminal=False,
        )
    free = decision.facts.free_bytes
    if free is not None and need > free:
        name = claim.name if claim else "for artifacts"
        return Violation(
            Reason.INSUFFICIENT_DISK,
            f"{what} {describe_bytes(need)}, claim {name} had {describe_bytes(free)} free at"
            " inspection;"
            " free or add space, then set the annotation halfbyte.dev/requested-at",
            terminal=True,
        )
    return None


def _job_status(size: JobSize) -> dict[str, Any]:
    return {
        "memory": format_bytes(size.memory_request),
        "duration": f"{size.seconds[0]}s-{size.seconds[1]}s",
        "deadlineSeconds": size.deadline_seconds,
        "why": size.why,
    }


def _server_status(server: ServerPlan, kernel: str | None) -> dict[str, Any]:
    return {
        "tensorParallel": server.tensor_parallel,
        "gpus": server.gpus,
        "weightsPerRank": format_bytes(server.weights_per_rank),
        "kvBytesPerToken": server.kv_bytes_per_token,
        "kvCache": format_bytes(server.kv_cache) if server.kv_cache is not None else None,
        "maxModelLen": server.max_model_len,
        "maxConcurrency": server.max_concurrency,
        "memory": format_bytes(server.memory_request),
        "sharedMemory": format_bytes(server.shared_memory) if server.shared_memory else None,
        "startupSeconds": server.startup_seconds,
        "progressDeadlineSeconds": server.progress_deadline_seconds,
        "kernel": kernel,
        "why": server.why,
    }
