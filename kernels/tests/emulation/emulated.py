"""Build and call the emulated CUDA kernels (int4_gemm_emulated.cpp); the library is cached by its sources."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halfbyte_kernels import cuda

KERNELS = Path(__file__).resolve().parent.parent.parent
CUDA = KERNELS / "csrc" / "int4_gemm" / "cuda"
SOURCES = (KERNELS / "tests/emulation/int4_gemm_emulated.cpp", CUDA / "request.cpp", CUDA / "pack.cpp")
HEADERS = (*CUDA.glob("*.h"), *CUDA.glob("*.cuh"), KERNELS / "tests/emulation/cuda_emulation.h")


def build() -> ctypes.CDLL:
    """Compile with the host's C++ compiler (about 20 s the first time) and load."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    digest = hashlib.sha256()
    for path in sorted((*SOURCES, *HEADERS)):
        digest.update(path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = Path(os.environ.get("HALFBYTE_CACHE") or f"{home}/halfbyte") / "cuda-emulation"
    target = cache / f"{digest.hexdigest()[:16]}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        includes = [f"-I{KERNELS / 'csrc'}", f"-I{KERNELS / 'tests/emulation'}"]
        flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
        command = [compiler, *flags, *includes, *map(str, SOURCES), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        partial.rename(target)
    library = ctypes.CDLL(str(target))
    cuda.declare_packing(library)
    return library


@dataclass(frozen=True)
class Product:
    """One call in host memory: uint16 bits of x, bias and out; the packed weight of every expert."""

    x: np.ndarray  # [rows, k] uint16
    packed: list[bytes]
    n: int
    dtype: str
    bias: np.ndarray | None = None  # [experts, n] uint16
    activation: str = "none"
    expert_rows: list[int] | None = None
    processors: int = 8
    wgmma: bool = False


PLAN = (
    "tokens",
    "warpgroup",
    "splits",
    "token_tiles",
    "row_blocks",
    "stages",
    "stages_per_split",
    "workspace",
)


class Emulator:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def plan(self, product: Product) -> dict[str, int]:
        arguments, _, keep = self._arguments(product, 0)
        values = (ctypes.c_int64 * len(PLAN))()
        cuda.call(
            self.library.hb_emulated_plan,
            ctypes.byref(arguments),
            product.processors,
            int(product.wgmma),
            values,
        )
        del keep
        return dict(zip(PLAN, values, strict=True))

    def run(self, product: Product, seed: int = 0) -> np.ndarray:
        """[rows, columns] uint16 bits of out; checks that the workspace's counters were left at zero."""
        size = self.plan(product)["workspace"]
        arguments, out, keep = self._arguments(product, size)
        workspace = np.zeros(max(size, 1), np.uint8)
        arguments.workspace = workspace.ctypes.data
        cuda.call(
            self.library.hb_emulated_gemm,
            ctypes.byref(arguments),
            product.processors,
            int(product.wgmma),
            ctypes.c_uint(seed),
        )
        assert not workspace[: 4 * 4096].any() or size == 0, "split-K counters were not left at zero"
        del keep
        return out

    def _arguments(
        self, product: Product, workspace: int
    ) -> tuple[cuda.GemmArguments, np.ndarray, list[object]]:
        rows, k = product.x.shape
        width = product.n // 2 if product.activation == "silu_mul" else product.n
        out = np.full((rows, width), 0xFFFF, np.uint16)
        x = _aligned(product.x.tobytes())
        packed = _aligned(b"".join(product.packed))
        experts = None if product.expert_rows is None else np.array(product.expert_rows, np.int64)
        bias = None if product.bias is None else np.ascontiguousarray(product.bias)
        arguments = cuda.GemmArguments(
            x=x.ctypes.data,
            rows=rows,
            x_stride=k,
            dtype=cuda.DTYPES[product.dtype],
            n=product.n,
            k=k,
            experts=len(product.packed),
            packed=packed.ctypes.data,
            packed_bytes=len(product.packed[0]),
            expert_rows=None if experts is None else experts.ctypes.data,
            bias=None if bias is None else bias.ctypes.data,
            activation=cuda.ACTIVATIONS[product.activation],
            out=out.ctypes.data,
            out_stride=width,
            workspace_bytes=workspace,
        )
        return arguments, out, [x, packed, experts, bias]


def _aligned(data: bytes) -> np.ndarray:
    """A copy that starts at a multiple of 16 bytes, as device memory does."""
    room = np.zeros(len(data) + 16, np.uint8)
    start = -room.ctypes.data % 16
    room[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return room[start : start + len(data)]


def pack(
    library: ctypes.CDLL,
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    group: int,
    dtype: str,
) -> bytes:
    """codes int32 [n, k/8], scales uint16 bits [n, groups], zeros int32 [n/8, groups] or None."""
    codes, scales = np.ascontiguousarray(codes), np.ascontiguousarray(scales)
    zeros = None if zeros is None else np.ascontiguousarray(zeros)
    weight = cuda.Weight(
        n=codes.shape[0],
        k=codes.shape[1] * 8,
        group=group,
        codes=codes.ctypes.data,
        scales=scales.ctypes.data,
        scale_dtype=cuda.DTYPES[dtype],
        zeros=None if zeros is None else zeros.ctypes.data,
    )
    return cuda.pack(library, weight)


def to_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round fp32 values to the dtype's 16 bits, to nearest even."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
