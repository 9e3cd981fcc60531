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
