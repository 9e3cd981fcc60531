"""The CPU operator against golden vectors and an fp64 reference, for every variant that this CPU runs."""

from __future__ import annotations

import itertools

import golden
import numpy as np
import pytest
import torch
from weights import random_weight

import halfbyte_kernels as hb
from halfbyte_kernels.info import cpu_variants_built, cpu_variants_usable
from halfbyte_kernels.int4_gemm import narrow_scales, packed_bytes

VARIANTS = cpu_variants_built()
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PATHS = ("w4a16", "w4a8")
CASES = [case.name for case in golden.CASES]


def require(variant: str) -> None:
    if variant not in cpu_variants_usable():
        pytest.skip(f"this CPU lacks {variant}: compiled, not run")


def bound(x: torch.Tensor, weight: torch.Tensor, path: str, out: torch.Tensor) -> torch.Tensor:
    """What the docstring of int4_gemm states, with max|x| of a row instead of a group (which is larger)."""
    x = x.double()
    magnitude = x.abs() @ weight.abs().T + x.abs().sum(-1, keepdim=True) * weight.abs().amax()
    error = (x.shape[-1] + 8) * 2.0**-22 * magnitude
    error = error + x.abs().amax(-1, keepdim=True) * golden.STEPS[path] * weight.abs().sum(-1)
    eps = torch.finfo(out.dtype).eps
    return error + eps * out.double().abs() + 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_golden_vectors(name: str, variant: str) -> None:
    require(variant)
    case, tensors = golden.load(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in tensors.items()}
    weight = hb.pack(
        t["ct_weight_packed"], t["scales"], None if case.symmetric else t["ct_zero_point"], case.group
    )
    for dtype, path, act in itertools.product(DTYPES, PATHS, golden.ACTIVATIONS):
        out = torch.ops.halfbyte.int4_gemm(
            t["x"].to(dtype), weight, t["bias"].to(dtype), case.n, act, path, variant
        )
        expected = tensors[f"expected_{act}"]
        allowed = golden.tolerance(tensors, path, str(dtype).removeprefix("torch."), act)
        error = np.abs(out.double().numpy() - expected)
        representable = np.abs(expected) < torch.finfo(dtype).max
        assert (error <= allowed)[representable].all(), (
            f"{dtype} {path} {act}: {(error / allowed).max():.2f} x the bound"
        )
        if case.exact and act == "none" and dtype == torch.float32:
            assert error.max() == 0, f"{path}: exact integers must come out exactly, off by {error.max()}"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("group", "zeros"),
    [(32, True), (64, False), (128, True), (256, False), (96, True), (-1, True), (-1, False)],
)
def test_every_count_of_rows_and_features(group: int, zeros: bool, path: str, variant: str) -> None:
    require(variant)
    k = 104 if group == -1 else 2 * group
    for n in (1, 8, 16, 40, 100):
        weight, exact = random_weight(n, k, group, zeros, seed=n)
        for m in (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 65, 130):
            x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
            out = torch.ops.halfbyte.int4_gemm(x, weight, None, n, "none", path, variant)
            assert ((out.double() - x.double() @ exact.T).abs() <= bound(x, exact, path, out)).all(), (m, n)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_its_scalar_twin_bit_for_bit(variant: str, path: str) -> None:
    require(variant)
    for group, zeros in ((32, True), (64, False), (128, True), (-1, False)):
        weight, _ = random_weight(48, 576, group if 576 % group == 0 else 192, zeros)
        x = torch.randn(13, 576, generator=torch.Generator().manual_seed(1))
        x[3] *= 1e-3
        x[4, ::97] *= 1e4
        x[5] = 0.0
        # Just below a power of two: the largest integer that 16 bits do not hold.
        x[6, 5] = torch.tensor(8.0).nextafter(torch.tensor(0.0))
        mine, twin = (
            torch.ops.halfbyte.int4_gemm(x, weight, None, 48, "none", path, v) for v in (variant, "scalar")
        )
        assert torch.equal(mine, twin)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("outlier", [300.0, 1e30])
def test_outliers_stay_within_the_bound(path: str, outlier: float) -> None:
    weight, exact = random_weight(64, 1024, 128, True)
    x = torch.randn(16, 1024, generator=torch.Generator().manual_seed(2))
    x[:, ::97] *= outlier
    out = hb.int4_gemm(x, weight, None, 64, path=path)
    assert ((out.double() - x.double() @ exact.T).abs() <= bound(x, exact, path, out)).all()


def test_w4a16_changes_no_bf16_activation_that_matters() -> None:
    """Values down to 1/128 of the group's largest are exact, so the sum is that of the bf16 values."""
    weight, exact = random_weight(64, 512, 128, True)
    generator = torch.Generator().manual_seed(7)
    sign = torch.randint(0, 2, (16, 512), generator=generator) * 2 - 1
    x = ((1.0 / 128 + torch.rand(16, 512, generator=generator) * 0.9) * sign).bfloat16()
    out = hb.int4_gemm(x.float(), weight, None, 64)
    magnitude = x.double().abs() @ exact.abs().T
    assert ((out.double() - x.double() @ exact.T).abs() <= 2.0**-22 * magnitude).all()


@pytest.mark.parametrize("path", PATHS)
def test_threads_do_not_change_a_bit(path: str) -> None:
    weight, _ = random_weight(512, 1024, 64, True)
    x = torch.randn(33, 1024, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outs.append(hb.int4_gemm(x, weight, None, 512, path=path))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_leading_dimensions_strided_rows_and_no_rows() -> None:
    weight, _ = random_weight(48, 128, 64, False)
    wide = torch.randn(6, 200, generator=torch.Generator().manual_seed(4))
    x = wide[:, :128]
    flat = hb.int4_gemm(x.contiguous(), weight, None, 48)
    assert torch.equal(hb.int4_gemm(x, weight, None, 48), flat)
    assert torch.equal(
        hb.int4_gemm(x.contiguous().reshape(2, 3, 128), weight, None, 48), flat.reshape(2, 3, 48)
    )
    assert hb.int4_gemm(x[:0], weight, None, 48).shape == (0, 48)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_nan_and_infinity_reach_the_output(variant: str, path: str) -> None:
    require(variant)
    weight, _ = random_weight(32, 128, 64, True)
    for bad in (float("nan"), float("inf"), float("-inf")):
        x = torch.ones(3, 128)
        x[1, 77] = bad
        out = torch.ops.halfbyte.int4_gemm(x, weight, None, 32, "none", path, variant)
        assert not out[1].isfinite().any()
        assert out[0].isfinite().all()
        assert out[2].isfinite().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("activation", ["none", "silu", "silu_mul"])
def test_grouped_equals_one_call_an_expert(activation: str, path: str) -> None:
    weight, _ = random_weight(64, 256, 32, True, experts=5)
    rows = torch.tensor([3, 0, 9, 1, 40])
    x = torch.randn(53, 256, generator=torch.Generator().manual_seed(5))
    bias = torch.randn(5, 64, generator=torch.Generator().manual_seed(6))
    out = hb.int4_gemm_grouped(x, weight, bias, rows, 64, activation, path)
    parts = [
        hb.int4_gemm(part, weight[expert], bias[expert], 64, activation, path)
        for expert, part in enumerate(x.split(rows.tolist()))
    ]
    assert torch.equal(out, torch.cat(parts))


def test_dequantize_gives_back_the_exact_matrix() -> None:
    for group in (32, 128, -1):
        weight, exact = random_weight(24, 384, group, True)
        assert torch.equal(hb.dequantize(weight, 24, 384).double(), exact)


def test_scales_are_narrowed_only_without_loss() -> None:
    exact_in_bf16 = torch.tensor([[0.5, 3.0]])
    assert narrow_scales(exact_in_bf16).dtype == torch.bfloat16
    assert narrow_scales(torch.tensor([[1.0 + 2.0**-10]])).dtype == torch.float16
    assert narrow_scales(torch.tensor([[1.0 + 2.0**-20]])).dtype == torch.float32


@pytest.mark.parametrize(
    ("n", "k", "group", "zeros"),
    [(1, 8, -1, False), (33, 576, 64, True), (48, 160, -1, True), (17, 768, 96, True)],
)
def test_the_fake_pack_knows_the_size(n: int, k: int, group: int, zeros: bool) -> None:
    for dtype in DTYPES:
        groups = 1 if group == -1 else k // group
        zero = torch.zeros((-(-n // 8), groups), dtype=torch.int32) if zeros else None
        codes, scales = torch.zeros((n, k // 8), dtype=torch.int32), torch.ones((n, groups), dtype=dtype)
        packed = torch.ops.halfbyte.int4_gemm_pack(codes, scales, zero, group)
        assert packed.numel() == packed_bytes(n, k, group, dtype, zeros)


def test_opcheck() -> None:
    weight, _ = random_weight(64, 128, 64, True)
    experts, _ = random_weight(64, 128, 64, True, experts=2)
    x = torch.randn(4, 128)
    words = torch.zeros((16, 16), dtype=torch.int32)
    ops = torch.ops.halfbyte
    torch.library.opcheck(ops.int4_gemm, (x, weight, None, 64, "silu_mul", "w4a8"))
    torch.library.opcheck(ops.int4_gemm, (x.bfloat16(), weight, torch.zeros(64, dtype=torch.bfloat16), 64))
    torch.library.opcheck(ops.int4_gemm_grouped, (x, experts, None, torch.tensor([1, 3]), 64))
    torch.library.opcheck(ops.int4_gemm_pack, (words, torch.ones(16, 2), None, 64))
    torch.library.opcheck(ops.int4_gemm_dequantize, (weight, 64, 128))


def test_info_names_what_was_built_and_what_is_taken() -> None:
    cpu = hb.info()["cpu"]
    assert cpu["built"][-1] == "scalar"
    assert cpu["selected"] == cpu["usable"][0]
    assert set(cpu["usable"]) <= set(cpu["built"])
