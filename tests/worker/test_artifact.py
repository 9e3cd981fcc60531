"""An artifact is whole or absent, whatever happens to its writer."""

import json
import os
import threading
from pathlib import Path

import pytest

from halfbyte_worker import artifact, mounts
from halfbyte_worker.failure import Failure, Reason

KEY = "sha256-" + "a" * 64
OTHER = "sha256-" + "b" * 64
FILES = {"model.safetensors": b"weights", "config.json": b"{}"}


class Crash(BaseException):
    """The process dies here: nothing that would run later runs."""


def write(path: str = "one", key: str = KEY) -> dict:
    with artifact.writer_lock(path), artifact.staging_folder(path) as staging:
        for name, content in FILES.items():
            (staging / name).write_bytes(content)
        return artifact.publish(staging, path, {"key": key})


@pytest.fixture
def root(volumes: Path) -> Path:
    return mounts.ARTIFACT_ROOT


def test_published_artifact_is_whole(root: Path) -> None:
    manifest = write()
    assert artifact.damage(root / "one", KEY) is None
    assert manifest["bytes"] == len(b"weights")
    assert [entry["name"] for entry in manifest["files"]] == ["config.json", "model.safetensors"]
    assert {path.name for path in root.iterdir()} == {"one", ".one.lock"}
    folder, found = artifact.require_artifact(KEY, "one")
    assert (folder, found) == (root / "one", manifest)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"half"),
            "has 4 bytes, its manifest says 7",
        ),
        (lambda folder: (folder / "config.json").unlink(), "lacks config.json"),
        (lambda folder: (folder / artifact.MANIFEST).unlink(), "has no manifest"),
        (lambda folder: (folder / artifact.MANIFEST).write_text('{"version": 1, "fil'), "has no manifest"),
        (lambda folder: (folder / artifact.MANIFEST).write_text("[]"), "has no manifest"),
        (
            lambda folder: (folder / artifact.MANIFEST).write_text('{"version": 2, "files": []}'),
            "no manifest",
        ),
    ],
)
def test_damaged_artifact_is_refused(root: Path, harm, message: str) -> None:
    write()
    harm(root / "one")
    with pytest.raises(Failure) as failed:
        artifact.require_artifact(KEY, "one")
    assert failed.value.reason == Reason.ARTIFACT_CORRUPT
    assert message in failed.value.message


def test_artifact_of_another_key_is_refused(root: Path) -> None:
    write(key=OTHER)
    with pytest.raises(Failure, match="another key, sha256-bbbb"):
        artifact.require_artifact(KEY, "one")


def test_missing_artifact_is_refused(root: Path) -> None:
    with pytest.raises(Failure, match="one does not exist"):
        artifact.require_artifact(KEY, "one")


@pytest.mark.parametrize("step", range(1, 8))
def test_crash_at_any_step_leaves_none_or_a_whole(root: Path, monkeypatch, step: int) -> None:
    """Each step is a write or a rename that reached the disk; then a second writer finishes the work."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise Crash

    real_sync, real_rename = artifact.sync, Path.rename
    monkeypatch.setattr(artifact, "sync", lambda path: (count(), real_sync(path)))
    monkeypatch.setattr(Path, "rename", lambda path, target: (count(), real_rename(path, target))[1])
    # A process that is killed removes no staging folder.
    monkeypatch.setattr(artifact.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Crash):
        write()
    monkeypatch.undo()
    monkeypatch.setattr(mounts, "ARTIFACT_ROOT", root)

    if (root / "one").exists():
        assert artifact.damage(root / "one", KEY) is None
    with artifact.writer_lock("one"):
        artifact.remove_leftovers("one")
    assert not list(root.glob("*.partial-*"))
    write()
    assert artifact.damage(root / "one", KEY) is None


def test_failed_writer_leaves_nothing(root: Path) -> None:
    def fail() -> None:
        with artifact.staging_folder("one") as staging:
            (staging / "model.safetensors").write_bytes(b"half")
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert list(root.iterdir()) == []


def test_only_leftovers_of_the_same_artifact_are_removed(root: Path) -> None:
    for name in ("one.partial-7", "one-more.partial-8", "two.partial-9"):
        (root / name).mkdir()
    artifact.remove_leftovers("one")
    assert {path.name for path in root.iterdir()} == {"one-more.partial-8", "two.partial-9"}


def test_damaged_artifact_is_replaced(root: Path) -> None:
    (root / "one").mkdir()
    (root / "one" / "leftover").write_text("x")
    write()
    assert artifact.damage(root / "one", KEY) is None
    assert not (root / "one" / "leftover").exists()


def test_second_writer_waits_for_the_first(root: Path, capsys) -> None:
    order: list[str] = []

    def second() -> None:
        with artifact.writer_lock("one", poll_seconds=0.01):
            order.append("second")

    with artifact.writer_lock("one"):
        thread = threading.Thread(target=second)
        thread.start()
        while "another process is writing one" not in capsys.readouterr().out:
            pass
        order.append("first")
    thread.join(timeout=30)
    assert order == ["first", "second"]


def test_volume_without_locks_is_an_error(root: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(artifact.fcntl, "flock", refuse)
    with pytest.raises(Failure, match="cannot be locked"), artifact.writer_lock("one"):
        pass


def test_published_files_are_readable_by_a_server_of_another_user(root: Path) -> None:
    previous = os.umask(0o077)
    try:
        write()
    finally:
        os.umask(previous)
    assert (root / "one").stat().st_mode & 0o777 == 0o755
    assert (root / "one" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_written_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    artifact.write_atomically(path, json.dumps({"new": 1}).encode())
    assert json.loads(path.read_bytes()) == {"new": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
