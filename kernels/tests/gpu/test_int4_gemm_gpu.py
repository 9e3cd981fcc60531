"""The CUDA kernels on a GPU, against the golden vectors. Skipped by name where there is none.

Also for NVIDIA's checker: compute-sanitizer --tool memcheck python -m pytest kernels/tests/gpu (then with
racecheck, synccheck, initcheck).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU here (torch.cuda.is_available() is False)", allow_module_level=True)

from halfbyte_kernels import cuda

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
import golden

if not cuda.load_operators():
    pytest.skip("halfbyte-kernels was built without CUDA or torch has none", allow_module_level=True)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = [case.name for case in golden.CASES]


def device(array: np.ndarray, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.from_numpy(array.copy()).to("cuda", dtype)


def weight_of(name: str, dtype: torch.dtype) -> torch.Tensor:
    case, tensors = golden.load(name)
    zeros = None if case.symmetric else device(tensors["ct_zero_point"])
    return torch.ops.halfbyte.int4_gemm_pack(
        device(tensors["ct_weight_packed"]), device(tensors["scales"], dtype), zeros, case.group
    )


def check(out: torch.Tensor, name: str, dtype: str, act: str, rows: np.ndarray) -> None:
    case, tensors = golden.load(name)
    expected = tensors[f"expected_{act}"][rows]
    if case.exact and act == "none":
        assert torch.equal(out.cpu(), torch.from_numpy(expected).to(DTYPES[dtype]))
    error = np.abs(out.double().cpu().numpy() - expected)
    assert (error <= golden.tolerance(tensors, "float", dtype, act)[rows]).all()


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 130, 300])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("act", golden.ACTIVATIONS)
def test_every_golden_case(name: str, dtype: str, act: str, rows: int) -> None:
    case, tensors = golden.load(name)
    index = np.arange(rows) % case.m
    x = device(tensors["x"][index], DTYPES[dtype])
    bias = device(tensors["bias"], DTYPES[dtype])
    out = torch.ops.halfbyte.int4_gemm(x, weight_of(name, DTYPES[dtype]), bias, case.n, act)
    check(out, name, dtype, act, index)


@pytest.mark.parametrize("rows", [1, 16, 64, 256])
def test_a_large_product_is_as_good_as_torch_on_expanded_weights(rows: int) -> None:
    """K = 4096, split-K: relative L2 error against fp64 at most 1.1 times that of dequantize and matmul."""
    generator = torch.Generator("cuda").manual_seed(0)
    n, k, group = 4096, 4096, 128
    codes = torch.randint(-(2**31), 2**31, (n, k // 8), generator=generator, device="cuda").to(torch.int32)
    scales = (torch.rand(n, k // group, generator=generator, device="cuda") * 0.01 + 0.005).bfloat16()
    x = torch.randn(rows, k, generator=generator, device="cuda").bfloat16()
    shifts = torch.arange(0, 32, 4, device="cuda")
    signed = (codes[:, :, None] >> shifts & 15).reshape(n, k).double() - 8
    weights = signed * scales.double().repeat_interleave(group, 1)
    expected = x.double() @ weights.T
    packed = torch.ops.halfbyte.int4_gemm_pack(codes, scales, None, group)
    ours = torch.ops.halfbyte.int4_gemm(x, packed, None, n)
    peer = x @ weights.bfloat16().T
    error = [float((out.double() - expected).norm() / expected.norm()) for out in (ours, peer)]
    assert error[0] <= 1.1 * error[1]
    assert torch.equal(ours, torch.ops.halfbyte.int4_gemm(x, packed, None, n)), "the result depends on timing"


@pytest.mark.parametrize("counts", [[5, 0, 17, 11], [0, 0, 0, 33], [33, 0, 0, 0], [1, 1, 1, 30]])
@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_grouped_rows_use_their_own_expert(counts: list[int], act: str) -> None:
    case, tensors = golden.load("exact_g128_asym")
    orders = [np.roll(np.arange(case.n), 8 * expert) for expert in range(len(counts))]
    layouts = [golden.pack(tensors["codes"][order], tensors["zeros"][order]) for order in orders]
    packed = torch.ops.halfbyte.int4_gemm_pack(
        device(np.stack([layout["ct_weight_packed"] for layout in layouts])),
        device(np.stack([tensors["scales"][order] for order in orders]), torch.float16),
        device(np.stack([layout["ct_zero_point"] for layout in layouts])),
        case.group,
    )
    bias = device(np.stack([tensors["bias"][order] for order in orders]), torch.float16)
    x = device(tensors["x"], torch.float16)
    rows = torch.tensor(counts, device="cuda")
    out = torch.ops.halfbyte.int4_gemm_grouped(x, packed, bias, rows, case.n, act)
    start = 0
    for expert, count in enumerate(counts):
        part = slice(start, start + count)
        dense = torch.ops.halfbyte.int4_gemm(x[part].contiguous(), packed[expert], bias[expert], case.n, act)
        assert torch.equal(out[part], dense)
        start += count


def test_a_graph_replays_the_product() -> None:
    case, tensors = golden.load("exact_g64_asym")
    x, bias = device(tensors["x"], torch.bfloat16), device(tensors["bias"], torch.bfloat16)
    packed = weight_of("exact_g64_asym", torch.bfloat16)
    expected = torch.ops.halfbyte.int4_gemm(x, packed, bias, case.n)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.ops.halfbyte.int4_gemm(x, packed, bias, case.n)
    for _ in range(3):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 64)}, "must be on"),
        ({"activation": "relu"}, "activation must be none, silu, gelu or silu_mul"),
        ({"path": "w4a8"}, "path w4a16 only"),
        ({"out_features": 128}, "no packed weight of 128 x 320"),
    ],
)
def test_what_does_not_fit_is_named(change: dict, message: str) -> None:
    case, tensors = golden.load("exact_g64_asym")
    good = {
        "x": device(tensors["x"], torch.bfloat16),
        "weight": weight_of("exact_g64_asym", torch.bfloat16),
        "bias": None,
        "out_features": case.n,
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.halfbyte.int4_gemm(**{**good, **change})
