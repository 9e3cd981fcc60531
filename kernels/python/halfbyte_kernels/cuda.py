"""ctypes view of ``libhalfbyte_cuda.so`` (int4_gemm_cuda.h): what was built, packing, launch.

The library needs no torch and loads without a GPU or a driver; it is absent when the wheel was built without
nvcc. Tensors are passed as addresses, so that torch, numpy or plain CUDA memory can be used.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).resolve().parent / "libhalfbyte_cuda.so"
OPERATORS = LIBRARY.with_name("libhalfbyte_torch_cuda.so")
DTYPES = {"bfloat16": 1, "float16": 2}
ACTIVATIONS = {"none": 0, "silu": 1, "gelu": 2, "silu_mul": 3}


class Weight(ctypes.Structure):
    """hb_cuda_int4_weight: host addresses of a compressed-tensors weight."""

    _fields_ = (
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("scale_dtype", ctypes.c_int),
        ("zeros", ctypes.c_void_p),
    )


class GemmArguments(ctypes.Structure):
    """hb_cuda_int4_gemm_args: device addresses and sizes of one product."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("x_stride", ctypes.c_int64),
        ("dtype", ctypes.c_int),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("experts", ctypes.c_int64),
        ("packed", ctypes.c_void_p),
        ("packed_bytes", ctypes.c_size_t),
        ("expert_rows", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("activation", ctypes.c_int),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
    )


class KernelError(ValueError):
    """What the library says is wrong with a call."""


def load(path: Path = LIBRARY) -> ctypes.CDLL:
    """Open the library and declare its functions. Raises FileNotFoundError when it was not built."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: halfbyte-kernels was built without nvcc. Install nvcc "
            "(kernels/csrc/int4_gemm/cuda/README.md) and build again."
        )
    library = ctypes.CDLL(str(path))
    declare_packing(library)
    library.hb_cuda_targets.restype = ctypes.c_char_p
    library.hb_cuda_int4_workspace.restype = ctypes.c_int64
    for name in ("hb_cuda_int4_workspace", "hb_cuda_int4_gemm"):
        function = getattr(library, name)
        function.argtypes = [ctypes.POINTER(GemmArguments), ctypes.c_char_p, ctypes.c_size_t]
    return library


def load_operators() -> bool:
    """Register the CUDA implementations of ``halfbyte::int4_gemm*``; False where torch or we have no CUDA."""
    import torch

    if not (OPERATORS.exists() and torch.version.cuda):
        return False
    torch.ops.load_library(str(OPERATORS))
    return True


def declare_packing(library: ctypes.CDLL) -> None:
    weight = ctypes.POINTER(Weight)
    library.hb_cuda_int4_packed_bytes.restype = ctypes.c_size_t
    library.hb_cuda_int4_packed_bytes.argtypes = [weight, ctypes.c_char_p, ctypes.c_size_t]
    library.hb_cuda_int4_pack.argtypes = [
        weight,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]


def pack(library: ctypes.CDLL, weight: Weight) -> bytes:
    """Pack a weight on the host; copy the bytes to the GPU as they are. Raises KernelError with a reason."""
    error = ctypes.create_string_buffer(512)
    size = library.hb_cuda_int4_packed_bytes(weight, error, len(error))
    if size == 0:
        raise KernelError(error.value.decode())
    packed = ctypes.create_string_buffer(size)
    call(library.hb_cuda_int4_pack, weight, packed, size)
    return packed.raw


def call(function: Any, *arguments: Any) -> int:
    """Call a function that ends in (error, error_size); raise KernelError with its message when it fails."""
    error = ctypes.create_string_buffer(512)
    result = function(*arguments, error, len(error))
    if result < 0:
        raise KernelError(error.value.decode())
    return result


def info() -> dict[str, Any]:
    """What was built and what this machine has.

    ``{"built": False, "reason": ...}``, or ``{"built": True, "targets": ["sm_80", ...], "compiler": 13050,
    "devices": ["9.0", ...]}``; devices is empty where there is no driver.
    """
    if not LIBRARY.exists():
        return {"built": False, "reason": "nvcc was not found when the wheel was built"}
    library = load()
    capabilities = [
        library.hb_cuda_device_capability(device) for device in range(library.hb_cuda_device_count())
    ]
    return {
        "built": True,
        "targets": library.hb_cuda_targets().decode().split(),
        "compiler": library.hb_cuda_compiler_version(),
        "devices": [f"{value // 10}.{value % 10}" for value in capabilities],
    }
