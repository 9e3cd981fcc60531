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

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "vllm_logits.py"
PYTHON = CACHE / "venvs" / "vllm" / "bin" / "python"


pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def model() -> Path:
    source = os.environ.get("HALFBYTE_TEST_MODEL")
    if source is None:
        pytest.skip("minutes long: set HALFBYTE_TEST_MODEL to a float model folder to run it")
    if not PYTHON.exists():
        pytest.skip("no serving environment: run constraints/venv vllm")
    return Path(source)


@pytest.mark.parametrize(
    ("layout", "symmetric", "dtype"),
    [
        ("compressed-tensors", False, "float32"),
        ("compressed-tensors", True, "float32"),
        ("awq", False, "float16"),
        ("gptq", True, "float16"),
    ],
)
def test_logits_of_a_served_checkpoint(
    model: Path, tmp_path: Path, layout: str, symmetric: bool, dtype: str
) -> None:
    checkpoint.write_checkpoint(model, tmp_path, layout, 64, symmetric)
    # AutoAWQ and GPTQ are served in 16 bits alone; in bfloat16 the rounding of the whole model, not the
    # kernel, would be what is measured (0.995 at worst).
    assert served_cosine(tmp_path, dtype)["least"] >= 0.9995


@pytest.mark.parametrize("symmetric", [True, False])
def test_logits_of_served_routed_experts(model: Path, tmp_path: Path, symmetric: bool) -> None:
    run(HERE / "tiny_deepseek_v2.py", tmp_path / "float", "--tokenizer", model)
    checkpoint.write_checkpoint(tmp_path / "float", tmp_path / "int4", "compressed-tensors", 64, symmetric)
    assert served_cosine(tmp_path / "int4", "float32")["least"] >= 0.9995


def served_cosine(folder: Path, dtype: str) -> dict[str, float]:
    run(SCRIPT, folder, "--reference")
    out = run(SCRIPT, folder, "--dtype", dtype)
    lines = [line for line in out.splitlines() if "halfbyte-kernels: kernel=" in line]
    assert len(lines) == 1
    assert "kernel=HalfbyteInt4LinearKernel" in lines[0]
    found = next(line for line in out.splitlines() if line.startswith("RESULT "))
    print(found)
    cosine: dict[str, float] = json.loads(found.removeprefix("RESULT "))["cosine"]
    return cosine


def run(*words: str | Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(build())}
    done = subprocess.run([PYTHON, *words], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr
