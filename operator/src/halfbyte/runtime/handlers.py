"""Kopf, used as a watcher only: handlers of raw events that put a key into the queue and do nothing else.

An operator with only ``on.event`` handlers writes nothing to the objects. ``on.create``, timers and daemons
would bring annotations, finalizers and ghosts; nobody may add one here.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import kopf

from halfbyte.adapters.facts import owner_models
from halfbyte.api import labels
from halfbyte.runtime.health import Health
from halfbyte.runtime.queue import Key

OURS: Final = {labels.MANAGED_BY: labels.MANAGED_BY_VALUE}
CHILDREN: Final = (("batch", "v1", "jobs"), ("apps", "v1", "deployments"), ("", "v1", "pods"))


class Enqueue(Protocol):
    def __call__(self, key: Key) -> None: ...


def kopf_settings(settings: kopf.OperatorSettings, *, instance: str) -> None:
    """Every setting that differs from Kopf's default, in place."""
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.posting.reporting_component = labels.MANAGED_BY_VALUE
    settings.posting.reporting_instance = instance
    settings.peering.standalone = True  # the Lease elects; peering freezes equal priorities (kopf#734)
    settings.scanning.disabled = True  # else namespaces and CRDs must be listed and watched cluster-wide
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 60
    settings.process.ultimate_exiting_timeout = 20
    # Only read if somebody adds a change handler; painful to change once objects carry the old names.
    settings.persistence.finalizer = f"{labels.GROUP}/kopf"
    selector = ",".join(f"{key}={value}" for key, value in OURS.items())
    for child in CHILDREN:
        settings.watching.label_selectors[child] = selector


def register(registry: kopf.OperatorRegistry, enqueue: Enqueue, health: Health) -> None:
    """Register the handlers of all watched kinds."""

    @kopf.on.event(labels.GROUP, labels.VERSION, labels.PLURAL, registry=registry)
    async def model_event(event: kopf.RawEvent, **_: Any) -> None:
        key = key_of_model(event)
        if event["type"] == "DELETED":
            health.deleted(key)
        else:
            health.delivered(key, event["object"]["metadata"]["resourceVersion"])
        enqueue(key)

    async def child_event(event: kopf.RawEvent, **_: Any) -> None:
        for key in keys_of_child(event):
            enqueue(key)

    for child in CHILDREN:
        kopf.on.event(*child, registry=registry, labels=OURS)(child_event)


def key_of_model(event: kopf.RawEvent) -> Key:
    metadata: Any = event["object"]["metadata"]
    return metadata["namespace"], metadata["name"]


def keys_of_child(event: kopf.RawEvent) -> Sequence[Key]:
    """The models that own a child; of a pod, whose owner is a Job or ReplicaSet, the one in its label."""
    raw: Any = event["object"]
    metadata = raw["metadata"]
    names = set(owner_models(raw))
    named = (metadata.get("labels") or {}).get(labels.MODEL)
    if named:
        names.add(named)
    return [(metadata["namespace"], name) for name in sorted(names)]
