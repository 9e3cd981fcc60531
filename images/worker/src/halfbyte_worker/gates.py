"""Gates: measured values against thresholds. Pure, so that other thresholds need no other measurement.

Each value is rounded and judged as it is shown, so that no status says "0.985, threshold 0.985, Failed".
A value that is no finite number (a broken artifact gives NaN) has failed whatever the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from halfbyte_worker.task import Validation

PASSED, FAILED = "Passed", "Failed"
Bound = Literal["atLeast", "atMost"]


@dataclass(frozen=True, slots=True)
class TextValues:
    """What the same windows of text gave on both models."""

    cosine: float
    """Mean over positions of the cosine similarity of the last layer's logits."""
    source_perplexity: float
    artifact_perplexity: float
    positions: int

    @property
    def increase_percent(self) -> float:
        return (self.artifact_perplexity / self.source_perplexity - 1) * 100


@dataclass(frozen=True, slots=True)
class GenerationValues:
    repetition: float
    """Largest share of repeated 4-grams within one segment."""
    segments: tuple[float, ...]
    tokens: int
    eos_at: int | None
    """Tokens generated before the model chose to stop for the first time; None when it never did."""


def judge(
    validation: Validation, text: TextValues, generation: GenerationValues | None
) -> tuple[str, list[dict[str, Any]]]:
    """The verdict, and all measurements with what they were judged by."""
    minimum = validation.logits.min_cosine_similarity if validation.logits else None
    maximum = validation.perplexity.max_increase_percent if validation.perplexity else None
    samples = {"samples": text.positions}
    rows = [
        measurement("logits/cosine", text.cosine, 4, minimum, "atLeast") | samples,
        measurement("perplexity/increasePercent", text.increase_percent, 2, maximum, "atMost") | samples,
        measurement("perplexity/source", text.source_perplexity, 3) | samples,
        measurement("perplexity/artifact", text.artifact_perplexity, 3) | samples,
    ]
    if generation is not None and validation.generation is not None:
        row = measurement(
            "generation/repetition", generation.repetition, 3, validation.generation.max_repetition, "atMost"
        )
        rows.append(row | {"samples": generation.tokens, "eosAt": generation.eos_at})
    verdict = FAILED if any(row.get("verdict") == FAILED for row in rows) else PASSED
    return verdict, rows


def measurement(
    name: str, value: float, digits: int, threshold: Decimal | None = None, bound: Bound = "atMost"
) -> dict[str, Any]:
    shown = f"{value:.{digits}f}"
    row: dict[str, Any] = {"name": name, "value": shown}
    if threshold is None:
        return row
    number = Decimal(shown)
    met = number.is_finite() and (number >= threshold if bound == "atLeast" else number <= threshold)
    return row | {"threshold": str(threshold), "verdict": PASSED if met else FAILED}


def describe_failed(rows: list[dict[str, Any]]) -> str:
    """`logits/cosine 0.9471 (needed: at least 0.985), ...` for the gates that were missed."""
    words = []
    for row in rows:
        if row.get("verdict") == FAILED:
            bound = "at least" if row["name"] == "logits/cosine" else "at most"
            words.append(f"{row['name']} {row['value']} (needed: {bound} {row['threshold']})")
    return ", ".join(words)
