"""Measurements on loaded models: logits, perplexity, generation. Imports torch; import it when there is work.

Perplexity of a text of windows w with tokens t: exp of the mean over all windows and positions i of
-log p(t_i+1 | t_1..t_i), each window on its own (no context is carried from one to the next).

Cosine similarity: for each position of each window cos(source logits, artifact logits) over the vocabulary,
averaged over positions. Both come from the same forward passes: each model computes each window once, and the
logits of one window (2 x sequenceLength x vocabulary x 4 bytes) are in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import PreTrainedModel

from halfbyte_worker.gates import GenerationValues, TextValues

CHUNK = 64
"""Positions compared at once: bounds the temporaries to 64 x vocabulary."""
SEGMENT = 128
"""Tokens in which repetition is counted; short enough that ordinary prose repeats few 4-grams."""
NGRAM = 4
TOP_P = 0.95
SEED = 0


@torch.inference_mode()
def measure_text(
    source: PreTrainedModel,
    artifact: PreTrainedModel,
    windows: Sequence[Sequence[int]],
    report: Callable[[int], None],
) -> TextValues:
    """Both models over the same windows; `report(n)` is called when n windows are finished."""
    cosine, source_loss, artifact_loss = 0.0, 0.0, 0.0
    positions, scored = 0, 0
    report(0)
    for number, window in enumerate(windows, start=1):
        tokens = torch.tensor([window])
        reference = source(tokens, use_cache=False).logits[0].float()
        found = artifact(tokens, use_cache=False).logits[0].float()
        targets = tokens[0, 1:]
        for start in range(0, len(window), CHUNK):
            rows = slice(start, start + CHUNK)
            left, right = reference[rows], found[rows]
            cosine += cosine_similarity(left, right, dim=-1).double().sum().item()
            wanted = targets[rows]
            source_loss += cross_entropy(left[: len(wanted)], wanted, reduction="sum").item()
            artifact_loss += cross_entropy(right[: len(wanted)], wanted, reduction="sum").item()
        positions += len(window)
        scored += len(window) - 1
        report(number)
    return TextValues(
        cosine=cosine / positions,
        source_perplexity=perplexity(source_loss, scored),
        artifact_perplexity=perplexity(artifact_loss, scored),
        positions=positions,
    )


def perplexity(loss: float, tokens: int) -> float:
    """exp(loss / tokens); infinite where that is no float64."""
    try:
        return math.exp(loss / tokens)
    except OverflowError:
        return math.inf


@torch.inference_mode()
def measure_generation(
    model: PreTrainedModel,
    prompt: Sequence[int],
    new_tokens: int,
    stops: frozenset[int],
    report: Callable[[int], None],
) -> GenerationValues:
    """Continue `prompt` by `new_tokens` tokens and see whether the text degenerates.

    Sampled (nucleus 0.95, temperature 1, fixed seed), not greedy: greedy decoding ends in a loop with healthy
    small models too. It does not stop at an end-of-sequence token, but tells where the first one came.
    """
    chance = torch.Generator().manual_seed(SEED)
    generated: list[int] = []
    eos_at = None
    step = model(torch.tensor([list(prompt)]), use_cache=True, logits_to_keep=1)
    report(0)
    while len(generated) < new_tokens:
        token = sample_nucleus(step.logits[0, -1].float(), chance)
        if token in stops and eos_at is None:
            eos_at = len(generated)
        generated.append(token)
        report(len(generated))
        if len(generated) < new_tokens:
            step = model(torch.tensor([[token]]), past_key_values=step.past_key_values, use_cache=True)
    segments = segment_repetitions(generated)
    return GenerationValues(max(segments), segments, len(generated), eos_at)


def sample_nucleus(logits: torch.Tensor, chance: torch.Generator) -> int:
    """A token of the smallest set of probability TOP_P (Holtzman et al. 2020); logits: (vocabulary,)."""
    probabilities, order = torch.softmax(logits, dim=-1).sort(descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = torch.where(before < TOP_P, probabilities, 0.0)
    if not torch.isfinite(kept).all() or kept.sum() <= 0:
        return int(order[0])  # logits of a broken artifact: the other measurements say so
    return int(order[torch.multinomial(kept, 1, generator=chance)])


def segment_repetitions(tokens: Sequence[int]) -> tuple[float, ...]:
    """Share of repeated 4-grams, 1 - distinct / all, in each segment of SEGMENT tokens.

    A rest shorter than half a segment belongs to the one before it.
    """
    starts = list(range(0, len(tokens), SEGMENT))
    if len(starts) > 1 and len(tokens) - starts[-1] < SEGMENT // 2:
        starts.pop()
    ends = [*starts[1:], len(tokens)]
    shares = []
    for start, end in zip(starts, ends, strict=True):
        grams = [tuple(tokens[index : index + NGRAM]) for index in range(start, end - NGRAM + 1)]
        shares.append(1 - len(set(grams)) / len(grams) if grams else 0.0)
    return tuple(shares)
