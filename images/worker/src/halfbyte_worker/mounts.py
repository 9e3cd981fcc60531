"""Where the operator mounts the volumes of a Job. HALFBYTE_ROOT moves them, for runs outside a pod."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(os.environ.get("HALFBYTE_ROOT") or "/halfbyte")
SOURCE_ROOT = ROOT / "source"
ARTIFACT_ROOT = ROOT / "artifacts"
