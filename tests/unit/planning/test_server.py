from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.conditions import Reason
from halfbyte.api.spec import Spec
from halfbyte.planning.capacity import Gpu
from halfbyte.planning.facts import ModelFacts, parse_facts
from halfbyte.planning.parallelism import allowed_ranks, describe_allowed
from halfbyte.planning.recipe import resolve_recipe
from halfbyte.planning.server import ServerPlan, plan_server
from halfbyte.planning.snapshot import NodeFact, ResourceAmounts
from halfbyte.planning.violation import Violation
from support.models import GIB, large_facts, node
from support.models import facts as raw_facts
from support.models import spec as raw_spec

SMALL = parse_facts(raw_facts())
LARGE = parse_facts(large_facts())
NODES = (node(),)
H100 = Gpu("NVIDIA-H100-80GB-HBM3", "9.0", 80 * GIB, 8)


def on_cpu(
    facts: ModelFacts = SMALL,
    nodes: tuple[NodeFact, ...] | None = NODES,
    dtype: str = "float32",
    **serving: Any,
) -> ServerPlan | Violation:
    spec = Spec.model_validate(raw_spec(serving={"accelerator": {"type": "cpu"}, **serving}, quantization={}))
    return plan_server(spec, facts, resolve_recipe(spec, facts), dtype, nodes, None)


def on_gpu(
    facts: ModelFacts = LARGE, gpu: Gpu = H100, accelerator: dict[str, Any] | None = None, **parts: Any
) -> ServerPlan | Violation:
    serving = {"accelerator": {"type": "nvidia", **(accelerator or {})}, **parts}
    spec = Spec.model_validate(raw_spec(serving=serving, quantization={}))
    return plan_server(spec, facts, resolve_recipe(spec, facts), "bfloat16", None, gpu)


def planned(found: ServerPlan | Violation) -> ServerPlan:
    assert isinstance(found, ServerPlan), found
    return found


def refused(found: ServerPlan | Violation) -> Violation:
    assert isinstance(found, Violation), found
    return found


class TestRanks:
    def test_heads_and_groups_decide(self) -> None:
        spec = Spec.model_validate(raw_spec(quantization={"groupSize": 64}))
        assert allowed_ranks(SMALL, resolve_recipe(spec, SMALL)) == (1, 3)
        assert describe_allowed(SMALL, (1, 3)) == "9 heads allow 1 or 3"
        assert describe_allowed(SMALL, (1, 3, 9)) == "9 heads allow 1, 3 or 9"
        assert describe_allowed(SMALL, (1,)) == "9 heads allow 1"

    def test_more_ranks_than_kv_heads_repeat_them(self) -> None:
        spec = Spec.model_validate(raw_spec(quantization={}))
        assert allowed_ranks(LARGE, resolve_recipe(spec, LARGE)) == (1, 2, 4, 8, 16)

    def test_a_compressed_cache_has_no_heads_to_deal_out(self) -> None:
        compressed = parse_facts(large_facts(kvLoraRank=512, qkRopeHeadDim=64, keyValueHeads=3))
        spec = Spec.model_validate(raw_spec(quantization={}))
        assert 4 in allowed_ranks(compressed, resolve_recipe(spec, compressed))


class TestOnCpus:
    def test_the_small_model(self) -> None:
        found = planned(on_cpu(maxModelLen=2048))
        assert (found.tensor_parallel, found.gpus) == (1, 0)
        assert found.kv_cache == GIB
        assert found.max_concurrency == GIB // 46080 // 2048 == 11
        assert found.cpu_request_millis == 250
        assert 3.5e9 < found.memory_request < 6e9
        assert found.memory_limit is not None
        assert found.memory_limit > found.memory_request
        assert found.shared_memory == 512 * 1024**2
        assert "fits one rank; 9 heads allow 1 or 3" in found.why

    def test_without_a_length_the_context_is_the_models_own(self) -> None:
        assert planned(on_cpu()).max_model_len == 8192

    def test_a_context_that_does_not_fit_is_cut_and_said_to_be(self) -> None:
        found = planned(on_cpu(LARGE))
        assert found.max_model_len < 131072
        assert "context cut from 131072" in found.why
        assert found.max_concurrency == 1
        assert found.memory_request <= 22 * GIB

    def test_a_length_asked_for_is_refused_with_the_length_that_fits(self) -> None:
        violation = refused(on_cpu(LARGE, maxModelLen=131072))
        assert violation.reason == Reason.CONTEXT_TOO_LONG
        fitting = int(violation.message.rpartition("lower it to ")[2].split()[0])
        assert planned(on_cpu(LARGE, maxModelLen=fitting)).max_model_len == fitting

    def test_fewer_requests_where_there_is_less_room(self) -> None:
        small = (node(allocatable=ResourceAmounts(2000, 16 * GIB, 0)),)
        tight, roomy = (
            planned(on_cpu(LARGE, small, maxModelLen=8192)),
            planned(on_cpu(LARGE, maxModelLen=8192)),
        )
        assert tight.max_concurrency is not None
        assert roomy.max_concurrency is not None
        assert 1 <= tight.max_concurrency < roomy.max_concurrency
        assert tight.memory_request <= 16 * GIB

    def test_a_memory_limit_bounds_the_cache(self) -> None:
        limited = planned(on_cpu(LARGE, resources={"limits": {"memory": "12Gi"}}))
        assert limited.memory_limit == 12 * GIB
        assert limited.memory_request <= 12 * GIB

    def test_given_resources_win(self) -> None:
        found = planned(on_cpu(resources={"requests": {"cpu": 4, "memory": "9Gi"}, "limits": {"cpu": "8"}}))
        assert (found.cpu_request_millis, found.cpu_limit_millis) == (4000, 8000)
        assert found.memory_request == 9 * GIB

    def test_parallel_ranks_share_memory_that_is_counted(self) -> None:
        one, three = planned(on_cpu(maxModelLen=2048)), planned(on_cpu(maxModelLen=2048, tensorParallel=3))
        assert three.shared_memory == 2 * GIB
        assert three.memory_request - one.memory_request >= 2 * GIB - 712 * 1024**2
        assert three.weights_per_rank == one.weights_per_rank // 3

    def test_unknown_nodes_bound_nothing(self) -> None:
        assert planned(on_cpu(LARGE, None)).max_model_len == 131072

    def test_a_node_without_room_for_any_cache_is_not_the_contexts_fault(self) -> None:
        assert planned(on_cpu(SMALL, (node(allocatable=ResourceAmounts(2000, GIB, 0)),), maxModelLen=64))


class TestOnGpus:
    def test_auto_takes_the_least_ranks_that_fit(self) -> None:
        assert planned(on_gpu()).tensor_parallel == 1
        tight = Gpu(None, None, 8 * GIB, 8)
        found = planned(on_gpu(gpu=tight, maxModelLen=32768))
        assert found.tensor_parallel == found.gpus == 2
        assert "2 is the least number of ranks that fits 32768 tokens" in found.why
        assert found.shared_memory

    def test_auto_takes_what_a_replica_is_given(self) -> None:
        found = planned(on_gpu(accelerator={"perReplica": 4}))
        assert found.tensor_parallel == 4
        assert "accelerator.perReplica" in found.why

    def test_ranks_that_do_not_divide_are_refused_with_those_that_do(self) -> None:
        violation = refused(on_gpu(accelerator={"perReplica": 3}))
        assert violation.reason == Reason.INCOMPATIBLE_PLAN
        assert "32 heads allow 1, 2, 4, 8 or 16" in violation.message

    def test_a_model_beyond_the_largest_node_waits_for_one(self) -> None:
        violation = refused(on_gpu(gpu=Gpu(None, None, 4 * GIB, 1)))
        assert violation.reason == Reason.INSUFFICIENT_GPUS
        assert not violation.terminal
        assert "the largest node has 1 GPUs" in violation.message

    def test_a_model_beyond_all_allowed_ranks_says_so(self) -> None:
        assert "do not fit 16 GPUs" in refused(on_gpu(gpu=Gpu(None, None, 2 * GIB, None))).message

    def test_the_cache_is_what_weights_and_overhead_leave(self) -> None:
        found = planned(on_gpu(maxModelLen=8192))
        assert found.kv_cache is not None
        assert 80 * GIB * 0.9 - found.weights_per_rank * 1.05 - 1.6 * GIB < found.kv_cache < 72 * GIB
        assert found.max_concurrency == found.kv_cache // 131072 // 8192

    def test_a_length_that_does_not_fit_given_gpus_is_refused(self) -> None:
        violation = refused(
            on_gpu(gpu=Gpu(None, None, 10 * GIB, 8), accelerator={"perReplica": 1}, maxModelLen=131072)
        )
        assert violation.reason == Reason.CONTEXT_TOO_LONG

    def test_a_default_length_is_cut(self) -> None:
        found = planned(on_gpu(gpu=Gpu(None, None, 12 * GIB, 8)))
        assert found.max_model_len < 131072
        assert "context cut from 131072" in found.why

    def test_a_compressed_cache_is_repeated_in_every_rank(self) -> None:
        compressed = parse_facts(large_facts(kvLoraRank=512, qkRopeHeadDim=64))
        one = planned(on_gpu(compressed, accelerator={"perReplica": 1}))
        four = planned(on_gpu(compressed, accelerator={"perReplica": 4}))
        assert one.max_concurrency is not None
        assert four.max_concurrency is not None
        assert four.max_concurrency < 1.2 * one.max_concurrency

    def test_unknown_memory_claims_nothing(self) -> None:
        found = planned(on_gpu(gpu=Gpu(None, None, None, None)))
        assert (found.tensor_parallel, found.max_concurrency, found.kv_cache) == (1, None, None)
        assert "spec.serving.accelerator.memory" in found.why
        assert found.memory_limit is None


def test_windows_grow_with_the_weights_and_the_deadline_is_beyond() -> None:
    small, large = planned(on_gpu(SMALL)), planned(on_gpu())
    assert large.startup_seconds > small.startup_seconds
    for each in (small, large):
        assert each.progress_deadline_seconds > each.startup_seconds
        assert each.startup_seconds % 10 == 0
    spec = Spec.model_validate(raw_spec(rollout={"progressDeadline": 77}))
    assert (
        planned(
            plan_server(spec, SMALL, resolve_recipe(spec, SMALL), "float32", NODES, None)
        ).progress_deadline_seconds
        == 77
    )


@pytest.mark.parametrize("length", [8193, 10**6])
def test_a_context_beyond_the_model_is_refused(length: int) -> None:
    violation = refused(on_cpu(maxModelLen=length))
    assert violation.reason == Reason.CONTEXT_TOO_LONG
    assert "8192" in violation.message
