"""Command line, signals, and the place where a run's end becomes an exit code and a termination message."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from halfbyte_worker import __version__, log
from halfbyte_worker.failure import ExitCode, Failure, Interrupted, classify_exception
from halfbyte_worker.task import Task, read_task
from halfbyte_worker.termination import build_message, write_message

GRACE_SECONDS = 6.0
"""How long a SIGTERM waits for the work to notice it before the process ends itself; the pod has 15 s."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halfbyte-worker",
        description="Inspect, quantize or validate one model. The exit code and the termination message tell "
        "how it ended: images/worker/README.md has the contract.",
    )
    parser.add_argument("--version", action="version", version=f"halfbyte-worker {__version__}")
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for stage, what in {
        "inspect": "read the configuration and the tensor headers of the source, never its weights",
        "quantize": "make the artifact, or find it finished",
        "validate": "measure the artifact against its source and judge the gates",
    }.items():
        command = stages.add_parser(stage, help=what, description=what)
        command.add_argument("--task", type=Path, required=True, metavar="FILE", help="the task, a JSON file")
    return parser


def stage_function(stage: str) -> Callable[[Any], dict[str, Any]]:
    # Imported here: quantize and validate bring torch, and inspect must not wait for it.
    if stage == "inspect":
        from halfbyte_worker.inspection import inspect

        return inspect
    if stage == "quantize":
        from halfbyte_worker.quantization import quantize

        return quantize
    from halfbyte_worker.validation import validate

    return validate


def run_stage(stage: str, path: Path) -> tuple[ExitCode, bytes]:
    """Exit code and termination message of one stage. Raises nothing."""
    try:
        task: Task = read_task(stage, path)
        log.info("start", stage=stage, version=__version__, model=f"{task.model.namespace}/{task.model.name}")
        result = stage_function(stage)(task)
    except BaseException as error:
        failure = classify_exception(error)
        if not isinstance(error, Failure | Interrupted):
            trace = "".join(traceback.format_exception(error))
            log.write_line("error", "traceback", stage=stage, message=trace)
        log.write_line("error", "failed", stage=stage, reason=failure.reason, message=failure.message)
        return failure.code, build_message(
            ok=False, stage=stage, reason=failure.reason, message=failure.message, result=failure.result
        )
    message = result.pop("message")
    log.info("finished", stage=stage, message=message)
    return ExitCode.OK, build_message(ok=True, stage=stage, reason="Done", message=message, result=result)


class Termination:
    """Turns SIGTERM into Interrupted in the main thread, and into an exit when that does not listen.

    A Python signal handler waits for the C++ call of the moment, and a layer of a large model can take longer
    than the pod's grace period. The C-level handler writes the wake-up descriptor: a thread sees it at once.
    """

    def __init__(self, stage: str, grace_seconds: float = GRACE_SECONDS) -> None:
        self.stage, self.grace_seconds = stage, grace_seconds
        self.finished = threading.Event()
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)

    def install(self) -> None:
        signal.signal(signal.SIGTERM, self.interrupt)
        signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
        threading.Thread(target=self.watch, name="sigterm", daemon=True).start()

    def interrupt(self, number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Interrupted

    def watch(self) -> None:
        while signal.SIGTERM not in os.read(self.reading, 64):
            pass
        if self.finished.wait(self.grace_seconds):
            return
        write_message(self.message())
        os._exit(ExitCode.INTERRUPTED)

    def message(self) -> bytes:
        failure = classify_exception(Interrupted())
        return build_message(ok=False, stage=self.stage, reason=failure.reason, message=failure.message)


def main(arguments: list[str] | None = None) -> NoReturn:
    parsed = build_parser().parse_args(arguments)
    log.route_library_logs()
    termination = Termination(parsed.stage)
    termination.install()
    code, message = run_stage(parsed.stage, parsed.task)
    termination.finished.set()
    write_message(message)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Not sys.exit: thread pools of the libraries would hold a finished process.
    os._exit(code)
