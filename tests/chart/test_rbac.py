"""What the operator and its users may do: exactly what the flow needs, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import Resource
from support.helm import NAMESPACE, Manifest, Rendered, template

CLUSTER: dict[str, Any] = {}
NAMESPACED: dict[str, Any] = {"watchNamespaces": ["team-a", "team-b"]}
MODES = {"cluster": CLUSTER, "namespaced": NAMESPACED}
OPERATOR = "halfbyte-operator"

READ = {"get", "list", "watch"}
APPLY = {"get", "list", "watch", "create", "patch", "delete"}
MODEL_RULES: dict[tuple[str, str], set[str]] = {
    ("halfbyte.dev", "quantizedmodels"): READ,
    ("halfbyte.dev", "quantizedmodels/status"): {"patch"},
    ("halfbyte.dev", "quantizedmodels/finalizers"): {"update"},
    ("batch", "jobs"): APPLY,
    ("apps", "deployments"): APPLY,
    ("", "configmaps"): APPLY - {"watch"},
    ("", "services"): APPLY - {"list", "watch"},
    ("", "persistentvolumeclaims"): APPLY - {"list", "watch"},
    ("", "pods"): {"list", "watch"},
    ("", "pods/log"): {"get"},
    ("", "secrets"): {"get"},
    ("autoscaling", "horizontalpodautoscalers"): {"list"},
    ("events.k8s.io", "events"): {"create", "patch"},
}


NODES = {("", "nodes"): {"list"}}
CRD = {("apiextensions.k8s.io", "customresourcedefinitions"): {"get"}}


def permissions(role: Manifest) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def roles(rendered: Rendered) -> list[Manifest]:
    return rendered.of_kind("ClusterRole") + rendered.of_kind("Role")


def bindings_of(rendered: Rendered, role: Manifest) -> list[Manifest]:
    namespace = role["metadata"].get("namespace")
    return [
        each
        for each in rendered.of_kind(f"{role['kind']}Binding")
        if each["roleRef"]["name"] == role["metadata"]["name"]
        and each["metadata"].get("namespace") == namespace
    ]


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_nothing_is_a_wildcard(values: dict[str, Any]) -> None:
    for role in roles(template(values | {"rbac": {"readNodes": True}})):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], role["metadata"]["name"]
            assert "nonResourceURLs" not in rule


def test_cluster_mode_grants_the_model_rules_everywhere() -> None:
    rendered = template(CLUSTER)
    role = rendered.one("ClusterRole", OPERATOR)
    assert permissions(role) == MODEL_RULES | NODES | CRD
    assert len(bindings_of(rendered, role)) == 1
    assert {each["metadata"]["namespace"] for each in rendered.of_kind("Role")} == {NAMESPACE}
    (crd_rule,) = [rule for rule in role["rules"] if "customresourcedefinitions" in rule["resources"]]
    assert crd_rule["resourceNames"] == ["quantizedmodels.halfbyte.dev"]


def test_namespaced_mode_grants_them_in_each_namespace_and_nothing_cluster_wide() -> None:
    rendered = template(NAMESPACED)
    assert rendered.of_kind("ClusterRoleBinding") == []
    model_roles = [each for each in rendered.of_kind("Role") if each["metadata"]["namespace"] != NAMESPACE]
    assert {each["metadata"]["namespace"] for each in model_roles} == {"team-a", "team-b"}
    for role in model_roles:
        assert permissions(role) == MODEL_RULES
        (binding,) = bindings_of(rendered, role)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": NAMESPACE}]


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_secrets_are_never_listed_and_can_be_left_alone(values: dict[str, Any]) -> None:
    for role in roles(template(values)):
        assert permissions(role).get(("", "secrets"), {"get"}) == {"get"}
    for role in roles(template(values | {"rbac": {"readSecrets": False}})):
        assert ("", "secrets") not in permissions(role)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (CLUSTER, True),
        (NAMESPACED, False),
        (CLUSTER | {"rbac": {"readNodes": False}}, False),
        (NAMESPACED | {"rbac": {"readNodes": True}}, True),
    ],
)
def test_nodes_are_read_in_cluster_mode_or_on_request(values: dict[str, Any], expected: bool) -> None:
    rendered = template(values)
    readers = [each for each in roles(rendered) if ("", "nodes") in permissions(each)]
    assert [permissions(role)[("", "nodes")] for role in readers] == [{"list"}] * expected
    for role in readers:
        assert len(bindings_of(rendered, role)) == 1


def test_reading_nodes_in_namespaced_mode_adds_nothing_else_cluster_wide() -> None:
    role = template(NAMESPACED | {"rbac": {"readNodes": True}}).one("ClusterRole", f"{NAMESPACE}-{OPERATOR}")
    assert permissions(role) == NODES | CRD


def test_every_kind_that_the_operator_handles_has_a_rule() -> None:
    granted: set[tuple[str, str]] = set()
    for role in roles(template(CLUSTER)):
        granted |= set(permissions(role))
    for each in vars(resources).values():
        if isinstance(each, Resource):
            group = each.api_version.rpartition("/")[0]
            assert (group, each.plural) in granted, f"no rule for {each.plural}"


def test_two_namespaced_releases_do_not_share_a_name_in_the_cluster() -> None:
    values = NAMESPACED | {
        "rbac": {"readNodes": True, "userRoles": {"create": False}},
        "crds": {"enabled": False},
    }
    cluster_scoped = [
        {
            (each["kind"], each["metadata"]["name"])
            for each in template(values, namespace=namespace).manifests
            if "namespace" not in each["metadata"]
        }
        for namespace in ("one", "two")
    ]
    assert cluster_scoped[0]
    assert not cluster_scoped[0] & cluster_scoped[1]


def test_one_lease_by_name_in_the_release_namespace() -> None:
    rendered = template()
    role = rendered.one("Role", f"{OPERATOR}-leader-election")
    assert role["metadata"]["namespace"] == NAMESPACE
    by_name = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert [(rule["resourceNames"], set(rule["verbs"])) for rule in by_name] == [
        ([OPERATOR], {"get", "update"})
    ]
    assert [rule["verbs"] for rule in role["rules"] if "resourceNames" not in rule] == [["create"]]
    environment = {each["name"]: each.get("value") for each in container(rendered)["env"]}
    assert environment["HALFBYTE_LEASE_NAME"] == OPERATOR


def container(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = rendered.one("Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def test_users_see_and_edit_models_through_the_clusters_own_roles() -> None:
    rendered = template()
    view = rendered.one("ClusterRole", "halfbyte-quantizedmodels-view")
    edit = rendered.one("ClusterRole", "halfbyte-quantizedmodels-edit")
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    assert {key for key in view["metadata"]["labels"] if key.startswith(aggregate)} == {
        f"{aggregate}{name}" for name in ("view", "edit", "admin")
    }
    assert {key for key in edit["metadata"]["labels"] if key.startswith(aggregate)} == {
        f"{aggregate}{name}" for name in ("edit", "admin")
    }
    assert set().union(*permissions(view).values()) == READ
    assert ("halfbyte.dev", "quantizedmodels/status") not in permissions(edit), (
        "only the operator writes status"
    )


def test_user_roles_can_stay_out_of_the_clusters_roles_or_away() -> None:
    apart = template({"rbac": {"userRoles": {"aggregate": False}}})
    labels = apart.one("ClusterRole", "halfbyte-quantizedmodels-view")["metadata"]["labels"]
    assert not [key for key in labels if "aggregate" in key]
    none = template({"rbac": {"userRoles": {"create": False}}})
    assert not [each for each in none.of_kind("ClusterRole") if "quantizedmodels" in each["metadata"]["name"]]


def test_without_rbac_no_operator_role_is_made() -> None:
    rendered = template({"rbac": {"create": False, "userRoles": {"create": False}}})
    assert rendered.kinds() & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} == set()
