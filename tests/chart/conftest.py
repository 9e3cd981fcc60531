"""A real API server for the chart: etcd and kube-apiserver, no controllers, no node."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.helm import ROOT, HelmError, Manifest

CLUSTER = ROOT / "tests" / "cluster" / "cluster"


@dataclass(frozen=True)
class ApiServer:
    """The cluster of this name, through its own programs."""

    name: str

    def _run(self, *command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CLUSTER, *command],
            env=dict(os.environ, HALFBYTE_CLUSTER=self.name),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    def helm(self, *arguments: str | Path) -> str:
        done = self._run("helm", *arguments)
        if done.returncode:
            raise HelmError(done.stderr.strip())
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = self._run("kubectl", *arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}\n{done.stderr}"
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        where = ("-n", namespace) if namespace else ()
        out = self.kubectl("get", kind, name, *where, "--ignore-not-found", "-o", "json")
        found: Manifest | None = json.loads(out) if out.strip() else None
        return found

    def create_namespace(self, name: str, **labels: str) -> str:
        manifest: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }
        # The controller that makes this account for every namespace does not run here.
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": name},
        }
        for each in (manifest, account):
            self.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(each))
        return name

    def may(
        self, account: str, verb: str, resource: str, namespace: str = "", name: str = "", group: str = ""
    ) -> bool:
        """What the API server's authorizer answers for a service account, given as namespace:name."""
        resource, _, subresource = resource.partition("/")
        attributes = {
            "verb": verb,
            "resource": resource,
            "subresource": subresource,
            "group": group,
            "namespace": namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{account}",
                "groups": ["system:authenticated", "system:serviceaccounts"],
                "resourceAttributes": attributes | ({"name": name} if name else {}),
            },
        }
        answer = json.loads(self.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
        return bool(answer["status"]["allowed"])


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    server = ApiServer("chart")
    up = server._run("up", "--control-plane-only")
    assert up.returncode == 0, up.stderr
    yield server
    server._run("down")


@pytest.fixture
def release(api_server: ApiServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own; afterwards no release and no CRD is left."""
    namespace = api_server.create_namespace(f"release-{abs(hash(request.node.name)) % 10**8}")
    yield namespace
    for each in json.loads(api_server.helm("list", "--all-namespaces", "--output", "json")):
        api_server.helm("uninstall", each["name"], "--namespace", each["namespace"])
    api_server.kubectl(
        "delete", "crd", "quantizedmodels.halfbyte.dev", "--ignore-not-found", "--wait=true", "--timeout=60s"
    )
