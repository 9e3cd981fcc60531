"""The termination message: a JSON object of at most 4096 bytes; the kubelet copies it to the pod's status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

LIMIT = 4096
"""Bytes. The kubelet cuts longer messages, which would leave half a JSON object."""
PATH = Path("/dev/termination-log")
PATH_VARIABLE = "HALFBYTE_TERMINATION_LOG"
MESSAGE_LIMIT = 1024


def build_message(
    *, ok: bool, stage: str, reason: str, message: str, result: dict[str, Any] | None = None
) -> bytes:
    """UTF-8 JSON of at most LIMIT bytes.

    What is too long gives way in this order: the message beyond MESSAGE_LIMIT characters, the rows of
    `linears` from its end (`linearsTruncated` then says so), and as the last resort the result.
    """
    body: dict[str, Any] = {"ok": ok, "stage": stage, "reason": reason, "message": shortened(message)}
    body["result"] = dict(result or {})
    while len(encoded := encode(body)) > LIMIT:
        linears = body["result"].get("linears")
        if linears:
            over = len(encoded) - LIMIT
            row = max(1, len(encode(linears)) // len(linears))
            keep = max(0, len(linears) - max(1, over // row))
            body["result"] |= {"linears": linears[:keep], "linearsTruncated": True}
        elif body["result"]:
            body["result"] = {}
        else:
            body["message"] = shortened(body["message"], len(body["message"]) // 2)
    return encoded


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def shortened(text: str, limit: int = MESSAGE_LIMIT) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def write_message(message: bytes) -> None:
    """Write where the kubelet looks. Outside a pod, where nobody reads it, a missing place is no error."""
    path = Path(os.environ.get(PATH_VARIABLE) or PATH)
    try:
        path.write_bytes(message)
    except OSError:
        # The exit code still says what matters.
        return
