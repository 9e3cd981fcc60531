from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from halfbyte.runtime.logs import MODEL, configure_logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    chatty = {
        name: logging.getLogger(name).level for name in ("kopf", "aiohttp.access", "asyncio", "kubernetes")
    }
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in chatty.items():
        logging.getLogger(name).setLevel(each)


def test_json_lines_carry_the_model_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    token = MODEL.set("models/tiny")
    try:
        raise RuntimeError("no such layer")
    except RuntimeError:
        logging.getLogger("halfbyte.x").exception("it failed at %d", 3)
    MODEL.reset(token)
    logging.getLogger("halfbyte.x").info("next")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["model"]) == ("error", "it failed at 3", "models/tiny")
    assert "RuntimeError: no such layer" in first["exception"]
    assert "model" not in second
    assert second["ts"].endswith("+00:00")


def test_text_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "debug")
    token = MODEL.set("models/tiny")
    logging.getLogger("halfbyte.x").warning("careful")
    MODEL.reset(token)
    try:
        raise RuntimeError("no such layer")
    except RuntimeError:
        logging.getLogger("halfbyte.x").exception("failed")
    text = capsys.readouterr().err
    assert "WARNING [models/tiny] careful" in text
    assert "RuntimeError: no such layer" in text


def test_kopf_is_quiet_unless_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("text", "info")
    logging.getLogger("kopf.objects").info("Handler 'child_event' succeeded.")
    assert capsys.readouterr().err == ""
