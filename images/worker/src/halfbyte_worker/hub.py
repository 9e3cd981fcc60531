"""A Hugging Face hub or a mirror of one, over HTTP: what a revision stands for, its files, ranges of them.

    GET {endpoint}/api/models/{repo}/revision/{revision}?blobs=true     commit, files with sizes and digests
    GET {endpoint}/{repo}/resolve/{commit}/{file}                       content; may redirect to another host

Own code instead of huggingface_hub because a Job needs what that library does not promise: a stall timeout
that a trickle of bytes cannot reset, bounded memory, a reason for each cause, no cache layout on the claim.

The token goes to the endpoint only: httpx drops the Authorization header when a redirect leaves the origin.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from halfbyte_worker import log
from halfbyte_worker.failure import Failure, Reason

ENDPOINT = "https://huggingface.co"
COMMIT = re.compile(r"^[0-9a-f]{40}$")
SHA256 = re.compile(r"^[0-9a-f]{64}$")
TOKEN = re.compile(r"^[!-~]*$")
# A plain name in the top folder: nothing that could lead out of the folder it is downloaded to.
FILE_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}$")
PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
LARGEST_LISTING = 64 << 20
"""Bytes. The listing of a repository with 100 000 files is half as large."""
CONNECT_SECONDS = 30.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long transfers may fail before they are given up.

    A transfer stalls when fewer than `stall_bytes` arrive within `stall_seconds`. Attempts count from the
    last one that moved bytes; between them `backoff_seconds * 2**n` with jitter, at most `longest_wait`.
    """

    stall_seconds: float = 60.0
    stall_bytes: int = 64 * 1024
    attempts: int = 6
    backoff_seconds: float = 1.0
    longest_wait: float = 60.0

    @classmethod
    def from_environment(cls) -> Patience:
        """The defaults, overridden by HALFBYTE_HUB_STALL_SECONDS, _ATTEMPTS and _BACKOFF_SECONDS."""
        standard = cls()
        return cls(
            stall_seconds=float(os.environ.get("HALFBYTE_HUB_STALL_SECONDS", standard.stall_seconds)),
            attempts=int(os.environ.get("HALFBYTE_HUB_ATTEMPTS", standard.attempts)),
            backoff_seconds=float(os.environ.get("HALFBYTE_HUB_BACKOFF_SECONDS", standard.backoff_seconds)),
        )

    def wait(self, failures: int, asked: float | None) -> float:
        """Seconds before the next attempt; `asked` is the server's Retry-After."""
        planned = self.backoff_seconds * 2 ** (failures - 1) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        return min(self.longest_wait, max(planned, asked or 0.0))


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a listing. Large ones have `sha256`, others `blob`, git's SHA-1; mirrors may omit all."""

    name: str
    size: int | None
    sha256: str | None
    blob: str | None


class PassingError(Exception):
    """An attempt that failed in a way that may pass; `failure` is how it ends when no attempt is left."""

    def __init__(self, failure: Failure, after: float | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.after = after


class Hub:
    """One repository on one hub."""

    def __init__(
        self,
        repo: str,
        endpoint: str | None = None,
        token: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.repo = repo
        self.endpoint = (endpoint or ENDPOINT).rstrip("/")
        self.host = urlsplit(self.endpoint).netloc
        self.patience = patience or Patience.from_environment()
        # Secrets are often made from files, whose last line ends with a newline.
        token = (token or "").strip()
        if not TOKEN.match(token):
            # Refused here: the HTTP library would quote the header in its error.
            message = f"the token for {self.host} has characters that no token has; correct the Secret's key"
            raise Failure(Reason.GATED_REPOSITORY, message)
        self.authorized = bool(token)
        headers = {"Accept-Encoding": "identity", "User-Agent": "halfbyte-worker"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        seconds = self.patience.stall_seconds
        self._client = httpx.Client(
            headers=headers,
            follow_redirects=True,
            max_redirects=8,
            timeout=httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
        )

    def pin(self, revision: str) -> tuple[str, dict[str, HubFile]]:
        """The commit that a branch, tag or commit stands for now, and the files of its top folder by name.

        Raises:
            Failure: SourceNotFound, RevisionNotFound, GatedRepository, SourceUnreachable, SourceStalled.
        """
        url = f"{self.endpoint}/api/models/{self.repo}/revision/{quote(revision, safe='')}?blobs=true"
        answer = self.retried(lambda: self._json(url, revision))
        commit = answer.get("sha")
        if not isinstance(commit, str) or not COMMIT.match(commit):
            message = (
                f"{self.endpoint} names no commit for {self.repo} at {revision}; is it a Hugging Face hub?"
            )
            raise Failure(Reason.SOURCE_UNREACHABLE, message)
        if COMMIT.match(revision) and commit != revision:
            message = f"{self.host} answers {self.repo} at {revision} with another commit, {commit}"
            raise Failure(Reason.REVISION_NOT_FOUND, message)
        return commit, {file.name: file for file in listed_files(answer.get("siblings"))}

    def _json(self, url: str, revision: str) -> dict[str, Any]:
        with self.get(url, revision) as response:
            body = self.body(response, LARGEST_LISTING)
        try:
            found = json.loads(body)
        except ValueError as error:
            message = (
                f"{self.host} answers {self.repo} with something that is not JSON; is it a Hugging Face hub?"
            )
            raise Failure(Reason.SOURCE_UNREACHABLE, message) from error
        return found if isinstance(found, dict) else {}

    def content_url(self, commit: str, name: str) -> str:
        return f"{self.endpoint}/{self.repo}/resolve/{commit}/{quote(name, safe='')}"

    def read(self, commit: str, name: str, offset: int, length: int) -> tuple[bytes, int]:
        """That range of a file, shorter only at its end, and the file's size."""
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}

        def attempt() -> tuple[bytes, int]:
            with self.get(self.content_url(commit, name), commit, wanted, (200, 206, 416)) as response:
                size = total_size(response)
                if response.status_code == 416:
                    return b"", size
                # A server may ignore the range and send everything.
                skip = 0 if response.status_code == 206 else offset
                return self.body(response, min(length, max(0, size - offset)), skip), size

        return self.retried(attempt)

    def retried(self, attempt: Callable[[], Value], moved: Callable[[], int] = lambda: 0) -> Value:
        """The value of `attempt`, repeated while it fails in a way that may pass. `moved` counts bytes."""
        failures, before = 0, moved()
        while True:
            try:
                return attempt()
            except PassingError as error:
                failures = 1 if moved() > before else failures + 1
                before = moved()
                if failures >= self.patience.attempts:
                    failure = error.failure
                    raise Failure(failure.reason, f"{failure.message}, in {failures} attempts") from error
                seconds = self.patience.wait(failures, error.after)
                log.warning("retry", message=str(error), attempt=failures + 1, waitSeconds=round(seconds, 1))
                time.sleep(seconds)

    @contextmanager
    def get(
        self,
        url: str,
        revision: str,
        headers: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (200,),
    ) -> Iterator[httpx.Response]:
        """A streamed answer of an accepted status.

        Raises:
            PassingError: another attempt may help.
            Failure: none can.
        """
        try:
            with self._client.stream("GET", url, headers=dict(headers or {})) as response:
                if response.status_code not in accept:
                    raise self._refusal(response, revision)
                yield response
        except (httpx.TooManyRedirects, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            message = f"{self.host} redirects {self.repo} to nowhere ({type(error).__name__})"
            raise Failure(Reason.SOURCE_UNREACHABLE, message) from error
        except (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
            raise PassingError(self._stalled()) from error
        except httpx.TransportError as error:
            message = f"{self.host} cannot be reached for {self.repo}: {str(error) or type(error).__name__}"
            raise PassingError(Failure(Reason.SOURCE_UNREACHABLE, message)) from error

    def chunks(self, response: httpx.Response) -> Iterator[bytes]:
        """The body in the pieces that arrive, 64 KiB at most.

        Raises:
            PassingError: it stalls. A read timeout alone would let one byte a minute go on for ever.
        """
        seen, mark, since = 0, 0, time.monotonic()
        for chunk in response.iter_raw():
            yield chunk
            seen += len(chunk)
            now = time.monotonic()
            if seen - mark >= self.patience.stall_bytes:
                mark, since = seen, now
            elif now - since > self.patience.stall_seconds:
                raise PassingError(self._stalled())

    def body(self, response: httpx.Response, limit: int, skip: int = 0) -> bytes:
        """At most `limit` bytes of the body after the first `skip`."""
        found = bytearray()
        for chunk in self.chunks(response):
            found += chunk[skip:]
            skip = max(0, skip - len(chunk))
            if len(found) >= limit:
                break
        return bytes(found[:limit])

    def _stalled(self) -> Failure:
        message = f"{self.host} sends next to nothing of {self.repo} for {self.patience.stall_seconds:g} s"
        return Failure(Reason.SOURCE_STALLED, message)

    def _refusal(self, response: httpx.Response, revision: str) -> Exception:
        status, where = response.status_code, f"{self.repo} on {self.host}"
        # The hub's own word for the cause; mirrors often leave it out.
        code = response.headers.get("X-Error-Code", "")
        if status in PASSING_STATUS:
            failure = Failure(
                Reason.SOURCE_UNREACHABLE, f"{self.host} answers {self.repo} with status {status}"
            )
            return PassingError(failure, retry_after(response))
        if code == "RepoNotFound":
            private = (
                "" if self.authorized else ", or is private: then set spec.source.huggingFace.tokenSecretRef"
            )
            return Failure(Reason.SOURCE_NOT_FOUND, f"repository {where} does not exist{private}")
        if code == "RevisionNotFound":
            return Failure(Reason.REVISION_NOT_FOUND, f"repository {where} has no revision {revision}")
        if status in (401, 403) or code == "GatedRepo":
            remedy = (
                "the token in spec.source.huggingFace.tokenSecretRef is invalid or its account has no access"
                if self.authorized
                else "it is gated, private or does not exist: accept its terms and set"
                " spec.source.huggingFace.tokenSecretRef"
            )
            return Failure(Reason.GATED_REPOSITORY, f"{where} refuses access with status {status}; {remedy}")
        if status == 404:
            return self._not_found(response, revision)
        return Failure(Reason.SOURCE_UNREACHABLE, f"{self.host} answers {self.repo} with status {status}")

    def _not_found(self, response: httpx.Response, revision: str) -> Failure:
        """A 404 without a code: of the file, else of the revision if the repository is there, else that."""
        where, path = f"{self.repo} on {self.host}", response.request.url.path
        if "/api/models/" not in path:
            message = f"{where} lists {path.rpartition('/')[2]} at {revision} but does not have it"
            return Failure(Reason.SOURCE_INCOMPLETE, message)
        try:
            found = self._client.get(f"{self.endpoint}/api/models/{self.repo}").status_code == httpx.codes.OK
        except httpx.HTTPError:
            found = False
        if found:
            return Failure(Reason.REVISION_NOT_FOUND, f"repository {where} has no revision {revision}")
        return Failure(Reason.SOURCE_NOT_FOUND, f"repository {where} does not exist")


def listed_files(siblings: Any) -> Iterator[HubFile]:
    """Files of the top folder whose names are safe to create; no other is of use to a model."""
    for entry in siblings if isinstance(siblings, list) else ():
        name = entry.get("rfilename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not FILE_NAME.match(name):
            continue
        lfs = entry.get("lfs") if isinstance(entry.get("lfs"), dict) else {}
        size, sha256, blob = lfs.get("size", entry.get("size")), lfs.get("sha256"), entry.get("blobId")
        yield HubFile(
            name,
            size if isinstance(size, int) and size >= 0 else None,
            sha256 if isinstance(sha256, str) and SHA256.match(sha256) else None,
            # The blob of a large file is its pointer, not its content.
            blob if not lfs and isinstance(blob, str) and COMMIT.match(blob) else None,
        )


def total_size(response: httpx.Response) -> int:
    """Bytes of the whole file, by Content-Range or Content-Length."""
    ranged = response.status_code != httpx.codes.OK
    text = response.headers.get("Content-Range" if ranged else "Content-Length", "").rpartition("/")[2]
    if not text.isdigit():
        url = response.request.url
        raise Failure(Reason.SOURCE_UNREACHABLE, f"{url.host} does not say how large {url.path} is")
    return int(text)


def retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
