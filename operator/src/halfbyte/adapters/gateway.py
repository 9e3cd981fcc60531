"""What the rest of the operator needs of the outside, as protocols; the tests have fakes of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

Json = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Resource:
    """Where the API server keeps objects of one kind."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True


class ApiError(Exception):
    """The API server answered with an error.

    Attributes:
        status: HTTP status; 0 when there was no answer at all (connection, time-out).
        reason: the Status object's machine-readable reason (``AlreadyExists``, ``Invalid``), or "".
        retry_after: seconds that the server asks to wait, None when it does not say.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @property
    def transient(self) -> bool:
        """A later try of the same request may succeed without anybody changing anything."""
        return self.status in {0, 408, 429} or self.status >= 500


class NotFound(ApiError):
    """404: the object, or the kind itself, does not exist."""


class Conflict(ApiError):
    """409: already exists, was replaced (another uid), or was changed meanwhile (another resourceVersion)."""


class Forbidden(ApiError):
    """403: RBAC does not allow it, or admission (a quota) refuses it."""


class KubeGateway(Protocol):
    """The Kubernetes API, thin: manifests are dicts, answers are parsed JSON, every call has a time-out.

    Every method raises ``ApiError`` or one of its subclasses.
    """

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """One object. Raises NotFound."""
        ...

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
        """All objects that match, paged inside; of one namespace or of all. ``limit`` stops after so many.

        Each has its ``apiVersion`` and ``kind``.
        """
        ...

    async def create(self, manifest: Mapping[str, Any], *, manager: str) -> Json:
        """POST. Raises Conflict when the name is taken."""
        ...

    async def apply(
        self, manifest: Mapping[str, Any], *, manager: str, subresource: Literal["", "status"] = ""
    ) -> Json:
        """Server-side apply with force. Raises Conflict when ``metadata.uid`` is given and stale."""
        ...

    async def replace(self, manifest: Mapping[str, Any]) -> Json:
        """PUT. Raises Conflict when ``metadata.resourceVersion`` is not the live one."""
        ...

    async def delete(
        self, resource: Resource, name: str, namespace: str | None, *, uid: str, propagation: Propagation
    ) -> None:
        """Delete if the live object has this uid. Raises NotFound, or Conflict for another uid."""
        ...

    async def pod_log(
        self, namespace: str, pod: str, *, tail_lines: int | None = None, limit_bytes: int = 65536
    ) -> str:
        """Log of the pod's only container: its last ``tail_lines`` or else its beginning."""
        ...

    async def raw(self, path: str, *, accept: str = "application/json") -> Json:
        """GET any path of the API server, for discovery."""
        ...


class Clock(Protocol):
    """Time. Durations come from ``monotonic`` only: the wall clock may jump."""

    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None: ...
