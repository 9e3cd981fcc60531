"""Facts about the machine that this process runs on: CPU features, threads, memory and disk."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

CPU_FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""Those that decide how a server or a Job computes; names as in /proc/cpuinfo."""
CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")


def cpu_flags(cpuinfo: Path = CPUINFO) -> list[str]:
    """The flags of CPU_FLAGS that the first processor has; empty where the file does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            present = set(value.split())
            return [flag for flag in CPU_FLAGS if flag in present]
    return []


def usable_threads(wanted: int, cgroup: Path = CGROUP) -> int:
    """`wanted` threads; for 0, the processors that affinity and the cgroup's quota allow, at least 1."""
    if wanted:
        return wanted
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass
    return max(1, count)


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def free_bytes(folder: Path) -> int | None:
    """Bytes that an unprivileged process may still write there; None when the folder is not there."""
    try:
        usage = os.statvfs(folder)
    except OSError:
        return None
    return usage.f_bavail * usage.f_frsize
