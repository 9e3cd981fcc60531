"""Routing, sorting, both products and the weighted sum, against a loop over tokens in fp64."""

from __future__ import annotations

import pytest
import torch
from weights import random_weight

from halfbyte_kernels.routed_experts import routed_experts

EXPERTS, HIDDEN, INNER, CHOSEN = 6, 64, 96, 2


@pytest.mark.parametrize("weight_on_input", [False, True])
@pytest.mark.parametrize("path", ["w4a16", "w4a8"])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_against_a_loop_over_tokens(tokens: int, path: str, weight_on_input: bool) -> None:
    up, up_exact = random_weight(2 * INNER, HIDDEN, 32, True, seed=1, experts=EXPERTS)
    down, down_exact = random_weight(HIDDEN, INNER, 32, False, seed=2, experts=EXPERTS)
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    ids = torch.stack([torch.randperm(EXPERTS - 1, generator=generator)[:CHOSEN] for _ in range(tokens)])
    router = torch.rand(tokens, CHOSEN, generator=generator)
    out = routed_experts(x, router, ids, (up, down), (None, None), path, None, weight_on_input)
    expected = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    for token in range(tokens):
        for slot in range(CHOSEN):
            expert, weight = ids[token, slot], router[token, slot].double()
            value = x[token].double() * (weight if weight_on_input else 1.0)
            gate, lifted = (up_exact[expert] @ value).split(INNER)
            result = down_exact[expert] @ (torch.nn.functional.silu(gate) * lifted)
            expected[token] += result * (1.0 if weight_on_input else weight)
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (1e-4 if path == "w4a16" else 0.03)
