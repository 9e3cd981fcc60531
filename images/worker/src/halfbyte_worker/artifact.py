"""Artifacts: directories that are complete or absent, however a writer dies.

    .<path>.lock            held by the one writer (flock: gone with its process)
    <path>.partial-<pid>    what the writer fills; a leftover of a dead one is removed by the next
    <path>/                 appears by one rename, with everything on disk
    <path>/halfbyte.json    the manifest: key, files with size and digest; without it, no artifact

Order of writing: all files, fsync of each; the manifest by rename within the staging folder, fsync of the
folder; then the folder by rename, fsync of its parent. A crash at any point leaves no <path>, or a whole one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from halfbyte_worker import log, mounts
from halfbyte_worker.failure import Failure, Reason

MANIFEST = "halfbyte.json"
STAGING_MARK = ".partial-"
CHUNK = 1 << 20


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished artifact; None when there is none or it is not a manifest of ours."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
    complete = isinstance(manifest, dict) and manifest.get("version") == 1 and "files" in manifest
    return manifest if complete else None


def damage(folder: Path, key: str) -> str | None:
    """What is wrong with the artifact of this key in `folder`, or None. Compares sizes, not content."""
    manifest = read_manifest(folder)
    if manifest is None:
        return (
            f"{folder.name} has no manifest {MANIFEST}"
            if folder.exists()
            else f"{folder.name} does not exist"
        )
    if manifest.get("key") != key:
        return f"{folder.name} is the artifact of another key, {str(manifest.get('key'))[:23]}"
    for entry in manifest["files"]:
        path = folder / entry["name"]
        if not path.is_file():
            return f"{folder.name} lacks {entry['name']}"
        size = path.stat().st_size
        if size != entry["size"]:
            return f"{folder.name}/{entry['name']} has {size} bytes, its manifest says {entry['size']}"
    return None


def require_artifact(key: str, path: str) -> tuple[Path, dict[str, Any]]:
    """Folder and manifest of a whole artifact.

    Raises:
        Failure: ArtifactCorrupt, saying what is wrong.
    """
    folder = mounts.ARTIFACT_ROOT / path
    if fault := damage(folder, key):
        raise Failure(Reason.ARTIFACT_CORRUPT, f"{fault}; quantize again")
    manifest = read_manifest(folder)
    assert manifest is not None  # noqa: S101 - damage() has just read it
    return folder, manifest


@contextmanager
def writer_lock(path: str, poll_seconds: float = 2.0) -> Iterator[None]:
    """Be the only writer of this artifact; waits while another process is.

    Raises:
        Failure: when the file system cannot lock.
    """
    lock = mounts.ARTIFACT_ROOT / f".{path}.lock"
    with lock.open("a") as file:
        said = 0.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    message = (
                        f"{mounts.ARTIFACT_ROOT} cannot be locked ({error.strerror}); use one with flock"
                    )
                    raise Failure(Reason.INTERNAL_ERROR, message) from error
            if time.monotonic() - said > 30:
                said = time.monotonic()
                log.info("waiting", message=f"another process is writing {path}")
            time.sleep(poll_seconds)
        yield


def remove_leftovers(path: str) -> None:
    """Remove staging folders of this artifact, whose writers are dead: the caller holds the lock."""
    for leftover in sorted(mounts.ARTIFACT_ROOT.glob(f"{path}{STAGING_MARK}*")):
        log.info("removing", message=f"{leftover.name} was left behind by a worker that did not finish")
        shutil.rmtree(leftover)


@contextmanager
def staging_folder(path: str) -> Iterator[Path]:
    """A folder to fill and then `publish`; removed when it was not. The caller holds the lock."""
    folder = mounts.ARTIFACT_ROOT / f"{path}{STAGING_MARK}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(staging: Path, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Make the staged files the artifact `path`; gives the manifest as written.

    Adds to it `version`, `files` (name, size, sha256) and `bytes`, the size of the safetensors files.
    """
    files = [describe_file(file) for file in sorted(staging.iterdir())]
    weights = sum(entry["size"] for entry in files if entry["name"].endswith(".safetensors"))
    whole = {"version": 1, **manifest, "bytes": weights, "files": files}
    new = staging / f"{MANIFEST}.new"
    new.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    sync(new)
    new.rename(staging / MANIFEST)
    staging.chmod(0o755)
    sync(staging)
    final = mounts.ARTIFACT_ROOT / path
    if final.exists():
        # Not whole, else it would have been reused; rename cannot replace a folder that has files.
        shutil.rmtree(final)
    staging.rename(final)
    sync(mounts.ARTIFACT_ROOT)
    return whole


def describe_file(path: Path) -> dict[str, Any]:
    """Name, size and digest of a file, which is on disk afterwards and readable by every server."""
    path.chmod(0o644)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    sync(path)
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest.hexdigest()}


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """A file that readers see whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_bytes(content)
        sync(new)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
