"""The operator as a process, with Kopf and its Lease."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import helm
from support.definition import wait_established
from support.manifests import a_model
from support.node import FACTS, Node

from .conftest import CRD, ROOT, ApiServer

pytestmark = pytest.mark.timeout(600)

Json = dict[str, Any]
WAIT_SECONDS = 120.0


def until(probe: Callable[[], Any], what: str) -> Any:
    """Poll until the probe is true; its value."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_SECONDS:.0f} s: {what}")


class Process:
    """One operator process; its log goes to a file."""

    def __init__(self, log: Path, kubeconfig: str, *flags: str) -> None:
        self.log = log
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        environment = {**os.environ, "KUBECONFIG": kubeconfig, "PYTHONPATH": str(ROOT / "operator" / "src")}
        with log.open("w") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "halfbyte", f"--http-port={self.port}", "--lease-seconds=6", *flags],
                env=environment,
                stderr=output,
                stdout=output,
            )

    def text(self) -> str:
        return self.log.read_text()

    def says(self, words: str) -> bool:
        assert self.popen.poll() is None or words in self.text(), self.text()
        return words in self.text()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except urllib.error.URLError:
            return 0, ""

    def metric(self, name: str) -> float:
        """Sum of all series of a metric."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def end(self, signum: int = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(signum)
        return self.popen.wait(timeout=40)


@pytest.fixture
def operate(
    api_server: ApiServer, namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Process]]:
    """Start operators in the test's namespace; all are ended with the test."""
    started: list[Process] = []

    def start(*flags: str, kubeconfig: str = api_server.kubeconfig, wait: bool = True) -> Process:
        process = Process(
            tmp_path / f"operator-{len(started)}.log",
            kubeconfig,
            f"--namespace={namespace}",
            f"--watch-namespaces={namespace}",
            *flags,
        )
        started.append(process)
        if wait:
            until(process.ready, "the operator is ready")
        return process

    yield start
    for process in started:
        process.end(signal.SIGKILL)
        print(process.text())


def conditions(api_server: ApiServer, namespace: str, name: str = "tiny") -> dict[str, Json]:
    stored = json.loads(api_server.kubectl("get", "qm", name, "-n", namespace, "-o", "json"))
    return {each["type"]: each for each in stored["status"].get("conditions", ())}


def ready_reason(api_server: ApiServer, namespace: str, name: str = "tiny") -> str:
    return str(conditions(api_server, namespace, name).get("Ready", {}).get("reason", ""))


def has_job(api_server: ApiServer, namespace: str, stage: str) -> bool:
    return bool(
        api_server.kubectl("get", "jobs", "-n", namespace, "-l", f"halfbyte.dev/stage={stage}", "-o", "name")
    )


def apply(api_server: ApiServer, *manifests: Json) -> None:
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))


def role_kubeconfig(api_server: ApiServer, namespace: str, path: Path) -> str:
    """Install the chart's roles into the namespace; a kubeconfig of its service account (a real token)."""
    release = f"hb-{secrets.token_hex(3)}"
    rendered = helm.template({"watchNamespaces": [namespace]}, release=release, namespace=namespace)
    kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    apply(api_server, *(each for each in rendered.manifests if each["kind"] in kinds))
    account = rendered.one("ServiceAccount")["metadata"]["name"]
    token = api_server.kubectl("create", "token", account, "-n", namespace).strip()
    config = yaml.safe_load(Path(api_server.kubeconfig).read_text())
    config["users"] = [{"name": "operator", "user": {"token": token}}]
    cluster = config["clusters"][0]["name"]
    config["contexts"] = [{"name": "c", "context": {"cluster": cluster, "user": "operator"}}]
    config["current-context"] = "c"
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def test_kopf_writes_nothing_and_an_unchanged_world_is_left_alone(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process], kube: Any
) -> None:
    process = operate()
    node = Node(kube, namespace)
    await node.claim("weights")
    await node.claim("artifacts")
    apply(api_server, a_model("tiny", namespace))
    until(lambda: has_job(api_server, namespace, "inspect"), "an Inspect Job")
    await node.fail(await node.job("inspect"), 20, "SourceNotFound", "there is no model")
    until(lambda: ready_reason(api_server, namespace) == "SourceNotFound", "the failure")

    def writes() -> float:
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in process.get("/metrics")[1].splitlines()
            if line.startswith("halfbyte_apiserver_writes_total") and 'resource="leases"' not in line
        )

    def rests() -> bool:
        """The queue does not count what is being worked at: nothing is written for a while either."""
        seen = writes(), process.metric("halfbyte_reconciles_total")
        time.sleep(2)
        done = process.metric("halfbyte_queue_depth") == 0
        return done and seen == (writes(), process.metric("halfbyte_reconciles_total"))

    until(rests, "an operator at rest")
    before, looks = writes(), process.metric("halfbyte_reconciles_total")
    stored = json.loads(
        api_server.kubectl("get", "qm", "tiny", "-n", namespace, "-o", "json", "--show-managed-fields")
    )
    managers = {each["manager"] for each in stored["metadata"]["managedFields"]}
    assert managers == {"kubectl-client-side-apply", "halfbyte-status"}
    assert set(stored["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    assert "finalizers" not in stored["metadata"]

    job = await node.job("inspect")
    touched = {"apiVersion": "batch/v1", "kind": "Job"}
    touched["metadata"] = {"name": job["metadata"]["name"], "namespace": namespace, "labels": {"x": "y"}}  # type: ignore[assignment]
    await kube.apply(touched, manager="somebody")
    until(lambda: process.metric("halfbyte_reconciles_total") > looks, "the touched Job is looked at")
    assert writes() == before
    after = json.loads(api_server.kubectl("get", "qm", "tiny", "-n", namespace, "-o", "json"))
    assert after["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


async def test_a_killed_operator_goes_on_where_it_was(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process], kube: Any
) -> None:
    first = operate("--pod-name=pod-1")
    node = Node(kube, namespace)
    await node.claim("weights")
    await node.claim("artifacts")
    apply(api_server, a_model("tiny", namespace))
    until(lambda: has_job(api_server, namespace, "inspect"), "an Inspect Job")
    first.end(signal.SIGKILL)
    await node.succeed(await node.job("inspect"), FACTS)
    second = operate("--pod-name=pod-1")
    until(lambda: has_job(api_server, namespace, "quantize"), "the next stage")
    assert second.says("pod-1 holds the lease")
    assert len(await node.jobs("inspect")) == 1
    assert len(await node.jobs("quantize")) == 1


async def test_a_standby_is_ready_and_takes_over(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process]
) -> None:
    leader = operate("--pod-name=pod-1")
    standby = operate("--pod-name=pod-2")
    until(lambda: standby.says("standing by: the lease is held by pod-1"), "the standby waits")
    apply(api_server, a_model("tiny", namespace))
    until(lambda: ready_reason(api_server, namespace) == "ClaimNotFound", "the leader works")
    assert standby.metric("halfbyte_reconciles_total") == 0
    assert standby.metric("halfbyte_leader") == 0
    assert leader.end() == 0
    until(lambda: standby.metric("halfbyte_leader") == 1, "the standby leads")
    until(lambda: standby.metric("halfbyte_reconciles_total") > 0, "the new leader works")


def test_a_lost_lease_ends_the_process(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process]
) -> None:
    process = operate("--pod-name=pod-1")
    api_server.kubectl(
        "patch", "lease", "halfbyte-operator", "-n", namespace, "--type=merge", "-p",
        '{"spec": {"holderIdentity": "usurper"}}',
    )  # fmt: skip
    assert process.popen.wait(timeout=30) == 3
    assert "the lease is lost" in process.text()


def test_the_comparison_of_list_and_watch_agrees_while_both_work(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process]
) -> None:
    apply(api_server, a_model("older", namespace))
    process = operate("--resync-seconds=10")
    apply(api_server, a_model("newer", namespace))
    for _ in range(3):
        until(lambda: process.metric("halfbyte_resync_age_seconds") > 5, "time passes")
        until(lambda: process.metric("halfbyte_resync_age_seconds") < 5, "another list")
        assert process.get("/livez") == (200, "ok\n")


def test_deleted_models_leave_no_series(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process]
) -> None:
    process = operate()
    apply(api_server, a_model("tiny", namespace))
    until(lambda: 'name="tiny"' in process.get("/metrics")[1], "the model's series")
    api_server.kubectl("delete", "qm", "tiny", "-n", namespace)
    until(lambda: 'name="tiny"' not in process.get("/metrics")[1], "no series of the deleted model")


def test_without_permission_the_probe_says_what_is_missing(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process], tmp_path: Path
) -> None:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "nobody", "namespace": namespace},
    }
    apply(api_server, account)
    config = yaml.safe_load(Path(api_server.kubeconfig).read_text())
    token = api_server.kubectl("create", "token", "nobody", "-n", namespace).strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    process = operate(kubeconfig=str(path), wait=False)
    until(lambda: "cannot list resource" in process.get("/readyz")[1], "the missing permission")
    assert process.get("/readyz")[0] == 503


def test_the_token_of_a_client_is_never_logged(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process], tmp_path: Path
) -> None:
    kubeconfig = role_kubeconfig(api_server, namespace, tmp_path / "k")
    token = yaml.safe_load(Path(kubeconfig).read_text())["users"][0]["user"]["token"]
    process = operate("--log-level=debug", "--lease-name=", kubeconfig=kubeconfig)
    apply(api_server, a_model("tiny", namespace))
    until(lambda: ready_reason(api_server, namespace) == "ClaimNotFound", "a reconcile")
    assert token not in process.text()
    assert base64.b64encode(token.encode()).decode() not in process.text()


def test_a_missing_definition_is_waited_for_in_words(
    api_server: ApiServer, operate: Callable[..., Process]
) -> None:
    api_server.kubectl("delete", "crd", "quantizedmodels.halfbyte.dev")
    try:
        process = operate(wait=False)
        until(lambda: process.says("is not installed"), "the missing CRD in the log")
        status, text = process.get("/readyz")
        assert status == 503
        assert "quantizedmodels.halfbyte.dev is not installed" in text
        assert process.get("/livez")[0] == 200, "a restart would not help"
    finally:
        install_definition(api_server)
    until(process.ready, "ready once the CRD is there")
    assert process.end() == 0


def test_an_older_definition_is_reported_and_its_fields_are_not_written(
    api_server: ApiServer, namespace: str, operate: Callable[..., Process]
) -> None:
    older = yaml.safe_load(CRD.read_text())
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["serving"]["properties"]["readiness"]
    columns = older["spec"]["versions"][0]["additionalPrinterColumns"]
    older["spec"]["versions"][0]["additionalPrinterColumns"] = [
        each for each in columns if "readiness" not in each["jsonPath"]
    ]
    api_server.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(older))
    try:
        process = operate()
        until(lambda: process.says("it lacks .status.serving.readiness"), "the older CRD in the log")
        assert process.metric("halfbyte_crd_outdated") == 1
        apply(api_server, a_model("tiny", namespace))
        until(lambda: ready_reason(api_server, namespace) == "ClaimNotFound", "a status")
        until(lambda: process.metric("halfbyte_queue_depth") == 0, "an empty queue")
        serving = json.loads(api_server.kubectl("get", "qm", "tiny", "-n", namespace, "-o", "json"))["status"]
        assert "readiness" not in serving.get("serving", {})
    finally:
        install_definition(api_server)


def install_definition(api_server: ApiServer) -> None:
    until(
        lambda: (
            "serverside-applied"
            in api_server.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD), check=False)
        ),
        "the definition is installed",
    )
    wait_established(api_server.kubectl)


def test_a_wrong_setting_is_refused_in_words(api_server: ApiServer, tmp_path: Path) -> None:
    process = Process(tmp_path / "log", api_server.kubeconfig, "--workers=many")
    assert process.popen.wait(timeout=40) == 2
    assert "HALFBYTE_WORKERS is 'many', must be a whole number from 1 to 64" in process.text()
