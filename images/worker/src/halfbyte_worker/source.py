"""Where a model comes from: a folder of a claim, or a repository of a hub. Both give the same four things.

A source has the names and sizes of its model files, ranges of their bytes, a revision that changes when the
content does, and a local folder with all of them for the stages that need the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from halfbyte_worker import mounts
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.safetensors_header import Header, read_header
from halfbyte_worker.task import ClaimSource, HubSource

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LFS_POINTER = b"version https://git-lfs"
# What serving and calibration need; repositories hold much more (other formats, images, training state).
SIDE_FILES = {
    CONFIG,
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
}


def is_weights(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def is_model_file(name: str) -> bool:
    return name in SIDE_FILES or is_weights(name)


class Source(Protocol):
    name: str
    """For messages: the folder, or repository and revision."""

    @property
    def files(self) -> Mapping[str, int]:
        """Model files by name, with their size in bytes."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """That range of a file, shorter only at its end."""

    def revision(self, headers: Mapping[str, Header]) -> str:
        """40 hex digits of a commit, or `sha256-` and 64 hex digits for a claim."""

    def local_folder(self, stage: str) -> Path:
        """A folder with all model files, fetched when they are not local."""


class ClaimFolder:
    """A model in a folder of a mounted claim."""

    def __init__(self, source: ClaimSource) -> None:
        self.folder = mounts.SOURCE_ROOT / source.path
        self.name = f"the claim's folder {source.path or '/'}"
        self.pinned = source.revision
        try:
            self._files = self._list()
        except PermissionError as error:
            message = f"{self.name} cannot be read by user {os.getuid()}; let its group or others read it"
            raise Failure(Reason.SOURCE_NOT_FOUND, message) from error

    def _list(self) -> dict[str, int]:
        if not self.folder.is_dir():
            is_file = "is a file" if self.folder.exists() else "does not exist"
            message = f"{self.name} {is_file}; {neighbours(self.folder)}"
            raise Failure(Reason.SOURCE_NOT_FOUND, message)
        files = {}
        for path in sorted(self.folder.iterdir()):
            if not is_model_file(path.name) or path.is_dir():
                continue
            if not path.resolve().is_relative_to(mounts.SOURCE_ROOT.resolve()) or not path.is_file():
                message = (
                    f"{self.name}: {path.name} is a link to what is not on the claim; copy the file itself"
                )
                raise Failure(Reason.SOURCE_INCOMPLETE, message)
            if not os.access(path, os.R_OK):
                raise PermissionError(path)
            files[path.name] = path.stat().st_size
        return files

    @property
    def files(self) -> Mapping[str, int]:
        return self._files

    def read(self, name: str, offset: int, length: int) -> bytes:
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def revision(self, headers: Mapping[str, Header]) -> str:
        """Digest over config, tensor headers, and every file's size and modification time in whole seconds.

        Not over the weights, which would mean reading all of them at every stage: a file that is changed in
        place without touching its size and time is not noticed.
        """
        rows = [
            [name, size, int((self.folder / name).stat().st_mtime)]
            for name, size in sorted(self._files.items())
        ]
        texts = {name: hashlib.sha256(header.text).hexdigest() for name, header in sorted(headers.items())}
        texts[CONFIG] = hashlib.sha256(self.read(CONFIG, 0, self._files[CONFIG])).hexdigest()
        return "sha256-" + hashlib.sha256(json.dumps([rows, texts], sort_keys=True).encode()).hexdigest()

    def local_folder(self, stage: str) -> Path:
        found = self.revision(read_headers(self))
        if self.pinned and found != self.pinned:
            raise Failure(
                Reason.REVISION_NOT_FOUND,
                f"{self.name} has changed since it was inspected: revision {found[:23]} instead of"
                f" {self.pinned[:23]}; set the annotation halfbyte.dev/requested-at to inspect it again",
            )
        return self.folder


def open_source(source: HubSource | ClaimSource) -> Source:
    if isinstance(source, ClaimSource):
        return ClaimFolder(source)
    # Imported here: a claim needs no HTTP client.
    from halfbyte_worker.repository import open_repository

    return open_repository(source)


def neighbours(folder: Path) -> str:
    """What is there instead: the nearest folder above that exists."""
    above = folder.parent
    while not above.is_dir() and above not in (mounts.SOURCE_ROOT, above.parent):
        above = above.parent
    names = sorted(path.name for path in above.iterdir())[:10] if above.is_dir() else []
    place = "the claim" if above == mounts.SOURCE_ROOT else above.name
    return f"{place} has: {', '.join(names) or 'nothing'}"


def weight_names(source: Source) -> list[str]:
    """The safetensors files of the model: those of the index, else model.safetensors, else all.

    Raises:
        Failure: SourceIncomplete or SourceNotFound, naming what is missing.
    """
    weights = [name for name in source.files if is_weights(name)]
    if INDEX in source.files:
        try:
            named = set(json.loads(source.read(INDEX, 0, source.files[INDEX]))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{source.name}: {INDEX} is damaged ({type(error).__name__}); copy it again"
            raise Failure(Reason.SOURCE_INCOMPLETE, message) from error
        if lacking := sorted(named - set(weights)):
            message = f"{source.name} lacks {lacking[0]} ({len(lacking)} of {len(named)} files of {INDEX})"
            raise Failure(Reason.SOURCE_INCOMPLETE, message)
        return sorted(named)
    if not weights:
        message = f"{source.name} has no *.safetensors file; convert the weights with save_pretrained first"
        raise Failure(Reason.SOURCE_INCOMPLETE, message)
    # Beside it may lie an adapter, or the same weights in the format of another program.
    return [SINGLE] if SINGLE in weights else weights


def read_headers(source: Source) -> dict[str, Header]:
    """The header of each safetensors file, after checking that all of the model is there.

    Raises:
        Failure: SourceIncomplete or SourceNotFound, naming the file.
    """
    if CONFIG not in source.files:
        found = ", ".join(list(source.files)[:10]) or "no model file"
        raise Failure(Reason.SOURCE_NOT_FOUND, f"{source.name} has no {CONFIG}; it has {found}")
    headers = {}
    for name in weight_names(source):
        try:
            header = read_header(lambda offset, length, name=name: source.read(name, offset, length))
        except ValueError as error:
            pointer = source.read(name, 0, len(LFS_POINTER)) == LFS_POINTER
            fault = (
                "is a pointer of Git LFS; run `git lfs pull` where it was cloned" if pointer else str(error)
            )
            raise Failure(Reason.SOURCE_INCOMPLETE, f"{source.name}: {name} {fault}") from error
        if source.files[name] != header.file_bytes:
            message = (
                f"{source.name}: {name} has {source.files[name]} bytes, its header needs {header.file_bytes};"
                " copy it again, and inspect again when the copy is complete"
            )
            raise Failure(Reason.SOURCE_INCOMPLETE, message)
        headers[name] = header
    return headers
