"""Other public 4-bit layouts to the one that ``pack`` takes (compressed-tensors "pack-quantized"). No values
change."""

from __future__ import annotations

import torch
from torch import Tensor

# Column that AutoAWQ puts at bits 4i..4i+3 of an int32.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def from_gptq(
    qweight: Tensor,
    scales: Tensor,
    qzeros: Tensor | None,
    g_idx: Tensor | None = None,
    *,
    zeros_minus_one: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """GPTQ: qweight int32 [K/8, N], scales [G, N], qzeros int32 [G, N/8] or None, g_idx [K] or None.

    ``zeros_minus_one``: GPTQ v1 stores each zero point minus one. Returns (weight_packed, weight_scale,
    weight_zero_point). Raises ValueError when g_idx reorders columns (activation order): such a weight has no
    contiguous groups.
    """
    columns, groups = qweight.shape[0] * 8, scales.shape[0]
    if g_idx is not None and g_idx.numel() > 0:
        expected = torch.arange(columns, device=g_idx.device) // (columns // groups)
        if not torch.equal(g_idx.to(torch.int64), expected):
            raise ValueError(
                "g_idx reorders columns (desc_act=True), which int4_gemm does not support; "
                "quantize with desc_act=False"
            )
    zeros = None
    if qzeros is not None:
        values = unpack(qzeros) + (1 if zeros_minus_one else 0)
        zeros = pack_words(values.reshape(groups, -1).bitwise_and(15).t())
    return qweight.t().contiguous(), scales.t().contiguous(), zeros


def from_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """AutoAWQ "gemm": qweight int32 [K, N/8], scales [G, N], qzeros int32 [G, N/8] or None, columns
    interleaved 0 2 4 6 1 3 5 7."""
    order = torch.tensor(AWQ_ORDER).argsort().to(qweight.device)
    codes = unpack(qweight)[..., order].reshape(qweight.shape[0], -1)
    zeros = None
    if qzeros is not None:
        zeros = pack_words(unpack(qzeros)[..., order].reshape(qzeros.shape[0], -1).t())
    return pack_words(codes).t().contiguous(), scales.t().contiguous(), zeros


def unpack(words: Tensor) -> Tensor:
    """int32 [...] -> int32 [..., 8], bits 4i..4i+3 as value i."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts) & 15


def pack_words(values: Tensor) -> Tensor:
    """[R, C] below 16 -> int32 [ceil(R/8), C]: 8 values along the first dimension a word, the last word
    filled with 0."""
    missing = -values.shape[0] % 8
    if missing:
        values = torch.cat([values, values.new_zeros(missing, values.shape[1])])
    eights = values.to(torch.int64).reshape(-1, 8, values.shape[1])
    words = (eights << torch.arange(0, 32, 4, device=values.device)[None, :, None]).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()
