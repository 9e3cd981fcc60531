"""Predicted bytes against what compressed-tensors really packs, and the checks that come before the work."""

from typing import Any

import pytest
import torch
from compressed_tensors.compressors import compress_module
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte_worker.compression import scheme
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.safetensors_header import Header, Tensor
from halfbyte_worker.sizes import (
    artifact_bytes,
    check_group_size,
    effective_ignore,
    is_ignored,
    linear_bytes,
    quantized_linears,
)
from halfbyte_worker.task import Quantization


def packed_bytes(rows: int, columns: int, recipe: Quantization) -> int:
    """Bytes of one bfloat16 linear layer after compressed-tensors has packed it."""
    model = torch.nn.Sequential(torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16))
    config = QuantizationConfig(config_groups={"group_0": scheme(recipe)}, quantization_status="frozen")
    apply_quantization_config(model, config)
    layer = model[0]
    with torch.no_grad():
        layer.weight_scale.fill_(0.01)
        if hasattr(layer, "weight_zero_point"):
            layer.weight_zero_point.zero_()
    compress_module(layer)
    return sum(tensor.nbytes for tensor in layer.state_dict().values())


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 80),
    groups=st.integers(1, 6),
    group=st.sampled_from([32, 64, 128]),
    bits=st.sampled_from([4, 8]),
    symmetric=st.booleans(),
)
def test_packed_layer_has_the_predicted_size(rows, groups, group, bits, symmetric) -> None:
    recipe = Quantization(method="GPTQ", bits=bits, group_size=group, symmetric=symmetric)
    assert packed_bytes(rows, groups * group, recipe) == linear_bytes((rows, groups * group), recipe, 2)


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 80), columns=st.integers(1, 80))
def test_int8_layer_has_the_predicted_size(rows: int, columns: int) -> None:
    recipe = Quantization(method="W8A8", bits=8, symmetric=True)
    assert packed_bytes(rows, columns, recipe) == linear_bytes((rows, columns), recipe, 2)


def header(**shapes: tuple[int, ...]) -> dict[str, Header]:
    tensors = [
        Tensor(name.replace("__", "."), "BF16", shape, 2 * torch.Size(shape).numel())
        for name, shape in shapes.items()
    ]
    return {"model.safetensors": Header(tuple(tensors), b"{}", 0)}


MODEL: dict[str, Any] = {
    "model__embed_tokens__weight": (100, 96),
    "model__layers__0__up_proj__weight": (64, 96),
    "model__layers__0__down_proj__weight": (96, 64),
    "model__norm__weight": (96,),
}


def test_only_linear_layers_that_are_not_ignored_are_quantized() -> None:
    names = quantized_linears(header(**MODEL), ["re:.*down"])
    assert names == {"model.layers.0.up_proj": (64, 96)}


def test_artifact_bytes_add_up() -> None:
    recipe = Quantization(method="AWQ", bits=4, group_size=32, symmetric=False, ignore=("lm_head",))
    unquantized = 2 * (100 * 96 + 96)
    layers = linear_bytes((64, 96), recipe, 2) + linear_bytes((96, 64), recipe, 2)
    assert artifact_bytes(header(**MODEL), recipe, tied=True) == unquantized + layers
    whole = artifact_bytes(header(**MODEL), Quantization(method="None"), tied=True)
    assert whole == unquantized + 2 * 2 * 64 * 96


def test_group_size_that_does_not_divide_names_the_layer_and_what_would() -> None:
    linears = quantized_linears(header(**MODEL), [])
    check_group_size(linears, None)
    check_group_size(linears, 32)
    with pytest.raises(Failure) as failed:
        check_group_size(linears, 64)
    assert failed.value.reason == Reason.GROUP_SIZE_INDIVISIBLE
    assert failed.value.message == (
        "model.layers.0.up_proj has 96 columns, not a multiple of groupSize 64; allowed here: 32"
    )


def test_no_group_size_divides() -> None:
    with pytest.raises(Failure, match="allowed here: none; ignore the layer"):
        check_group_size({"odd": (8, 33)}, 32)


@pytest.mark.parametrize(
    ("entry", "ignored"),
    [("lm_head", True), ("re:lm_.*", True), ("re:.*head$", True), ("head", False), ("re:head", False)],
)
def test_ignore_rule(entry: str, ignored: bool) -> None:
    assert is_ignored("lm_head", [entry]) is ignored


def test_tied_output_layer_is_always_ignored() -> None:
    assert effective_ignore(["a"], tied=True) == ["a", "lm_head"]
    assert effective_ignore(["re:lm_head"], tied=True) == ["re:lm_head"]
    assert effective_ignore(["a"], tied=False) == ["a"]
