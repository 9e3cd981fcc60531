"""Built-in texts and the token windows cut from them. No torch: callers make tensors."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from importlib.resources import files

from halfbyte_worker.failure import Failure, Reason

CALIBRATION, EVALUATION = "calibration", "evaluation"


def read_corpus(name: str, use: str) -> str:
    """The text of a built-in corpus for `use`: calibration and evaluation never share one."""
    return (files("halfbyte_worker") / "corpora" / f"{name}-{use}.txt").read_text()


def corpus_digest(name: str, use: str) -> str:
    return "sha256-" + hashlib.sha256(read_corpus(name, use).encode()).hexdigest()


def random_windows(tokens: Sequence[int], samples: int, length: int, seed: int) -> list[list[int]]:
    """`samples` windows of `length` tokens at different multiples of `length`, chosen and ordered by `seed`.

    Fewer, when the text has no more.

    Raises:
        Failure: InvalidTask, when not even one window fits.
    """
    starts = list(range(0, len(tokens) - length + 1, length))
    if not starts:
        message = f"sequenceLength {length} is longer than the corpus, which has {len(tokens)} tokens"
        raise Failure(Reason.INVALID_TASK, message)
    chosen = random.Random(seed).sample(starts, min(samples, len(starts)))  # noqa: S311
    return [list(tokens[start : start + length]) for start in chosen]


def spread_windows(tokens: Sequence[int], samples: int, length: int) -> list[list[int]]:
    """Up to `samples` disjoint windows of `length` tokens, evenly spread over the text.

    Raises:
        Failure: InvalidTask, when not even one window fits.
    """
    fitting = len(tokens) // length
    if not fitting:
        message = f"sequenceLength {length} is longer than the corpus, which has {len(tokens)} tokens"
        raise Failure(Reason.INVALID_TASK, message)
    count = min(samples, fitting)
    return [
        list(tokens[start : start + length])
        for start in (index * fitting // count * length for index in range(count))
    ]
