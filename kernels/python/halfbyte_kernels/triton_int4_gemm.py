"""Triton twin of the int4 GEMM: the executable specification of the CUDA kernels.

``out = act(x @ dequant(W).T + bias)`` from the public compressed-tensors tensors, without repacking. It runs
on a GPU, and anywhere under ``TRITON_INTERPRET=1`` (set before triton is imported). It is written to be read
and compared with, not to be fast: scales and zeros are looked up per column of K, so a block of K may be
wider or narrower than a group. vLLM's Triton kernel documents the trap that this avoids: one scale per block
is silently wrong as soon as BLOCK_K > group_size.

Rounding is that of the tensor-core path: (code - zero) * scale is rounded once to the dtype of x, products
are summed in fp32, bias and activation are applied in fp32 to the finished sum, which is rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ACTIVATIONS = ("none", "silu", "gelu", "silu_mul")


@triton.jit
def _dequantize(packed, scales, zeros, n, k, N, K, groups, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr):
    """fp32 [BLOCK_N, BLOCK_K] of the rows n and columns k; 0 outside of [N, K]."""
    inside = (n[:, None] < N) & (k[None, :] < K)
    word = tl.load(packed + n[:, None] * (K // 8) + k[None, :] // 8, mask=inside, other=0)
    code = (word >> (k[None, :] % 8 * 4)) & 15
    group = k[None, :] // GROUP
    scale = tl.load(scales + n[:, None] * groups + group, mask=inside, other=0.0).to(tl.float32)
    if HAS_ZEROS:
        zero_word = tl.load(zeros + n[:, None] // 8 * groups + group, mask=inside, other=0)
        zero = (zero_word >> (n[:, None] % 8 * 4)) & 15
    else:
        zero = 8
    return (code - zero).to(tl.float32) * scale


@triton.jit
def _accumulate(
    x, packed, scales, zeros, m, n, last_row, N, K, groups,
    GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """fp32 [BLOCK_M, BLOCK_N]: the whole sum over K for rows m of x and rows n of W."""
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = (m[:, None] < last_row) & (k[None, :] < K)
        left = tl.load(x + m[:, None] * K + k[None, :], mask=inside, other=0.0)
        right = _dequantize(packed, scales, zeros, n, k, N, K, groups, GROUP, HAS_ZEROS)
        right = tl.trans(right.to(left.dtype))
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def _silu(value):
    return value / (1.0 + tl.exp(-value))


@triton.jit
def _tile(
    x, packed, scales, zeros, bias, out, m, last_row, column, N, K, groups,
    GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute and store one output tile: rows m (below last_row), columns from `column` on."""
    width = N // 2 if ACT == "silu_mul" else N
    n = column + tl.arange(0, BLOCK_N)
    total = _accumulate(
        x, packed, scales, zeros, m, n, last_row, width, K, groups,
        GROUP, HAS_ZEROS, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < width, other=0.0).to(tl.float32)[None, :]
    if ACT == "silu":
        total = _silu(total)
    elif ACT == "gelu":
        total = 0.5 * total * (1.0 + tl.math.erf(total * 0.7071067811865476))
    elif ACT == "silu_mul":
        value = _accumulate(
            x, packed, scales, zeros, m, n + width, last_row, N, K, groups,
            GROUP, HAS_ZEROS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        if HAS_BIAS:
            value += tl.load(bias + width + n, mask=n < width, other=0.0).to(tl.float32)[None, :]
        total = _silu(total) * value
    target = out + m[:, None] * width + n[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(m[:, None] < last_row) & (n[None, :] < width))


@triton.jit
def _gemm_kernel(
    x, packed, scales, zeros, bias, out, M, N, K, groups,
    GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    _tile(
        x, packed, scales, zeros, bias, out, m, M, tl.program_id(1) * BLOCK_N, N, K, groups,
        GROUP, HAS_ZEROS, HAS_BIAS, ACT, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit
def _grouped_kernel(
    x, packed, scales, zeros, bias, out, tiles, N, K, groups,
    GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 3
    expert, first_row, last_row = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    if HAS_ZEROS:
        zeros += expert * ((N + 7) // 8) * groups
    if HAS_BIAS:
        bias += expert * N
    _tile(
        x, packed + expert * N * (K // 8), scales + expert * N * groups, zeros, bias, out,
        first_row + tl.arange(0, BLOCK_M), last_row, tl.program_id(1) * BLOCK_N, N, K, groups,
        GROUP, HAS_ZEROS, HAS_BIAS, ACT, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


def int4_gemm(
    x: torch.Tensor,
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    activation: str = "none",
    blocks: tuple[int, int, int] = (16, 32, 64),
) -> torch.Tensor:
    """Multiply x [M, K] by a compressed-tensors int4 weight.

    weight_packed int32 [N, K/8]; weight_scale [N, G]; weight_zero_point int32 [N/8, G] or None: 8 everywhere;
    bias [N] or None; blocks = BLOCK_M, BLOCK_N, BLOCK_K (powers of two, from 16). The group size is K / G.
    Returns [M, N], or [M, N/2] for silu_mul, in x's dtype. Raises ValueError for shapes that do not fit.
    """
    if _interpreted_bfloat16(x):
        wide = int4_gemm(
            x.float(),
            weight_packed,
            weight_scale,
            weight_zero_point,
            bias,
            activation=activation,
            blocks=blocks,
        )
        return wide.to(x.dtype)
    n, k, groups = _check(x, weight_packed, weight_scale, weight_zero_point, activation)
    rows = x.shape[0]
    width = n // 2 if activation == "silu_mul" else n
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, blocks[0]), triton.cdiv(width, blocks[1]))
    _gemm_kernel[grid](
        x.contiguous(), weight_packed, weight_scale, weight_zero_point, bias, out, rows, n, k, groups,
        GROUP=k // groups, HAS_ZEROS=weight_zero_point is not None, HAS_BIAS=bias is not None,
        ACT=activation, BLOCK_M=blocks[0], BLOCK_N=blocks[1], BLOCK_K=blocks[2],
    )  # fmt: skip
    return out


def int4_gemm_grouped(
    x: torch.Tensor,
    weight_packed: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_zero_point: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows_per_expert: torch.Tensor,
    *,
    activation: str = "none",
    blocks: tuple[int, int, int] = (16, 32, 64),
) -> torch.Tensor:
    """Multiply rows of x, sorted by expert, each by its expert's weight, in one launch.

    Every weight tensor has a leading dimension E; rows_per_expert int64 [E] sums to the rows of x. The rest
    is as in ``int4_gemm``.
    """
    if _interpreted_bfloat16(x):
        wide = int4_gemm_grouped(
            x.float(), weight_packed, weight_scale, weight_zero_point, bias, rows_per_expert,
            activation=activation, blocks=blocks,
        )  # fmt: skip
        return wide.to(x.dtype)
    n, k, groups = _check(x, weight_packed[0], weight_scale[0], _first(weight_zero_point), activation)
    counts = rows_per_expert.tolist()
    if len(counts) != weight_packed.shape[0] or min(counts) < 0 or sum(counts) != x.shape[0]:
        raise ValueError(
            f"rows_per_expert {counts} must have {weight_packed.shape[0]} entries that sum to {x.shape[0]}"
        )
    width = n // 2 if activation == "silu_mul" else n
    out = torch.empty((x.shape[0], width), dtype=x.dtype, device=x.device)
    tiles = row_tiles(counts, blocks[0])
    if not tiles:
        return out
    grid = (len(tiles), triton.cdiv(width, blocks[1]))
    _grouped_kernel[grid](
        x.contiguous(), weight_packed, weight_scale, weight_zero_point, bias, out,
        torch.tensor(tiles, dtype=torch.int32, device=x.device), n, k, groups,
        GROUP=k // groups, HAS_ZEROS=weight_zero_point is not None, HAS_BIAS=bias is not None,
        ACT=activation, BLOCK_M=blocks[0], BLOCK_N=blocks[1], BLOCK_K=blocks[2],
    )  # fmt: skip
    return out


def row_tiles(counts: list[int], block: int) -> list[tuple[int, int, int]]:
    """Cut rows sorted by expert into tiles (expert, first row, one past the expert's last row)."""
    tiles = []
    start = 0
    for expert, count in enumerate(counts):
        tiles += [(expert, row, start + count) for row in range(start, start + count, block)]
        start += count
    return tiles


def _interpreted_bfloat16(x: torch.Tensor) -> bool:
    """Triton 3.9's interpreter multiplies bf16 as raw uint16 and truncates to it: it must run in fp32."""
    return x.dtype == torch.bfloat16 and bool(triton.knobs.runtime.interpret)


def _first(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor[0]


def _check(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None, activation: str
) -> tuple[int, int, int]:
    """Return N, K and the number of groups; raise ValueError with both numbers when a shape does not fit."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is unknown; known: {', '.join(ACTIVATIONS)}")
    k = x.shape[1]
    n, groups = scale.shape
    if packed.shape != (n, k // 8) or k % 8:
        raise ValueError(f"weight_packed is {tuple(packed.shape)}; x and weight_scale ask for {(n, k / 8)}")
    if k % groups:
        raise ValueError(f"{k} columns cannot be cut into {groups} equal groups")
    if zeros is not None and zeros.shape != (-(-n // 8), groups):
        raise ValueError(f"weight_zero_point is {tuple(zeros.shape)}; needed: {(-(-n // 8), groups)}")
    if activation == "silu_mul" and n % 2:
        raise ValueError(f"silu_mul needs an even number of out features, got {n}")
    return n, k, groups
