"""values.yaml and values.schema.json agree, and a refusal names the key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.helm import CHART, HelmError, helm, template

VALUES_TEXT = (CHART / "values.yaml").read_text()
VALUES = yaml.safe_load(VALUES_TEXT)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def keys(node: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of the values; a map that the schema leaves free counts as one value."""
    for key, value in node.items():
        yield prefix + key
        below = schema.get("properties", {}).get(key, {})
        if isinstance(value, dict) and "properties" in below:
            yield from keys(value, below, f"{prefix}{key}.")


def schema_keys(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in node.get("properties", {}).items():
        yield prefix + key
        yield from schema_keys(value, f"{prefix}{key}.")


def test_every_key_of_the_schema_has_a_default_and_the_other_way_round() -> None:
    without_default = {"global", "resources.claims", "strategy.rollingUpdate"}
    defaults = set(keys(VALUES, SCHEMA))
    described = set(schema_keys(SCHEMA))
    assert described - defaults <= without_default
    assert defaults - described == set()


def test_every_setting_has_a_line_of_documentation() -> None:
    lines = VALUES_TEXT.splitlines()
    undocumented = []
    for number, line in enumerate(lines):
        key, colon, rest = line.strip().partition(":")
        is_leaf = bool(colon) and bool(rest.strip()) and not line.lstrip().startswith(("#", "-", "{"))
        depth = len(line) - len(line.lstrip())
        section = next(
            (each.split(":")[0] for each in reversed(lines[: number + 1]) if each[:1].isalpha()), ""
        )
        if not is_leaf or (
            section in {"strategy", "resources", "podSecurityContext", "securityContext"} and depth
        ):
            continue
        above = number - 1
        while lines[above].lstrip().startswith("#") and "# --" not in lines[above]:
            above -= 1
        if "# -- " not in lines[above]:
            undocumented.append(f"line {number + 1}: {key}")
    assert not undocumented


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "misspelt key": ({"replicas": 2}, ["replicas", "not allowed"]),
    "misspelt nested key": ({"rbac": {"readSecret": True}}, ["/rbac", "readSecret"]),
    "no replica": ({"replicaCount": 0}, ["/replicaCount", "minimum"]),
    "replicas as text": ({"replicaCount": "two"}, ["/replicaCount", "integer"]),
    "namespace that is no name": ({"watchNamespaces": ["Team_A"]}, ["/watchNamespaces/0", "Team_A"]),
    "one namespace twice": ({"watchNamespaces": ["a", "a"]}, ["/watchNamespaces", "equal"]),
    "namespaces as one string": ({"watchNamespaces": "a,b"}, ["/watchNamespaces", "array"]),
    "digest of nothing": ({"images": {"worker": {"digest": "abc"}}}, ["/images/worker/digest", "sha256"]),
    "tag in repository": ({"images": {"vllm": {"repository": "vllm:1"}}}, ["/images/vllm/repository"]),
    "unknown log format": ({"log": {"format": "xml"}}, ["/log/format", "json", "text"]),
    "unknown log level": ({"log": {"level": "trace"}}, ["/log/level", "debug"]),
    "pull policy": ({"images": {"pullPolicy": "Sometimes"}}, ["/images/pullPolicy", "IfNotPresent"]),
    "resync too often": ({"resyncSeconds": 1}, ["/resyncSeconds", "minimum"]),
    "interval without unit": (
        {"metrics": {"serviceMonitor": {"interval": "30"}}}, ["/metrics/serviceMonitor/interval"],
    ),
    "scraped twice": (
        {"metrics": {"scrapeAnnotations": True, "serviceMonitor": {"enabled": True}}},
        ["scrapeAnnotations", "serviceMonitor.enabled", "twice"],
    ),
    "monitor without service": (
        {"metrics": {"enabled": False, "serviceMonitor": {"enabled": True}}}, ["metrics.enabled=true"],
    ),
    "no service account": ({"serviceAccount": {"create": False}}, ["serviceAccount.name"]),
}  # fmt: skip


@pytest.mark.parametrize(("values", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals_name_the_key(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(HelmError) as refused:
        template(values)
    missing = [word for word in words if word not in str(refused.value)]
    assert not missing, f"{missing} not in: {refused.value}"


def test_lint_is_strict_and_clean() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_chart_and_application_have_the_version_of_the_operator() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    init = (CHART.parents[1] / "operator" / "src" / "halfbyte" / "__init__.py").read_text()
    assert f'"{chart["version"]}"' in init
    assert chart["appVersion"] == chart["version"]
