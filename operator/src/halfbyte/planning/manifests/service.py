"""The one Service of a model: its selector names the revision that serves."""

from halfbyte.api import labels
from halfbyte.planning.manifests.meta import Manifest, build_metadata, child_labels, with_hash
from halfbyte.planning.snapshot import ModelObject

PORT_NAME = "http"


def build_service(model: ModelObject, revision: str, activated: str) -> Manifest:
    """``activated``: when it was pointed to the revision, in ISO 8601; empty where that is not known."""
    annotations = {labels.ACTIVATED: activated} if activated else {}
    return with_hash(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": build_metadata(
                model, model.name, child_labels(model, labels.STAGE_SERVE), annotations
            ),
            "spec": {
                "type": "ClusterIP",
                "selector": {labels.MODEL: model.name, labels.REVISION: revision},
                "ports": [{"name": PORT_NAME, "port": 80, "protocol": "TCP", "targetPort": PORT_NAME}],
            },
        }
    )
