"""Relative links in Markdown lead to files that exist, and their anchors to headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.markdown import ROOT, pages

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCE.sub("", page.read_text()), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = 0
        while (slug if not number else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if not number else f"{slug}-{number}")
    return found


def broken_links(page: Path) -> list[str]:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{target}: no such heading; there are {sorted(anchors(file))}")
    return broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_that_people_write_is_in_its_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = []
    for page in pages():
        if not page.is_relative_to(ROOT / "docs") or page.name == "README.md":
            continue
        name = page.relative_to(ROOT / "docs")
        if name.parts[0] == "adr":
            found = f"({page.name})" in (ROOT / "docs" / "adr" / "README.md").read_text()
        else:
            found = name.parts[0] in {"reference", "benchmarks"} or f"({name})" in index
        if not found:
            missing.append(str(name))
    assert missing == []


def test_a_broken_link_and_a_broken_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# One heading\n\n[x](gone.md) [y](a.md#two) [z](#one-heading) [w](https://example.com)\n"
    )
    assert [each.split(":")[0] for each in broken_links(tmp_path / "a.md")] == ["gone.md", "a.md#two"]
