"""FakeHub: the part of a Hugging Face hub's HTTP interface that a download needs, with faults on demand.

    GET /api/models/{repo}                                  200, or 404 RepoNotFound
    GET /api/models/{repo}/revision/{revision}?blobs=true   commit, files with sizes and digests
    GET /{repo}/resolve/{revision}/{file}                   content; Range, If-Range, ETag; or a redirect

Status codes and X-Error-Code of refusals are those that huggingface_hub's `hf_raise_for_status` reads.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE = 64 * 1024
LFS_BYTES = 4096
"""Files from this size on are listed like large ones: by SHA-256 instead of git's SHA-1."""


@dataclass
class Fault:
    """What happens to the next `times` requests whose path contains `path`.

    `status`    answer with it
    `headers`   add them
    `after`     close the connection after so many bytes of the body
    `hang`      say nothing, or nothing more after `after` bytes
    `rate`      bytes a second
    `content`   send this instead
    `gate`      answer only when this is set
    `whole`     ignore Range
    `echo`      put the request's headers into the answer, as a careless proxy's error page does
    """

    path: str
    times: int = 1_000_000
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after: int | None = None
    rate: float | None = None
    hang: bool = False
    content: bytes | None = None
    gate: threading.Event | None = None
    whole: bool = False
    echo: bool = False


@dataclass
class Repo:
    """`commits` holds the files of each commit by name; `refs` says what a branch or tag stands for."""

    commits: dict[str, dict[str, bytes | Path]]
    refs: dict[str, str]
    token: str | None = None
    private: bool = False
    sizes: bool = True

    @classmethod
    def of(cls, files: Mapping[str, bytes | Path], **options: Any) -> Repo:
        repo = cls({}, {}, **options)
        repo.commit(files)
        return repo

    def commit(self, files: Mapping[str, bytes | Path]) -> str:
        """Make a commit of these files and move main to it."""
        text = json.dumps([[name, self.digest(content)] for name, content in sorted(files.items())])
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        self.refs["main"] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)

    @staticmethod
    def digest(content: bytes | Path) -> str:
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest()
        return file_digest(content, content.stat().st_mtime_ns)


@functools.cache
def file_digest(path: Path, changed: int) -> str:
    """SHA-256 of a file, computed once for each time of its last change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


class FakeHub:
    """A hub on a free port of this machine. `requests` has the path and headers of all that it was asked."""

    def __init__(
        self, repos: Mapping[str, Repo] | None = None, port: int = 0, address: str = "127.0.0.1"
    ) -> None:
        self.repos = dict(repos or {})
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.elsewhere: str | None = None
        """Address of another server that content is redirected to."""
        self.error_codes = True
        """Whether refusals carry X-Error-Code; many mirrors do not."""
        self.ended = threading.Event()
        self._server = Server((address, port), type("Handler", (Handler,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}"

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def paths(self, part: str = "") -> list[str]:
        return [path for path, _ in list(self.requests) if part in path]

    def take_fault(self, path: str) -> Fault:
        for fault in self.faults:
            if fault.path in path and fault.times > 0:
                fault.times -= 1
                return fault
        return Fault("")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # The client went away: that is what half of the tests are about.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: `requests` has it all."""

    def do_GET(self) -> None:
        self.hub.requests.append((self.path, dict(self.headers)))
        fault = self.hub.take_fault(self.path)
        while fault.gate and not fault.gate.wait(0.05) and not self.hub.ended.is_set():
            pass
        if fault.hang and fault.after is None:
            self.hub.ended.wait()
        elif fault.status is not None:
            body = json.dumps(dict(self.headers)).encode() if fault.echo else b""
            self.answer(fault.status, body, fault.headers)
        else:
            self.route(fault)

    def route(self, fault: Fault) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
            repo = self.repository(found[1], content=False)
            if repo and found[2] is None:
                self.answer(200, b"{}")
            elif repo:
                self.list_files(found[1], repo, found[2])
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            if repo := self.repository(found[1], content=True):
                self.send_file(repo, found[2], found[3], fault)
        else:
            self.answer(404)

    def repository(self, name: str, *, content: bool) -> Repo | None:
        """The repository, unless the request was refused."""
        repo = self.hub.repos.get(name)
        given = self.headers.get("Authorization")
        allowed = repo is not None and (repo.token is None or given == f"Bearer {repo.token}")
        if repo is None or (repo.private and not allowed and given is None):
            self.refuse(404 if given else 401, "RepoNotFound")
        elif not allowed and (content or repo.private):
            self.refuse(403 if given else 401, "GatedRepo")
        else:
            return repo
        return None

    def list_files(self, name: str, repo: Repo, revision: str) -> None:
        commit = repo.resolve(revision)
        if commit is None:
            self.refuse(404, "RevisionNotFound")
            return
        files = [self.describe(file, content, repo) for file, content in repo.commits[commit].items()]
        self.answer(200, json.dumps({"id": name, "sha": commit, "siblings": files}).encode())

    @staticmethod
    def describe(name: str, content: bytes | Path, repo: Repo) -> dict[str, Any]:
        if not repo.sizes:
            return {"rfilename": name}
        size, digest = size_of(content), Repo.digest(content)
        if isinstance(content, Path) or size >= LFS_BYTES:
            pointer = hashlib.sha1(digest.encode(), usedforsecurity=False).hexdigest()
            lfs = {"sha256": digest, "size": size, "pointerSize": 134}
            return {"rfilename": name, "size": size, "blobId": pointer, "lfs": lfs}
        blob = hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False).hexdigest()
        return {"rfilename": name, "size": size, "blobId": blob}

    def send_file(self, repo: Repo, revision: str, name: str, fault: Fault) -> None:
        commit = repo.resolve(revision)
        if commit is None or name not in repo.commits[commit]:
            self.refuse(404, "RevisionNotFound" if commit is None else "EntryNotFound")
            return
        if self.hub.elsewhere:
            self.answer(302, headers={"Location": f"{self.hub.elsewhere}{self.path}?signature=1"})
            return
        content = repo.commits[commit][name] if fault.content is None else fault.content
        size, etag = size_of(content), f'"{Repo.digest(content)}"'
        begin, end, status = self.wanted_range(size, etag, fault)
        headers = {"ETag": etag, **fault.headers}
        if status == 416:
            self.answer(416, headers=headers | {"Content-Range": f"bytes */{size}"})
            return
        if status == 206:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self.start(status, end - begin, headers)
        self.send_body(content, begin, end, fault)

    def wanted_range(self, size: int, etag: str, fault: Fault) -> tuple[int, int, int]:
        """First byte, byte after the last, status."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not found or fault.whole or self.headers.get("If-Range", etag) != etag:
            return 0, size, 200
        begin, end = int(found[1]), min(size, int(found[2] or size) + 1)
        return (begin, end, 206) if begin < size else (0, 0, 416)

    def send_body(self, content: bytes | Path, begin: int, end: int, fault: Fault) -> None:
        sent = 0
        for piece in pieces(content, begin, end, 1024 if fault.rate else PIECE):
            if fault.after is not None and sent + len(piece) > fault.after:
                self.wfile.write(piece[: fault.after - sent])
                self.wfile.flush()
                if fault.hang:
                    self.hub.ended.wait()
                self.close_connection = True
                return
            self.wfile.write(piece)
            sent += len(piece)
            if fault.rate and self.hub.ended.wait(len(piece) / fault.rate):
                return

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"", {"X-Error-Code": code} if self.hub.error_codes else {})

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.start(status, len(body), headers or {})
        self.wfile.write(body)

    def start(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def pieces(content: bytes | Path, begin: int, end: int, step: int) -> Iterator[bytes]:
    if isinstance(content, bytes):
        for start in range(begin, end, step):
            yield content[start : min(end, start + step)]
        return
    with content.open("rb") as file:
        file.seek(begin)
        while begin < end and (piece := file.read(min(step, end - begin))):
            yield piece
            begin += len(piece)


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    """Poll until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        time.sleep(0.01)
