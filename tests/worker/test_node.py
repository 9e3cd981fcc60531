"""Facts about the machine, read from files that a test can write."""

import os
from pathlib import Path

import pytest

from halfbyte_worker import node


def test_cpu_flags_are_those_that_matter(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 fma avx2 avx512f amx_int8\n\nflags : avx_vnni\n")
    assert node.cpu_flags(cpuinfo) == ["avx2", "fma", "avx512f", "amx_int8"]


def test_no_flags_where_the_file_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("Features : asimd\n")
    assert node.cpu_flags(tmp_path / "cpuinfo") == []
    assert node.cpu_flags(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("quota", "expected"), [("max 100000", 3), ("150000 100000", 2), ("50000 100000", 1)]
)
def test_threads_follow_the_cpu_limit(tmp_path: Path, monkeypatch, quota: str, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert node.usable_threads(0, tmp_path) == expected
    assert node.usable_threads(5, tmp_path) == 5


def test_threads_without_a_cgroup(tmp_path: Path) -> None:
    assert node.usable_threads(0, tmp_path) == len(os.sched_getaffinity(0))


def test_free_bytes(tmp_path: Path) -> None:
    assert node.free_bytes(tmp_path) > 0
    assert node.free_bytes(tmp_path / "absent") is None


def test_peak_memory_is_in_bytes() -> None:
    assert 10 << 20 < node.peak_rss_bytes() < 1 << 40
