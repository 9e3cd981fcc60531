"""One file from a hub to a disk, going on from what an earlier run left.

    <name>.part         what has arrived so far
    <name>.part.etag    the version that it is of; a resumed request asks for the rest of that version only
    <name>              complete, verified and on the disk; appears by a rename

A file is held against the listing: its size, and its SHA-256 or git's SHA-1 where the hub tells them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import httpx

from halfbyte_worker import log
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.hub import Hub, HubFile, PassingError

CHUNK = 1 << 20
PART = ".part"


class Download:
    """`moved` is told, again and again, how many bytes of the file are there."""

    def __init__(
        self,
        hub: Hub,
        commit: str,
        file: HubFile,
        folder: Path,
        moved: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.hub, self.commit, self.file, self.moved = hub, commit, file, moved
        self.target = folder / file.name
        self.part = folder / f"{file.name}{PART}"
        self.etag = folder / f"{file.name}{PART}.etag"
        self.received = 0

    def run(self) -> None:
        """
        Raises:
            Failure: SourceIncomplete when what arrives does not match the listing, else as in `Hub.pin`.
        """
        fault = self._fetch()
        if fault:
            # Once more from nothing: the damaged part of an earlier run must not fail every rerun.
            log.warning("restart", message=f"{fault}; downloads it again")
            fault = self._fetch()
        if fault:
            raise Failure(Reason.SOURCE_INCOMPLETE, fault)
        self.part.replace(self.target)
        self.etag.unlink(missing_ok=True)
        sync_folder(self.target.parent)

    def _fetch(self) -> str | None:
        """Fill the part; gives what is wrong with it, and removes it then."""
        self.hub.retried(self._attempt, lambda: self.received)
        fault = self._fault()
        if fault:
            self.part.unlink(missing_ok=True)
            self.etag.unlink(missing_ok=True)
        return fault

    def _attempt(self) -> None:
        with self.part.open("ab") as out:
            offset = out.tell()
            headers = self._resume_headers(offset)
            if not headers:
                offset = truncate(out)
            elif offset == self.file.size:
                return
            url = self.hub.content_url(self.commit, self.file.name)
            with self.hub.get(url, self.commit, headers, (200, 206, 416)) as response:
                if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                    truncate(out)
                    message = f"{self.hub.host} refuses to go on with {self.file.name} at byte {offset}"
                    raise PassingError(Failure(Reason.SOURCE_UNREACHABLE, message))
                if response.status_code == httpx.codes.OK:
                    offset = truncate(out)
                self.etag.write_text(response.headers.get("ETag", ""))
                self._store(response, out, offset)
            out.flush()
            os.fsync(out.fileno())

    def _resume_headers(self, offset: int) -> dict[str, str]:
        """What asks for the rest; nothing where the part is useless or another version would go unnoticed."""
        if not offset or (self.file.size is not None and offset > self.file.size):
            return {}
        headers = {"Range": f"bytes={offset}-"}
        etag = self.etag.read_text() if self.etag.exists() else ""
        # If-Range takes strong validators only (RFC 9110, 13.1.5).
        if etag and not etag.startswith("W/"):
            return headers | {"If-Range": etag}
        return headers if self.file.sha256 or self.file.blob else {}

    def _store(self, response: httpx.Response, out: BinaryIO, offset: int) -> None:
        for chunk in self.hub.chunks(response):
            out.write(chunk)
            offset += len(chunk)
            self.received += len(chunk)
            if self.file.size is not None and offset > self.file.size:
                # Too long already, so wrong; `_fault` says so.
                return
            self.moved(offset)

    def _fault(self) -> str | None:
        where = f"{self.file.name} of {self.hub.repo} on {self.hub.host}"
        size = self.part.stat().st_size
        if self.file.size is not None and size != self.file.size:
            return f"{where} has {size} bytes or more, its listing says {self.file.size}"
        if self.file.sha256:
            digest, wanted = hashlib.sha256(), self.file.sha256
        elif self.file.blob:
            # How git names content: https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
            digest, wanted = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False), self.file.blob
        else:
            return None
        with self.part.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        found = digest.hexdigest()
        if found == wanted:
            return None
        return f"{where} is damaged: its digest is {found}, its listing says {wanted}"


def truncate(out: BinaryIO) -> int:
    out.truncate(0)
    out.seek(0)
    return 0


def sync_folder(folder: Path) -> None:
    """Makes a rename outlast a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
