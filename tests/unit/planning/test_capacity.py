from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.spec import Accelerator, Placement
from halfbyte.planning.capacity import admissible_nodes, cpu_flags, fits_free, gpu_of, largest_memory
from halfbyte.planning.facts import parse_facts
from halfbyte.planning.snapshot import ResourceAmounts, Taint
from support.models import GIB, facts, node

FACTS = parse_facts(facts())
TAINT = Taint("gpu", "NoSchedule", "yes")
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "a plain node": ({}, {}, True),
    "not ready": ({"ready": False}, {}, False),
    "cordoned": ({"unschedulable": True}, {}, False),
    "label asked for": ({"labels": {"pool": "a"}}, {"nodeSelector": {"pool": "a"}}, True),
    "label missing": ({}, {"nodeSelector": {"pool": "a"}}, False),
    "tainted": ({"taints": (TAINT,)}, {}, False),
    "only preferred": ({"taints": (Taint("gpu", "PreferNoSchedule"),)}, {}, True),
    "tolerated by value": ({"taints": (TAINT,)}, {"tolerations": [{"key": "gpu", "value": "yes"}]}, True),
    "another value": ({"taints": (TAINT,)}, {"tolerations": [{"key": "gpu", "value": "no"}]}, False),
    "tolerated by existence": (
        {"taints": (TAINT,)},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        True,
    ),
    "everything tolerated": ({"taints": (TAINT,)}, {"tolerations": [{"operator": "Exists"}]}, True),
    "another effect": (
        {"taints": (TAINT,)},
        {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]},
        False,
    ),
}


@pytest.mark.parametrize(("fields", "placement", "admitted"), PLACES.values(), ids=PLACES.keys())
def test_admissible_nodes(fields: dict[str, Any], placement: dict[str, Any], admitted: bool) -> None:
    found = admissible_nodes((node(**fields),), Placement.model_validate(placement))
    assert bool(found) is admitted


def test_gpu_servers_need_nodes_with_such_gpus() -> None:
    gpus = ResourceAmounts(1, 1, 8)
    nodes = (
        node("plain"),
        node("h100", allocatable=gpus, labels={"nvidia.com/gpu.product": "H100"}),
        node("a10", allocatable=gpus, labels={"nvidia.com/gpu.product": "A10"}),
    )

    def names(**accelerator: Any) -> list[str]:
        wanted = Accelerator.model_validate(accelerator)
        return [each.name for each in admissible_nodes(nodes, Placement(), wanted) or ()]

    assert names(type="cpu") == ["plain", "h100", "a10"]
    assert names(type="nvidia") == ["h100", "a10"]
    assert names(type="nvidia", product="A10") == ["a10"]
    assert admissible_nodes(None, Placement()) is None


def test_largest_memory() -> None:
    assert largest_memory(None) is None
    assert largest_memory(()) is None
    nodes = (node("a", allocatable=ResourceAmounts(1, 5, 0)), node("b", allocatable=ResourceAmounts(1, 9, 0)))
    assert largest_memory(nodes) == ("b", 9)


ROOM = {
    "one fits": (ResourceAmounts(1000, 10 * GIB, 0), 1, True),
    "two do not share a node": (ResourceAmounts(1500, GIB, 0), 2, True),
    "three do not fit two nodes": (ResourceAmounts(1500, GIB, 0), 3, False),
    "memory is short": (ResourceAmounts(100, 30 * GIB, 0), 1, False),
    "no GPU": (ResourceAmounts(100, GIB, 1), 1, False),
    "nothing asked for": (ResourceAmounts(100, 0, 0), 40, True),
}


@pytest.mark.parametrize(("need", "count", "fits"), ROOM.values(), ids=ROOM.keys())
def test_free_room_is_counted_node_by_node(need: ResourceAmounts, count: int, fits: bool) -> None:
    assert fits_free((node("a"), node("b")), need, count) is fits


def test_what_is_requested_is_not_free() -> None:
    busy = node(requested=ResourceAmounts(1900, 0, 0))
    assert not fits_free((busy,), ResourceAmounts(250, GIB, 0), 1)
    overcommitted = node(requested=ResourceAmounts(5000, 0, 0))
    assert not fits_free((overcommitted, busy), ResourceAmounts(250, GIB, 0), 1)


def labelled(name: str, *flags: str) -> Any:
    return node(name, labels={f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in flags})


def test_cpu_features_come_from_labels_that_every_node_has() -> None:
    nodes = (labelled("a", "AVX2", "AVX512F", "SSE4"), labelled("b", "AVX2"))
    assert cpu_flags(nodes, FACTS) == (frozenset({"avx2"}), "by the labels of 2 nodes")


def test_else_from_the_node_of_the_inspect_job() -> None:
    assert cpu_flags((labelled("a", "AVX512F"), node("b")), FACTS) == (
        frozenset({"avx2"}),
        "as the Inspect Job saw on node node-1",
    )
    assert cpu_flags(None, FACTS)[0] == {"avx2"}


def test_the_gpu_to_plan_for_is_the_smallest() -> None:
    def gpu_node(name: str, memory: str, count: int) -> Any:
        labels = {
            "nvidia.com/gpu.product": name,
            "nvidia.com/gpu.memory": memory,
            "nvidia.com/gpu.compute.major": "9",
            "nvidia.com/gpu.compute.minor": "0",
        }
        return node(name, labels=labels, allocatable=ResourceAmounts(1, 1, count))

    nodes = (gpu_node("big", "81559", 2), gpu_node("small", "23034", 8))
    found = gpu_of(nodes, Accelerator(type="nvidia"))
    assert (found.product, found.capability, found.per_node) == ("small", "9.0", 8)
    assert found.memory_bytes == 23034 * 1024**2
    assert gpu_of(nodes, Accelerator(type="nvidia", memory="40Gi")).memory_bytes == 40 * GIB
    unknown = gpu_of(None, Accelerator(type="nvidia", product="X"))
    assert (unknown.product, unknown.capability, unknown.memory_bytes, unknown.per_node) == (
        "X",
        None,
        None,
        None,
    )
    assert gpu_of((), Accelerator(type="nvidia")).per_node == 0
