"""The extractor that turns a page into a program, and the tutorial as far as one can without a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.markdown import ROOT
from support.tutorial import TutorialError, run, script, steps

TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGE = """\
# A page

```console
$ name=world
$ cat <<'END'
$ not a command
END
this is output
$ printf 'hello %s\\n' \\
    "$name"
hello world
```

- in a list:

  ```bash
  for each in 1 2; do
    echo "number $each"
  done
  ```

```yaml
echo: not run
```

```sh
exit 3
```
"""


def page(tmp_path: Path, text: str) -> Path:
    (tmp_path / "page.md").write_text(text)
    return tmp_path / "page.md"


def test_commands_are_told_from_output(tmp_path: Path) -> None:
    found = steps(page(tmp_path, PAGE))
    assert [step.command for step in found] == [
        "name=world",
        "cat <<'END'\n$ not a command\nEND",
        "printf 'hello %s\\n' \\\n    \"$name\"",
        'for each in 1 2; do\n  echo "number $each"\ndone',
    ]
    assert [step.where for step in found] == ["page.md:4", "page.md:5", "page.md:9", "page.md:17"]


def test_the_page_runs_in_one_shell(tmp_path: Path) -> None:
    out = run(page(tmp_path, PAGE))
    for line in ("$ not a command", "hello world", "number 2"):
        assert line in out


def test_a_failing_command_is_named_with_its_line(tmp_path: Path) -> None:
    text = PAGE + "\n```console\n$ ls /nowhere\n$ echo never reached > reached\n```\n"
    with pytest.raises(TutorialError) as failed:
        run(page(tmp_path, text))
    assert "page.md:31] ls /nowhere" in str(failed.value)
    assert "No such file" in str(failed.value)
    assert "hello world" not in str(failed.value)


def test_a_here_document_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TutorialError, match=r"page\.md:2: .* does not end"):
        steps(page(tmp_path, "```console\n$ cat <<'END'\nx\n```\n"))


def test_the_tutorial_is_a_sound_program_that_leaves_the_cluster_up() -> None:
    text = script(TUTORIAL)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert len(steps(TUTORIAL)) >= 10
    assert "cluster down" not in text
    assert text.count(" wait ") >= 5, "the waits are the assertions"
