"""A real kube-apiserver and etcd (no node, no controllers) with the CRD; one namespace a test."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfbyte.adapters import resources
from halfbyte.adapters.clock import SystemClock
from halfbyte.adapters.events import EventRecorder
from halfbyte.adapters.execute import Executor
from halfbyte.adapters.gather import Gatherer
from halfbyte.adapters.inventory import Inventory
from halfbyte.adapters.kube import KubeApi, load_configuration
from halfbyte.adapters.matrix import load_matrix
from halfbyte.adapters.schema import InstalledSchema
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.planning.rollout import PROXY_SECONDS
from halfbyte.planning.settings import PlanningSettings
from halfbyte.runtime.reconciler import Reconciler
from support.definition import wait_established
from support.manifests import a_model
from support.node import Node

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "cluster" / "cluster"
CRD = ROOT / "crds" / "halfbyte.dev_quantizedmodels.yaml"

Json = dict[str, Any]


@dataclass(frozen=True)
class ApiServer:
    """Environment of programs that talk to it (KUBECONFIG, and PATH with its kubectl)."""

    environment: dict[str, str]

    @property
    def kubeconfig(self) -> str:
        return self.environment["KUBECONFIG"]

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Output of kubectl; with ``check=False`` what it wrote to standard error too."""
        done = subprocess.run(
            ["kubectl", *arguments],
            input=stdin,
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout if check else done.stdout + done.stderr


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    environment = {**os.environ, "HALFBYTE_CLUSTER": os.environ.get("HALFBYTE_TEST_CLUSTER", "api-tests")}
    running = subprocess.run([CLUSTER, "status"], env=environment, capture_output=True).returncode == 0
    if not running:
        subprocess.run([CLUSTER, "up", "--control-plane-only"], env=environment, check=True)
    try:
        lines = subprocess.run(
            ["bash", "-c", f'eval "$("{CLUSTER}" env)"; echo "$KUBECONFIG"; echo "$PATH"'],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        server = ApiServer({**environment, "KUBECONFIG": lines[0], "PATH": lines[1]})
        server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        wait_established(server.kubectl)
        yield server
    finally:
        if not running:
            subprocess.run([CLUSTER, "down"], env=environment, check=True)


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A fresh namespace; without controllers it stays behind, empty of models."""
    name = f"test-{secrets.token_hex(4)}"
    api_server.kubectl("create", "namespace", name)
    api_server.kubectl("create", "serviceaccount", "default", "-n", name)
    yield name
    api_server.kubectl("delete", "qm", "--all", "-n", name, "--wait=false")


@pytest.fixture
async def kube(api_server: ApiServer) -> AsyncIterator[KubeApi]:
    client = KubeApi(await load_configuration(api_server.kubeconfig))
    yield client
    await client.close()


@dataclass
class Harness:
    """The operator's reconciler on the real API server, driven step by step, and a node that plays along."""

    kube: KubeApi
    telemetry: Telemetry
    namespace: str
    name: str
    node: Node
    settings: PlanningSettings = field(default_factory=lambda: PlanningSettings(matrix=load_matrix()))
    reconciler: Reconciler = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new operator process: nothing is remembered."""
        clock = SystemClock()
        self.reconciler = Reconciler(
            Gatherer(self.kube, Inventory(self.kube, clock), clock),
            Executor(self.kube),
            EventRecorder(self.kube, clock, instance="test"),
            self.telemetry,
            clock,
            self.settings,
            InstalledSchema(None),
        )

    async def apply(self, **spec: Any) -> Json:
        return await self.kube.apply(a_model(self.name, self.namespace, **spec), manager="kubectl")

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile((self.namespace, self.name))

    async def settle(self) -> None:
        """Reconcile until nothing is written any more, and wait where the operator waits for node proxies.

        A state that never rests would write for ever: 10 rounds are the most.
        """
        for _ in range(10):
            before = self.writes()
            again = await self.reconcile()
            if self.writes() > before:
                continue
            if again is None or again > PROXY_SECONDS:
                return
            await asyncio.sleep(again)
        raise AssertionError("the operator still writes after 10 reconciles of an unchanged state")

    def writes(self) -> float:
        """Requests so far that may change something, by the operator and its test node."""
        return sum(
            sample.value
            for metric in self.telemetry.registry.collect()
            for sample in metric.samples
            if sample.name == "halfbyte_apiserver_writes_total"
        )

    async def model(self) -> Json:
        return await self.kube.get(resources.MODELS, self.name, self.namespace)

    async def condition(self, kind: str) -> Json:
        status = (await self.model()).get("status") or {}
        found: Json = next((each for each in status.get("conditions", ()) if each["type"] == kind), {})
        return found

    async def ready(self) -> tuple[str, str]:
        """Status and reason of Ready."""
        found = await self.condition("Ready")
        return found.get("status", ""), found.get("reason", "")


@pytest.fixture
async def harness(api_server: ApiServer, namespace: str) -> AsyncIterator[Harness]:
    telemetry = Telemetry()
    operator = KubeApi(await load_configuration(api_server.kubeconfig), observer=telemetry.request)
    by_hand = KubeApi(await load_configuration(api_server.kubeconfig))
    node = Node(by_hand, namespace)
    await node.claim("weights")
    await node.claim("artifacts")
    yield Harness(operator, telemetry, namespace, "tiny", node)
    await operator.close()
    await by_hand.close()


@pytest.fixture
def create(api_server: ApiServer) -> Callable[..., str]:
    """Ask the API server to create a model (dry run); what kubectl says."""

    def ask(spec: Json, name: str = "tiny") -> str:
        manifest = {**a_model(name, "default"), "spec": spec}
        return api_server.kubectl(
            "create", "--dry-run=server", "-f", "-", "-o", "yaml", stdin=yaml.safe_dump(manifest), check=False
        )

    return ask
