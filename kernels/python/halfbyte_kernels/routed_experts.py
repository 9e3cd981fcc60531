"""A mixture-of-experts layer from two grouped products: tokens are sorted by expert, one call a product."""

from __future__ import annotations

import torch

import halfbyte_kernels.int4_gemm  # noqa: F401  registers the operators


def routed_experts(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    path: str,
    variant: str | None = None,
    weight_on_input: bool = False,
) -> torch.Tensor:
    """sum over a token's experts of router weight * down(silu(gate(x)) * up(x)); x [T, H] -> [T, H]."""
    tokens, chosen = topk_ids.shape
    experts, hidden = weights[0].shape[0], x.shape[1]
    order = topk_ids.flatten().argsort(stable=True)
    rows = torch.bincount(topk_ids.flatten(), minlength=experts).to(torch.int64)
    token = order // chosen
    routed = x[token]
    router = topk_weights.flatten().to(x.dtype)
    if weight_on_input:
        routed = routed * router[order, None]
    inner_features = 2 * columns_of(weights[1])
    inner = torch.ops.halfbyte.int4_gemm_grouped(
        routed, weights[0], biases[0], rows, inner_features, "silu_mul", path, variant
    )
    out = torch.ops.halfbyte.int4_gemm_grouped(
        inner, weights[1], biases[1], rows, hidden, "none", path, variant
    )
    restored = torch.empty_like(out)
    restored[order] = out
    restored = restored.view(tokens, chosen, hidden)
    if weight_on_input:
        return restored.sum(1)
    return (restored * router.view(tokens, chosen, 1)).sum(1)


def columns_of(packed: torch.Tensor) -> int:
    """In features of a packed weight, from its header (csrc/int4_gemm/cpu/packed.h: int64 k at byte 16)."""
    return int(packed[0, 16:24].view(torch.int64).item())
