"""What was built, and which path this machine takes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from halfbyte_kernels import cuda
from halfbyte_kernels.library import load_cpu


def _names(function: str) -> list[str]:
    listing = getattr(load_cpu(), function)
    listing.restype = ctypes.POINTER(ctypes.c_char_p)
    pointer = listing()
    names = []
    while (name := pointer[len(names)]) is not None:
        names.append(name.decode())
    return names


def cpu_variants_built() -> list[str]:
    """Instruction-set variants in the library, best first."""
    return _names("hb_int4_isas_built")


def cpu_variants_usable() -> list[str]:
    """Those of them that this CPU runs, best first; the first is the one that is used."""
    return _names("hb_int4_isas_usable")


def info() -> dict[str, Any]:
    """``{"version", "torch", "cpu": {"built", "usable", "selected"}, "cuda": what cuda.info() says}``."""
    from halfbyte_kernels import __version__

    usable = cpu_variants_usable()
    return {
        "version": __version__,
        "torch": torch.__version__,
        "cpu": {"built": cpu_variants_built(), "usable": usable, "selected": usable[0]},
        "cuda": cuda.info(),
    }
