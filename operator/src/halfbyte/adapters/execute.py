"""The only writer of a reconcile: actions in their order, then nothing that the live objects have already."""

import logging
from collections.abc import Hashable, Mapping
from typing import Any

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Conflict, KubeGateway, NotFound
from halfbyte.api import labels
from halfbyte.planning.plan import Action, Apply, Create, Delete
from halfbyte.planning.snapshot import ModelObject, Snapshot

log = logging.getLogger(__name__)

Child = tuple[str, str]
"""Kind and name of an object of a model."""


class ActionFailed(Exception):
    """The API server refused an action; the later ones were not tried."""

    def __init__(self, action: Action, error: ApiError) -> None:
        super().__init__(f"{describe(action)}: {error.message}")
        self.action = action
        self.error = error


class Executor:
    def __init__(self, gateway: KubeGateway) -> None:
        self._gateway = gateway
        self._applied: dict[tuple[str, str], dict[Child, Hashable]] = {}

    async def run(self, actions: tuple[Action, ...], snapshot: Snapshot, *, repair: bool = False) -> int:
        """Carry the actions out; the number of writes that were sent.

        Args:
            repair: also apply manifests whose hash is the live one's, which undoes other people's changes
                to fields that are ours. Objects that are as this process left them are passed over.

        Raises:
            ActionFailed: an action was refused.
        """
        hashes = live_hashes(snapshot)
        untouched = self._untouched(snapshot) if repair else None
        written = 0
        for action in actions:
            if (
                isinstance(action, Apply)
                and _is_live(action.manifest, hashes)
                and (untouched is None or _child(action.manifest) in untouched)
            ):
                continue
            try:
                await self._run(action, snapshot.model)
            except ApiError as error:
                raise ActionFailed(action, error) from error
            written += 1
            log.info("%s", describe(action))
        return written

    async def apply_status(self, model: ModelObject, status: Mapping[str, Any]) -> bool:
        """Write the whole status when it differs from the live one; whether it was written.

        Raises:
            ApiError: Conflict and NotFound mean that the model was replaced or deleted meanwhile.
        """
        if status == model.status:
            return False
        await self._gateway.apply(
            {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "metadata": {"name": model.name, "namespace": model.namespace, "uid": model.uid},
                "status": dict(status),
            },
            manager=labels.STATUS_FIELD_MANAGER,
            subresource="status",
        )
        return True

    def forget(self, key: tuple[str, str]) -> None:
        """Drop what is remembered of a model (namespace, name) that does not exist any more."""
        self._applied.pop(key, None)

    def _untouched(self, snapshot: Snapshot) -> set[Child]:
        """The children that are as this process applied them last; the others are forgotten."""
        live = {child: _version(metadata) for child, metadata in _live_metadata(snapshot).items()}
        applied = self._applied.get((snapshot.model.namespace, snapshot.model.name), {})
        for child in [child for child, version in applied.items() if live.get(child) != version]:
            del applied[child]
        return set(applied)

    async def _run(self, action: Action, model: ModelObject) -> None:
        namespace = model.namespace
        match action:
            case Create(manifest):
                try:
                    await self._gateway.create(manifest, manager=labels.FIELD_MANAGER)
                except Conflict as error:
                    if error.reason != "AlreadyExists":
                        raise
            case Apply(manifest, manager):
                metadata = (await self._gateway.apply(manifest, manager=manager))["metadata"]
                applied = self._applied.setdefault((namespace, model.name), {})
                applied[_child(manifest)] = _version(metadata)
            case Delete(api_version, kind, name, uid, propagation):
                resource = resources.resource_of(api_version, kind)
                try:
                    await self._gateway.delete(resource, name, namespace, uid=uid, propagation=propagation)
                except (NotFound, Conflict):
                    # Gone, or another object has taken the name: either way ours is no more.
                    return


def describe(action: Action) -> str:
    """What an action does to what, for logs and messages: ``create Job models/m-inspect-1f``."""
    match action:
        case Create(manifest):
            verb, kind, name = "create", manifest["kind"], manifest["metadata"]["name"]
        case Apply(manifest):
            verb, kind, name = "apply", manifest["kind"], manifest["metadata"]["name"]
        case Delete(_, kind, name):
            verb = "delete"
    return f"{verb} {kind} {name}"


def live_hashes(snapshot: Snapshot) -> dict[Child, str]:
    """Manifest hash that each live child carries, by kind and name."""
    children = [
        *(("Job", each.name, each.annotations) for each in snapshot.jobs),
        *(("Deployment", each.name, each.annotations) for each in snapshot.deployments),
        *(("ConfigMap", each.name, each.annotations) for each in snapshot.config_maps.values()),
        *(("PersistentVolumeClaim", each.name, each.annotations) for each in snapshot.claims.values()),
    ]
    if snapshot.service is not None:
        metadata = snapshot.service["metadata"]
        children.append(("Service", metadata["name"], metadata.get("annotations") or {}))
    return {
        (kind, name): annotations[labels.MANIFEST_HASH]
        for kind, name, annotations in children
        if labels.MANIFEST_HASH in annotations
    }


def _live_metadata(snapshot: Snapshot) -> dict[Child, Mapping[str, Any]]:
    """Metadata of the children that are applied, not created once."""
    found: dict[Child, Mapping[str, Any]] = {
        ("Deployment", each.name): {
            "uid": each.uid,
            "generation": each.generation,
            "labels": each.labels,
            "annotations": each.annotations,
        }
        for each in snapshot.deployments
    }
    if snapshot.service is not None:
        service = snapshot.service["metadata"]
        found["Service", service["name"]] = service
    return found


def _version(metadata: Mapping[str, Any]) -> Hashable:
    """Differs when somebody changed spec, labels or annotations, or made it anew; not for a status."""
    if not metadata.get("generation"):
        return metadata.get("uid"), metadata.get("resourceVersion")
    annotations = (metadata.get("annotations") or {}).items()
    own = frozenset(each for each in annotations if not each[0].startswith("deployment.kubernetes.io/"))
    return metadata["uid"], metadata["generation"], frozenset((metadata.get("labels") or {}).items()), own


def _child(manifest: Mapping[str, Any]) -> Child:
    return manifest["kind"], manifest["metadata"]["name"]


def _is_live(manifest: Mapping[str, Any], hashes: Mapping[Child, str]) -> bool:
    wanted = (manifest["metadata"].get("annotations") or {}).get(labels.MANIFEST_HASH)
    return wanted is not None and hashes.get(_child(manifest)) == wanted
