"""JSON lines on standard output: what `kubectl logs` shows and what the operator reads progress from."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from datetime import UTC, datetime
from typing import Any, TextIO


def timestamp() -> str:
    """Now as `2026-11-30T09:32:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_line(level: str, event: str, *, stream: TextIO | None = None, **fields: Any) -> None:
    line = {"ts": timestamp(), "level": level, "event": event, **fields}
    print(json.dumps(line, ensure_ascii=False), file=stream or sys.stdout, flush=True)


def info(event: str, **fields: Any) -> None:
    write_line("info", event, **fields)


def warning(event: str, **fields: Any) -> None:
    write_line("warning", event, **fields)


class Progress:
    """How far one kind of work is: at most one line every `interval` seconds, besides the first and the last.

    `eta` is linear in what was done since this object was made, so make it when the work begins.
    """

    def __init__(self, stage: str, total: int, unit: str, message: str, interval: float = 2.0) -> None:
        self.stage, self.total, self.unit, self.message, self.interval = stage, total, unit, message, interval
        self.started = time.monotonic()
        self.offset: int | None = None
        self.said: float | None = None

    def update(self, done: int, message: str | None = None) -> None:
        """`done` of `total` so far; the first call's `done` was there before the work began."""
        now = time.monotonic()
        if self.offset is None:
            self.offset = done
        recent = self.said is not None and now - self.said < self.interval
        if recent and done < self.total:
            return
        self.said = now
        fresh = done - self.offset
        eta = round((now - self.started) / fresh * max(0, self.total - done)) if fresh > 0 else None
        info(
            "progress",
            stage=self.stage,
            done=done,
            total=self.total,
            unit=self.unit,
            etaSeconds=eta,
            message=message or self.message,
        )


class JsonHandler(logging.Handler):
    """Standard logging and warnings of libraries as lines like ours."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write_line(record.levelname.lower(), "log", logger=record.name, message=record.getMessage())
        except Exception:
            self.handleError(record)


def route_library_logs() -> None:
    """Send `logging` and `warnings`, from WARNING up, through this module. Call once, at start."""
    root = logging.getLogger()
    root.handlers[:] = [JsonHandler()]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    warnings.simplefilter("default")


def route_loguru() -> None:
    """The same for loguru, which llm-compressor uses with its own sink on standard error.

    Each message comes once, not once a layer, and its METRIC lines, which rank above WARNING, not at all.
    """
    from loguru import logger

    said = set()

    def sink(message: Any) -> None:
        record = message.record
        level, text = record["level"].name.lower(), record["message"]
        if level != "metric" and text not in said:
            said.add(text)
            write_line(level, "log", logger=record["name"], message=text)

    logger.remove()
    logger.add(sink, level="WARNING", format="{message}")
