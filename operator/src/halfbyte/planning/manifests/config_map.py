"""The ConfigMap that carries a worker's task."""

from collections.abc import Mapping
from typing import Any

from halfbyte.planning.identity import canonical
from halfbyte.planning.manifests.meta import Manifest, build_metadata, with_hash
from halfbyte.planning.snapshot import ModelObject

TASK_FILE = "task.json"


def build_task_config_map(
    model: ModelObject, name: str, labels: Mapping[str, str], task: Mapping[str, Any], *, controller: bool
) -> Manifest:
    """Immutable, like the Job that mounts it."""
    return with_hash(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": build_metadata(model, name, labels, controller=controller),
            "immutable": True,
            "data": {TASK_FILE: canonical(task)},
        }
    )
