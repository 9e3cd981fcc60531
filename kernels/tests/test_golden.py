"""The golden vectors: reproducible, right about the public layouts, sharp enough to catch a wrong nibble."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(FOLDER))
import generate  # noqa: E402
import golden  # noqa: E402

sys.path.remove(str(FOLDER))

NAMES = [case.name for case in golden.CASES]


def nibble(word: np.int32, index: int) -> int:
    return (int(word) >> (4 * index)) & 15


def test_the_checked_in_files_are_what_the_generator_makes() -> None:
    assert generate.main(["--check"]) == 0


def test_the_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in golden.FOLDER.iterdir()) < 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_each_layout_holds_the_codes_where_its_format_says(name: str) -> None:
    case, tensors = golden.load(name)
    random = np.random.RandomState(0)
    for n, k in zip(random.randint(0, case.n, 200), random.randint(0, case.k, 200), strict=True):
        code = tensors["codes"][n, k]
        assert nibble(tensors["ct_weight_packed"][n, k // 8], k % 8) == code
        assert nibble(tensors["gptq_qweight"][k // 8, n], k % 8) == code
        assert nibble(tensors["awq_qweight"][k, n // 8], [0, 4, 1, 5, 2, 6, 3, 7][n % 8]) == code
        g = k * case.groups // case.k
        zero = tensors["zeros"][n, g]
        assert nibble(tensors["ct_zero_point"][n // 8, g], n % 8) == zero
        assert (nibble(tensors["gptq_qzeros"][g, n // 8], n % 8) + 1) % 16 == zero % 16
        assert nibble(tensors["awq_qzeros"][g, n // 8], [0, 4, 1, 5, 2, 6, 3, 7][n % 8]) == zero


@pytest.mark.parametrize("name", NAMES)
def test_the_packing_is_compressed_tensors_own(name: str) -> None:
    compressed = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    torch = pytest.importorskip("torch")
    _, tensors = golden.load(name)
    signed = torch.from_numpy(tensors["codes"].astype(np.int8) - 8)
    zeros = torch.from_numpy(tensors["zeros"].astype(np.int8) - 8)
    assert np.array_equal(compressed.pack_to_int32(signed, 4).numpy(), tensors["ct_weight_packed"])
    assert np.array_equal(compressed.pack_to_int32(zeros, 4, packed_dim=0).numpy(), tensors["ct_zero_point"])


@pytest.mark.parametrize("name", NAMES)
def test_float32_arithmetic_stays_within_the_bounds(name: str) -> None:
    case, tensors = golden.load(name)
    weights = golden.dequantize(tensors["codes"], tensors["zeros"], tensors["scales"]).astype(np.float32)
    out = tensors["x"] @ weights.T + tensors["bias"]
    if case.exact:
        assert np.array_equal(out, tensors["expected_none"])
    for act in golden.ACTIVATIONS:
        error = np.abs(golden.activate(out.astype(np.float64), act) - tensors[f"expected_{act}"])
        assert (error <= golden.tolerance(tensors, "float", "float32", act)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("exact")])
def test_int8_activations_are_exact_where_the_case_says_so(name: str) -> None:
    _, tensors = golden.load(name)
    slices = tensors["x"].reshape(-1, 32)
    step = np.abs(slices).max(axis=1, keepdims=True) / 127
    quantized = (np.rint(slices / step) * step).reshape(tensors["x"].shape)
    weights = golden.dequantize(tensors["codes"], tensors["zeros"], tensors["scales"])
    assert np.array_equal(quantized @ weights.T + tensors["bias"], tensors["expected_none"])


@pytest.mark.parametrize("path", golden.STEPS)
def test_a_swapped_pair_of_columns_breaks_every_real_case(path: str) -> None:
    for name in (name for name in NAMES if name.startswith("real")):
        _, tensors = golden.load(name)
        codes = (
            tensors["codes"]
            .reshape(tensors["codes"].shape[0], -1, 2)[..., ::-1]
            .reshape(tensors["codes"].shape)
        )
        out = tensors["x"] @ golden.dequantize(codes, tensors["zeros"], tensors["scales"]).T + tensors["bias"]
        error = np.abs(out - tensors["expected_none"])
        assert (error > golden.tolerance(tensors, path, "bfloat16", "none")).mean() > 0.5
