"""Models from a hub (a fake one, in a pod): pinned and served, gated, missing; the token is seen nowhere."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import local_cluster as cluster
from support.quantized_models import MODELS, current_condition, reported

pytestmark = pytest.mark.timeout(600)
Model = Callable[..., cluster.Json]
OPEN, GATED = 8090, 8091
TOKEN = "hf_" + "w7" * 17
REPO = "tests/tiny"


def source(port: int, **parts: object) -> cluster.Json:
    endpoint = f"http://fake-hub.{MODELS}.svc:{port}"
    return {"huggingFace": {"repo": REPO, "revision": "main", "endpoint": endpoint, **parts}}


def serve_hub(port: int, *options: str) -> cluster.Json:
    command = ["python3", "-m", "hub", "--address=0.0.0.0", f"--port={port}", *options, f"{REPO}=tiny"]
    return {
        "name": f"hub-{port}", "image": f"halfbyte.dev/worker:{cluster.VERSION}", "command": command,
        "workingDir": "/weights", "volumeMounts": [{"name": "weights", "mountPath": "/weights"}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def hub(node: Path, tiny: str) -> None:
    shutil.copytree(cluster.ROOT / "tests" / "support" / "hub", node / "weights" / "hub", dirs_exist_ok=True)
    label = {"app": "fake-hub"}
    ports = [{"name": f"p{port}", "port": port} for port in (OPEN, GATED)]
    about = {"name": "fake-hub", "namespace": MODELS}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": about,
                   "spec": {"selector": label, "ports": ports}})  # fmt: skip
    cluster.apply(
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {**about, "labels": label},
            "spec": {
                "containers": [serve_hub(OPEN), serve_hub(GATED, f"--token={TOKEN}")],
                "volumes": [{"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}}],
                "terminationGracePeriodSeconds": 1,
            },
        }
    )  # fmt: skip
    cluster.kubectl("wait", "pod/fake-hub", "-n", MODELS, "--for=condition=Ready", "--timeout=60s")


@pytest.mark.usefixtures("hub")
def test_a_gated_repository_without_a_token_and_with_one_that_is_seen_nowhere(model: Model) -> None:
    model("gated", source=source(GATED))
    message = reported("gated", "GatedRepository")
    assert REPO in message
    assert "tokenSecretRef" in message
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub-token", "namespace": MODELS}}
    cluster.apply({**secret, "stringData": {"token": TOKEN}})
    model("gated", source=source(GATED, tokenSecretRef={"name": "hub-token", "key": "token"}))
    found = cluster.wait_for_model("gated", MODELS, validated, timeout=400, what="gated Validated")
    commit = found["status"]["facts"]["source"]["revision"]
    assert len(commit) == 40
    assert int(commit, 16)
    told = cluster.kubectl("get", "qm,jobs,pods,configmaps,events,deployments", "-n", MODELS, "-o", "yaml")
    told = told.replace(f"--token={TOKEN}", "")  # of the fake hub itself
    for pod in cluster.listing("pods", MODELS, "halfbyte.dev/model=gated"):
        told += cluster.kubectl(
            "logs", "-n", MODELS, pod["metadata"]["name"], "--all-containers", check=False
        )
    assert REPO in told
    assert TOKEN not in told
    assert base64.b64encode(TOKEN.encode()).decode() not in told


def validated(model: cluster.Json) -> bool:
    return current_condition(model, "Validated").get("status") == "True"


@pytest.mark.usefixtures("hub")
def test_a_missing_repository(model: Model) -> None:
    model("no-repo", source=source(OPEN, repo="tests/nowhere"))
    assert "tests/nowhere" in reported("no-repo", "SourceNotFound")


@pytest.mark.usefixtures("hub")
def test_a_missing_revision(model: Model) -> None:
    model("no-revision", source=source(OPEN, revision="v9"))
    assert "v9" in reported("no-revision", "RevisionNotFound")
