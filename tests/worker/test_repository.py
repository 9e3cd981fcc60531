import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker import mounts, node, repository
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.repository import Repository
from halfbyte_worker.source import open_source, read_headers
from halfbyte_worker.task import HubSource
from support.hub import FakeHub, Fault, Repo
from support.hub.server import wait_until
from worker.checkpoint_files import header_of, model_files, sharded_files

REPO, TOKEN = "owner/name", "hf_secretsecretsecret"
DOWNLOAD = """
import resource, sys
from halfbyte_worker.source import open_source
from halfbyte_worker.task import HubSource

source = open_source(HubSource(type="huggingFace", repo=sys.argv[1], revision="main", endpoint=sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = source.local_folder("quantize")
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name, value in {"STALL_SECONDS": "5", "ATTEMPTS": "3", "BACKOFF_SECONDS": "0.005"}.items():
        monkeypatch.setenv(f"HALFBYTE_HUB_{name}", value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(repository, "RESERVE", 0)
    with FakeHub({REPO: Repo.of(model_files())}) as found:
        yield found


def repo_source(server: FakeHub, revision: str = "main") -> Repository:
    found = open_source(HubSource(type="huggingFace", repo=REPO, revision=revision, endpoint=server.endpoint))
    assert isinstance(found, Repository)
    return found


def start_download(server: FakeHub, root: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DOWNLOAD, REPO, server.endpoint]
    variables = (
        os.environ | {"HALFBYTE_ROOT": str(root), "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    )
    return subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_headers_are_read_without_a_download(server: FakeHub, volumes: Path) -> None:
    source = repo_source(server)
    headers = read_headers(source)
    assert list(headers) == ["model.safetensors"]
    assert source.revision(headers) == server.repos[REPO].refs["main"]
    assert names(mounts.ARTIFACT_ROOT) in ([], [".sources"])
    assert all("Range" in headers for path, headers in server.requests if "resolve" in path)


def test_a_download_lies_on_the_artifact_claim_under_its_commit(
    server: FakeHub, volumes: Path, capsys
) -> None:
    folder = repo_source(server).local_folder("quantize")
    commit = server.repos[REPO].refs["main"]
    assert folder == mounts.ARTIFACT_ROOT / ".sources" / f"owner--name@{commit}"
    assert names(folder) == [".complete", *sorted(model_files())]
    assert {name: (folder / name).read_bytes() for name in model_files()} == model_files()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    progress = [line for line in lines if line["event"] == "progress"]
    total = sum(len(content) for content in model_files().values())
    assert (progress[-1]["done"], progress[-1]["total"], progress[-1]["unit"]) == (total, total, "bytes")
    assert {line["stage"] for line in progress} == {"quantize"}


def test_only_what_a_model_needs_is_downloaded(server: FakeHub, volumes: Path) -> None:
    unneeded = ["README.md", "pytorch_model.bin", "modeling_own.py", "consolidated.safetensors"]
    unsafe = ["onnx/model.onnx", "../evil.json", "original/tokenizer.json"]
    server.repos[REPO].commit(sharded_files() | dict.fromkeys(unneeded + unsafe, b"x"))
    folder = repo_source(server).local_folder("quantize")
    assert names(folder) == [".complete", *sorted(sharded_files())]


def test_a_complete_copy_of_a_pinned_commit_needs_no_network(server: FakeHub, volumes: Path) -> None:
    first = repo_source(server)
    folder = first.local_folder("quantize")
    server.requests.clear()
    again = repo_source(server, first.commit)
    assert read_headers(again)
    assert again.files == first.files
    assert again.local_folder("validate") == folder
    assert again.revision({}) == first.commit
    assert server.requests == []


def test_a_branch_that_moved_is_another_folder(server: FakeHub, volumes: Path) -> None:
    first = repo_source(server)
    old = first.local_folder("quantize")
    server.repos[REPO].commit(model_files({"vocab_size": 101}))
    assert repo_source(server).local_folder("quantize") != old
    assert repo_source(server, first.commit).local_folder("quantize") == old


def test_a_copy_that_lost_a_file_is_completed(server: FakeHub, volumes: Path, capsys) -> None:
    first = repo_source(server)
    folder = first.local_folder("quantize")
    first.lock.close()
    (folder / "model.safetensors").write_bytes(b"cut")
    assert repo_source(server, first.commit).local_folder("quantize") == folder
    assert (folder / "model.safetensors").read_bytes() == model_files()["model.safetensors"]
    assert "lost a file" in capsys.readouterr().out


def test_sizes_that_a_mirror_does_not_list_are_asked_for(server: FakeHub, volumes: Path) -> None:
    server.repos[REPO].sizes = False
    source = repo_source(server)
    assert source.files["model.safetensors"] == len(model_files()["model.safetensors"])
    assert (source.local_folder("quantize") / "model.safetensors").exists()


def test_the_token_comes_from_the_environment(server: FakeHub, volumes: Path, monkeypatch, capsys) -> None:
    server.repos[REPO].token = TOKEN
    with pytest.raises(Failure) as caught:
        read_headers(repo_source(server))
    assert caught.value.reason == Reason.GATED_REPOSITORY
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = repo_source(server).local_folder("quantize")
    assert TOKEN not in capsys.readouterr().out
    assert not [path for path in folder.rglob("*") if TOKEN.encode() in path.read_bytes()]


def test_a_shard_that_the_index_names_and_the_repository_lacks(server: FakeHub, volumes: Path) -> None:
    files = sharded_files()
    del files["model-00002-of-00003.safetensors"]
    server.repos[REPO].commit(files)
    with pytest.raises(Failure, match="lacks model-00002-of-00003") as caught:
        repo_source(server).local_folder("quantize")
    assert caught.value.reason == Reason.SOURCE_INCOMPLETE


def test_killed_in_the_middle_the_next_run_fetches_only_the_rest(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    half = len(model_files()["model.safetensors"]) // 2
    server.faults = [Fault("model.safetensors", times=1, after=half, hang=True)]
    process = start_download(server, tmp_path, HALFBYTE_HUB_STALL_SECONDS="60")
    folder = tmp_path / "artifacts" / ".sources" / f"owner--name@{server.repos[REPO].refs['main']}"
    part = folder / "model.safetensors.part"
    try:
        wait_until(lambda: part.exists() and part.stat().st_size)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert not (folder / ".complete").exists()
    kept = part.stat().st_size
    assert 0 < kept <= half
    server.requests.clear()
    second = start_download(server, tmp_path)
    output, _ = second.communicate(timeout=60)
    assert second.returncode == 0, output
    assert (folder / "model.safetensors").read_bytes() == model_files()["model.safetensors"]
    assert names(folder) == [".complete", *sorted(model_files())]
    (headers,) = [headers for path, headers in server.requests if "resolve" in path and "model.safe" in path]
    assert headers["Range"] == f"bytes={kept}-"


def test_memory_does_not_grow_with_the_file(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    big = tmp_path / "big"
    head, size = header_of({"model.embed_tokens.weight": (96 << 10, 1024)})
    big.write_bytes(head)
    os.truncate(big, len(head) + size)
    files: dict[str, Any] = {**model_files(), "model.safetensors": big}
    server.repos[REPO].commit(files)
    process = start_download(server, tmp_path)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    grown = int(output.rpartition("grown ")[2])
    assert grown < 32 << 10, f"{grown} KiB for a file of {size >> 10} KiB"


def test_two_at_once_download_once(server: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    server.faults = [Fault("tokenizer.json", times=1, gate=threading.Event())]
    first = start_download(server, tmp_path, HALFBYTE_HUB_STALL_SECONDS="60")
    wait_until(lambda: server.paths("tokenizer.json"))
    second = start_download(server, tmp_path)
    assert "another Job is downloading" in second.stdout.readline()
    server.faults[0].gate.set()
    outputs = [process.communicate(timeout=100)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert len([1 for path, headers in server.requests if path.endswith("generation_config.json")]) == 1


# Room on the claim


def old_source(name: str, seconds: int) -> Path:
    folder = mounts.ARTIFACT_ROOT / ".sources" / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    (folder / ".complete").write_text("{}")
    os.utime(folder, (seconds, seconds))
    return folder


@pytest.fixture
def claim_of(volumes: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the claim so large that only so many bytes besides those of `old_source` fit."""

    def measure(free: int) -> None:
        def free_bytes(folder: Path) -> int:
            return free - 1000 * sum(
                1 for _ in (mounts.ARTIFACT_ROOT / ".sources").glob("old*/model.safetensors")
            )

        monkeypatch.setattr(node, "free_bytes", free_bytes)

    return measure


def test_a_full_claim_is_told_before_the_first_byte(server: FakeHub, claim_of) -> None:
    claim_of(5 << 20)
    monster = {"model.safetensors": (1 << 20, 64)}
    head, size = header_of(monster)
    path = mounts.ARTIFACT_ROOT.parent / "big"
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    server.repos[REPO].commit({**model_files(), "model.safetensors": path})
    with pytest.raises(Failure) as caught:
        repo_source(server).local_folder("quantize")
    assert (caught.value.reason, caught.value.code) == (Reason.OUT_OF_DISK, 40)
    assert "needs 128 MiB on the artifact claim, 5 MiB are free" in caught.value.message
    assert not [1 for path, headers in server.requests if "resolve" in path and "Range" not in headers]


def test_unused_sources_give_way_the_longest_unused_first(server: FakeHub, claim_of, capsys) -> None:
    needed = sum(len(content) for content in model_files().values())
    oldest, older, newest = (old_source(f"old{n}", 1000 + n) for n in range(3))
    claim_of(needed + 1500)
    repo_source(server).local_folder("quantize")
    assert (oldest.exists(), older.exists(), newest.exists()) == (False, False, True)
    assert "old0 is used by no Job" in capsys.readouterr().out


def test_a_source_in_use_does_not_give_way(server: FakeHub, claim_of) -> None:
    needed = sum(len(content) for content in model_files().values())
    used, free = (old_source(f"old{n}", 1000 + n) for n in range(2))
    claim_of(needed + 1000)
    with (used.parent / "old0.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        repo_source(server).local_folder("quantize")
    assert (used.exists(), free.exists()) == (True, False)


def test_the_source_of_a_running_process_is_locked(server: FakeHub, volumes: Path) -> None:
    source = repo_source(server)
    folder = source.local_folder("quantize")
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        assert not repository.try_lock(lock, fcntl.LOCK_EX)
        assert repository.try_lock(lock, fcntl.LOCK_SH)


def test_a_claim_without_locks_is_named(volumes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (volumes / "lock").open("a") as lock, pytest.raises(Failure, match="supports flock"):
        repository.try_lock(lock, fcntl.LOCK_EX)
