"""The C++ core under AddressSanitizer and UndefinedBehaviorSanitizer, over random shapes and values, for a
bounded time."""

from __future__ import annotations

import random
import subprocess

import pytest
from build_library import build


@pytest.mark.timeout(600)  # the first run compiles the core with sanitizers
def test_random_problems_stay_within_bounds_and_memory() -> None:
    fuzzer = build(fuzz=True, sanitize="address,undefined")
    seed = random.SystemRandom().randrange(2**31)
    done = subprocess.run([str(fuzzer), "60", str(seed)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
