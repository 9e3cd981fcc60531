"""Why a run failed: a reason for people and programs, an exit code that says whether a retry can help.

The operator's ``podFailurePolicy`` reads the exit code, its conditions show the reason and the message.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum, StrEnum
from pathlib import Path

from halfbyte_worker import mounts


class ExitCode(IntEnum):
    OK = 0
    INVALID_TASK = 2
    RETRYABLE = 10
    UNSUPPORTED = 20
    OUT_OF_MEMORY = 30
    OUT_OF_DISK = 40
    GATE_FAILED = 50
    INTERRUPTED = 143


class Reason(StrEnum):
    SOURCE_NOT_FOUND = "SourceNotFound"
    REVISION_NOT_FOUND = "RevisionNotFound"
    GATED_REPOSITORY = "GatedRepository"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_STALLED = "SourceStalled"
    SOURCE_INCOMPLETE = "SourceIncomplete"
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture"
    GROUP_SIZE_INDIVISIBLE = "GroupSizeIndivisible"
    OUT_OF_MEMORY = "OutOfMemory"
    OUT_OF_DISK = "OutOfDisk"
    GATE_FAILED = "GateFailed"
    ARTIFACT_CORRUPT = "ArtifactCorrupt"
    CLAIM_NOT_WRITABLE = "ClaimNotWritable"
    INVALID_TASK = "InvalidTask"
    INTERRUPTED = "Interrupted"
    INTERNAL_ERROR = "InternalError"


EXIT_CODES = {
    Reason.SOURCE_NOT_FOUND: ExitCode.UNSUPPORTED,
    Reason.REVISION_NOT_FOUND: ExitCode.UNSUPPORTED,
    Reason.GATED_REPOSITORY: ExitCode.UNSUPPORTED,
    Reason.SOURCE_UNREACHABLE: ExitCode.RETRYABLE,
    Reason.SOURCE_STALLED: ExitCode.RETRYABLE,
    Reason.SOURCE_INCOMPLETE: ExitCode.UNSUPPORTED,
    Reason.UNSUPPORTED_ARCHITECTURE: ExitCode.UNSUPPORTED,
    Reason.GROUP_SIZE_INDIVISIBLE: ExitCode.UNSUPPORTED,
    Reason.OUT_OF_MEMORY: ExitCode.OUT_OF_MEMORY,
    Reason.OUT_OF_DISK: ExitCode.OUT_OF_DISK,
    Reason.GATE_FAILED: ExitCode.GATE_FAILED,
    Reason.ARTIFACT_CORRUPT: ExitCode.UNSUPPORTED,
    Reason.CLAIM_NOT_WRITABLE: ExitCode.UNSUPPORTED,
    Reason.INVALID_TASK: ExitCode.INVALID_TASK,
    Reason.INTERRUPTED: ExitCode.INTERRUPTED,
    # Unknown, so a retry may help; the Job's backoffLimit bounds it.
    Reason.INTERNAL_ERROR: ExitCode.RETRYABLE,
}


class Failure(Exception):
    """A run that ends here, with what to tell and what to report. `code` overrides the reason's own."""

    def __init__(
        self, reason: Reason, message: str, *, code: ExitCode | None = None, result: dict | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = EXIT_CODES[reason] if code is None else code
        self.result = result or {}


class Interrupted(BaseException):
    """SIGTERM. Not an Exception, so that no library's `except Exception` swallows it."""


DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT}
PERMISSION_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}
# What torch and safetensors raise carries the cause only in its text.
MEMORY_TEXTS = ("can't allocate memory", "out of memory", "bad_alloc", "cannot allocate memory")
DISK_TEXTS = ("no space left on device", "disk quota exceeded")


def is_artifact(name: object) -> bool:
    return isinstance(name, str | os.PathLike) and Path(name).is_relative_to(mounts.ARTIFACT_ROOT)


def classify_exception(error: BaseException) -> Failure:
    """The Failure that an exception from a library or the system amounts to."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, Interrupted):
        return Failure(Reason.INTERRUPTED, "SIGTERM: the work done so far is kept, a rerun goes on from it")
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    if isinstance(error, MemoryError) or any(word in lowered for word in MEMORY_TEXTS):
        message = f"not enough memory; raise the Job's memory limit or use fewer samples ({text})"
        return Failure(Reason.OUT_OF_MEMORY, message)
    if (isinstance(error, OSError) and error.errno in DISK_ERRORS) or any(
        word in lowered for word in DISK_TEXTS
    ):
        return Failure(Reason.OUT_OF_DISK, f"no space left while writing; give the claim more room ({text})")
    if isinstance(error, OSError) and error.errno in PERMISSION_ERRORS and is_artifact(error.filename):
        message = (
            f"uid {os.getuid()} cannot write to the artifact claim ({error.strerror}: {error.filename}); "
            "make its directory writable for that uid, or use a volume that honours fsGroup"
        )
        return Failure(Reason.CLAIM_NOT_WRITABLE, message)
    if isinstance(error, OSError):
        return Failure(Reason.INTERNAL_ERROR, f"reading or writing failed ({text})")
    return Failure(Reason.INTERNAL_ERROR, f"unexpected {text}")
