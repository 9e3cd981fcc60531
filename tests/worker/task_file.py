"""Tasks as the operator writes them, in the smallest form that each method needs."""

import hashlib
import json
from typing import Any

from halfbyte_worker.task import QuantizeTask, ValidateTask

RECIPES: dict[str, dict[str, Any]] = {
    "AWQ": {"bits": 4, "groupSize": 64, "symmetric": False},
    "GPTQ": {"bits": 4, "groupSize": 64, "symmetric": True},
    "W8A8": {"bits": 8, "groupSize": None, "symmetric": True},
    "None": {"bits": None, "groupSize": None, "symmetric": None},
}
CALIBRATION = {"source": {"builtin": "prose"}, "samples": 4, "sequenceLength": 64, "seed": 0}


def artifact_of(method: str, salt: str = "") -> dict[str, str]:
    key = "sha256-" + hashlib.sha256(f"{method}{salt}".encode()).hexdigest()
    return {"key": key, "path": f"{method.lower()}-{key[7:23]}"}


def common(path: str, artifact: dict[str, str]) -> dict[str, Any]:
    return {
        "version": 1,
        "model": {"name": "tiny", "namespace": "models"},
        "source": {"type": "pvc", "path": path},
        "compute": {"dtype": "float32", "threads": 1},
        "artifact": artifact,
    }


def quantize_task(method: str, path: str = "tiny", *, salt: str = "", **recipe: Any) -> QuantizeTask:
    calibrated = method in ("AWQ", "GPTQ")
    quantization = {
        "method": method,
        **RECIPES[method],
        "ignore": ["lm_head"],
        "calibration": CALIBRATION if calibrated else None,
    }
    task = common(path, artifact_of(method, salt)) | {"quantization": quantization | recipe}
    return QuantizeTask.model_validate_json(json.dumps(task))


def validate_task(artifact: dict[str, str], path: str = "tiny", **validation: Any) -> ValidateTask:
    gates = {
        "logits": {"minCosineSimilarity": "0.9"},
        "perplexity": {"maxIncreasePercent": "50"},
        "generation": {"promptTokens": 16, "newTokens": 24, "maxRepetition": "0.9"},
        "corpus": {"builtin": "prose"},
        "samples": 2,
        "sequenceLength": 48,
        "onFailure": "Block",
    }
    return ValidateTask.model_validate_json(
        json.dumps(common(path, artifact) | {"validation": gates | validation})
    )
