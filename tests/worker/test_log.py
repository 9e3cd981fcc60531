import json
import logging
import warnings
from typing import Any

import pytest

from halfbyte_worker import log


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    found = FakeTime()
    monkeypatch.setattr(log.time, "monotonic", found.monotonic)
    return found


@pytest.fixture
def kept_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with warnings.catch_warnings():
        yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("start", stage="inspect", message="two\nlines ä")
    (line,) = lines(capsys)
    assert (line["level"], line["event"], line["message"]) == ("info", "start", "two\nlines ä")
    assert line["ts"].endswith("Z")


def test_progress_line_has_the_fields_that_the_operator_reads(clock, capsys) -> None:
    log.Progress("quantize", 30, "layers", "calibrating").update(12)
    (line,) = lines(capsys)
    del line["ts"]
    assert line == {
        "level": "info", "event": "progress", "stage": "quantize", "done": 12, "total": 30, "unit": "layers",
        "etaSeconds": None, "message": "calibrating",
    }  # fmt: skip


def test_progress_is_throttled_but_the_last_line_is_always_written(clock, capsys) -> None:
    progress = log.Progress("quantize", 1000, "bytes", "downloading")
    for done in range(0, 1001, 10):
        progress.update(done)
        clock.now += 0.1
    found = [line["done"] for line in lines(capsys)]
    assert found[0] == 0
    assert found[-1] == 1000
    assert len(found) < 10


def test_the_remaining_time_counts_only_what_this_run_did(clock, capsys) -> None:
    progress = log.Progress("quantize", 100, "layers", "going on")
    progress.update(50)
    clock.now += 10
    progress.update(75)
    assert [line["etaSeconds"] for line in lines(capsys)] == [None, 10]


def test_library_logs_and_warnings_become_lines(kept_logging, capsys) -> None:
    log.route_library_logs()
    logging.getLogger("somewhere").warning("careful with %s", "that")
    logging.getLogger("somewhere").info("chatter")
    warnings.warn("old thing", DeprecationWarning, stacklevel=1)
    found = lines(capsys)
    assert [line["event"] for line in found] == ["log", "log"]
    assert found[0]["message"] == "careful with that"
    assert "old thing" in found[1]["message"]
