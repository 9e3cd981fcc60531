"""A real vLLM answers with our kernels and with the logits of the dequantized model.

Needs the serving environment (``constraints/venv vllm``) and minutes, so it runs only when
HALFBYTE_TEST_MODEL names a float model folder, e.g. the one that examples/model builds.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import checkpoint
import pytest
from build_library import CACHE, build

SCRIPT = Path(__file__).resolve().parent / "vllm_logits.py"
PYTHON = CACHE / "venvs" / "vllm" / "bin" / "python"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("layout", "symmetric", "dtype"),
    [
        ("compressed-tensors", False, "float32"),
        ("compressed-tensors", True, "float32"),
        ("awq", False, "bfloat16"),
        ("gptq", True, "bfloat16"),
    ],
)
def test_logits_of_a_served_checkpoint(tmp_path: Path, layout: str, symmetric: bool, dtype: str) -> None:
    source = os.environ.get("HALFBYTE_TEST_MODEL")
    if source is None:
        pytest.skip("minutes long: set HALFBYTE_TEST_MODEL to a float model folder to run it")
    if not PYTHON.exists():
        pytest.skip("no serving environment: run constraints/venv vllm")
    checkpoint.write_checkpoint(Path(source), tmp_path, layout, 64, symmetric)
    run(tmp_path, "--reference")
    out = run(tmp_path, "--dtype", dtype)
    lines = [line for line in out.splitlines() if "halfbyte-kernels: kernel=" in line]
    assert len(lines) == 1
    assert "kernel=HalfbyteInt4LinearKernel" in lines[0]
    result = json.loads(
        next(line for line in out.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT ")
    )
    assert result["cosine"]["least"] >= (0.9995 if dtype == "float32" else 0.99)
    assert result["cosine"]["mean"] >= 0.9995


def run(folder: Path, *options: str) -> str:
    words = [str(PYTHON), str(SCRIPT), str(folder), *options]
    environment = os.environ | {"PYTHONPATH": str(build())}
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr
