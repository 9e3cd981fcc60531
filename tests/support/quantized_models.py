"""QuantizedModels for the end-to-end tests."""

from __future__ import annotations

from support import local_cluster as cluster

EXAMPLES = cluster.ROOT / "examples"
MODELS = "models"


def tiny_manifest(name: str, **spec: object) -> cluster.Json:
    """A QuantizedModel of the tiny model in W8A8 without gates; every part of the spec may be replaced."""
    parts: cluster.Json = {
        "source": {"pvc": {"claimName": "weights", "path": "tiny"}},
        "quantization": {"method": "W8A8"},
        "validation": {
            "onFailure": "Warn",
            "generation": {"promptTokens": 16, "newTokens": 32, "maxRepetition": "1"},
        },
        "serving": {"engine": "vLLM", "accelerator": {"type": "cpu"}, "maxModelLen": 512},
        "storage": {"claimName": "artifacts"},
    }
    parts.update(spec)
    return {
        "apiVersion": "halfbyte.dev/v1alpha1",
        "kind": "QuantizedModel",
        "metadata": {"name": name, "namespace": MODELS},
        "spec": parts,
    }


def current_condition(model: cluster.Json, kind: str) -> cluster.Json:
    """The condition of that type, or {} while it speaks of an earlier generation."""
    found = cluster.condition(model, kind)
    return found if found.get("observedGeneration") == model["metadata"]["generation"] else {}


def reaches(name: str, *reasons: str, timeout: float = 600) -> cluster.Json:
    """The object once Ready has one of the reasons for the current generation."""

    def wanted(model: cluster.Json) -> bool:
        return current_condition(model, "Ready").get("reason") in reasons

    return cluster.wait_for_model(name, MODELS, wanted, timeout=timeout, what=f"{name} Ready with {reasons}")


def reported(name: str, *reasons: str, timeout: float = 120) -> str:
    """The message of Ready once it has one of the reasons for the current generation."""
    found = cluster.condition(reaches(name, *reasons, timeout=timeout), "Ready")
    message: str = found["message"]
    print(f"{found['reason']}: {message}")
    return message
