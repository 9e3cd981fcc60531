"""Texts for people: aligned, without colours, so that they read the same in a terminal and in a ticket."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from halfbyte.adapters.execute import describe
from halfbyte.planning.plan import Plan
from halfbyte.planning.quantities import describe_bytes

Json = Mapping[str, Any]

_PLAN_SECTIONS = ("recipe", "compute", "quantizeJob", "validateJob", "artifact", "serving")
_BYTE_FIELDS = frozenset({"bytes", "sourceBytes", "kvBytesPerToken", "peakRssBytes"})


def plan_report(decided: Plan) -> str:
    """What was decided, why, and what would be done next."""
    status = decided.status
    sections = [_conditions(status), *_plan(status.get("plan") or {})]
    steps = [describe(each) for each in decided.actions] or ["nothing"]
    sections.append("Next\n" + "\n".join(f"  {step}" for step in steps))
    return "\n\n".join(sections)


def status_report(model: Json) -> str:
    metadata, spec = model["metadata"], model.get("spec") or {}
    status = model.get("status") or {}
    head = table(
        [
            ("Model", f"{metadata['namespace']}/{metadata['name']}"),
            ("Source", _source(spec.get("source") or {}, status)),
            ("Generation", _generation(metadata, status)),
        ]
    )
    sections = [head, _conditions(status)]
    if progress := status.get("progress"):
        sections.append(f"Progress\n  {_progress(progress)}")
    sections += _plan(status.get("plan") or {})
    if artifact := status.get("artifact"):
        sections.append(_fields("Artifact", artifact))
    if evidence := status.get("validation"):
        sections.append(_measurements(evidence))
    if serving := status.get("serving"):
        sections.append(_fields("Serving", serving))
    if history := status.get("history"):
        rows = [
            (each.get("revision", ""), each.get("servedFrom", ""), each.get("servedUntil", ""))
            for each in history
        ]
        sections.append("History\n" + table([("REVISION", "FROM", "UNTIL"), *rows], indent=2))
    return "\n\n".join(sections)


def progress_line(model: Json) -> str:
    """Ready's reason and message, with the running Job's progress."""
    status = model.get("status") or {}
    ready = next((each for each in status.get("conditions") or () if each["type"] == "Ready"), None)
    if ready is None:
        return "Pending: the operator has not looked at it yet"
    progress = status.get("progress")
    shown = f" ({_progress(progress)})" if progress else ""
    return f"{ready['reason']}: {ready['message']}{shown}"


def worker_line(line: str) -> str:
    """A worker's JSON line as text; any other line as it is."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or "event" not in entry:
        return line
    words = entry.get("message") or entry["event"]
    if entry["event"] == "progress":
        words = _progress(entry)
    return f"{str(entry.get('ts', ''))[11:19]} {entry.get('level', 'info'):7} {words}"


def table(rows: Iterable[Sequence[object]], indent: int = 0) -> str:
    """Columns as wide as their widest cell, two spaces between them."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    )


def _conditions(status: Json) -> str:
    rows = [
        (each["type"], each["status"], each["reason"], each["message"])
        for each in status.get("conditions") or ()
    ]
    return table([("CONDITION", "STATUS", "REASON", "MESSAGE"), *rows])


def _plan(plan: Json) -> list[str]:
    if not plan:
        return []
    found = [f"Plan {plan.get('digest', '')}"]
    found += [_fields(name[0].upper() + name[1:], plan[name]) for name in _PLAN_SECTIONS if plan.get(name)]
    return found


def _fields(title: str, values: Json) -> str:
    rows = [(key, _value(key, value)) for key, value in values.items() if value is not None]
    return f"{title}\n" + table(rows, indent=2)


def _value(key: str, value: object) -> str:
    if key in _BYTE_FIELDS and isinstance(value, int):
        return f"{value} ({describe_bytes(value)})"
    if isinstance(value, list):
        return " ".join(str(each) for each in value)
    return str(value)


def _measurements(evidence: Json) -> str:
    rows = [
        (
            each["name"],
            each["value"],
            each.get("threshold") or "-",
            each.get("verdict") or "-",
            each.get("samples") or "-",
        )
        for each in evidence.get("measurements") or ()
    ]
    head = ("MEASUREMENT", "VALUE", "THRESHOLD", "VERDICT", "SAMPLES")
    return f"Validation: {evidence.get('verdict', 'unknown')}\n" + table([head, *rows], indent=2)


def _progress(progress: Json) -> str:
    done, total = progress.get("done"), progress.get("total")
    counted = f"{done} of {total} {progress.get('unit', '')}".rstrip() if total else ""
    eta = progress.get("etaSeconds")
    parts = (progress.get("message"), counted, f"about {eta} s left" if eta is not None else None)
    return ", ".join(str(part) for part in parts if part)


def _source(source: Json, status: Json) -> str:
    hub, claim = source.get("huggingFace"), source.get("pvc")
    named = f"{hub['repo']}@{hub.get('revision', 'main')}" if hub else ""
    if claim:
        named = f"claim {claim['claimName']}, path {claim.get('path') or '.'}"
    revision = ((status.get("facts") or {}).get("source") or {}).get("revision")
    return f"{named} (revision {revision})" if revision else named


def _generation(metadata: Json, status: Json) -> str:
    observed = status.get("observedGeneration", -1)
    if observed == metadata.get("generation"):
        return str(observed)
    return f"{metadata.get('generation')} (the operator has seen {observed})"
