"""Windows of tokens: same for the same seed, disjoint, and never from the text that is measured with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbyte_worker.corpus import (
    CALIBRATION,
    EVALUATION,
    corpus_digest,
    random_windows,
    read_corpus,
    spread_windows,
)
from halfbyte_worker.failure import Failure, Reason


def test_calibration_and_evaluation_are_different_texts() -> None:
    calibration, evaluation = (read_corpus("prose", use) for use in (CALIBRATION, EVALUATION))
    assert len(calibration) > 400_000
    assert len(evaluation) > 140_000
    assert not set(calibration.split("\n\n")) & set(evaluation.split("\n\n")) - {""}


def test_digest_of_the_shipped_texts() -> None:
    """A changed text changes what is measured: artifact keys and kept measurements must change with it."""
    assert corpus_digest("prose", EVALUATION).startswith("sha256-cc660e04a3bef809")
    assert corpus_digest("prose", CALIBRATION).startswith("sha256-da843fa6c392b745")


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 50), st.integers(0, 9))
def test_random_windows(count: int, samples: int, length: int, seed: int) -> None:
    tokens = list(range(count))
    if length > count:
        with pytest.raises(Failure) as failed:
            random_windows(tokens, samples, length, seed)
        assert failed.value.reason == Reason.INVALID_TASK
        return
    windows = random_windows(tokens, samples, length, seed)
    assert windows == random_windows(tokens, samples, length, seed)
    assert len(windows) == min(samples, count // length)
    assert all(window == list(range(window[0], window[0] + length)) for window in windows)
    flat = [token for window in windows for token in window]
    assert len(flat) == len(set(flat))


def test_seed_changes_the_windows() -> None:
    tokens = list(range(10_000))
    assert random_windows(tokens, 8, 16, 0) != random_windows(tokens, 8, 16, 1)


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 50))
def test_spread_windows(count: int, samples: int, length: int) -> None:
    tokens = list(range(count))
    if length > count:
        with pytest.raises(Failure):
            spread_windows(tokens, samples, length)
        return
    windows = spread_windows(tokens, samples, length)
    assert len(windows) == min(samples, count // length)
    assert windows[0][0] == 0
    flat = [token for window in windows for token in window]
    assert flat == sorted(set(flat))
