from __future__ import annotations

import pytest

from halfbyte.adapters.matrix import load_matrix
from halfbyte.runtime.settings import OPTIONS, PREFIX, SettingsError, load_settings


def test_defaults_watch_the_whole_cluster() -> None:
    settings = load_settings([], {})
    assert settings.watch_namespaces == ()
    assert settings.planning.jobs.cpu_limit_millis is None
    assert settings.planning.matrix == load_matrix()
    assert settings.pod_name, "host and process"


def test_variables_and_flags() -> None:
    environment = {
        "HALFBYTE_WATCH_NAMESPACES": "a, b,",
        "HALFBYTE_WORKER_IMAGE": "registry/worker@sha256:1",
        "HALFBYTE_IMAGE_PULL_POLICY": "Never",
        "HALFBYTE_JOB_CPU_LIMIT_MILLIS": "2000",
        "HALFBYTE_RESYNC_SECONDS": "60",
        "HALFBYTE_WORKERS": "2",
    }
    settings = load_settings(["--workers=8"], environment)
    assert settings.watch_namespaces == ("a", "b")
    assert settings.planning.images.worker == "registry/worker@sha256:1"
    assert settings.planning.images.pull_policy == "Never"
    assert settings.planning.jobs.cpu_limit_millis == 2000
    assert settings.resync_seconds == 60
    assert settings.workers == 8, "a flag comes before a variable"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("WORKERS", "0", "a whole number from 1 to 64"),
        ("WORKERS", "-1", "a whole number from 1 to 64"),
        ("RESYNC_SECONDS", "5m", "a whole number from 10 to 86400"),
        ("LEASE_SECONDS", "1", "a whole number from 6 to 3600"),
        ("HTTP_PORT", "http", "a whole number from 0 to 65535"),
        ("LOG_FORMAT", "xml", "one of json, text"),
        ("LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("IMAGE_PULL_POLICY", "Sometimes", "one of Always, IfNotPresent, Never"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings([], {PREFIX + variable: value})
    assert str(caught.value) == f"HALFBYTE_{variable} is '{value}', must be {allowed}"


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_settings(["--help"], {})
    assert caught.value.code == 0
    text = "".join(capsys.readouterr().out.split())
    for name, _, _ in OPTIONS:
        assert PREFIX + name.replace("-", "_").upper() in text
