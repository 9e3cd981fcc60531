"""Logs on stderr, one JSON object a line or text; lines written during a reconcile carry its model."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

MODEL: ContextVar[str] = ContextVar("model", default="")
"""``namespace/name`` of the model that the current task reconciles."""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if model := MODEL.get():
            entry["model"] = model
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        model = MODEL.get()
        line = f"{moment} {record.levelname:7} {f'[{model}] ' if model else ''}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logs(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if root.level > logging.DEBUG:
        # Kopf reports every watch event at INFO or DEBUG and client libraries their connections.
        for chatty in ("kopf", "aiohttp.access", "asyncio", "kubernetes"):
            logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))
