"""The CUDA kernels' own source, run on the CPU by an emulation of the GPU's instructions (tests/emulation).

This proves index arithmetic, fragment order, swizzle, pipeline, split-K and epilogue against the golden
vectors. It does not prove what only a GPU can: that the hardware does as the emulation reads the PTX manual.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE / "emulation", HERE.parent / "golden"):
    sys.path.insert(0, str(folder))
import emulated  # noqa: E402
import golden  # noqa: E402
from emulated import Product, from_bits, to_bits  # noqa: E402

from halfbyte_kernels import cuda  # noqa: E402

NAMES = [case.name for case in golden.CASES]
pytestmark = pytest.mark.timeout(900)  # the first test of a fresh machine compiles the emulation


@pytest.fixture(scope="module")
def emulator() -> emulated.Emulator:
    return emulated.Emulator(emulated.build())


def packed(emulator: emulated.Emulator, name: str, dtype: str) -> bytes:
    case, tensors = golden.load(name)
    zeros = None if case.symmetric else tensors["ct_zero_point"]
    scales = to_bits(tensors["scales"], dtype)
    return emulated.pack(emulator.library, tensors["ct_weight_packed"], scales, zeros, case.group, dtype)


def product(
    emulator: emulated.Emulator, name: str, dtype: str, rows: int | None = None, **more: object
) -> Product:
    case, tensors = golden.load(name)
    bias = to_bits(tensors["bias"], dtype)[None]
    x = to_bits(tensors["x"][:rows], dtype)
    return Product(x=x, packed=[packed(emulator, name, dtype)], n=case.n, dtype=dtype, bias=bias, **more)


def check(out: np.ndarray, name: str, dtype: str, act: str, rows: int) -> None:
    case, tensors = golden.load(name)
    expected = tensors[f"expected_{act}"][:rows]
    if case.exact and act == "none":
        assert np.array_equal(out, to_bits(expected.astype(np.float32), dtype))
    error = np.abs(from_bits(out, dtype) - expected)
    assert (error <= golden.tolerance(tensors, "float", dtype, act)[:rows]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_golden_case(emulator: emulated.Emulator, name: str, dtype: str) -> None:
    for rows in (1, golden.load(name)[0].m):
        check(emulator.run(product(emulator, name, dtype, rows)), name, dtype, "none", rows)


@pytest.mark.parametrize("act", golden.ACTIVATIONS)
@pytest.mark.parametrize(("name", "split"), [("real_g128_sym", False), ("real_g64_sym", True)])
def test_the_activation_comes_once_after_the_last_partial_sum(
    emulator: emulated.Emulator, act: str, name: str, split: bool
) -> None:
    one = product(emulator, name, "float16", 9, activation=act)
    assert (emulator.plan(one)["splits"] > 1) == split
    check(emulator.run(one), name, "float16", act, 9)


@pytest.mark.parametrize("name", ["exact_g32_sym", "exact_g64_asym", "exact_g128_asym", "exact_channel_sym"])
@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_a_full_tile_of_64_tokens(emulator: emulated.Emulator, name: str, act: str) -> None:
    out, expected_rows = repeated(emulator, name, 70, act, wgmma=False)
    assert np.array_equal(out, expected_rows)


@pytest.mark.parametrize("name", ["exact_g32_sym", "exact_g64_asym", "exact_g128_asym", "exact_channel_sym"])
@pytest.mark.parametrize("rows", [64, 130])
def test_the_warpgroup_kernels(emulator: emulated.Emulator, name: str, rows: int) -> None:
    for act in ("none", "silu_mul"):
        out, expected_rows = repeated(emulator, name, rows, act, wgmma=True)
        assert np.array_equal(out, expected_rows)


def repeated(
    emulator: emulated.Emulator, name: str, rows: int, act: str, wgmma: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Run the case with its rows repeated; both results are bits, row i being that of row i modulo M."""
    case, _ = golden.load(name)
    small = product(emulator, name, "bfloat16", activation=act)
    index = np.arange(rows) % case.m
    large = Product(
        x=small.x[index], packed=small.packed, n=small.n, dtype=small.dtype, bias=small.bias, activation=act,
        wgmma=wgmma,
    )  # fmt: skip
    plan = emulator.plan(large)
    assert plan["tokens"] == (128 if wgmma and rows >= 128 else 64)
    assert plan["warpgroup"] == wgmma
    return emulator.run(large), emulator.run(small)[index]


# The last stage lies in the first buffer, where the finished tile goes: 9 stages in 4 buffers, 10 in 3.
@pytest.mark.parametrize(
    ("rows", "wgmma", "tokens", "stages"),
    [
        (8, False, 8, 9),
        (16, False, 16, 9),
        (32, False, 32, 9),
        (64, False, 64, 10),
        (64, True, 64, 10),
        (128, True, 128, 10),
    ],
)
def test_a_pipeline_longer_than_its_buffers(
    emulator: emulated.Emulator, rows: int, wgmma: bool, tokens: int, stages: int
) -> None:
    """A golden weight repeated along K and cut to whole stages, and repeated 8 times along N."""
    case, tensors = golden.load("exact_g128_asym")
    repeats, k = (8, -(-stages * 128 // case.k)), stages * 128
    codes = np.tile(tensors["codes"], repeats)[:, :k]
    scales, zeros = (np.tile(tensors[key], repeats)[:, :stages] for key in ("scales", "zeros"))
    x = np.tile(tensors["x"][np.arange(rows) % case.m], (1, repeats[1]))[:, :k]
    layouts = golden.pack(codes, zeros)
    arguments = (layouts["ct_weight_packed"], to_bits(scales, "bfloat16"), layouts["ct_zero_point"])
    blob = emulated.pack(emulator.library, *arguments, 128, "bfloat16")
    one = Product(to_bits(x, "bfloat16"), [blob], 8 * case.n, "bfloat16", processors=1, wgmma=wgmma)
    plan = emulator.plan(one)
    assert (plan["tokens"], plan["splits"], plan["stages_per_split"]) == (tokens, 1, stages)
    expected = x.astype(np.float64) @ golden.dequantize(codes, zeros, scales).T
    assert np.array_equal(emulator.run(one), to_bits(expected.astype(np.float32), "bfloat16"))


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_threads_and_blocks_changes_nothing(emulator: emulated.Emulator, seed: int) -> None:
    one = product(emulator, "real_g64_sym", "bfloat16", 9)
    assert emulator.plan(one)["splits"] > 1
    assert np.array_equal(emulator.run(one, seed), emulator.run(one, 100))


@pytest.mark.parametrize("counts", [[5, 0, 17, 11], [0, 0, 0, 33], [33, 0, 0, 0], [1, 1, 1, 30]])
@pytest.mark.parametrize("processors", [1, 64])
@pytest.mark.parametrize("act", ["none", "silu_mul"])
def test_grouped_rows_use_their_own_expert(
    emulator: emulated.Emulator, counts: list[int], processors: int, act: str
) -> None:
    grouped, expected = experts_product(emulator, counts, act, processors)
    assert np.array_equal(emulator.run(grouped), expected)


def test_more_experts_than_lanes(emulator: emulated.Emulator) -> None:
    counts = [0] * 40
    counts[3], counts[33], counts[39] = 9, 20, 4
    grouped, expected = experts_product(emulator, counts, "none", 1)
    assert np.array_equal(emulator.run(grouped), expected)


def experts_product(
    emulator: emulated.Emulator, counts: list[int], act: str, processors: int
) -> tuple[Product, np.ndarray]:
    """Experts made of one golden weight with its rows rolled; the expected bits come from dense runs."""
    case, tensors = golden.load("exact_g128_asym")
    x = to_bits(tensors["x"], "float16")
    weights, biases, expected = [], [], []
    start = 0
    for expert, count in enumerate(counts):
        order = np.roll(np.arange(case.n), 8 * expert)
        layouts = golden.pack(tensors["codes"][order], tensors["zeros"][order])
        scales = to_bits(tensors["scales"][order], "float16")
        weights.append(
            emulated.pack(
                emulator.library,
                layouts["ct_weight_packed"],
                scales,
                layouts["ct_zero_point"],
                case.group,
                "float16",
            )
        )
        biases.append(to_bits(tensors["bias"][order], "float16"))
        if count:
            rows = x[start : start + count]
            dense = Product(rows, [weights[-1]], case.n, "float16", biases[-1][None], act)
            expected.append(emulator.run(dense))
        start += count
    grouped = Product(x, weights, case.n, "float16", np.stack(biases), act, counts, processors)
    return grouped, np.concatenate(expected)


@pytest.mark.parametrize("name", NAMES)
def test_the_packed_weight_unpacks_lane_by_lane(emulator: emulated.Emulator, name: str) -> None:
    """Independent of layout.h: the A fragment of mma.m16n8k16 as the PTX manual draws it."""
    case, tensors = golden.load(name)
    blob = packed(emulator, name, "bfloat16")
    column_tiles = -(-case.k // 64)
    words = np.frombuffer(blob, np.uint32, -(-case.n // 16) * column_tiles * 128).reshape(
        -1, column_tiles, 2, 32, 2
    )
    codes = tensors["codes"]
    for tile_row, tile_column, step, lane in np.ndindex(words.shape[0], column_tiles, 4, 32):
        word = int(words[tile_row, tile_column, step // 2, lane, step % 2])
        for element in range(8):  # a0..a7 of the manual: registers element // 2, half element % 2
            row = tile_row * 16 + lane // 4 + (8 if element // 2 % 2 else 0)
            column = tile_column * 64 + step * 16 + lane % 4 * 2 + element % 2 + (8 if element >= 4 else 0)
            if column < case.k:
                assert word >> (4 * (element // 2 + 4 * (element % 2))) & 15 == codes[row, column]


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_size_of_a_packed_weight_names_its_format(
    emulator: emulated.Emulator, group: int, symmetric: bool, dtype: str
) -> None:
    sizes = set()
    for n, k in ((8, 128), (24, 384), (64, 640)):
        groups = 1 if group == -1 else k // group
        zeros = None if symmetric else np.zeros((n // 8, groups), np.int32)
        blob = emulated.pack(
            emulator.library,
            np.zeros((n, k // 8), np.int32),
            np.zeros((n, groups), np.uint16),
            zeros,
            group,
            dtype,
        )
        sizes.add(len(blob) % 256)
        one = Product(np.zeros((1, k), np.uint16), [blob], n, dtype)
        assert emulator.plan(one)["stages"] == -(-k // 128)
        for wrong in (blob[:-16], blob + bytes(16)):
            with pytest.raises(cuda.KernelError, match=r"no packed weight|scales"):
                emulator.plan(Product(one.x, [wrong], n, dtype))
    assert len(sizes) == 1


def test_rows_of_w_that_do_not_fill_a_block(emulator: emulated.Emulator) -> None:
    case, tensors = golden.load("exact_g32_sym")
    for n in (8, 40):
        scales = to_bits(tensors["scales"][:n], "bfloat16")
        blob = emulated.pack(
            emulator.library, tensors["ct_weight_packed"][:n], scales, None, case.group, "bfloat16"
        )
        out = emulator.run(Product(to_bits(tensors["x"], "bfloat16"), [blob], n, "bfloat16"))
        expected = tensors["expected_none"][:, :n] - tensors["bias"][:n]
        assert np.array_equal(out, to_bits(expected.astype(np.float32), "bfloat16"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "x is float16 but the weight was packed with bfloat16 scales"),
        ({"n": 72}, "no packed weight of 72 x 352"),
        ({"activation": "silu_mul", "n": 40}, "no packed weight of 40 x 352"),
        ({"expert_rows": [17]}, "expert_rows must be given for more than one expert"),
    ],
)
def test_what_does_not_fit_is_named(emulator: emulated.Emulator, change: dict, message: str) -> None:
    good = product(emulator, "exact_g32_sym", "bfloat16")
    arguments = {field: getattr(good, field) for field in good.__dataclass_fields__}
    with pytest.raises(cuda.KernelError, match=message):
        emulator.plan(Product(**{**arguments, **change}))


@pytest.mark.parametrize(
    ("shape", "group", "message"),
    [
        ((16, 48), -1, "16 x 48: rows must be positive and columns a multiple of 32"),
        ((16, 64), 48, "group size 48 is not supported on a GPU"),
        ((16, 96), 64, "96 columns are not a multiple of the group size 64"),
    ],
)
def test_a_weight_that_cannot_be_packed_is_named(
    emulator: emulated.Emulator, shape: tuple[int, int], group: int, message: str
) -> None:
    n, k = shape
    with pytest.raises(cuda.KernelError, match=message):
        emulated.pack(
            emulator.library,
            np.zeros((n, k // 8), np.int32),
            np.ones((n, 1), np.uint16),
            None,
            group,
            "bfloat16",
        )


@pytest.mark.parametrize("rows", [1, 8, 9, 33, 64, 200, 4096])
@pytest.mark.parametrize(("n", "k"), [(576, 576), (4096, 4096), (11008, 4096), (4096, 11008)])
@pytest.mark.parametrize("processors", [1, 108, 132])
def test_every_plan_covers_the_product(
    emulator: emulated.Emulator, rows: int, n: int, k: int, processors: int
) -> None:
    blob = bytes(packed_size(n, k))
    for wgmma in (False, True):
        one = Product(
            np.zeros((rows, k), np.uint16), [blob], n, "bfloat16", processors=processors, wgmma=wgmma
        )
        plan = emulator.plan(one)
        assert plan["tokens"] * plan["token_tiles"] >= rows
        assert (plan["splits"] - 1) * plan["stages_per_split"] < plan["stages"]
        assert plan["splits"] * plan["stages_per_split"] >= plan["stages"]
        assert plan["workspace"] <= 64 * 2**20


def packed_size(n: int, k: int) -> int:
    """Bytes of a symmetric bfloat16 per-channel weight: the payload, rounded to 256, and tag 13."""
    tiles = -(-n // 16)
    payload = tiles * (-(-k // 64) * 512 + 32)
    return -(-payload // 256) * 256 + 16 * 13
