"""Models, facts and results as the planner meets them, made by small functions with sane values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import ClaimFact, ModelObject, NodeFact, PodFact, ResourceAmounts

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
GIB = 1024**3
MATRIX = yaml.safe_load((Path(__file__).parents[2] / "kernels" / "matrix.yaml").read_text())
SETTINGS = PlanningSettings(matrix=MATRIX)


def spec(**parts: Any) -> dict[str, Any]:
    """A small valid spec; every part may be replaced."""
    whole: dict[str, Any] = {
        "source": {"pvc": {"claimName": "weights", "path": "smollm2"}},
        "quantization": {"method": "AWQ", "bits": 4, "groupSize": 64},
        "serving": {"accelerator": {"type": "cpu"}, "maxModelLen": 2048},
        "storage": {"claimName": "artifacts"},
    }
    whole.update(parts)
    return deepcopy(whole)


def model(raw_spec: dict[str, Any] | None = None, **fields: Any) -> ModelObject:
    values: dict[str, Any] = {
        "name": "smollm2",
        "namespace": "models",
        "uid": "uid-1",
        "generation": 1,
        "created": NOW,
        "raw_spec": raw_spec if raw_spec is not None else spec(),
    }
    values.update(fields)
    return ModelObject(**values)


def claim(name: str, **fields: Any) -> ClaimFact:
    values: dict[str, Any] = {"uid": f"uid-{name}", "phase": "Bound", "capacity_bytes": 20 * GIB}
    values.update(fields)
    return ClaimFact(name=name, **values)


def node(name: str = "node-1", **fields: Any) -> NodeFact:
    values: dict[str, Any] = {"ready": True, "allocatable": ResourceAmounts(2000, 22 * GIB, 0)}
    values.update(fields)
    return NodeFact(name=name, **values)


def linears(hidden: int, middle: int, key_values: int, layers: int, vocabulary: int) -> list[dict[str, Any]]:
    attention, mlp = "model.layers.*.self_attn", "model.layers.*.mlp"
    shapes = [
        (f"{attention}.q_proj", hidden, hidden),
        (f"{attention}.k_proj", key_values, hidden),
        (f"{attention}.v_proj", key_values, hidden),
        (f"{attention}.o_proj", hidden, hidden),
        (f"{mlp}.gate_proj", middle, hidden),
        (f"{mlp}.up_proj", middle, hidden),
        (f"{mlp}.down_proj", hidden, middle),
    ]
    found = [
        {"name": name, "rows": rows, "columns": columns, "count": layers} for name, rows, columns in shapes
    ]
    return [*found, {"name": "lm_head", "rows": vocabulary, "columns": hidden, "count": 1}]


def facts(**fields: Any) -> dict[str, Any]:
    """What the Inspect Job says about SmolLM2-135M-Instruct on a CPU with AVX2 only."""
    whole: dict[str, Any] = {
        "source": {"revision": "sha256-" + "a" * 64, "bytes": 269_060_552},
        "architecture": "LlamaForCausalLM",
        "modelType": "llama",
        "torchDtype": "bfloat16",
        "layers": 30,
        "hiddenSize": 576,
        "intermediateSize": 1536,
        "attentionHeads": 9,
        "keyValueHeads": 3,
        "headDim": 64,
        "vocabSize": 49152,
        "maxPositionEmbeddings": 8192,
        "tiedEmbeddings": True,
        "experts": 0,
        "kvLoraRank": None,
        "qkRopeHeadDim": None,
        "parameters": 134_515_008,
        "largestTensorBytes": 56_623_104,
        "quantized": None,
        "linears": linears(576, 1536, 192, 30, 49152),
        "linearsTruncated": False,
        "node": {"name": "node-1", "cpuFlags": ["avx2"]},
        "storage": {"freeBytes": 50 * GIB},
    }
    whole.update(fields)
    return whole


def large_facts(**fields: Any) -> dict[str, Any]:
    """A dense model with 8 billion parameters in bfloat16: 32 heads, 8 KV heads, 128k context."""
    whole = facts(
        source={"revision": "0e9e39f249a16976918f6564b8830bc894c89659", "bytes": 16_060_556_376},
        layers=32,
        hiddenSize=4096,
        intermediateSize=14336,
        attentionHeads=32,
        keyValueHeads=8,
        headDim=128,
        vocabSize=128256,
        maxPositionEmbeddings=131072,
        tiedEmbeddings=False,
        parameters=8_030_261_248,
        linears=linears(4096, 14336, 1024, 32, 128256),
    )
    whole.update(fields)
    return whole


def artifact_result(**fields: Any) -> dict[str, Any]:
    return {
        "key": "sha256-" + "0" * 64,
        "path": "awq-0",
        "bytes": 114_000_000,
        "sourceBytes": 269_060_552,
        "reused": False,
        "method": "AWQ",
        "seconds": 163.4,
        "layers": 30,
        "peakRssBytes": 1_200_000_000,
        **fields,
    }


def evidence_result(
    verdict: str = "Passed", cosine: str = "0.9912", threshold: str = "0.985"
) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "measurements": [
            {
                "name": "logits/cosine",
                "value": cosine,
                "threshold": threshold,
                "verdict": verdict,
                "samples": 3072,
            },
            {
                "name": "perplexity/increasePercent",
                "value": "3.5",
                "threshold": "5",
                "verdict": "Passed",
                "samples": 3072,
            },
            {"name": "perplexity/source", "value": "25.32"},
            {"name": "perplexity/artifact", "value": "26.21"},
        ],
        "reference": {"revision": "sha256-" + "a" * 64, "corpusDigest": "sha256-" + "c" * 64},
        "report": {"path": "halfbyte-report-1.json", "digest": "sha256-" + "d" * 64},
        "reused": False,
        "seconds": 61,
    }


def words(
    *, ok: bool, stage: str, reason: str = "", message: str = "", result: Mapping[str, Any] | None = None
) -> str:
    """A termination message."""
    return json.dumps(
        {"ok": ok, "stage": stage, "reason": reason, "message": message, "result": result or {}}
    )


def worker_pod(job: str, **fields: Any) -> PodFact:
    return PodFact(**{"name": f"{job}-x1", "phase": "Running", "created": NOW, **fields})
