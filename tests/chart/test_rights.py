"""The real operator with the rights that the chart gives it, on a real API server: they are enough."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from halfbyte.adapters import resources
from halfbyte.adapters.kube import KubeApi, load_configuration
from support.definition import wait_established
from support.helm import CHART
from support.manifests import a_model
from support.node import FACTS, Node, artifact_result, evidence_result

from .conftest import ApiServer

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Process:
    """The operator as a process of this machine."""

    popen: subprocess.Popen[bytes]
    port: int
    log: Path

    def refused(self) -> set[tuple[str, str]]:
        """Verb and resource of every request that was answered with 403."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.labels["verb"], sample.labels["resource"])
            for family in families
            for sample in family.samples
            if sample.labels.get("status") == "403" and sample.value
        }


def kubeconfig_of(server: ApiServer, account: str, namespace: str, folder: Path) -> Path:
    """Credentials of a service account, and nothing else."""
    config = json.loads(server.kubectl("config", "view", "--raw", "--output=json"))
    token = server.kubectl("create", "token", account, "--namespace", namespace).strip()
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@asynccontextmanager
async def operator(server: ApiServer, namespace: str, folder: Path) -> AsyncIterator[Process]:
    """The process that the chart's Deployment would start, with the environment that it has there."""
    deployment = server.get("deployment", "halfbyte-operator", namespace)
    assert deployment is not None
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    environment |= {
        "HALFBYTE_NAMESPACE": namespace,
        "HALFBYTE_POD_NAME": "operator-under-test",
        "HALFBYTE_HTTP_PORT": str(port),
        "KUBECONFIG": str(kubeconfig_of(server, "halfbyte-operator", namespace, folder)),
    }
    log = folder / "operator.log"
    with log.open("wb") as output:
        popen = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "halfbyte"],
            env=dict(os.environ, **environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Process(popen, port, log)
        finally:
            popen.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(popen.wait, 30)
    print(log.read_text()[-6000:])
    assert code == 0, "SIGTERM ends it cleanly"


async def until(probe: Callable[[], Awaitable[Any]], what: str, seconds: float = 90) -> Any:
    for _ in range(round(seconds / 0.5)):
        found = await probe()
        if found:
            return found
        await asyncio.sleep(0.5)
    raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")


async def play_the_flow(kube: KubeApi, namespace: str) -> None:
    """Apply a model and be the node for it until it serves; then change its mind."""
    node = Node(kube, namespace)
    for name in ("weights", "artifacts"):
        await node.claim(name)
    spec = {"approval": "Manual"}
    await kube.apply(a_model("tiny", namespace, **spec), manager="kubectl")

    async def ready() -> str:
        status = (await kube.get(resources.MODELS, "tiny", namespace)).get("status") or {}
        found = [each["reason"] for each in status.get("conditions", ()) if each["type"] == "Ready"]
        return "".join(found)

    async def reaches(*reasons: str) -> None:
        async def probe() -> bool:
            return await ready() in reasons

        try:
            await until(probe, "")
        except TimeoutError:
            raise AssertionError(f"Ready is {await ready()}, not {reasons}") from None

    async def job(stage: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = await until(lambda: node.jobs(stage), f"a Job of stage {stage}")
        return found[0]

    inspect = await job("inspect")
    await node.start(inspect)
    await node.succeed(inspect, FACTS)
    await reaches("WaitingForApproval")
    digest = (await kube.get(resources.MODELS, "tiny", namespace))["status"]["plan"]["digest"]
    approved = a_model("tiny", namespace, **spec)
    approved["metadata"]["annotations"] = {"halfbyte.dev/approve": digest}
    await kube.apply(approved, manager="kubectl")
    quantize = await job("quantize")
    await node.succeed(quantize, artifact_result(await node.task(quantize)))
    await node.succeed(await job("validate"), evidence_result())
    (deployment,) = await until(node.deployments, "a Deployment")
    await node.serve(deployment)
    await reaches("Serving")

    async def told() -> bool:
        events = await kube.list(resources.EVENTS, namespace)
        return {"PlanReady", "Serving"} <= {each["reason"] for each in events}

    await until(told, "an Event for Serving")
    await change_the_spec(kube, node, namespace)


async def change_the_spec(kube: KubeApi, node: Node, namespace: str) -> None:
    """A new revision replaces the Deployment of the old one, and a recipe that is taken back ends its Job."""
    (old,) = await node.deployments()
    longer = {"serving": {"accelerator": {"type": "cpu"}, "maxModelLen": 1024}}
    await kube.apply(a_model("tiny", namespace, **longer), manager="kubectl")

    async def newer() -> list[dict[str, Any]]:
        return [
            each for each in await node.deployments() if each["metadata"]["uid"] != old["metadata"]["uid"]
        ]

    (new,) = await until(newer, "the Deployment of the new revision")
    await node.serve(new)

    async def only_the_new_one() -> bool:
        return [each["metadata"]["uid"] for each in await node.deployments()] == [new["metadata"]["uid"]]

    await until(only_the_new_one, "the end of the old revision")

    async def quantize_jobs(number: int) -> bool:
        return len(await node.jobs("quantize")) == number

    await kube.apply(
        a_model("tiny", namespace, **longer, quantization={"method": "GPTQ", "groupSize": 64}),
        manager="kubectl",
    )
    await until(lambda: quantize_jobs(2), "a Job for another recipe")
    await kube.apply(a_model("tiny", namespace, **longer), manager="kubectl")
    await until(lambda: quantize_jobs(1), "the end of the Job that nobody wants")


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
async def test_the_operator_can_do_its_work(
    api_server: ApiServer, release: str, tmp_path: Path, mode: str
) -> None:
    models = api_server.create_namespace(f"{release}-models")
    flags = ["--set", f"watchNamespaces={{{models}}}"] if mode == "namespaced" else []
    api_server.helm("upgrade", "--install", "halfbyte", CHART, "--namespace", release, *flags)
    wait_established(api_server.kubectl)
    admin = tmp_path / "admin"
    admin.write_text(api_server.kubectl("config", "view", "--raw"))
    kube = KubeApi(await load_configuration(str(admin)))
    try:
        async with operator(api_server, release, tmp_path) as process:
            await play_the_flow(kube, models)
            lease = await kube.get(resources.LEASES, "halfbyte-operator", release)
            assert lease["spec"]["holderIdentity"] == "operator-under-test"
            # What is not needed for serving may be out of reach with a list of namespaces; nothing else may.
            allowed = {"nodes", "customresourcedefinitions"} if mode == "namespaced" else set()
            assert {resource for _, resource in process.refused()} == allowed
            assert process.popen.poll() is None
    finally:
        await kube.close()
