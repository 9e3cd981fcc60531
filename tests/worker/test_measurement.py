"""The measures against direct calculation and against models whose answer is known."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfbyte_worker import measurement
from halfbyte_worker.measurement import (
    SEGMENT,
    measure_generation,
    measure_text,
    perplexity,
    sample_nucleus,
    segment_repetitions,
)

WORDS = 11


class Table(torch.nn.Module):
    """A language model whose logits depend on the current token alone; table: (vocabulary, vocabulary)."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: torch.Tensor, **_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[tokens], past_key_values=None)


def random_table(seed: int) -> torch.Tensor:
    return torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(seed))


def ignore(_: int) -> None:
    pass


WINDOWS = [[1, 2, 3, 4, 5, 6, 7] * 20, [10, 9, 8, 0, 3]]


def test_equal_models_have_cosine_one_and_no_increase() -> None:
    model = Table(random_table(0))
    values = measure_text(model, model, WINDOWS, ignore)
    assert values.cosine == pytest.approx(1, abs=1e-6)
    assert values.increase_percent == 0
    assert values.positions == 145


def test_values_equal_the_direct_calculation() -> None:
    left, right = random_table(0), random_table(1)
    reports: list[int] = []
    values = measure_text(Table(left), Table(right), WINDOWS, reports.append)
    rows = torch.tensor([token for window in WINDOWS for token in window])
    cosine = torch.nn.functional.cosine_similarity(left[rows].double(), right[rows].double(), dim=-1).mean()
    pairs = [pair for window in WINDOWS for pair in pairwise(window)]
    losses = [-torch.log_softmax(right[now].double(), 0)[after].item() for now, after in pairs]
    assert values.cosine == pytest.approx(cosine.item(), rel=1e-5)
    assert values.artifact_perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert reports == [0, 1, 2]


def test_uniform_model_has_the_vocabulary_as_perplexity() -> None:
    model = Table(torch.zeros(WORDS, WORDS))
    assert measure_text(model, model, WINDOWS, ignore).source_perplexity == pytest.approx(WORDS)


def test_broken_artifact_gives_no_number() -> None:
    broken = Table(torch.full((WORDS, WORDS), math.nan))
    values = measure_text(Table(random_table(0)), broken, WINDOWS, ignore)
    assert math.isnan(values.cosine)
    assert math.isnan(values.artifact_perplexity)


def test_perplexity_beyond_a_float_is_infinite() -> None:
    assert perplexity(1e6, 1) == math.inf


def test_generation_counts_loops_and_the_first_end() -> None:
    """After token t always comes t+1 modulo 4, so every 4-gram after the fourth repeats."""
    table = torch.full((WORDS, WORDS), -1e9)
    for token in range(WORDS):
        table[token, (token + 1) % 4] = 0
    values = measure_generation(Table(table), [0], SEGMENT, frozenset({3}), ignore)
    assert values.eos_at == 2
    assert values.tokens == SEGMENT
    assert values.repetition == pytest.approx(1 - 4 / (SEGMENT - 3))


def test_generation_is_the_same_every_time() -> None:
    model = Table(random_table(3))
    runs = [measure_generation(model, [1, 2], 300, frozenset(), ignore) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].eos_at is None
    assert len(runs[0].segments) == 2


def test_generation_of_a_broken_artifact_ends() -> None:
    broken = Table(torch.full((WORDS, WORDS), math.nan))
    assert measure_generation(broken, [0], 8, frozenset(), ignore).tokens == 8


def test_nucleus_leaves_out_the_tail() -> None:
    """Probabilities 0.9, 0.06 and a tail: the second is needed to reach 0.95, the tail never comes."""
    logits = torch.log(torch.tensor([0.01, 0.9, 0.06, 0.03]))
    chance = torch.Generator().manual_seed(0)
    assert {sample_nucleus(logits, chance) for _ in range(400)} == {1, 2}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5 * SEGMENT))
def test_repetition_is_a_share(tokens: list[int]) -> None:
    shares = segment_repetitions(tokens)
    assert all(0 <= share < 1 for share in shares)
    assert len(shares) == max(1, (len(tokens) + SEGMENT // 2) // SEGMENT)


def test_distinct_tokens_repeat_nothing() -> None:
    assert segment_repetitions(list(range(3 * SEGMENT))) == (0, 0, 0)
    assert segment_repetitions([7] * SEGMENT)[0] == pytest.approx(1 - 1 / (SEGMENT - 3))


def test_logits_are_compared_in_chunks(monkeypatch) -> None:
    """The last token of a chunk is scored by the first of the next."""
    results = []
    for chunk in (1, 7, 1000):
        monkeypatch.setattr(measurement, "CHUNK", chunk)
        results.append(measure_text(Table(random_table(0)), Table(random_table(1)), WINDOWS, ignore))
    assert results[0].artifact_perplexity == pytest.approx(results[2].artifact_perplexity)
    assert results[1].cosine == pytest.approx(results[2].cosine)
