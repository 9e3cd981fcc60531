"""Where a model comes from: a folder of a claim, or a repository of a hub. Both give the same four things.

A source has the names and sizes of its model files, ranges of their bytes, a revision that changes when the content
does, and a local folder with all of them for the stages that need the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.safetensors_header import Header, read_header
from halfbyte_worker.task import ClaimSource, HubSource

SOURCE_ROOT = Path("/halfbyte/source")
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
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

    def __init__(self, source: ClaimSource, root: Path = SOURCE_ROOT) -> None:
        self.folder = root / source.path
        self.name = f"the claim's folder {source.path or '/'}"
        self.pinned = source.revision
        if not self.folder.is_dir():
            found = ", ".join(sorted(path.name for path in root.glob("*"))[:10]) if root.is_dir() else ""
            message = f"{self.name} does not exist; the claim has: {found or 'nothing'}"
            raise Failure(Reason.SOURCE_NOT_FOUND, message)
        self._files = {
            path.name: path.stat().st_size
            for path in sorted(self.folder.iterdir())
            if is_model_file(path.name) and path.is_file()
        }

    @property
    def files(self) -> Mapping[str, int]:
        return self._files

    def read(self, name: str, offset: int, length: int) -> bytes:
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def revision(self, headers: Mapping[str, Header]) -> str:
        """Digest over config, tensor headers, and every file's size and modification time in whole seconds.

        Not over the weights, which would mean reading all of them at every stage: a file that is changed in place
        without touching its size and time is not noticed.
        """
        rows = [
            [name, size, int((self.folder / name).stat().st_mtime)] for name, size in sorted(self._files.items())
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
    from halfbyte_worker.hub import open_repository

    return open_repository(source)


def read_headers(source: Source) -> dict[str, Header]:
    """The header of each safetensors file, after checking that all of the model is there.

    Raises:
        Failure: SourceIncomplete or SourceNotFound, naming the file.
    """
    if CONFIG not in source.files:
        found = ", ".join(list(source.files)[:10]) or "no model file"
        raise Failure(Reason.SOURCE_NOT_FOUND, f"{source.name} has no {CONFIG}; it has {found}")
    weights = [name for name in source.files if is_weights(name)]
    if INDEX in source.files:
        index = json.loads(source.read(INDEX, 0, source.files[INDEX]))
        named = set(index["weight_map"].values())
        if lacking := sorted(named - set(weights)):
            message = f"{source.name} lacks {lacking[0]} ({len(lacking)} of {len(named)} files of {INDEX})"
            raise Failure(Reason.SOURCE_INCOMPLETE, message)
        weights = sorted(named)
    if not weights:
        message = f"{source.name} has no *.safetensors file; convert the weights with save_pretrained first"
        raise Failure(Reason.SOURCE_INCOMPLETE, message)
    headers = {}
    for name in weights:
        try:
            header = read_header(lambda offset, length, name=name: source.read(name, offset, length))
        except ValueError as error:
            raise Failure(Reason.SOURCE_INCOMPLETE, f"{source.name}: {name} {error}") from error
        if source.files[name] != header.file_bytes:
            message = (
                f"{source.name}: {name} has {source.files[name]} bytes, its header needs {header.file_bytes};"
                " copy it again, and inspect again when the copy is complete"
            )
            raise Failure(Reason.SOURCE_INCOMPLETE, message)
        headers[name] = header
    return headers
