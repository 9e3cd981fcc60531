"""The worker killed, told to end, or run twice: what it leaves behind and what the next one finds."""

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker import artifact, mounts
from worker.task_file import artifact_of, quantize_task

PATIENCE = 100
"""Seconds until a test gives up; nothing is concluded from how long it took."""


def run_worker(root: str, stage: str, slow: float) -> None:
    """The whole program in a child process. `slow` seconds are added to each progress line of the work."""
    from halfbyte_worker import log, main

    mounts.SOURCE_ROOT, mounts.ARTIFACT_ROOT = Path(root, "source"), Path(root, "artifacts")
    os.environ["HALFBYTE_TERMINATION_LOG"] = f"{root}/termination"
    sys.stdout = Path(root, "stdout").open("a")  # noqa: SIM115 - the process ends with it
    update = log.Progress.update

    def slowed(progress: log.Progress, done: int, message: str | None = None) -> None:
        update(progress, done, message)
        time.sleep(slow)

    log.Progress.update = slowed  # type: ignore[method-assign]
    main.main([stage, "--task", f"{root}/task.json"])


@pytest.fixture(scope="module")
def processes() -> Any:
    """Children of a server that has imported the libraries once: saves twelve seconds of CPU for each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["halfbyte_worker.compression"])
    return context


@pytest.fixture
def start(processes, volumes: Path, tiny: Path) -> Iterator[Callable[..., Any]]:
    started = []

    def begin(method: str, slow: float = 0.0) -> Any:
        (volumes / "task.json").write_text(quantize_task(method).model_dump_json(by_alias=True))
        process = processes.Process(target=run_worker, args=(str(volumes), "quantize", slow))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def wait_for(condition: Callable[[], Any]) -> Any:
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def lines(volumes: Path) -> list[dict[str, Any]]:
    path = volumes / "stdout"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def at_work(volumes: Path) -> bool:
    """The first layer is finished, the last is not: the middle of the work."""
    return any(line.get("event") == "progress" and line["done"] == 1 for line in lines(volumes))


def termination(volumes: Path) -> dict[str, Any]:
    return json.loads((volumes / "termination").read_bytes())


def exit_code(process: Any) -> int:
    process.join(PATIENCE)
    return process.exitcode


def test_killed_in_the_middle_the_next_run_makes_a_whole_one(start, volumes: Path) -> None:
    process = start("GPTQ", slow=1.0)
    wait_for(lambda: at_work(volumes))
    process.kill()
    assert exit_code(process) == -signal.SIGKILL
    wanted = artifact_of("GPTQ")
    assert not (mounts.ARTIFACT_ROOT / wanted["path"]).exists()
    assert list(mounts.ARTIFACT_ROOT.glob("*.partial-*"))
    assert not (volumes / "termination").exists()

    assert exit_code(start("GPTQ")) == 0
    assert artifact.damage(mounts.ARTIFACT_ROOT / wanted["path"], wanted["key"]) is None
    assert not list(mounts.ARTIFACT_ROOT.glob("*.partial-*"))
    assert termination(volumes)["result"]["reused"] is False


def test_sigterm_ends_cleanly(start, volumes: Path) -> None:
    process = start("GPTQ", slow=1.0)
    wait_for(lambda: at_work(volumes))
    os.kill(process.pid, signal.SIGTERM)
    assert exit_code(process) == 143
    told = termination(volumes)
    assert (told["ok"], told["stage"], told["reason"]) == (False, "quantize", "Interrupted")
    assert [path for path in mounts.ARTIFACT_ROOT.iterdir() if path.is_dir()] == []


def test_two_at_once_make_one_artifact(start, volumes: Path) -> None:
    first = start("W8A8", slow=1.0)
    wait_for(lambda: list(mounts.ARTIFACT_ROOT.glob("*.partial-*")))
    second = start("W8A8")
    wait_for(lambda: any(line["event"] == "waiting" for line in lines(volumes)))
    assert (exit_code(first), exit_code(second)) == (0, 0)
    told = [line["message"] for line in lines(volumes) if line["event"] == "finished"]
    assert sorted(message.split()[3].rstrip(":") for message in told) == ["made", "reused"]


def test_finished_run_is_found_by_the_next(start, volumes: Path) -> None:
    assert exit_code(start("None")) == 0
    assert exit_code(start("None")) == 0
    assert termination(volumes)["result"]["reused"] is True
