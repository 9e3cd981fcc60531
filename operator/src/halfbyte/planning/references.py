"""Which other objects a model names: what ``gather`` must look up. Tolerates any spec, valid or not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.planning.snapshot import ModelObject


@dataclass(frozen=True, slots=True)
class References:
    """Names in the model's own namespace."""

    claims: frozenset[str]
    secrets: frozenset[str]


def references(model: ModelObject) -> References:
    """Claims and Secrets that the spec names, and the artifact claim that the operator would create."""
    source = _child(model.raw_spec, "source")
    claims = {
        _child(source, "pvc").get("claimName"),
        _child(model.raw_spec, "storage").get("claimName"),
        artifact_claim_name(model.name),
    }
    secrets = {_child(_child(source, "huggingFace"), "tokenSecretRef").get("name")}
    return References(
        claims=frozenset(name for name in claims if isinstance(name, str) and name),
        secrets=frozenset(name for name in secrets if isinstance(name, str) and name),
    )


def artifact_claim_name(model_name: str) -> str:
    """Name of the claim that the operator creates when ``spec.storage`` asks for one."""
    return f"{model_name}-artifacts"


def _child(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    child = parent.get(key)
    return child if isinstance(child, Mapping) else {}
