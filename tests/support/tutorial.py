"""A tutorial page as a program: its `console` and `bash` blocks, run in one shell in the order of the page.

In a `console` block a line after `$ ` is a command; it goes on while it ends in a backslash or a here-
document is open. Every other line is output, which is shown to readers and not compared. A `bash` block
is one command. Blocks in any other language are not run. The page's own `kubectl wait` lines are its
assertions: a command that fails ends the run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.markdown import ROOT, Block, blocks

HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


class TutorialError(AssertionError):
    """A command of the page failed; the message has its line, itself and the end of what the shell said."""


@dataclass(frozen=True)
class Step:
    """One command; ``where`` is the page and the line on which it starts."""

    where: str
    command: str


def _console_steps(block: Block) -> list[Step]:
    found: list[Step] = []
    going_on, delimiter = False, None
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        if not going_on and line.startswith("$ "):
            found.append(Step(f"{block.name}:{number}", line[2:]))
            opened = HEREDOC.search(line)
            delimiter = opened[1] if opened else None
        elif going_on:
            found[-1] = Step(found[-1].where, f"{found[-1].command}\n{line}")
            if delimiter and line.strip() == delimiter:
                delimiter = None
        else:
            continue
        going_on = delimiter is not None or line.endswith("\\")
    if going_on:
        raise TutorialError(f"{found[-1].where}: the last command of the block does not end")
    return found


def steps(page: Path) -> list[Step]:
    found: list[Step] = []
    for block in blocks(page):
        if block.language == "console":
            found += _console_steps(block)
        elif block.language == "bash":
            found.append(Step(f"{block.name}:{block.line + 1}", block.text.rstrip()))
    return found


def script(page: Path) -> str:
    """One bash program that says each step on standard error before it runs it."""
    lines = ["set -euo pipefail"]
    for step in steps(page):
        lines += [
            f"printf '\\n[%s] %s\\n' {shlex.quote(step.where)} {shlex.quote(step.command)} >&2",
            step.command,
        ]
    return "\n".join(lines) + "\n"


def run(page: Path, *, environment: Mapping[str, str] | None = None, timeout: float = 3600) -> str:
    """Everything that the page's commands printed, run from the root of the repository."""
    done = subprocess.run(
        ["bash", "-c", script(page)],
        cwd=ROOT,
        env=dict(os.environ, **(environment or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        steps_said = re.split(r"\n(?=\[[^\]\n]+\.md:\d+\] )", done.stdout)
        raise TutorialError(f"exit status {done.returncode} at\n{steps_said[-1][-4000:]}")
    return done.stdout
