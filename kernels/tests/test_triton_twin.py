"""The Triton twin against the golden vectors, run by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton twin needs triton (see constraints/kernels.in)")
from halfbyte_kernels import triton_int4_gemm as twin

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
import golden  # noqa: E402

sys.path.remove(str(GOLDEN))

NAMES = [case.name for case in golden.CASES]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run(name: str, dtype: str, act: str, blocks: tuple[int, int, int], rows: int | None = None) -> np.ndarray:
    case, tensors = golden.load(name)
    weight = {key: torch.from_numpy(tensors[key].copy()) for key in tensors}
    out = twin.int4_gemm(
        weight["x"][:rows].to(DTYPES[dtype]),
        weight["ct_weight_packed"],
        weight["scales"].to(DTYPES[dtype]),
        None if case.symmetric else weight["ct_zero_point"],
        weight["bias"].to(DTYPES[dtype]),
        activation=act,
        blocks=blocks,
    )
    assert out.dtype == DTYPES[dtype]
    return out.double().numpy()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_the_product_is_the_golden_one(name: str, dtype: str) -> None:
    case, tensors = golden.load(name)
    out = run(name, dtype, "none", (32, 64, 128))
    expected = tensors["expected_none"]
    if case.exact:
        rounded = torch.from_numpy(expected.copy()).to(DTYPES[dtype]).double().numpy()
        assert np.array_equal(out, rounded)
    assert (np.abs(out - expected) <= golden.tolerance(tensors, "float", dtype, "none")).all()


@pytest.mark.parametrize("act", twin.ACTIVATIONS)
@pytest.mark.parametrize("name", ["real_g32_asym", "real_channel_asym"])
def test_the_activation_follows_the_finished_sum(name: str, act: str) -> None:
    _, tensors = golden.load(name)
    error = np.abs(run(name, "float32", act, (32, 32, 256)) - tensors[f"expected_{act}"])
    assert (error <= golden.tolerance(tensors, "float", "float32", act)).all()


@pytest.mark.parametrize("block_k", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("name", ["exact_g32_sym", "exact_g64_asym", "exact_g128_asym"])
def test_a_block_of_k_may_be_wider_or_narrower_than_a_group(name: str, block_k: int) -> None:
    out = run(name, "float32", "none", (16, 64, block_k), rows=3)
    assert np.array_equal(out, golden.load(name)[1]["expected_none"][:3])


@pytest.mark.parametrize("act", ["none", "silu_mul"])
@pytest.mark.parametrize("counts", [[5, 0, 17, 11], [0, 0, 0, 33], [33, 0, 0, 0], [1, 1, 1, 30]])
def test_grouped_rows_use_their_own_expert(counts: list[int], act: str) -> None:
    case, tensors = golden.load("exact_g128_asym")
    shifts = [np.roll(np.arange(case.n), 8 * expert) for expert in range(len(counts))]
    codes = [tensors["codes"][shift] for shift in shifts]
    zeros = [tensors["zeros"][shift] for shift in shifts]
    packed = [golden.pack(c, z) for c, z in zip(codes, zeros, strict=True)]
    scales = np.stack([tensors["scales"][shift] for shift in shifts])
    bias = np.stack([tensors["bias"][shift] for shift in shifts])
    out = twin.int4_gemm_grouped(
        torch.from_numpy(tensors["x"].copy()),
        torch.from_numpy(np.stack([p["ct_weight_packed"] for p in packed])),
        torch.from_numpy(scales),
        torch.from_numpy(np.stack([p["ct_zero_point"] for p in packed])),
        torch.from_numpy(bias),
        torch.tensor(counts),
        activation=act,
        blocks=(16, 32, 128),
    )
    experts = np.repeat(np.arange(len(counts)), counts)
    totals = np.stack([tensors["expected_none"][row][shifts[expert]] for row, expert in enumerate(experts)])
    expected = golden.activate(totals, act)
    if act == "none":
        assert np.array_equal(out.double().numpy(), expected)
    else:
        assert np.allclose(out.double().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "activation 'relu' is unknown"),
        ({"weight_packed": torch.zeros(64, 8, dtype=torch.int32)}, r"weight_packed is \(64, 8\)"),
        ({"weight_scale": torch.ones(64, 7)}, "256 columns cannot be cut into 7 equal groups"),
        ({"weight_zero_point": torch.zeros(64, 8, dtype=torch.int32)}, r"weight_zero_point is \(64, 8\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(change: dict, message: str) -> None:
    arguments = {
        "x": torch.zeros(2, 256),
        "weight_packed": torch.zeros(64, 32, dtype=torch.int32),
        "weight_scale": torch.ones(64, 8),
    }
    with pytest.raises(ValueError, match=message):
        twin.int4_gemm(**{**arguments, **change})
