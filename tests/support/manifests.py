"""Raw objects as the API server stores them, for tests: a model and its children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

TINY_SPEC: Json = {
    "source": {"pvc": {"claimName": "weights", "path": "tiny"}},
    "quantization": {"method": "W8A8"},
    "serving": {"engine": "vLLM", "accelerator": {"type": "cpu"}, "maxModelLen": 512},
    "storage": {"claimName": "artifacts"},
}


def a_model(name: str = "tiny", namespace: str = "models", uid: str | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, "namespace": namespace}
    if uid is not None:
        metadata["uid"] = uid
    return {
        "apiVersion": "halfbyte.dev/v1alpha1",
        "kind": "QuantizedModel",
        "metadata": metadata,
        "spec": {**TINY_SPEC, **spec},
    }


def labels_of(model: str, stage: str, **more: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "halfbyte",
        "halfbyte.dev/model": model,
        "halfbyte.dev/stage": stage,
        **more,
    }


def owned_by(*models: Mapping[str, Any]) -> list[Json]:
    return [
        {
            "apiVersion": each["apiVersion"],
            "kind": each["kind"],
            "name": each["metadata"]["name"],
            "uid": each["metadata"]["uid"],
        }
        for each in models
    ]


def a_job(name: str, owner: Mapping[str, Any], stage: str, **status: Any) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": labels_of(owner["metadata"]["name"], stage),
            "ownerReferences": owned_by(owner),
        },
        "spec": {},
        "status": status,
    }


def a_pod(name: str, owner: Mapping[str, Any], model: str, stage: str, **status: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": labels_of(model, stage),
            "ownerReferences": owned_by(owner),
        },
        "spec": {"containers": [{"name": "main"}]},
        "status": status,
    }


def a_deployment(name: str, owner: Mapping[str, Any], revision: str, **status: Any) -> Json:
    labels = labels_of(owner["metadata"]["name"], "serve", **{"halfbyte.dev/revision": revision})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": owned_by(owner),
        },
        "spec": {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "s", "image": "v", "args": ["--model", "m"]}]}},
        },
        "status": status,
    }
