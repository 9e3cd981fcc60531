"""What the nodes offer to a model: which of them its pods may run on, their CPU features, GPUs, memory.

A node counts when it is Ready, not cordoned, carries every label of ``placement.nodeSelector`` and has no
taint with effect NoSchedule or NoExecute that ``placement.tolerations`` does not put up with. Sizes are
judged against allocatable amounts, which are stable; free amounts change by the minute and only decide
between surge and replace.

CPU features come from node-feature-discovery labels when every admissible node has some (then only what all
of them share counts), else from the node that the Inspect Job ran on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from halfbyte.api.spec import Accelerator, Placement, Toleration
from halfbyte.planning.facts import ModelFacts
from halfbyte.planning.quantities import MIB, parse_bytes
from halfbyte.planning.snapshot import NodeFact, ResourceAmounts, Taint

GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_MEMORY: Final = "nvidia.com/gpu.memory"
GPU_MAJOR: Final = "nvidia.com/gpu.compute.major"
GPU_MINOR: Final = "nvidia.com/gpu.compute.minor"

_CPUID: Final = "feature.node.kubernetes.io/cpu-cpuid."
_FLAGS: Final[Mapping[str, str]] = {
    "AVX2": "avx2",
    "AVXVNNI": "avx_vnni",
    "AVX512F": "avx512f",
    "AVX512VNNI": "avx512_vnni",
    "AVX512BF16": "avx512_bf16",
    "AMXINT8": "amx_int8",
    "AMXBF16": "amx_bf16",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the admissible nodes; ``per_node`` is the most that one node has. None means unknown."""

    product: str | None
    capability: str | None
    memory_bytes: int | None
    per_node: int | None


def admissible_nodes(
    nodes: tuple[NodeFact, ...] | None, placement: Placement, accelerator: Accelerator | None = None
) -> tuple[NodeFact, ...] | None:
    """Nodes that a pod may run on; with an nvidia accelerator only those that have such GPUs. None when
    unknown.
    """
    if nodes is None:
        return None
    found = tuple(each for each in nodes if _admits(each, placement))
    if accelerator is None or accelerator.type != "nvidia":
        return found
    return tuple(
        each
        for each in found
        if each.allocatable.gpus and accelerator.product in (None, each.labels.get(GPU_PRODUCT))
    )


def _admits(node: NodeFact, placement: Placement) -> bool:
    return (
        node.ready
        and not node.unschedulable
        and all(node.labels.get(key) == value for key, value in placement.node_selector.items())
        and all(
            taint.effect == "PreferNoSchedule"
            or any(_tolerates(each, taint) for each in placement.tolerations)
            for taint in node.taints
        )
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in (None, taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in (None, "", taint.key)
    return toleration.key == taint.key and (toleration.value or "") == (taint.value or "")


def largest_memory(nodes: tuple[NodeFact, ...] | None) -> tuple[str, int] | None:
    """Name and allocatable memory of the node with the most; None when nothing is known."""
    if not nodes:
        return None
    best = max(nodes, key=lambda each: each.allocatable.memory_bytes)
    return best.name, best.allocatable.memory_bytes


def fits_free(nodes: tuple[NodeFact, ...], need: ResourceAmounts, count: int) -> bool:
    """Whether ``count`` pods of this size fit what is free now, packed node by node."""
    room = sum(_fitting(each, need) for each in nodes)
    return room >= count


def _fitting(node: NodeFact, need: ResourceAmounts) -> int:
    amounts: tuple[Callable[[ResourceAmounts], int], ...] = (
        lambda each: each.cpu_millis,
        lambda each: each.memory_bytes,
        lambda each: each.gpus,
    )
    return min(
        max(0, amount(node.allocatable) - amount(node.requested)) // amount(need)
        for amount in amounts
        if amount(need)
    )


def cpu_flags(nodes: tuple[NodeFact, ...] | None, facts: ModelFacts) -> tuple[frozenset[str], str]:
    """CPU features to count on, and where they were learned."""
    labelled = [_labelled_flags(each) for each in nodes or ()]
    if labelled and all(flags is not None for flags in labelled):
        shared = frozenset.intersection(*(flags for flags in labelled if flags is not None))
        return shared, f"by the labels of {len(labelled)} nodes"
    return facts.cpu_flags, f"as the Inspect Job saw on node {facts.node_name or 'unknown'}"


def _labelled_flags(node: NodeFact) -> frozenset[str] | None:
    named = {
        key.removeprefix(_CPUID)
        for key, value in node.labels.items()
        if key.startswith(_CPUID) and value == "true"
    }
    return frozenset(_FLAGS[name] for name in named if name in _FLAGS) if named else None


def gpu_of(nodes: tuple[NodeFact, ...] | None, accelerator: Accelerator) -> Gpu:
    """The GPU to plan for: what the spec says, else the smallest that the admissible nodes name."""
    labelled = sorted(
        (int(each.labels[GPU_MEMORY]) * MIB, each.name, each)
        for each in nodes or ()
        if each.labels.get(GPU_MEMORY, "").isdigit()
    )
    sample = labelled[0][2] if labelled else (nodes[0] if nodes else None)
    labels = sample.labels if sample else {}
    major, minor = labels.get(GPU_MAJOR), labels.get(GPU_MINOR)
    memory = parse_bytes(accelerator.memory) if accelerator.memory else (labelled[0][0] if labelled else None)
    return Gpu(
        product=accelerator.product or labels.get(GPU_PRODUCT),
        capability=f"{major}.{minor}" if major and minor else None,
        memory_bytes=memory,
        per_node=max((each.allocatable.gpus for each in nodes), default=0) if nodes is not None else None,
    )
