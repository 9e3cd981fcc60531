"""Whether vLLM gets our kernels in this process, decided from settings, versions and the CPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal, cast

Mode = Literal["off", "auto", "force"]
Path = Literal["w4a16", "w4a8"]

# The kernel interfaces are vLLM internals that move between minors; this one was read and run.
SUPPORTED_VLLM = (0, 32)
OWN_KERNEL = "CPUWNA16LinearKernel"

_logged = False


@dataclass(frozen=True)
class Settings:
    mode: Mode
    path: Path


@dataclass(frozen=True)
class Decision:
    register: bool
    reason: str
    kernel: str = "HalfbyteInt4LinearKernel"


def read_settings() -> Settings:
    """From the environment; ValueError names the variable and what it may be."""
    mode = os.environ.get("HALFBYTE_KERNELS", "auto").lower()
    if mode not in ("off", "auto", "force"):
        raise ValueError(f"HALFBYTE_KERNELS is {mode!r}; it may be off, auto or force")
    path = os.environ.get("HALFBYTE_INT4_PATH", "w4a16").lower()
    if path not in ("w4a16", "w4a8"):
        raise ValueError(f"HALFBYTE_INT4_PATH is {path!r}; it may be w4a16 or w4a8")
    return Settings(cast("Mode", mode), cast("Path", path))


def decide(settings: Settings) -> Decision:
    if settings.mode == "off":
        return Decision(False, "HALFBYTE_KERNELS=off", OWN_KERNEL)
    problem = version_problem() or platform_problem()
    if problem is not None:
        if settings.mode == "force":
            raise RuntimeError(f"HALFBYTE_KERNELS=force, but {problem}")
        return Decision(False, problem, OWN_KERNEL)
    if settings.mode == "force":
        return Decision(True, "HALFBYTE_KERNELS=force")
    if not vllm_has_int4():
        return Decision(True, "vLLM has no 4-bit kernel for this CPU")
    if vllm_uses_amx():
        return Decision(False, "vLLM's own kernel uses AMX, which halfbyte-kernels does not", OWN_KERNEL)
    return Decision(True, "preferred to vLLM's own kernel on this CPU")


def version_problem() -> str | None:
    import vllm

    version = tuple(int(part) for part in vllm.__version__.split(".")[:2])
    if version == SUPPORTED_VLLM:
        return None
    return (
        f"halfbyte-kernels 0.1 knows vLLM {SUPPORTED_VLLM[0]}.{SUPPORTED_VLLM[1]}, "
        f"this is {vllm.__version__}: install that version, or a newer halfbyte-kernels"
    )


def platform_problem() -> str | None:
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return f"the platform is {current_platform.device_name}, not a CPU"
    return None


def vllm_has_int4() -> bool:
    """vLLM's library for CPUs without AVX512 lacks it; its Python side finds out at the first token."""
    import torch
    import vllm._custom_ops  # noqa: F401  loads the library

    return hasattr(torch.ops._C, "cpu_gemm_wna16")


def vllm_uses_amx() -> bool:
    import torch

    return torch.cpu._is_amx_tile_supported()


def log_kernel(kernel: str, reason: str) -> None:
    """One line a process, read by the operator from the pod's log; the first ready layer writes it."""
    global _logged
    if _logged:
        return
    _logged = True
    from vllm.logger import init_logger

    init_logger("vllm.halfbyte_kernels").info("halfbyte-kernels: kernel=%s reason=%s", kernel, reason)
    sys.stdout.flush()
