"""Alerts and dashboard: they ask for metrics that the operator has, with labels and values that occur."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from halfbyte.adapters.telemetry import Telemetry
from halfbyte.api.conditions import ConditionType
from support.helm import CHART, ROOT, template

DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
METRIC = re.compile(r"\b(?:halfbyte|process)_[a-z_]+\b")
RULES = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prom"}, "namespace": "mon"}}}


def exported() -> set[str]:
    telemetry = Telemetry()
    telemetry.reconciled("succeeded", 0.1)
    telemetry.request("PATCH", "jobs", 200)
    telemetry.conditions("ns", "m", {"conditions": [{"type": "Ready", "status": "True"}]})
    return {
        sample.name
        for family in telemetry.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def alerts() -> list[dict[str, Any]]:
    rule = template(RULES).one("PrometheusRule")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_every_metric_is_exported() -> None:
    known = exported()
    asked = {(name, metric) for name, expression in expressions() for metric in METRIC.findall(expression)}
    assert asked
    assert {each for each in asked if each[1] not in known} == set()


def test_conditions_and_results_are_ones_that_occur() -> None:
    reconciler = (ROOT / "operator" / "src" / "halfbyte" / "runtime" / "reconciler.py").read_text()
    for name, expression in expressions():
        for condition in re.findall(r'type="(\w+)"', expression):
            assert condition in set(ConditionType), name
        for result in re.findall(r'result=~"([\w|]+)"', expression):
            for each in result.split("|"):
                assert f'result = "{each}"' in reconciler, name


def test_brackets_of_every_expression_match() -> None:
    for name, expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), name


def test_alerts_say_what_and_what_to_do() -> None:
    assert len({alert["alert"] for alert in alerts()}) == len(alerts())
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "description"}, alert["alert"]
        assert alert["labels"]["severity"] in {"warning", "critical"}
    stalled = next(alert for alert in alerts() if alert["alert"] == "HalfbyteModelStalled")
    assert "{{ $labels.namespace }}/{{ $labels.name }}" in stalled["annotations"]["summary"]


def test_every_metric_and_alert_is_on_the_page() -> None:
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text()
    metrics = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in exported() if name.startswith("halfbyte_")
    }
    assert {name for name in metrics if f"`{name}`" not in page} == set()
    assert set(re.findall(r"`(halfbyte_\w+)`", page)) - metrics == set()
    assert set(re.findall(r"^\| (Halfbyte\w+)", page, flags=re.MULTILINE)) == {
        each["alert"] for each in alerts()
    }


def test_the_resync_alert_follows_the_period() -> None:
    rule = template({**RULES, "resyncSeconds": 1000}).one("PrometheusRule")
    assert "> 3000" in yaml.safe_dump(rule)


def test_rule_and_dashboard_are_found_by_label_and_off_by_default() -> None:
    rendered = template({"metrics": {"dashboard": {"enabled": True}}})
    config_map = rendered.one("ConfigMap")
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config_map["data"]["halfbyte.json"]) == DASHBOARD
    rule = template(RULES).one("PrometheusRule")
    assert (rule["metadata"]["namespace"], rule["metadata"]["labels"]["release"]) == ("mon", "prom")
    assert template().kinds() & {"ConfigMap", "PrometheusRule"} == set()


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_panels_are_in_the_grid_and_do_not_overlap(panel: dict[str, Any]) -> None:
    def cells(position: dict[str, int]) -> set[tuple[int, int]]:
        return {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }

    own = cells(panel["gridPos"])
    assert max(x for x, _ in own) < 24
    for other in DASHBOARD["panels"]:
        assert other["id"] == panel["id"] or not own & cells(other["gridPos"])
