"""Loads the compiled libraries, once a process."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from halfbyte_kernels import cuda

FOLDER = Path(__file__).parent


@cache
def load_cpu() -> ctypes.CDLL:
    """Load ``libhalfbyte_cpu.so``: registers ``torch.ops.halfbyte``, and gives its C API.

    Raises ImportError when the distribution was built without it, or for a newer torch than this one.
    """
    path = FOLDER / "libhalfbyte_cpu.so"
    if not path.exists():
        raise ImportError(
            f"{path} is missing: halfbyte-kernels was not built; run: "
            "pip install ./kernels (needs a C++20 compiler)"
        )
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"cannot load {path.name} under torch {torch.__version__} (needs 2.10 or newer): {error}"
        ) from error
    cuda.load_operators()
    return ctypes.CDLL(str(path))
