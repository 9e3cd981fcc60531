"""Wrong arguments: an error that names the argument, what it is and what it may be; never a crash or a silent
result."""

from __future__ import annotations

import pytest
import torch

import halfbyte_kernels as hb
from halfbyte_kernels.layouts import from_gptq


@pytest.fixture
def weight() -> torch.Tensor:
    return hb.pack(torch.zeros((64, 16), dtype=torch.int32), torch.ones(64, 2), None, 64)


X = torch.zeros(2, 128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X.double()}, "x must be float32, bfloat16 or float16, got float64"),
        ({"x": torch.zeros(2, 64)}, "x has 64 columns, the weight 128"),
        ({"x": torch.zeros(128, 2).t()}, "x must be contiguous, or a matrix whose rows are"),
        ({"x": torch.tensor(1.0)}, "x must have at least 1 dimension"),
        ({"out_features": 65}, "out_features is 65, the weight has 64"),
        ({"bias": torch.zeros(63)}, "bias must be contiguous with 64 values"),
        ({"bias": torch.zeros(64).bfloat16()}, "bias must be float32 like x, got bfloat16"),
        ({"activation": "relu"}, "activation must be none, silu, gelu or silu_mul, got relu"),
        ({"path": "w8a8"}, "path must be w4a16 or w4a8, got w8a8"),
        ({"variant": "neon"}, "variant neon is not built or this CPU lacks it"),
        ({"weight": torch.zeros(100, dtype=torch.uint8)}, "weight is no packed int4 weight"),
        ({"weight": torch.zeros(10, dtype=torch.uint8)}, "10 bytes, the header alone has 64"),
        ({"weight": torch.zeros(4)}, "weight must be uint8, got float32"),
    ],
)
def test_gemm(weight: torch.Tensor, change: dict[str, object], message: str) -> None:
    arguments = {
        "x": X,
        "weight": weight,
        "bias": None,
        "out_features": 64,
        "activation": "none",
        "path": "w4a16",
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.halfbyte.int4_gemm(**(arguments | change))


def test_cut_and_damaged_weights(weight: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"weight is damaged: .* bytes, its header asks for"):
        hb.int4_gemm(X, weight[:-64].contiguous(), None, 64)
    damaged = weight.clone()
    damaged[8] ^= 1  # n
    with pytest.raises(RuntimeError, match=r"out_features is 64, the weight has 65|damaged"):
        hb.int4_gemm(X, damaged, None, 64)


def test_a_tensor_on_another_device_is_refused(weight: torch.Tensor) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no second device: torch sees no GPU here")
    with pytest.raises((RuntimeError, NotImplementedError), match="CPU"):
        hb.int4_gemm(X, weight, torch.zeros(64, device="cuda"), 64)


@pytest.mark.parametrize(
    ("codes", "scales", "zeros", "group", "message"),
    [
        (
            (64, 16),
            (64, 2),
            None,
            48,
            "group size must be -1 .per channel. or a multiple of 32 that divides k",
        ),
        ((64, 16), (64, 2), None, 0, "group_size must be -1"),
        ((64, 16), (64, 4), None, 64, r"weight_scale must be \[64, 2\]"),
        ((64, 16), (64, 2), (7, 2), 64, r"weight_zero_point must be \[8, 2\]"),
        ((64, 0), (64, 1), None, -1, "k must be a positive multiple of 8"),
        ((64,), (64, 2), None, 64, "weight_packed must have 2 dimensions"),
    ],
)
def test_pack(
    codes: tuple[int, ...], scales: tuple[int, ...], zeros: tuple[int, ...] | None, group: int, message: str
) -> None:
    zero = None if zeros is None else torch.zeros(zeros, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=message):
        hb.pack(torch.zeros(codes, dtype=torch.int32), torch.ones(scales), zero, group)


def test_pack_wants_int32_codes_and_contiguous_tensors() -> None:
    with pytest.raises(RuntimeError, match="weight_packed must be int32, got int64"):
        hb.pack(torch.zeros((8, 16), dtype=torch.int64), torch.ones(8, 1), None, -1)
    with pytest.raises(RuntimeError, match="weight_packed must be contiguous"):
        hb.pack(torch.zeros((16, 8), dtype=torch.int32).t(), torch.ones(8, 1), None, -1)


def test_silu_mul_needs_whole_blocks() -> None:
    weight = hb.pack(torch.zeros((40, 16), dtype=torch.int32), torch.ones(40, 2), None, 64)
    with pytest.raises(RuntimeError, match=r"silu_mul needs out features .* in multiples of 32, got 40"):
        hb.int4_gemm(X, weight, None, 40, "silu_mul")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1, 2], "x has 2 rows, the experts need more"),
        ([1, 0], "x has 2 rows, the experts need 1"),
        ([-1, 3], "expert 0 has -1 rows"),
        ([1, 1, 0], "rows_per_expert must have one entry for each of 2 experts, got 3"),
    ],
)
def test_grouped(rows: list[int], message: str) -> None:
    weight = hb.pack(torch.zeros((2, 64, 16), dtype=torch.int32), torch.ones(2, 64, 2), None, 64)
    with pytest.raises(RuntimeError, match=message):
        hb.int4_gemm_grouped(X, weight, None, torch.tensor(rows), 64)


def test_activation_order_is_refused() -> None:
    with pytest.raises(ValueError, match="desc_act=True"):
        from_gptq(torch.zeros((16, 8), dtype=torch.int32), torch.ones(2, 8), None, torch.arange(128) % 2)
