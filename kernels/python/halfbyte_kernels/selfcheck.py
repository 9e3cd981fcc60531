"""Proof, on the machine itself, that an instruction-set variant computes what its scalar twin computes.

Build machines rarely have every instruction set; a variant that was only compiled there is run against the
scalar one before its first use, and left out when they disagree.
"""

from __future__ import annotations

from functools import cache

import torch

from halfbyte_kernels.info import cpu_variants_usable
from halfbyte_kernels.int4_gemm import Path, pack

# Every register tile: full, partial and single rows; a block of 16 features and a partial one; each tile
# group.
ROWS = 29
FEATURES = 40
COLUMNS = 384
GROUPS = (32, 64, 128)


@cache
def verified_variant(path: Path) -> str:
    """The best variant of this CPU that agrees with ``scalar`` on fixed random problems, a few milliseconds
    once."""
    for variant in cpu_variants_usable():
        if variant == "scalar" or all(
            agrees(variant, path, group, zeros) for group in GROUPS for zeros in (False, True)
        ):
            return variant
    return "scalar"


def agrees(variant: str, path: Path, group: int, zeros: bool) -> bool:
    generator = torch.Generator().manual_seed(group)
    codes = torch.randint(-(2**31), 2**31 - 1, (FEATURES, COLUMNS // 8), generator=generator).to(torch.int32)
    scales = torch.rand((FEATURES, COLUMNS // group), generator=generator) * 0.01 + 0.001
    zero_points = torch.randint(
        -(2**31), 2**31 - 1, (FEATURES // 8, COLUMNS // group), generator=generator
    ).to(torch.int32)
    weight = pack(codes, scales, zero_points if zeros else None, group)
    x = torch.randn((ROWS, COLUMNS), generator=generator)
    out = [
        torch.ops.halfbyte.int4_gemm(x, weight, None, FEATURES, "none", path, name)
        for name in (variant, "scalar")
    ]
    return torch.equal(out[0], out[1])
