"""Values against thresholds, judged as they are shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbyte_worker.gates import GenerationValues, TextValues, describe_failed, judge, measurement
from halfbyte_worker.task import Validation

TEXT = TextValues(cosine=0.94712, source_perplexity=25.32, artifact_perplexity=29.88, positions=3072)
CORPUS = {"corpus": {"builtin": "prose"}, "samples": 6, "sequence_length": 512}


def gates(**given_gates: dict) -> Validation:
    return Validation.model_validate(CORPUS | given_gates, strict=False)


def test_missed_gate_fails_and_says_which() -> None:
    wanted = gates(logits={"min_cosine_similarity": "0.985"}, perplexity={"max_increase_percent": "25"})
    verdict, rows = judge(wanted, TEXT, None)
    assert verdict == "Failed"
    assert rows[0] == {
        "name": "logits/cosine", "value": "0.9471", "threshold": "0.985", "verdict": "Failed",
        "samples": 3072,
    }  # fmt: skip
    assert rows[1] == {
        "name": "perplexity/increasePercent", "value": "18.01", "threshold": "25", "verdict": "Passed",
        "samples": 3072,
    }  # fmt: skip
    assert describe_failed(rows) == "logits/cosine 0.9471 (needed: at least 0.985)"


def test_without_thresholds_everything_is_shown_and_nothing_judged() -> None:
    verdict, rows = judge(gates(), TEXT, None)
    assert verdict == "Passed"
    assert [row["name"] for row in rows] == [
        "logits/cosine", "perplexity/increasePercent", "perplexity/source", "perplexity/artifact",
    ]  # fmt: skip
    assert all("verdict" not in row for row in rows)


def test_generation_is_judged_and_tells_where_the_end_came() -> None:
    wanted = gates(generation={"prompt_tokens": 1, "new_tokens": 2, "max_repetition": "0.2"})
    _, rows = judge(wanted, TEXT, GenerationValues(0.31, (0.1, 0.31), 256, 17))
    assert rows[-1] == {
        "name": "generation/repetition", "value": "0.310", "threshold": "0.2", "verdict": "Failed",
        "samples": 256, "eosAt": 17,
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_number_has_failed(value: float) -> None:
    for threshold in ("0", "1000000"):
        row = judge(gates(logits={"min_cosine_similarity": threshold}), TextValues(value, 1, 1, 1), None)[1][
            0
        ]
        assert row["verdict"] == "Failed"


@given(st.floats(0, 1), st.decimals(0, 1, places=4))
def test_verdict_agrees_with_what_is_shown(value: float, threshold) -> None:
    for bound, agrees in (("atLeast", float.__ge__), ("atMost", float.__le__)):
        row = measurement("x", value, 4, threshold, bound)
        assert (row["verdict"] == "Passed") == agrees(float(row["value"]), float(row["threshold"]))
