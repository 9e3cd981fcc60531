"""Metadata, placement and security that every child shares."""

from collections.abc import Mapping
from typing import Any

from halfbyte.api import labels
from halfbyte.api.spec import Placement
from halfbyte.planning.identity import digest
from halfbyte.planning.snapshot import ModelObject

Manifest = dict[str, Any]


def owner_reference(model: ModelObject, *, controller: bool) -> Manifest:
    """Garbage collection by the model's deletion. ``blockOwnerDeletion`` is left out: it would need finalizer
    rights.
    """
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": controller,
    }


def child_labels(model: ModelObject, stage: str, **more: str) -> dict[str, str]:
    return {labels.MANAGED_BY: labels.MANAGED_BY_VALUE, labels.MODEL: model.name, labels.STAGE: stage, **more}


def build_metadata(
    model: ModelObject,
    name: str,
    child: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    *,
    controller: bool = True,
) -> Manifest:
    return {
        "name": name,
        "namespace": model.namespace,
        "labels": dict(child),
        "annotations": dict(annotations or {}),
        "ownerReferences": [owner_reference(model, controller=controller)],
    }


def with_hash(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as an annotation, by which an unchanged object is not written again."""
    metadata = manifest["metadata"]
    annotations = {
        key: value for key, value in metadata.get("annotations", {}).items() if key != labels.MANIFEST_HASH
    }
    bare = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    annotations = {**annotations, labels.MANIFEST_HASH: digest(bare, 16)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def pod_placement(placement: Placement, node_selector: Mapping[str, str] | None = None) -> Manifest:
    """Fields of a pod spec that every Job and server inherits."""
    fields: Manifest = {}
    selector = {**placement.node_selector, **(node_selector or {})}
    if selector:
        fields["nodeSelector"] = selector
    if placement.tolerations:
        fields["tolerations"] = [
            each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in placement.tolerations
        ]
    if placement.runtime_class_name:
        fields["runtimeClassName"] = placement.runtime_class_name
    if placement.image_pull_secrets:
        fields["imagePullSecrets"] = [{"name": each.name} for each in placement.image_pull_secrets]
    return fields


def pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": labels.WORKER_UID,
        "runAsGroup": labels.WORKER_UID,
        "fsGroup": labels.WORKER_UID,
        # Without it the kubelet walks a model of hundreds of gigabytes at every pod start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
