"""What a reconcile should do: actions, the complete desired status, events, and when to look again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from halfbyte.api import labels


@dataclass(frozen=True, slots=True)
class Create:
    """POST the manifest. "Already exists" counts as success.

    Used for objects that are never changed after their creation (Jobs and their ConfigMaps): two models may
    ask for one shared Job at the same moment, and a server-side apply of the loser would fail on the
    immutable pod template.
    """

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply with force.

    The write may be skipped when the live object's ``halfbyte.dev/manifest-hash`` equals the manifest's. A
    manifest without that annotation is always sent. ``metadata.uid``, when present, makes the API server
    refuse (409) if the object was replaced meanwhile.
    """

    manifest: Mapping[str, Any]
    field_manager: str = labels.FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with the uid as precondition. "Not found" and a different uid count as success."""

    api_version: str
    kind: str
    name: str
    uid: str
    propagation: Literal["Background", "Foreground", "Orphan"] = "Background"


Action = Create | Apply | Delete


@dataclass(frozen=True, slots=True)
class EventDraft:
    """A Kubernetes Event about the model, drafted only on a transition.

    Attributes:
        type: ``Normal`` or ``Warning``; the API knows no other.
        reason: a constant of ``halfbyte.api.conditions``.
        message: one sentence, at most 1024 characters.
        action: what the operator did or tried, CamelCase (``events.k8s.io/v1`` requires it).
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of one planning pass.

    Attributes:
        actions: to be carried out in this order; a failure stops the rest.
        status: the complete desired status (camelCase); written only when it differs from the live one.
        events: transitions since the status in the snapshot.
        requeue_after: seconds until the next look even if nothing happens; None waits for an event or the
            resync.
    """

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[EventDraft, ...] = ()
    requeue_after: float | None = None
