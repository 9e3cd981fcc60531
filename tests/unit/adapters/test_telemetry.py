from __future__ import annotations

from halfbyte import __version__
from halfbyte.adapters.telemetry import Telemetry


def lines(telemetry: Telemetry, name: str) -> list[str]:
    return [line for line in telemetry.render().decode().splitlines() if line.startswith(name)]


def status(**conditions: str) -> dict[str, object]:
    return {"conditions": [{"type": each, "status": value} for each, value in conditions.items()]}


def test_conditions_follow_the_status() -> None:
    telemetry = Telemetry()
    telemetry.conditions("ns", "m", status(Ready="False", Reconciling="True"))
    telemetry.conditions("ns", "m", status(Ready="True"))
    found = lines(telemetry, "halfbyte_model_condition")
    assert len(found) == 3, "the condition that went away has no series"
    label = 'name="m",namespace="ns",status="True",type="Ready"'
    assert f"halfbyte_model_condition{{{label}}} 1.0" in found
    assert all('type="Ready"' in line for line in found)


def test_a_forgotten_model_has_no_series() -> None:
    telemetry = Telemetry()
    telemetry.conditions("ns", "m", status(Ready="True"))
    telemetry.conditions("ns", "n", status(Ready="True"))
    telemetry.forget("ns", "m")
    telemetry.forget("ns", "never-seen")
    assert telemetry.models() == {("ns", "n")}
    assert not any('name="m"' in line for line in lines(telemetry, "halfbyte_model_condition"))


def test_only_requests_that_may_change_something_are_writes() -> None:
    telemetry = Telemetry()
    for verb in ("GET", "PATCH", "POST", "PATCH"):
        telemetry.request(verb, "jobs", 200)
    assert lines(telemetry, "halfbyte_apiserver_writes_total") == [
        'halfbyte_apiserver_writes_total{resource="jobs",verb="PATCH"} 2.0',
        'halfbyte_apiserver_writes_total{resource="jobs",verb="POST"} 1.0',
    ]
    assert len(lines(telemetry, "halfbyte_apiserver_requests_total")) == 3


def test_build_and_process_are_described() -> None:
    telemetry = Telemetry()
    telemetry.reconciled("succeeded", 0.02)
    assert lines(telemetry, "halfbyte_build_info") == [f'halfbyte_build_info{{version="{__version__}"}} 1.0']
    assert lines(telemetry, "process_resident_memory_bytes")
    assert lines(telemetry, "halfbyte_reconciles_total") == [
        'halfbyte_reconciles_total{result="succeeded"} 1.0'
    ]
