import errno

import pytest

from halfbyte_worker.failure import EXIT_CODES, Failure, Interrupted, Reason, classify_exception


def test_every_reason_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(Reason)


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (MemoryError(), Reason.OUT_OF_MEMORY, 30),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
            "OutOfMemory",
            30,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.OUT_OF_DISK, 40),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), Reason.OUT_OF_DISK, 40),
        (RuntimeError("I/O error: No space left on device (os error 28)"), Reason.OUT_OF_DISK, 40),
        (OSError(errno.EIO, "Input/output error"), Reason.INTERNAL_ERROR, 10),
        (
            PermissionError(errno.EACCES, "Permission denied", "/halfbyte/artifacts/.x.lock"),
            "ClaimNotWritable",
            20,
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/elsewhere"), Reason.INTERNAL_ERROR, 10),
        (ZeroDivisionError("division by zero"), Reason.INTERNAL_ERROR, 10),
        (Interrupted(), Reason.INTERRUPTED, 143),
    ],
)
def test_exceptions_amount_to_reasons(error: BaseException, reason: str, code: int) -> None:
    failure = classify_exception(error)
    assert (failure.reason, failure.code) == (reason, code)
    assert failure.message


def test_a_failure_stays_what_it_is() -> None:
    failure = Failure(Reason.GATE_FAILED, "cosine is low", result={"verdict": "Failed"})
    assert classify_exception(failure) is failure
    assert (failure.code, failure.result) == (50, {"verdict": "Failed"})
