"""A repository of a hub as a Source. Its files are kept on the artifact claim, for all stages and reruns:

    .sources/<repo, / as -->@<commit>/             the files
    .sources/<repo, / as -->@<commit>/.complete    their sizes, written last; without it a download goes on
    .sources/<repo, / as -->@<commit>.lock         exclusive while downloading, shared while in use

When room is short, the sources that no Job holds are deleted, the longest unused first.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TextIO

from halfbyte_worker import artifact, log, mounts, node
from halfbyte_worker.download import PART, Download
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.hub import COMMIT, Hub, HubFile
from halfbyte_worker.safetensors_header import Header
from halfbyte_worker.source import is_model_file, is_weights, weight_names
from halfbyte_worker.task import HubSource

TOKEN_VARIABLE = "HF_TOKEN"  # noqa: S105 - the name of it
FOLDER = ".sources"
COMPLETE = ".complete"
RESERVE = 64 << 20
"""Bytes that a download leaves free, for the small files of others on the claim."""
LOCK_POLL_SECONDS = 1.0


class Repository:
    """A commit of a repository. Asks the hub only for what is not on the claim already."""

    def __init__(self, source: HubSource) -> None:
        self.source = source
        self.hub = Hub(source.repo, source.endpoint, os.environ.get(TOKEN_VARIABLE) or None)
        self.sources = mounts.ARTIFACT_ROOT / FOLDER
        self.name = f"{source.repo} at {source.revision[:12]} on {self.hub.host}"
        # Open until the process ends: the lock says that the folder is in use.
        self.lock: TextIO | None = None

    @cached_property
    def listing(self) -> tuple[str, dict[str, HubFile]]:
        return self.hub.pin(self.source.revision)

    @cached_property
    def commit(self) -> str:
        # A complete copy of a pinned commit needs no network.
        return self.source.revision if self.stored else self.listing[0]

    @cached_property
    def stored(self) -> dict[str, int] | None:
        """Sizes of the complete copy of a pinned commit on the claim, locked from now on; else None."""
        return self._use(self.source.revision) if COMMIT.match(self.source.revision) else None

    @cached_property
    def files(self) -> Mapping[str, int]:
        if self.stored:
            return self.stored
        commit, listed = self.listing
        return {
            name: self.hub.read(commit, name, 0, 1)[1] if file.size is None else file.size
            for name, file in sorted(listed.items())
            if is_model_file(name)
        }

    def read(self, name: str, offset: int, length: int) -> bytes:
        if self.stored:
            with (self._folder(self.commit) / name).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        return self.hub.read(self.commit, name, offset, length)[0]

    def revision(self, headers: Mapping[str, Header]) -> str:
        return self.commit

    def local_folder(self, stage: str) -> Path:
        """The folder on the claim, with all of the model.

        Raises:
            Failure: OutOfDisk before the first byte, SourceIncomplete, or as in `Hub.pin`.
        """
        folder = self._folder(self.commit)
        while self.lock is None:
            with self._acquire(folder, fcntl.LOCK_EX):
                if not (folder / COMPLETE).exists():
                    self._download(folder, stage)
            # Between the two locks another Job may have deleted it; then it is fetched again.
            self._use(self.commit)
        return folder

    def _folder(self, commit: str) -> Path:
        return self.sources / f"{self.source.repo.replace('/', '--')}@{commit}"

    def _use(self, commit: str) -> dict[str, int] | None:
        """Sizes of a whole copy, kept from deletion from now on."""
        folder = self._folder(commit)
        if not (folder / COMPLETE).exists():
            return None
        lock = self._acquire(folder, fcntl.LOCK_SH)
        try:
            sizes: dict[str, int] = json.loads((folder / COMPLETE).read_text())
            whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError):
            whole = False
        if not whole:
            log.warning("incomplete", message=f"{folder.name} lost a file; it is downloaded again")
            (folder / COMPLETE).unlink(missing_ok=True)
            lock.close()
            return None
        os.utime(folder)
        self.lock = lock
        return sizes

    def _download(self, folder: Path, stage: str) -> None:
        weights = weight_names(self)
        sizes = {name: size for name, size in self.files.items() if name in weights or not is_weights(name)}
        folder.mkdir(parents=True, exist_ok=True)
        present = {name: present_bytes(folder, name, size) for name, size in sizes.items()}
        total = sum(sizes.values())
        self._make_room(folder, total - sum(present.values()))
        progress = log.Progress(stage, total, "bytes", f"downloading {self.name}")
        progress.update(sum(present.values()))
        for name, size in sizes.items():
            if not (folder / name).exists():
                others = sum(present.values()) - present[name]
                Download(
                    self.hub, self.commit, self.listing[1][name], folder,
                    lambda done, others=others: progress.update(others + done),
                ).run()  # fmt: skip
                present[name] = size
        artifact.write_atomically(folder / COMPLETE, json.dumps(sizes).encode())

    def _make_room(self, folder: Path, needed: int) -> None:
        wanted = needed + RESERVE if needed else 0
        others = [path for path in self.sources.iterdir() if path.is_dir() and path != folder]
        for path in sorted(others, key=lambda path: path.stat().st_mtime):
            if (node.free_bytes(folder) or 0) >= wanted:
                return
            with self._lock_file(path) as lock:
                if try_lock(lock, fcntl.LOCK_EX):
                    log.info("removing", message=f"{path.name} is used by no Job and room is short")
                    (path / COMPLETE).unlink(missing_ok=True)
                    shutil.rmtree(path, ignore_errors=True)
        free = node.free_bytes(folder) or 0
        if free < wanted:
            message = (
                f"downloading {self.name} needs {wanted >> 20} MiB on the artifact claim, {free >> 20} MiB"
                " are free; use a larger claim or delete artifacts that no model uses"
            )
            raise Failure(Reason.OUT_OF_DISK, message)

    def _acquire(self, folder: Path, kind: int) -> TextIO:
        lock = self._lock_file(folder)
        said = 0.0
        while not try_lock(lock, kind):
            if time.monotonic() - said > 30:
                said = time.monotonic()
                log.info("waiting", message=f"another Job is downloading {folder.name}")
            time.sleep(LOCK_POLL_SECONDS)
        return lock

    def _lock_file(self, folder: Path) -> TextIO:
        self.sources.mkdir(exist_ok=True)
        # Never deleted: a lock on a deleted file excludes nobody.
        return (self.sources / f"{folder.name}.lock").open("a")


def open_repository(source: HubSource) -> Repository:
    return Repository(source)


def present_bytes(folder: Path, name: str, size: int) -> int:
    """Bytes of a file that need no download. A finished file of another size is removed."""
    target, part = folder / name, folder / f"{name}{PART}"
    if target.exists():
        if target.stat().st_size == size:
            return size
        target.unlink()
    return min(size, part.stat().st_size) if part.exists() else 0


def try_lock(lock: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        message = f"the artifact claim cannot be locked ({error.strerror}); use a claim that supports flock"
        raise Failure(Reason.INTERNAL_ERROR, message) from error
    return True
