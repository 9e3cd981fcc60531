"""A reason that the operator can give has an entry that says what it means, why it comes and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfbyte.api.conditions import Reason

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "troubleshooting.md"
ENTRIES = {
    entry.split("\n", 1)[0].strip(): entry.split("\n", 1)[1].split("\n## ")[0]
    for entry in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
}
SECTION_OF = {
    reason: section.split("\n", 1)[0].strip()
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    for reason in re.findall(r"^### (\w+)", section, flags=re.MULTILINE)
}


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_every_reason_has_meaning_cause_and_what_to_do(reason: Reason) -> None:
    entry = ENTRIES.get(reason.value)
    assert entry is not None, f"docs/operations/troubleshooting.md has no entry '### {reason.value}'"
    for part in ("*Meaning.* ", "*Cause.* ", "*Do.* "):
        assert len(entry.split(part)) == 2, f"{reason.value}: exactly one {part.strip()}"


def test_no_entry_outlives_its_reason() -> None:
    assert set(ENTRIES) - {reason.value for reason in Reason} == set()


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_what_ends_in_stalled_stands_under_stalled(reason: Reason) -> None:
    assert (SECTION_OF[reason.value] == "Stalled") is reason.terminal
