"""Fenced blocks of a Markdown page, with their language and line."""

from __future__ import annotations

import re
import subprocess
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """``line`` is that of the opening fence, counted from 1."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return str(self.page.relative_to(ROOT)) if self.page.is_relative_to(ROOT) else self.page.name

    @property
    def where(self) -> str:
        return f"{self.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], textwrap.dedent(match["text"]))
        for match in FENCE.finditer(text)
    ]


def pages() -> list[Path]:
    """Every Markdown file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return sorted(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())
