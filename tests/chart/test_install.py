"""Install, upgrade, uninstall against a real API server: all is accepted, nothing gets stuck."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.definition import wait_established
from support.helm import CHART, HelmError, helm, template

from .conftest import ApiServer

pytestmark = pytest.mark.timeout(300)
CRD = "quantizedmodels.halfbyte.dev"
MODEL: dict[str, Any] = {
    "apiVersion": "halfbyte.dev/v1alpha1",
    "kind": "QuantizedModel",
    "metadata": {"name": "kept", "namespace": "default"},
    "spec": {
        "source": {"pvc": {"claimName": "weights", "path": "m"}},
        "serving": {"accelerator": {"type": "cpu"}},
        "storage": {"claimName": "artifacts"},
    },
}


def install(
    server: ApiServer, namespace: str, *flags: str, name: str = "halfbyte", chart: Path = CHART
) -> str:
    return server.helm("upgrade", "--install", name, chart, "--namespace", namespace, *flags)


def apply_model(server: ApiServer) -> None:
    wait_established(server.kubectl)
    server.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(MODEL))


def test_cluster_mode_may_do_its_work_everywhere_and_no_more(api_server: ApiServer, release: str) -> None:
    install(api_server, release)
    account = f"{release}:halfbyte-operator"

    def may(verb: str, resource: str, group: str = "", namespace: str = "default", name: str = "") -> bool:
        return api_server.may(account, verb, resource, namespace, name, group)

    assert may("watch", "quantizedmodels", "halfbyte.dev", namespace="")
    assert may("patch", "quantizedmodels/status", "halfbyte.dev")
    assert may("create", "jobs", "batch")
    assert may("patch", "deployments", "apps")
    assert may("get", "secrets", name="hf")
    assert may("list", "nodes", namespace="")
    assert may("get", "customresourcedefinitions", "apiextensions.k8s.io", namespace="", name=CRD)
    assert may("update", "leases", "coordination.k8s.io", namespace=release, name="halfbyte-operator")

    assert not may("patch", "quantizedmodels", "halfbyte.dev"), "the spec belongs to the user"
    assert not may("list", "secrets")
    assert not may("watch", "secrets", namespace="")
    assert not may("delete", "pods")
    assert not may("create", "pods/exec")
    assert not may("patch", "nodes", namespace="")
    assert not may(
        "get", "customresourcedefinitions", "apiextensions.k8s.io", namespace="", name="other.example.com"
    )
    assert not may("update", "leases", "coordination.k8s.io", namespace=release, name="another")
    assert not may("get", "leases", "coordination.k8s.io", namespace="kube-system", name="halfbyte-operator")
    assert not may("create", "clusterroles", "rbac.authorization.k8s.io", namespace="")


def test_namespaced_mode_stays_in_its_namespaces(api_server: ApiServer, release: str) -> None:
    team = api_server.create_namespace("team-a")
    install(api_server, release, "--set", f"watchNamespaces={{{team}}}")
    account = f"{release}:halfbyte-operator"
    assert api_server.may(account, "create", "jobs", team, group="batch")
    assert api_server.may(account, "watch", "quantizedmodels", team, group="halfbyte.dev")
    for namespace in ("default", "", release):
        assert not api_server.may(account, "create", "jobs", namespace, group="batch")
        assert not api_server.may(account, "list", "quantizedmodels", namespace, group="halfbyte.dev")
    assert not api_server.may(account, "list", "nodes")


def test_everything_switched_on_is_accepted_strictly(api_server: ApiServer, release: str) -> None:
    values = {"replicaCount": 2, "networkPolicy": {"enabled": True}, "crds": {"keep": True}}
    manifests = template(values, namespace=release).manifests
    text = yaml.safe_dump_all(manifests)
    out = api_server.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text
    )
    assert len(out.splitlines()) == len(manifests)


def test_the_pod_passes_the_restricted_pod_security_standard(api_server: ApiServer, release: str) -> None:
    strict = api_server.create_namespace("strict", **{"pod-security.kubernetes.io/enforce": "restricted"})
    install(api_server, strict)
    deployment = api_server.get("deployment", "halfbyte-operator", strict)
    assert deployment is not None
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator", "namespace": strict},
        "spec": deployment["spec"]["template"]["spec"],
    }
    api_server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        api_server.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


def test_an_upgrade_upgrades_the_crd_and_keeps_the_models(
    api_server: ApiServer, release: str, tmp_path: Path
) -> None:
    older = shutil.copytree(CHART, tmp_path / "halfbyte")
    path = older / "files" / "crds" / "quantizedmodels.yaml"
    crd = yaml.safe_load(path.read_text())
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["suspend"]
    path.write_text(yaml.safe_dump(crd))

    install(api_server, release, chart=older)
    apply_model(api_server)
    before = api_server.get("quantizedmodel", "kept", "default")
    install(api_server, release)
    wait_established(api_server.kubectl)

    live = api_server.get("crd", CRD)
    assert live is not None
    newer = live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert "suspend" in newer
    after = api_server.get("quantizedmodel", "kept", "default")
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (
        json.loads(api_server.helm("history", "halfbyte", "--namespace", release, "--output", "json"))[-1][
            "revision"
        ]
        == 2
    )


def test_uninstalling_with_a_model_present_leaves_nothing_stuck(api_server: ApiServer, release: str) -> None:
    install(api_server, release)
    apply_model(api_server)
    api_server.helm("uninstall", "halfbyte", "--namespace", release)

    kept = api_server.get("quantizedmodel", "kept", "default")
    assert kept is not None, "the models stay"
    assert "finalizers" not in kept["metadata"]
    left = api_server.kubectl(
        "get", "deployments,services,serviceaccounts,roles,rolebindings", "-n", release,
        "-l", "app.kubernetes.io/instance=halfbyte", "-o", "name",
    )  # fmt: skip
    assert left == ""
    cluster_wide = api_server.kubectl(
        "get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=halfbyte", "-o", "name"
    )
    assert cluster_wide == ""
    api_server.kubectl("delete", "quantizedmodel", "kept", "--wait=true", "--timeout=20s")
    assert api_server.get("quantizedmodel", "kept", "default") is None


def test_the_same_release_takes_a_kept_crd_over_again(api_server: ApiServer, release: str) -> None:
    install(api_server, release)
    apply_model(api_server)
    api_server.helm("uninstall", "halfbyte", "--namespace", release)
    install(api_server, release)
    assert api_server.get("quantizedmodel", "kept", "default")


def test_another_release_is_refused_until_it_may_take_the_crd_over(
    api_server: ApiServer, release: str
) -> None:
    install(api_server, release)
    api_server.helm("uninstall", "halfbyte", "--namespace", release)
    with pytest.raises(HelmError, match="invalid ownership metadata"):
        install(api_server, release, name="quant")
    install(api_server, release, "--take-ownership", name="quant")


def test_without_keep_the_crd_goes_with_the_release(api_server: ApiServer, release: str) -> None:
    install(api_server, release, "--set", "crds.keep=false")
    apply_model(api_server)
    api_server.helm("uninstall", "halfbyte", "--namespace", release)
    api_server.kubectl("wait", f"crd/{CRD}", "--for=delete", "--timeout=30s")
    assert api_server.get("crd", CRD) is None


def test_a_crd_installed_by_someone_else_is_left_alone(api_server: ApiServer, release: str) -> None:
    text = helm("template", "x", CHART, "--show-only", "templates/crds.yaml")
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    before = api_server.get("crd", CRD)
    install(api_server, release, "--set", "crds.enabled=false")
    api_server.helm("uninstall", "halfbyte", "--namespace", release)
    after = api_server.get("crd", CRD)
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
