"""The program as the pod runs it: a process, a task file, an exit code, a termination message."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker import main
from halfbyte_worker.failure import Failure, Reason
from support.hub import FakeHub, Fault, Repo
from support.hub.server import wait_until
from worker.checkpoint_files import model_files, write_files

TOKEN = "hf_secretsecretsecret"
COMMON: dict[str, Any] = {
    "version": 1,
    "model": {"name": "m", "namespace": "models"},
    "compute": {"dtype": "float32", "threads": 1},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path / "source" / "llama", model_files())
    (tmp_path / "artifacts").mkdir()
    return tmp_path


@pytest.fixture
def server() -> Iterator[FakeHub]:
    with FakeHub({"owner/name": Repo.of(model_files())}) as found:
        yield found


def start(
    root: Path, source: dict[str, Any] | None, *arguments: str, **environment: str
) -> subprocess.Popen[str]:
    if source is not None:
        task = COMMON | {"source": source, "artifact": {"root": str(root / "artifacts")}}
        (root / "task.json").write_text(json.dumps(task))
    variables = os.environ | {
        "HALFBYTE_ROOT": str(root),
        "HALFBYTE_TERMINATION_LOG": str(root / "termination"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HALFBYTE_HUB_STALL_SECONDS": "0.5",
        "HALFBYTE_HUB_ATTEMPTS": "2",
        "HALFBYTE_HUB_BACKOFF_SECONDS": "0.01",
        "HF_TOKEN": TOKEN,
    }
    command = [
        sys.executable, "-m", "halfbyte_worker",
        *(arguments or ("inspect", "--task", str(root / "task.json"))),
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        env=variables | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    assert TOKEN not in out + err
    return process.returncode, out, err


def told(root: Path) -> dict[str, Any]:
    text = (root / "termination").read_text()
    assert len(text.encode()) <= 4096
    assert TOKEN not in text
    found: dict[str, Any] = json.loads(text)
    return found


def hub_source(server: FakeHub, **changes: str) -> dict[str, Any]:
    return {
        "type": "huggingFace",
        "repo": "owner/name",
        "revision": "main",
        "endpoint": server.endpoint,
    } | changes


def test_success(root: Path) -> None:
    code, out, err = end(start(root, {"type": "pvc", "path": "llama"}))
    assert (code, err) == (0, "")
    found = told(root)
    assert (found["ok"], found["stage"], found["reason"]) == (True, "inspect", "Done")
    assert found["result"]["layers"] == 2
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["start", "inspected", "finished"]


def test_success_from_a_hub(root: Path, server: FakeHub) -> None:
    code, _, err = end(start(root, hub_source(server)))
    assert (code, err) == (0, "")
    assert told(root)["result"]["source"]["revision"] == server.repos["owner/name"].refs["main"]
    assert server.requests[0][1]["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("changes", "faults", "code", "reason"),
    [
        ({"repo": "owner/other"}, [], 20, "SourceNotFound"),
        ({"revision": "v9"}, [], 20, "RevisionNotFound"),
        ({}, [Fault("resolve", status=403, echo=True)], 20, "GatedRepository"),
        ({}, [Fault("/api/", status=503, echo=True)], 10, "SourceUnreachable"),
        ({"endpoint": "http://127.0.0.1:9"}, [], 10, "SourceUnreachable"),
        ({}, [Fault("/api/", hang=True)], 10, "SourceStalled"),
        ({}, [Fault("model.safetensors", content=b"no checkpoint")], 20, "SourceIncomplete"),
        (
            {},
            [Fault("config.json", content=b'{"architectures": ["BertModel"]}')],
            20,
            "UnsupportedArchitecture",
        ),
    ],
)
def test_each_failure_of_a_hub_has_its_exit_code_and_reason(
    root: Path, server: FakeHub, changes: dict[str, str], faults: list[Fault], code: int, reason: str
) -> None:
    server.faults = faults
    found, out, _ = end(start(root, hub_source(server, **changes)))
    assert found == code
    spoken = told(root)
    assert (spoken["ok"], spoken["reason"], spoken["result"]) == (False, reason, {})
    last = json.loads(out.splitlines()[-1])
    assert (last["level"], last["reason"], last["message"]) == ("error", reason, spoken["message"])


def test_each_failure_of_a_claim_has_its_exit_code_and_reason(root: Path) -> None:
    assert end(start(root, {"type": "pvc", "path": "lama"}))[0] == 20
    assert told(root)["reason"] == "SourceNotFound"
    assert "the claim has: llama" in told(root)["message"]
    (root / "source" / "llama" / "model.safetensors").write_bytes(b"cut")
    assert end(start(root, {"type": "pvc", "path": "llama"}))[0] == 20
    assert told(root)["reason"] == "SourceIncomplete"


def test_a_bad_task(root: Path) -> None:
    assert end(start(root, {"type": "tape"}))[0] == 2
    assert told(root)["reason"] == "InvalidTask"
    assert end(start(root, None, "inspect", "--task", "/nowhere/task.json"))[0] == 2
    assert "/nowhere/task.json" in told(root)["message"]


@pytest.mark.parametrize(
    "arguments", [("--unknown",), ("inspect",), ("train", "--task", "x"), ("inspect", "x")]
)
def test_bad_usage(root: Path, arguments: tuple[str, ...]) -> None:
    code, _, err = end(start(root, None, *arguments))
    assert code == 2
    assert "usage: halfbyte-worker" in err


def test_help_and_version(root: Path) -> None:
    code, out, _ = end(start(root, None, "--help"))
    assert code == 0
    assert all(stage in out for stage in ("inspect", "quantize", "validate"))
    assert end(start(root, None, "--version"))[1].startswith("halfbyte-worker 0.1.0")


def test_sigterm_while_waiting_for_a_hub(root: Path, server: FakeHub) -> None:
    server.faults = [Fault("/api/", hang=True)]
    process = start(root, hub_source(server), HALFBYTE_HUB_STALL_SECONDS="60")
    wait_until(lambda: server.requests)
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert (told(root)["reason"], told(root)["stage"]) == ("Interrupted", "inspect")


def test_sigterm_while_the_main_thread_does_not_listen(root: Path) -> None:
    """A long call into a library never comes back to Python, where the handler would run."""
    code = (
        "import ctypes, sys\n"
        "from halfbyte_worker import main\n"
        "main.Termination.__init__.__defaults__ = (0.2,)\n"
        "def work(task):\n"
        "    print('ready', flush=True)\n"
        "    while True: ctypes.CDLL(None).usleep(100_000_000)\n"
        "main.stage_function = lambda stage: work\n"
        "main.main(['inspect', '--task', sys.argv[1]])\n"
    )
    task = COMMON | {"source": {"type": "pvc", "path": "llama"}}
    (root / "task.json").write_text(json.dumps(task))
    environment = os.environ | {
        "HALFBYTE_TERMINATION_LOG": str(root / "termination"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", code, str(root / "task.json")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    while "ready" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert told(root)["reason"] == "Interrupted"


def raising(error: BaseException) -> Callable[[str], Callable[[Any], dict[str, Any]]]:
    def work(task: Any) -> dict[str, Any]:
        raise error

    return lambda stage: work


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (MemoryError(), 30, "OutOfMemory"),
        (OSError(errno.ENOSPC, "No space left on device"), 40, "OutOfDisk"),
        (Failure(Reason.GATE_FAILED, "cosine", result={"verdict": "Failed"}), 50, "GateFailed"),
        (KeyError("surprise"), 10, "InternalError"),
        (SystemExit(1), 10, "InternalError"),
    ],
)
def test_whatever_ends_a_stage_becomes_a_message(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys, error: BaseException, code: int, reason: str
) -> None:
    (root / "task.json").write_text(json.dumps(COMMON | {"source": {"type": "pvc", "path": "llama"}}))
    monkeypatch.setattr(main, "stage_function", raising(error))
    found, message = main.run_stage("inspect", root / "task.json")
    spoken = json.loads(message)
    assert (found, spoken["ok"], spoken["reason"]) == (code, False, reason)
    assert spoken["result"] == (error.result if isinstance(error, Failure) else {})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ("traceback" in [line["event"] for line in lines]) is not isinstance(error, Failure)


@pytest.mark.parametrize("stage", ["inspect", "quantize", "validate"])
def test_each_stage_is_a_function(stage: str) -> None:
    assert main.stage_function(stage).__name__ == stage
