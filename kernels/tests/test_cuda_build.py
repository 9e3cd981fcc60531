"""The CUDA library as nvcc builds it: every target, no spills; it loads without a GPU."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from halfbyte_kernels import cuda

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent
for folder in (KERNELS / "cmake", KERNELS / "golden", HERE / "emulation"):
    sys.path.insert(0, str(folder))
import build_cuda  # noqa: E402
import emulated  # noqa: E402
import golden  # noqa: E402

pytestmark = pytest.mark.timeout(1800)  # a first build compiles 5 targets and takes some minutes


@pytest.fixture(scope="module")
def built() -> Path:
    try:
        nvcc = build_cuda.find_nvcc(None)
    except build_cuda.BuildError as error:
        pytest.skip(f"CUDA kernels are not built here: {error}")
    return build_cuda.cached_build(nvcc, build_cuda.nvcc_version(nvcc))


@pytest.fixture(scope="module")
def library(built: Path) -> ctypes.CDLL:
    return cuda.load(built / "libhalfbyte_cuda.so")


def test_the_page_of_registers_is_what_ptxas_says(built: Path) -> None:
    page = KERNELS.parent / "docs" / "reference" / "cuda-registers.md"
    version = build_cuda.nvcc_version(build_cuda.find_nvcc(None))
    if version != "13.5.37":
        pytest.skip(f"the page is that of nvcc 13.5.37; this is {version}")
    assert page.read_text(encoding="utf-8") == build_cuda.page(built, version)


def test_the_library_holds_every_target(library: ctypes.CDLL) -> None:
    assert library.hb_cuda_targets().decode().split() == [*build_cuda.TARGETS, build_cuda.PTX]
    assert library.hb_cuda_compiler_version() >= 13000


def test_the_targets_of_the_matrix_are_built() -> None:
    yaml = pytest.importorskip("yaml")
    matrix = yaml.safe_load((KERNELS / "matrix.yaml").read_text(encoding="utf-8"))
    targets = {entry["target"] for entry in matrix["hardware"] if entry.get("target")}
    assert targets == set(build_cuda.TARGETS)


@pytest.mark.parametrize("name", [case.name for case in golden.CASES])
def test_it_packs_as_the_emulation_does(library: ctypes.CDLL, name: str) -> None:
    case, tensors = golden.load(name)
    zeros = None if case.symmetric else tensors["ct_zero_point"]
    scales = emulated.to_bits(tensors["scales"], "bfloat16")
    arguments = (tensors["ct_weight_packed"], scales, zeros, case.group, "bfloat16")
    assert emulated.pack(library, *arguments) == emulated.pack(emulated.build(), *arguments)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has a GPU; the test is about one that has none"
)
def test_without_a_gpu_a_product_says_so(library: ctypes.CDLL) -> None:
    x = np.zeros((1, 64), np.uint16)
    arguments = cuda.GemmArguments(x=x.ctypes.data, rows=1, x_stride=64, dtype=1, n=16, k=64, experts=1)
    with pytest.raises(cuda.KernelError, match="no usable GPU"):
        cuda.call(library.hb_cuda_int4_workspace, ctypes.byref(arguments))
    assert library.hb_cuda_device_count() == 0


def test_a_missing_nvcc_is_named_and_not_fatal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(build_cuda.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("HALFBYTE_NVCC", "")
    monkeypatch.setenv("PATH", "")
    assert build_cuda.main(["--find"]) == 3
    assert "pip install nvidia-cuda-nvcc" in capsys.readouterr().err


SPILLING = """\
ptxas info    : Compiling entry function \
'_ZN3_GLOBAL13int4_gemm_mmaINS0_6ConfigINS0_8BFloat16ELi64ELi2ELi4ELb0EEE' for 'sm_80'
    112 bytes stack frame, 112 bytes spill stores, 104 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


def test_a_spilling_kernel_fails_the_build() -> None:
    kernels = build_cuda.parse_report(SPILLING)
    assert kernels == [build_cuda.Kernel("mma", "BFloat16", 64, 2, 4, "sm_80", 255, 216)]
    expected = len(build_cuda.NUMBERS) * len(build_cuda.GROUPS) * (4 * len(build_cuda.TARGETS) + 2)
    with pytest.raises(build_cuda.BuildError, match="spill to local memory in:\n  mma BFloat16 tokens 64"):
        build_cuda.check(kernels * expected)
    with pytest.raises(build_cuda.BuildError, match="reported 1 kernels, expected"):
        build_cuda.check(kernels)


def test_the_torch_layer_registers_the_cuda_operators(built: Path, tmp_path: Path) -> None:
    """It builds against this torch (with or without CUDA) and loads into it."""
    home, target = Path(torch.__file__).parent, tmp_path / "torch_cuda.so"
    includes = [f"-I{KERNELS / 'csrc'}", "-isystem", str(home / "include")]
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    source = str(KERNELS / "csrc/torch/int4_gemm_cuda.cpp")
    links = [str(built / "libhalfbyte_cuda.so"), f"-Wl,-rpath,{built}", str(home / "lib/libtorch_cpu.so")]
    define = "-DTORCH_TARGET_VERSION=0x020a000000000000"
    subprocess.run(["c++", *flags, define, *includes, source, *links, "-o", str(target)], check=True)
    names = ("int4_gemm", "int4_gemm_pack", "int4_gemm_grouped")
    program = (
        "import torch, halfbyte_kernels\n"
        f"torch.ops.load_library({str(target)!r})\n"
        "has = torch._C._dispatch_has_kernel_for_dispatch_key\n"
        f"assert all(has('halfbyte::' + name, 'CUDA') for name in {names})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
