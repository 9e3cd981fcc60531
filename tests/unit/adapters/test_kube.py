"""The HTTP side of the adapter against a small local server; its Kubernetes side is tested in tests/api."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, Conflict, Forbidden, NotFound
from halfbyte.adapters.kube import KubeApi, error_of, object_path

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.observed: list[tuple[str, str, int]] = []
        self.answer: Handler = self.ok
        self.kube: KubeApi

    async def ok(self, _request: web.Request) -> web.Response:
        return web.json_response({"items": [], "metadata": {}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.answer(request)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    application = web.Application()
    application.add_routes([web.route("*", "/{tail:.*}", found.handle)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    configuration.api_key["BearerToken"] = "bearer sesame"
    found.kube = KubeApi(configuration, timeout=0.5, observer=lambda *each: found.observed.append(each))
    yield found
    await found.kube.close()
    await runner.cleanup()


async def test_pages_are_joined(server: Server) -> None:
    async def pages(request: web.Request) -> web.Response:
        if "continue" in request.query:
            return web.json_response({"items": [{"n": 2}], "metadata": {}})
        return web.json_response({"items": [{"n": 1}], "metadata": {"continue": "more"}})

    server.answer = pages
    found = await server.kube.list(resources.JOBS, "models", labels="a=b")
    assert [each["n"] for each in found] == [1, 2]
    assert {(each["apiVersion"], each["kind"]) for each in found} == {("batch/v1", "Job")}
    assert [request.query["labelSelector"] for request in server.requests] == ["a=b", "a=b"]
    assert [each["n"] for each in await server.kube.list(resources.JOBS, "models", limit=1)] == [1]
    assert server.requests[-1].query["limit"] == "1"


async def test_credentials_and_client_are_named(server: Server) -> None:
    await server.kube.list(resources.JOBS)
    headers = server.requests[0].headers
    assert headers["Authorization"] == "bearer sesame"
    assert headers["User-Agent"] == "halfbyte"


async def test_a_server_that_hangs_is_given_up(server: Server) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    server.answer = hang
    with pytest.raises(ApiError, match="GET /apis/batch/v1/namespaces/models/jobs/j: TimeoutError") as caught:
        await server.kube.get(resources.JOBS, "j", "models")
    assert caught.value.transient
    assert server.observed == [("GET", "jobs", 0)]


async def test_a_refused_connection_is_transient(server: Server) -> None:
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    kube = KubeApi(configuration)
    try:
        with pytest.raises(ApiError) as caught:
            await kube.raw("/apis")
    finally:
        await kube.close()
    assert caught.value.status == 0


async def test_a_broken_answer_in_the_middle_is_transient(server: Server) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"items": [')
        assert request.transport is not None
        request.transport.close()
        return response

    server.answer = cut
    with pytest.raises(ApiError) as caught:
        await server.kube.list(resources.JOBS, "models")
    assert caught.value.transient


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Forbidden), (404, NotFound), (409, Conflict), (422, ApiError), (500, ApiError)]
)
def test_errors_have_a_class_and_words(status: int, kind: type[ApiError]) -> None:
    body = json.dumps({"kind": "Status", "reason": "SomeReason", "message": "some words"}).encode()
    error = error_of(status, body, "GET /x", "7")
    assert type(error) is kind
    assert (error.status, error.reason, error.retry_after) == (status, "SomeReason", 7.0)
    assert error.message == f"GET /x: {status} some words"


def test_an_answer_of_something_else_than_kubernetes_is_quoted() -> None:
    error = error_of(502, b"<html>Bad Gateway" + b"x" * 1000, "GET /x", "soon")
    assert "<html>Bad Gateway" in error.message
    assert len(error.message) < 400
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ((resources.PODS, "ns", "p"), "/api/v1/namespaces/ns/pods/p"),
        ((resources.PODS,), "/api/v1/pods"),
        ((resources.JOBS, "ns"), "/apis/batch/v1/namespaces/ns/jobs"),
        ((resources.NODES, None, "n"), "/api/v1/nodes/n"),
        (
            (resources.MODELS, "ns", "m"),
            "/apis/halfbyte.dev/v1alpha1/namespaces/ns/quantizedmodels/m",
        ),
    ],
)
def test_paths(arguments: tuple[object, ...], path: str) -> None:
    assert object_path(*arguments) == path  # type: ignore[arg-type]
