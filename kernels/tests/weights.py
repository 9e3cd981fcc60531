"""Random packed weights and the matrices that they stand for."""

from __future__ import annotations

import torch

import halfbyte_kernels as hb


def random_weight(
    n: int, k: int, group: int, zeros: bool, seed: int = 0, experts: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A packed random weight and the float64 matrix that it stands for."""
    generator = torch.Generator().manual_seed(seed)
    lead = () if experts is None else (experts,)
    groups = 1 if group == -1 else k // group
    codes = torch.randint(0, 16, (*lead, n, k), generator=generator)
    zero = (
        torch.randint(0, 16, (*lead, n, groups), generator=generator)
        if zeros
        else torch.full((*lead, n, groups), 8)
    )
    scales = (torch.rand((*lead, n, groups), generator=generator) * 0.02 + 0.001).to(torch.bfloat16)
    words = words_of(codes.reshape(*lead, n, k // 8, 8))
    missing = -n % 8
    padded = torch.cat([zero, zero.new_zeros(*lead, missing, groups)], dim=-2)
    zero_words = words_of(padded.reshape(*lead, -1, 8, groups).transpose(-1, -2))
    packed = hb.pack(words, scales, zero_words if zeros else None, group)
    span = k // groups
    exact = (codes - zero.repeat_interleave(span, -1)).double() * scales.double().repeat_interleave(span, -1)
    return packed, exact


def words_of(eights: torch.Tensor) -> torch.Tensor:
    words = (eights.to(torch.int64) << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()
