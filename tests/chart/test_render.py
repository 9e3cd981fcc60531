"""What the chart renders for the values that people set."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from halfbyte.runtime.settings import OPTIONS, Settings, load_settings
from support.helm import CHART, NAMESPACE, Rendered, helm, template

ROOT = CHART.parents[1]
DIGEST = "sha256:" + "0123456789abcdef" * 4


def pod(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = rendered.one("Deployment")["spec"]["template"]["spec"]
    return found


def container(rendered: Rendered) -> dict[str, Any]:
    found: dict[str, Any] = pod(rendered)["containers"][0]
    return found


def environment(rendered: Rendered) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(rendered)["env"]}


def test_the_default_set_of_objects() -> None:
    assert sorted((each["kind"], each["metadata"]["name"]) for each in template().manifests) == [
        ("ClusterRole", "halfbyte-operator"),
        ("ClusterRole", "halfbyte-quantizedmodels-edit"),
        ("ClusterRole", "halfbyte-quantizedmodels-view"),
        ("ClusterRoleBinding", "halfbyte-operator"),
        ("CustomResourceDefinition", "quantizedmodels.halfbyte.dev"),
        ("Deployment", "halfbyte-operator"),
        ("Role", "halfbyte-operator-leader-election"),
        ("RoleBinding", "halfbyte-operator-leader-election"),
        ("Service", "halfbyte-operator"),
        ("ServiceAccount", "halfbyte-operator"),
    ]


def test_every_object_carries_the_standard_labels_and_the_common_ones() -> None:
    everything = {
        "commonLabels": {"team": "ml"}, "replicaCount": 2,
        "metrics": {"serviceMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True},
    }  # fmt: skip
    rendered = template(everything)
    assert {"ServiceMonitor", "NetworkPolicy", "PodDisruptionBudget"} <= rendered.kinds()
    for each in rendered.manifests:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "halfbyte", each["kind"]
        assert labels["app.kubernetes.io/instance"] == "halfbyte"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["team"] == "ml"


def test_common_labels_do_not_reach_the_immutable_selector() -> None:
    selector = template({"commonLabels": {"team": "ml"}}).one("Deployment")["spec"]["selector"]["matchLabels"]
    assert set(selector) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}


@pytest.mark.parametrize(
    ("release", "values", "expected"),
    [
        ("halfbyte", {}, "halfbyte-operator"),
        ("prod", {}, "prod-halfbyte-operator"),
        ("prod", {"nameOverride": "hb"}, "prod-hb-operator"),
        ("prod", {"fullnameOverride": "quant"}, "quant-operator"),
        ("r" * 53, {}, "r" * 50 + "-operator"),
    ],
)
def test_names_follow_the_release(release: str, values: dict[str, Any], expected: str) -> None:
    assert template(values, release=release).one("Deployment")["metadata"]["name"] == expected


class TestPod:
    def test_meets_the_restricted_pod_security_standard(self) -> None:
        rendered = template()
        context = pod(rendered)["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == 65532
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container(rendered)["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {"name": "tmp", "emptyDir": {}} in pod(rendered)["volumes"]

    def test_probes_ask_the_operator_and_not_only_its_web_server(self) -> None:
        found = container(template())
        paths = {
            key: found[key]["httpGet"]["path"] for key in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}

    def test_has_requests_and_a_memory_limit_but_no_cpu_limit(self) -> None:
        resources = container(template())["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}
        assert set(resources["limits"]) == {"memory"}

    def test_runs_where_and_how_the_values_say(self) -> None:
        values = {
            "priorityClassName": "system-cluster-critical",
            "tolerations": [{"key": "infra", "operator": "Exists"}],
            "nodeSelector": {"pool": "infra"},
            "imagePullSecrets": [{"name": "regcred"}],
            "podAnnotations": {"a": "b"},
            "podLabels": {"c": "d"},
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
        }
        rendered = template(values)
        found = pod(rendered)
        assert found["priorityClassName"] == "system-cluster-critical"
        assert found["tolerations"] == values["tolerations"]
        assert found["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "infra"}
        assert found["imagePullSecrets"] == values["imagePullSecrets"]
        assert found["topologySpreadConstraints"] == values["topologySpreadConstraints"]
        metadata = rendered.one("Deployment")["spec"]["template"]["metadata"]
        assert metadata["annotations"]["a"] == "b"
        assert metadata["labels"]["c"] == "d"
        assert environment(rendered)["HTTPS_PROXY"] == "http://proxy:3128"
        assert [each["name"] for each in found["volumes"]] == ["tmp", "ca"]
        assert [each["name"] for each in container(rendered)["volumeMounts"]] == ["tmp", "ca"]

    def test_another_update_strategy_drops_the_settings_of_the_default_one(self) -> None:
        assert template({"strategy": {"type": "Recreate"}}).one("Deployment")["spec"]["strategy"] == {
            "type": "Recreate"
        }

    def test_several_replicas_prefer_several_nodes(self) -> None:
        assert "affinity" not in pod(template())
        assert "podAntiAffinity" in pod(template({"replicaCount": 2}))["affinity"]
        own = {"nodeAffinity": {}}
        assert pod(template({"replicaCount": 2, "affinity": own}))["affinity"] == own


class TestImages:
    def test_default_to_the_version_of_the_chart(self) -> None:
        rendered = template()
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        assert container(rendered)["image"] == f"halfbyte.dev/operator:{version}"
        found = environment(rendered)
        assert found["HALFBYTE_WORKER_IMAGE"] == f"halfbyte.dev/worker:{version}"
        assert found["HALFBYTE_VLLM_IMAGE"] == f"halfbyte.dev/vllm:{version}"
        assert found["HALFBYTE_VLLM_CUDA_IMAGE"] == f"halfbyte.dev/vllm:{version}-cuda"

    def test_move_to_a_mirror_together(self) -> None:
        rendered = template({"images": {"registry": "registry.example.com/mirror/"}})
        found = environment(rendered)
        images = [
            container(rendered)["image"],
            *(value for key, value in found.items() if key.endswith("_IMAGE")),
        ]
        assert len(images) == 4
        assert all(each.startswith("registry.example.com/mirror/") and "//" not in each for each in images)

    def test_a_digest_wins_over_a_tag(self) -> None:
        pinned = {"repository": "op", "tag": "1.2.3", "digest": DIGEST}
        rendered = template({"images": {"operator": pinned, "vllmCuda": {"digest": DIGEST}}})
        assert container(rendered)["image"] == f"halfbyte.dev/op@{DIGEST}"
        assert environment(rendered)["HALFBYTE_VLLM_CUDA_IMAGE"] == f"halfbyte.dev/vllm@{DIGEST}"

    def test_one_pull_policy_for_the_operator_and_its_children(self) -> None:
        rendered = template({"images": {"pullPolicy": "Never"}})
        assert container(rendered)["imagePullPolicy"] == "Never"
        assert environment(rendered)["HALFBYTE_IMAGE_PULL_POLICY"] == "Never"


def settings(rendered: Rendered) -> Settings:
    """What the operator makes of its environment in this rendering."""
    values = {key: value for key, value in environment(rendered).items() if isinstance(value, str)}
    return load_settings([], values)


class TestSettings:
    def test_every_variable_is_one_that_the_operator_reads(self) -> None:
        known = {f"HALFBYTE_{name.replace('-', '_').upper()}" for name, _, _ in OPTIONS}
        assert set(environment(template())) - known == set()

    def test_the_mode(self) -> None:
        assert settings(template()).watch_namespaces == ()
        assert settings(template({"watchNamespaces": ["b", "a"]})).watch_namespaces == ("b", "a")

    def test_values_arrive(self) -> None:
        found = settings(
            template(
                {
                    "resyncSeconds": 86400,
                    "workers": 64,
                    "jobs": {"cpuMillis": 1000000, "cpuLimitMillis": 1000000},
                    "log": {"format": "text", "level": "debug"},
                }
            )
        )
        assert found.resync_seconds == 86400
        assert found.workers == 64
        assert found.planning.jobs.cpu_millis == found.planning.jobs.cpu_limit_millis == 1_000_000
        assert (found.log_format, found.log_level) == ("text", "debug")

    def test_defaults_are_the_operators_own(self) -> None:
        chart, operator = settings(template()), load_settings([], {})
        assert chart.planning == operator.planning
        assert (chart.workers, chart.lease_name) == (operator.workers, operator.lease_name)
        assert chart.http_port == container(template())["ports"][0]["containerPort"]


class TestCustomResourceDefinition:
    source = yaml.safe_load((ROOT / "crds" / "halfbyte.dev_quantizedmodels.yaml").read_text())

    def test_is_the_generated_one_and_loses_nothing_in_rendering(self) -> None:
        assert template().one("CustomResourceDefinition")["spec"] == self.source["spec"]

    def test_is_kept_when_the_release_goes_unless_told_otherwise(self) -> None:
        policy = "helm.sh/resource-policy"
        assert template().one("CustomResourceDefinition")["metadata"]["annotations"][policy] == "keep"
        dropped = template({"crds": {"keep": False}}).one("CustomResourceDefinition")["metadata"]
        assert policy not in dropped.get("annotations", {})

    def test_takes_annotations_beside_the_policy(self) -> None:
        annotations = {"argocd.argoproj.io/sync-options": "Prune=false"}
        found = template({"crds": {"annotations": annotations}}).one("CustomResourceDefinition")["metadata"][
            "annotations"
        ]
        assert found == annotations | {"helm.sh/resource-policy": "keep"}

    def test_can_be_left_to_someone_else(self) -> None:
        assert template({"crds": {"enabled": False}}).of_kind("CustomResourceDefinition") == []


class TestMonitoring:
    def test_service_and_monitor_meet_on_the_operators_port(self) -> None:
        values = {
            "metrics": {
                "port": 9000,
                "serviceMonitor": {"enabled": True, "labels": {"release": "prom"}, "namespace": "mon"},
            }
        }
        rendered = template(values)
        service = rendered.one("Service")
        monitor = rendered.one("ServiceMonitor")
        assert service["spec"]["ports"][0]["port"] == 9000
        assert service["spec"]["ports"][0]["targetPort"] == container(rendered)["ports"][0]["name"]
        assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert wanted <= service["metadata"]["labels"].items()
        assert monitor["metadata"]["namespace"] == "mon"
        assert monitor["metadata"]["labels"]["release"] == "prom"
        assert monitor["spec"]["namespaceSelector"]["matchNames"] == [NAMESPACE]

    def test_annotations_are_the_other_way(self) -> None:
        def annotations(values: dict[str, Any]) -> dict[str, str]:
            found: dict[str, str] = template(values).one("Deployment")["spec"]["template"]["metadata"][
                "annotations"
            ]
            return found

        assert "prometheus.io/scrape" not in annotations({})
        assert annotations({"metrics": {"scrapeAnnotations": True}})["prometheus.io/scrape"] == "true"

    def test_off_means_no_service(self) -> None:
        assert "Service" not in template({"metrics": {"enabled": False}}).kinds()


class TestSwitches:
    def test_a_disruption_budget_never_blocks_the_only_replica(self) -> None:
        assert "PodDisruptionBudget" not in template().kinds()
        assert template({"replicaCount": 2}).one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
        off = {"replicaCount": 2, "podDisruptionBudget": {"enabled": False}}
        assert "PodDisruptionBudget" not in template(off).kinds()

    def test_the_network_policy_lets_dns_the_api_and_metrics_through(self) -> None:
        rendered = template({"networkPolicy": {"enabled": True}})
        policy = rendered.one("NetworkPolicy")["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= (
            rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"].items()
        )
        assert sorted({port["port"] for rule in policy["egress"] for port in rule["ports"]}) == [
            53,
            443,
            6443,
        ]
        assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": "http"}]}]
        prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        narrow = template({"networkPolicy": {"enabled": True, "metricsFrom": prometheus}})
        assert narrow.one("NetworkPolicy")["spec"]["ingress"][0]["from"] == prometheus

    def test_an_existing_service_account_is_used_and_bound(self) -> None:
        rendered = template({"serviceAccount": {"create": False, "name": "mine"}})
        assert "ServiceAccount" not in rendered.kinds()
        assert pod(rendered)["serviceAccountName"] == "mine"
        for binding in rendered.of_kind("ClusterRoleBinding") + rendered.of_kind("RoleBinding"):
            assert binding["subjects"][0]["name"] == "mine"


def notes(*flags: str) -> str:
    out = helm("install", "halfbyte", CHART, "--namespace", NAMESPACE, "--dry-run=client", *flags)
    return out.split("NOTES:")[1]


class TestNotes:
    def test_name_the_mode_and_the_next_commands(self) -> None:
        text = notes()
        assert "every namespace" in text
        assert f"kubectl -n {NAMESPACE} rollout status deployment/halfbyte-operator" in text
        assert "keeps the CRD" in text

    def test_say_what_a_namespaced_operator_cannot_see(self) -> None:
        text = notes("--set", "watchNamespaces={team-a,team-b}")
        assert "team-a, team-b" in text
        assert "may not read nodes" in text
        assert "kubectl -n team-a apply" in text

    def test_warn_before_an_uninstall_that_deletes_every_model(self) -> None:
        assert "WARNING: crds.keep is false" in notes("--set", "crds.keep=false")

    def test_the_example_is_accepted_by_the_crd(self) -> None:
        manifest = yaml.safe_load(notes().split("<<'YAML'")[1].split("\n  YAML")[0])
        version = TestCustomResourceDefinition.source["spec"]["versions"][0]
        jsonschema.validate(manifest["spec"], version["schema"]["openAPIV3Schema"]["properties"]["spec"])
