"""Look-ups in the real matrix: what it says is the business of kernels/tests, that it is found is ours."""

from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.spec import Spec
from halfbyte.planning.compatibility import (
    Hardware,
    architecture_supported,
    cpu_hardware,
    find_kernel,
    gpu_hardware,
    rank_shape,
    supported_architectures,
)
from halfbyte.planning.facts import Linear, parse_facts
from halfbyte.planning.recipe import resolve_recipe
from support.models import MATRIX, large_facts
from support.models import facts as raw_facts
from support.models import spec as raw_spec

AVX2 = Hardware("cpu-avx2", "float32")


def kernel(
    quantization: dict[str, Any], hardware: Hardware, facts: dict[str, Any] | None = None, ranks: int = 1
) -> Any:
    parsed = parse_facts(facts or raw_facts())
    recipe = resolve_recipe(Spec.model_validate(raw_spec(quantization=quantization)), parsed)
    return find_kernel(MATRIX, "vLLM", hardware, parsed, recipe, ranks)


def test_the_best_class_of_cpus_whose_features_are_all_there() -> None:
    assert cpu_hardware(MATRIX, {"avx2"}) == AVX2
    wide = {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}
    assert cpu_hardware(MATRIX, wide) == Hardware("cpu-avx512-bf16", "bfloat16")
    assert cpu_hardware(MATRIX, {"avx2", "avx512f"}) == Hardware("cpu-avx512", "float32")
    assert cpu_hardware(MATRIX, set()) is None


def test_gpus_by_capability_else_by_product() -> None:
    assert gpu_hardware(MATRIX, "9.0", None) == Hardware("sm_90", "bfloat16")
    found = gpu_hardware(MATRIX, None, "NVIDIA-H100-80GB-HBM3")
    assert found == Hardware("sm_90", "bfloat16", 81559 * 1024**2)
    assert gpu_hardware(MATRIX, None, "Voodoo-2") is None
    assert gpu_hardware(MATRIX, None, None) is None


@pytest.mark.parametrize("method", ["AWQ", "GPTQ", "W8A8", "None"])
def test_every_method_of_the_demo_is_served_on_a_cpu_with_avx2_only(method: str) -> None:
    assert kernel({"method": method}, AVX2).kernel


def test_four_bits_on_avx2_need_the_kernel_of_this_project() -> None:
    assert kernel({}, AVX2).kernel == "HalfbyteInt4LinearKernel"


def test_a_refusal_of_the_matrix_is_passed_on() -> None:
    found = kernel({"method": "W8A8"}, Hardware("sm_100", "bfloat16"))
    assert found.kernel is None
    assert "Blackwell" in found.refusal
    assert "AWQ" in found.refusal


def test_experts_are_judged_apart() -> None:
    moe = raw_facts(
        experts=8,
        linears=[
            {"name": "model.layers.*.self_attn.o_proj", "rows": 512, "columns": 512, "count": 4},
            {"name": "model.layers.*.mlp.experts.*.up_proj", "rows": 512, "columns": 512, "count": 32},
        ],
    )
    assert kernel({}, AVX2, moe).kernel == "HalfbyteInt4LinearKernel"
    assert "experts" in kernel({"method": "W8A8"}, AVX2, moe).refusal
    assert kernel({"method": "W8A8", "ignore": ["re:.*mlp.experts.*"]}, AVX2, moe).kernel


def test_shapes_that_no_kernel_takes_are_named() -> None:
    odd = raw_facts(linears=[{"name": "model.layers.*.mlp.up_proj", "rows": 577, "columns": 576, "count": 1}])
    found = kernel({}, AVX2, odd)
    assert "no kernel serves AWQ int4 g64 asym on cpu-avx2 in float32" in found.refusal
    assert "layers.0.mlp.up_proj (577 x 576 per rank)" in found.refusal


def test_the_dtype_of_the_hardware_counts() -> None:
    assert kernel({}, Hardware("cpu-avx2", "int7")).kernel is None


def test_ranks_cut_layers_along_columns_or_rows() -> None:
    assert rank_shape(Linear("a.down_proj", 576, 1536, 1), 3) == (576, 512)
    assert rank_shape(Linear("a.up_proj", 1536, 576, 1), 3) == (512, 576)
    assert kernel({"groupSize": 128}, Hardware("sm_90", "bfloat16"), large_facts(), ranks=8).kernel


def test_architectures() -> None:
    assert architecture_supported(MATRIX, "vLLM", "LlamaForCausalLM")
    assert not architecture_supported(MATRIX, "vLLM", "AbacusForCausalLM")
    assert not architecture_supported(MATRIX, "LlamaCpp", "LlamaForCausalLM")
    assert "LlamaForCausalLM" in supported_architectures(MATRIX, "vLLM")
