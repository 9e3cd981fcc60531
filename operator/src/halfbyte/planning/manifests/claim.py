"""The claim for artifacts, where the spec asks the operator to make one."""

from halfbyte.api import labels
from halfbyte.api.spec import Storage
from halfbyte.planning.manifests.meta import Manifest, build_metadata, with_hash
from halfbyte.planning.references import artifact_claim_name
from halfbyte.planning.snapshot import ModelObject


def build_artifact_claim(model: ModelObject, storage: Storage) -> Manifest:
    """``storage.size`` must be set. The claim goes when the model is deleted."""
    spec: Manifest = {
        "accessModes": [storage.access_mode or "ReadWriteOnce"],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    metadata = build_metadata(
        model,
        artifact_claim_name(model.name),
        {labels.MANAGED_BY: labels.MANAGED_BY_VALUE, labels.MODEL: model.name},
    )
    return with_hash(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    )
