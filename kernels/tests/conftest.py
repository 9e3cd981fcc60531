"""Builds the library of this checkout once (cached by content) and makes it and the golden vectors
importable."""

from __future__ import annotations

import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(KERNELS), str(KERNELS / "golden"), str(KERNELS / "tests")]

from build_library import build  # noqa: E402

sys.path.insert(0, str(build()))
