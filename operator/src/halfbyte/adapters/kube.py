"""The Kubernetes API through ``kubernetes.aio``, used thinly: dict manifests out, raw JSON in.

Typed models are not used: decoding 1000 pods into them takes 0.7 s of the event loop, as JSON 0.04 s.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from halfbyte.adapters.gateway import ApiError, Conflict, Forbidden, Json, NotFound, Propagation, Resource
from halfbyte.adapters.resources import PODS, resource_of_manifest

PAGE = 500
PARALLEL_REQUESTS = 16
TIMEOUT_SECONDS = 30.0

_ERRORS: dict[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict}

Observer = Callable[[str, str, int], None]
"""Told verb, plural and HTTP status (0: no answer) of every request."""


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> Configuration:
    """Credentials of the pod's service account, else of a kubeconfig (``KUBECONFIG``, ``~/.kube/config``).

    A file or context that is named explicitly comes before the service account.

    Raises:
        kubernetes.aio.config.ConfigException: neither is there.
    """
    configuration = Configuration()
    try:
        if kubeconfig or context:
            raise kube_config.ConfigException("not the service account")
        kube_config.load_incluster_config(client_configuration=configuration)
    except kube_config.ConfigException:
        await kube_config.load_kube_config(
            config_file=kubeconfig, client_configuration=configuration, context=context
        )
    return configuration


class KubeApi:
    """``halfbyte.adapters.gateway.KubeGateway`` over HTTP; one shared client, bounded parallel requests."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        user_agent: str = "halfbyte",
        timeout: float = TIMEOUT_SECONDS,
        observer: Observer = lambda _verb, _plural, _status: None,
    ) -> None:
        self._client = ApiClient(configuration)
        self._client.user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._slots = asyncio.Semaphore(PARALLEL_REQUESTS)
        self._observe = observer

    async def close(self) -> None:
        await self._client.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        return await self._json("GET", resource.plural, object_path(resource, namespace, name))

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
        path = object_path(resource, namespace)
        accept = "application/json"
        if metadata_only:
            accept = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{accept}"
        query = {"limit": str(min(limit or PAGE, PAGE)), "labelSelector": labels, "fieldSelector": fields}
        items: list[Json] = []
        while True:
            page = await self._json("GET", resource.plural, path, query=query, accept=accept)
            # The server leaves these two out of a list's items.
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            items += [{**item, **kind} for item in page.get("items") or []]
            token = page["metadata"].get("continue")
            if not token or (limit is not None and len(items) >= limit):
                return items
            query["continue"] = token

    async def create(self, manifest: Mapping[str, Any], *, manager: str) -> Json:
        resource = resource_of_manifest(manifest)
        path = object_path(resource, manifest["metadata"].get("namespace"))
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        return await self._json("POST", resource.plural, path, query=query, body=manifest)

    async def apply(
        self, manifest: Mapping[str, Any], *, manager: str, subresource: Literal["", "status"] = ""
    ) -> Json:
        resource = resource_of_manifest(manifest)
        path = object_path(resource, manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        query = {"fieldManager": manager, "force": "true"}
        return await self._json(
            "PATCH",
            resource.plural,
            f"{path}/{subresource}" if subresource else path,
            query=query,
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    async def replace(self, manifest: Mapping[str, Any]) -> Json:
        resource = resource_of_manifest(manifest)
        path = object_path(resource, manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        return await self._json("PUT", resource.plural, path, body=manifest)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None, *, uid: str, propagation: Propagation
    ) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": propagation,
        }
        await self._json("DELETE", resource.plural, object_path(resource, namespace, name), body=body)

    async def pod_log(
        self, namespace: str, pod: str, *, tail_lines: int | None = None, limit_bytes: int = 65536
    ) -> str:
        query = {"limitBytes": str(limit_bytes)}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        path = object_path(PODS, namespace, pod) + "/log"
        data = await self._request("GET", "pods/log", path, query=query, accept="*/*")
        return data.decode("utf-8", "replace")

    async def raw(self, path: str, *, accept: str = "application/json") -> Json:
        return await self._json("GET", "raw", path, accept=accept)

    async def _json(
        self,
        verb: str,
        plural: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> Json:
        data = await self._request(
            verb, plural, path, query=query, body=body, accept=accept, content_type=content_type
        )
        answer: Json = json.loads(data)
        return answer

    async def _request(
        self,
        verb: str,
        plural: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
    ) -> bytes:
        headers = {"Accept": accept, "Content-Type": content_type}
        parameters = [(key, value) for key, value in (query or {}).items() if value]
        async with self._slots:
            try:
                method, url, header_params, serialized, _ = await self._client.param_serialize(
                    verb, path, None, parameters, headers, body, auth_settings=["BearerToken"]
                )
                response = await self._client.call_api(
                    method, url, header_params, serialized, _request_timeout=self._timeout
                )
                data: bytes = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._observe(verb, plural, 0)
                raise ApiError(0, "Unreachable", f"{verb} {path}: {type(error).__name__} {error}") from error
        self._observe(verb, plural, response.status)
        if response.status >= 400:
            raise error_of(response.status, data, f"{verb} {path}", response.getheader("Retry-After"))
        return data


def object_path(resource: Resource, namespace: str | None = None, name: str | None = None) -> str:
    """Path of an object, or of the collection that it is in, without the host."""
    prefix = "/api" if "/" not in resource.api_version else "/apis"
    parts = [prefix, resource.api_version]
    if resource.namespaced and namespace:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    if name:
        parts.append(name)
    return "/".join(parts)


def error_of(status: int, data: bytes, request: str, retry_after: str | None = None) -> ApiError:
    """The exception for an answer; a body that is no Status object (a proxy's page) is quoted, cut off."""
    reason, message = "", data[:300].decode("utf-8", "replace")
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if isinstance(body, dict) and body.get("kind") == "Status":
        reason = str(body.get("reason") or "")
        message = str(body.get("message") or "")
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    return _ERRORS.get(status, ApiError)(status, reason, f"{request}: {status} {message}", seconds)
