"""The INT4 GEMM family: ``out = act(x @ dequant(W)^T + bias)``, w = (code - zero) * scale."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from halfbyte_kernels.library import load_cpu

load_cpu()

Activation = Literal["none", "silu", "gelu", "silu_mul"]
Path = Literal["w4a16", "w4a8"]


def pack(
    weight_packed: Tensor, weight_scale: Tensor, weight_zero_point: Tensor | None = None, group_size: int = -1
) -> Tensor:
    """Pack a compressed-tensors weight for this device; done once, when a model loads.

    weight_packed: int32 [N, K/8] (8 codes along K, lowest bits first); weight_scale: float [N, G];
    weight_zero_point: int32 [ceil(N/8), G] (8 zeros along N) or None (8 everywhere, symmetric). All three may
    have a leading expert dimension. group_size: columns a scale covers (a multiple of 32 that divides K), or
    -1 for one scale a row. Scales are kept in bf16 or fp16 when that loses no bit. Returns uint8 [bytes] (or
    [experts, bytes]). Raises RuntimeError that names the wrong argument.
    """
    return torch.ops.halfbyte.int4_gemm_pack(
        weight_packed, narrow_scales(weight_scale), weight_zero_point, group_size
    )


def narrow_scales(scale: Tensor) -> Tensor:
    """The same numbers in the smallest dtype that holds all of them exactly."""
    if scale.dtype == torch.float32:
        for dtype in (torch.bfloat16, torch.float16):
            narrow = scale.to(dtype)
            if torch.equal(narrow.to(scale.dtype), scale):
                return narrow.contiguous()
    return scale.contiguous()


def dequantize(weight: Tensor, out_features: int, in_features: int) -> Tensor:
    """The float32 [out_features, in_features] matrix that a packed weight stands for."""
    return torch.ops.halfbyte.int4_gemm_dequantize(weight, out_features, in_features)


def int4_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    activation: Activation = "none",
    path: Path = "w4a16",
) -> Tensor:
    """act(x @ dequant(weight)^T + bias). x: [..., K] float32, bfloat16 or float16; returns [..., N]
    (silu_mul: N/2) of the same dtype.

    x is rounded to integers per token and group of at most 128 columns, their products with the codes are
    exact: |error| <= sum over groups of max|x| * step * sum |w|, then the rounding of the output. ``w4a16``:
    16 bits with a shared power of two, step 2^-15; a bf16 value of at least 1/128 of its group's largest is
    exact (fp16: 1/16). ``w4a8``: int8, step 1 / 254. On a GPU ``w4a16`` multiplies x as it is.
    ``silu_mul`` takes the first N/2 features as the gate. Raises RuntimeError that names the wrong argument.
    """
    return torch.ops.halfbyte.int4_gemm(x, weight, bias, out_features, activation, path)


def int4_gemm_grouped(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows_per_expert: Tensor,
    out_features: int,
    activation: Activation = "none",
    path: Path = "w4a16",
) -> Tensor:
    """The same for a mixture of experts: x [T, K] sorted by expert, weight [E, bytes], rows_per_expert int64
    [E], one call."""
    return torch.ops.halfbyte.int4_gemm_grouped(
        x, weight, bias, rows_per_expert, out_features, activation, path
    )


def _out_like(x: Tensor, out_features: int, activation: str) -> Tensor:
    columns = out_features // 2 if activation == "silu_mul" else out_features
    return x.new_empty((*x.shape[:-1], columns))


@torch.library.register_fake("halfbyte::int4_gemm")
def _fake_gemm(x, weight, bias, out_features, activation="none", path="w4a16", variant=None):  # type: ignore[no-untyped-def]
    return _out_like(x, out_features, activation)


@torch.library.register_fake("halfbyte::int4_gemm_grouped")
def _fake_grouped(
    x, weight, bias, rows_per_expert, out_features, activation="none", path="w4a16", variant=None
):  # type: ignore[no-untyped-def]
    return _out_like(x, out_features, activation)


@torch.library.register_fake("halfbyte::int4_gemm_dequantize")
def _fake_dequantize(weight, out_features, in_features):  # type: ignore[no-untyped-def]
    return weight.new_empty((out_features, in_features), dtype=torch.float32)


@torch.library.register_fake("halfbyte::int4_gemm_pack")
def _fake_pack(weight_packed, weight_scale, weight_zero_point, group_size):  # type: ignore[no-untyped-def]
    *experts, n, eighth = weight_packed.shape
    return weight_packed.new_empty(
        (
            *experts,
            packed_bytes(n, eighth * 8, group_size, weight_scale.dtype, weight_zero_point is not None),
        ),
        dtype=torch.uint8,
    )


def packed_bytes(
    out_features: int, in_features: int, group_size: int, scale_dtype: torch.dtype, zeros: bool
) -> int:
    """Size of a packed CPU weight: 64-byte header, codes, scales and zeros by blocks of 16 features
    (csrc/int4_gemm/cpu/packed.h)."""
    columns = -(-in_features // 32) * 32
    span = columns if group_size == -1 else group_size
    group = next(size for size in (128, 64, 32) if span % size == 0)
    blocks = -(-out_features // 16)
    cells = blocks * (columns // group) * 16
    aligned = lambda count: -(-count // 64) * 64  # noqa: E731
    return (
        64 + blocks * columns * 8 + aligned(cells * scale_dtype.itemsize) + (aligned(cells) if zeros else 0)
    )
