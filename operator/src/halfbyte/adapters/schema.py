"""Does the installed CustomResourceDefinition know the fields that this version reads and writes?

A chart upgrade that leaves the CRD behind would make the API server drop new fields in silence, and a status
that never equals the desired one would be written again and again (NVIDIA/aicr#2311).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Forbidden, Json, KubeGateway, NotFound
from halfbyte.api import labels

NAME = f"{labels.PLURAL}.{labels.GROUP}"


@dataclass(frozen=True, slots=True)
class InstalledSchema:
    """The OpenAPI schema that the API server uses for our version; None when it may not be read."""

    root: Json | None

    def missing(self, ours: Json) -> list[str]:
        """Paths of the fields that ``ours`` has and the installed one lacks."""
        return [] if self.root is None else list(_missing(ours, self.root, ""))

    def prune(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """The status without fields that the API server would drop."""
        if self.root is None:
            return dict(status)
        pruned: dict[str, Any] = _prune(status, self.root.get("properties", {}).get("status") or {})
        return pruned


async def served(gateway: KubeGateway) -> bool:
    """The API server serves our kind in our version (any authenticated client may ask)."""
    try:
        group = await gateway.raw(f"/apis/{labels.API_VERSION}")
    except NotFound:
        return False
    return any(each.get("name") == labels.PLURAL for each in group.get("resources") or [])


async def installed_schema(gateway: KubeGateway) -> InstalledSchema:
    """Raises ApiError when the API server does not answer; a missing permission only makes it unknown."""
    try:
        definition = await gateway.get(resources.DEFINITIONS, NAME)
    except (Forbidden, NotFound):
        return InstalledSchema(None)
    return InstalledSchema(schema_of(definition))


def schema_of(definition: Json) -> Json:
    """The schema of our version in a CustomResourceDefinition."""
    for version in definition["spec"]["versions"]:
        if version["name"] == labels.VERSION:
            schema: Json = version["schema"]["openAPIV3Schema"]
            return schema
    raise ApiError(0, "NotServed", f"{NAME} has no version {labels.VERSION}")


def _missing(ours: Json, theirs: Json, path: str) -> Iterator[str]:
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, schema in (ours.get("properties") or {}).items():
        other = (theirs.get("properties") or {}).get(name)
        if other is None:
            yield f"{path}.{name}"
        else:
            yield from _missing(schema, other, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(ours.get(key), dict) and isinstance(theirs.get(key), dict):
            yield from _missing(ours[key], theirs[key], f"{path}[]")


def _prune(value: Any, schema: Json) -> Any:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    if isinstance(value, Mapping):
        known, free = schema.get("properties") or {}, schema.get("additionalProperties")
        if isinstance(free, dict):
            return {key: _prune(each, free) for key, each in value.items()}
        return {key: _prune(each, known[key]) for key, each in value.items() if key in known}
    if isinstance(value, list | tuple):
        return [_prune(each, schema.get("items") or {}) for each in value]
    return value
