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


def reported(name: str, *reasons: str, timeout: float = 120) -> str:
    """The message of Ready once it has one of the reasons for the current generation."""

    def probe() -> cluster.Json | None:
        found = cluster.condition(cluster.get("quantizedmodel", name, MODELS), "Ready")
        return found if found.get("reason") in reasons else None

    try:
        found = cluster.poll(probe, timeout=timeout, what=f"{name} Ready with {reasons}")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{cluster.get('quantizedmodel', name, MODELS)}") from error
    message: str = found["message"]
    print(f"{found['reason']}: {message}")
    return message
