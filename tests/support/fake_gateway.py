"""An in-memory stand-in for the Kubernetes API, for unit tests only.

It keeps objects, uids, versions and generations, filters by label, and checks uid and version preconditions.
It knows no schema, no field ownership and no garbage collection: what depends on those is tested in tests/api
on a real API server.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from halfbyte.adapters.gateway import ApiError, Conflict, Json, NotFound, Resource
from halfbyte.adapters.resources import resource_of_manifest

Identity = tuple[str, str | None, str]


class FakeGateway:
    """``halfbyte.adapters.gateway.KubeGateway`` over a dict.

    Attributes:
        objects: by plural, namespace and name.
        writes: (verb, plural, name) of every accepted write; the status subresource is ``models/status``.
        logs: text of pods' logs by namespace and pod.
        errors: raised instead of an answer, by (verb, plural); verbs are the method names.
        apis: answers of ``raw``, by path.
    """

    def __init__(self) -> None:
        self.objects: dict[Identity, Json] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.reads: list[tuple[str, str]] = []
        self.logs: dict[tuple[str, str], str] = {}
        self.errors: dict[tuple[str, str], ApiError] = {}
        self.apis: dict[str, Json] = {}
        self._versions = itertools.count(1)

    def put(self, manifest: Mapping[str, Any]) -> Json:
        """Store an object as a test wants it, filling in what the server would."""
        raw = copy.deepcopy(dict(manifest))
        metadata = raw["metadata"] = dict(raw["metadata"])
        metadata.setdefault("uid", f"uid-{next(self._versions)}")
        metadata.setdefault("generation", 1)
        metadata.setdefault("creationTimestamp", "2026-01-02T03:04:05Z")
        metadata["resourceVersion"] = str(next(self._versions))
        resource = resource_of_manifest(raw)
        self.objects[resource.plural, metadata.get("namespace"), metadata["name"]] = raw
        return raw

    def find(self, resource: Resource, name: str, namespace: str | None = "models") -> Json:
        return self.objects[resource.plural, namespace, name]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        self._fail("get", resource.plural)
        self.reads.append(("get", resource.plural))
        return copy.deepcopy(self._live(resource, name, namespace))

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
        limit: int | None = None,
    ) -> list[Json]:
        self._fail("list", resource.plural)
        self.reads.append(("list", resource.plural))
        wanted = dict(each.split("=", 1) for each in labels.split(",") if each)
        found = [
            copy.deepcopy(raw)
            for (plural, where, _name), raw in self.objects.items()
            if plural == resource.plural
            and namespace in {None, where}
            and ("spec.nodeName!=" not in fields or raw["spec"].get("nodeName"))
            and wanted.items() <= (raw["metadata"].get("labels") or {}).items()
        ]
        return found[:limit]

    async def create(self, manifest: Mapping[str, Any], *, manager: str) -> Json:
        resource = resource_of_manifest(manifest)
        self._fail("create", resource.plural)
        metadata = manifest["metadata"]
        if (resource.plural, metadata.get("namespace"), metadata["name"]) in self.objects:
            raise Conflict(409, "AlreadyExists", f"{resource.plural} {metadata['name']} already exists")
        self.writes.append(("create", resource.plural, metadata["name"]))
        return copy.deepcopy(self.put(manifest))

    async def apply(self, manifest: Mapping[str, Any], *, manager: str, subresource: str = "") -> Json:
        resource = resource_of_manifest(manifest)
        self._fail("apply", resource.plural + (f"/{subresource}" if subresource else ""))
        metadata = manifest["metadata"]
        identity = resource.plural, metadata.get("namespace"), metadata["name"]
        live = self.objects.get(identity)
        if live is not None and metadata.get("uid", live["metadata"]["uid"]) != live["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "the uid in the precondition is another")
        if subresource:
            live = self._live(resource, metadata["name"], metadata.get("namespace"))
            merged = {**live, "status": copy.deepcopy(manifest["status"])}
            self.writes.append(("apply", f"{resource.plural}/{subresource}", metadata["name"]))
        else:
            merged = _merge(live or {}, manifest)
            if live is not None and merged.get("spec") != live.get("spec"):
                merged["metadata"]["generation"] = live["metadata"]["generation"] + 1
            self.writes.append(("apply", resource.plural, metadata["name"]))
        return copy.deepcopy(self.put(merged))

    async def replace(self, manifest: Mapping[str, Any]) -> Json:
        resource = resource_of_manifest(manifest)
        self._fail("replace", resource.plural)
        metadata = manifest["metadata"]
        live = self._live(resource, metadata["name"], metadata.get("namespace"))
        if metadata.get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        self.writes.append(("replace", resource.plural, metadata["name"]))
        return copy.deepcopy(self.put(manifest))

    async def delete(
        self, resource: Resource, name: str, namespace: str | None, *, uid: str, propagation: str
    ) -> None:
        self._fail("delete", resource.plural)
        if self._live(resource, name, namespace)["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "the uid in the precondition is another")
        del self.objects[resource.plural, namespace, name]
        self.writes.append(("delete", resource.plural, name))

    async def pod_log(
        self, namespace: str, pod: str, *, tail_lines: int | None = None, limit_bytes: int = 65536
    ) -> str:
        self._fail("pod_log", "pods")
        self.reads.append(("pod_log", pod))
        try:
            lines = self.logs[namespace, pod].splitlines()
        except KeyError:
            raise NotFound(404, "NotFound", f"no log of {pod}") from None
        return "\n".join(lines if tail_lines is None else lines[-tail_lines:])[:limit_bytes]

    async def raw(self, path: str, *, accept: str = "application/json") -> Json:
        self._fail("raw", path)
        try:
            return copy.deepcopy(self.apis[path])
        except KeyError:
            raise NotFound(404, "NotFound", f"no {path}") from None

    def _live(self, resource: Resource, name: str, namespace: str | None) -> Json:
        try:
            return self.objects[resource.plural, namespace, name]
        except KeyError:
            raise NotFound(404, "NotFound", f'{resource.plural} "{name}" not found') from None

    def _fail(self, verb: str, plural: str) -> None:
        if error := self.errors.get((verb, plural)):
            raise error


def _merge(live: Any, wanted: Any) -> Any:
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        return {**live, **{key: _merge(live.get(key), value) for key, value in wanted.items()}}
    return copy.deepcopy(wanted)
