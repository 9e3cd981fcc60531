from __future__ import annotations

from typing import Any

import pytest

from halfbyte.planning.facts import Linear, facts_status, parse_facts
from halfbyte.planning.report import without_nulls
from support.models import facts, large_facts


@pytest.mark.parametrize(
    "result", [facts(), large_facts(), facts(kvLoraRank=512, qkRopeHeadDim=64, experts=8)]
)
def test_facts_survive_a_round_trip_through_status(result: dict[str, Any]) -> None:
    parsed = parse_facts(result)
    assert parse_facts(without_nulls(facts_status(parsed, "key"))) == parsed


def test_what_the_worker_may_leave_out_has_a_meaning() -> None:
    small = facts()
    for key in ("node", "storage", "keyValueHeads", "quantized", "linearsTruncated"):
        del small[key]
    parsed = parse_facts(small)
    assert parsed.key_value_heads == parsed.attention_heads
    assert parsed.cpu_flags == frozenset()
    assert parsed.free_bytes is None
    assert parsed.dtype_bytes == 2
    assert parse_facts(facts(torchDtype="float32")).dtype_bytes == 4


def test_a_missing_field_is_named() -> None:
    broken = facts()
    del broken["headDim"]
    with pytest.raises(ValueError, match="lack headDim"):
        parse_facts(broken)
    with pytest.raises(ValueError, match="malformed"):
        parse_facts(facts(layers=None))


def test_too_many_layer_shapes_are_cut_and_said_to_be() -> None:
    many = [{"name": f"l{index}", "rows": 1, "columns": 1, "count": 1} for index in range(70)]
    status = facts_status(parse_facts(facts(linears=many)), "key")
    assert len(status["linears"]) == 64
    assert status["linearsTruncated"] is True


IGNORED = {
    "nothing": ([], 30),
    "a full name": (["model.layers.3.mlp.down_proj"], 29),
    "another module": (["lm_head"], 30),
    "a part of the name is not the name": (["down_proj"], 30),
    "an expression for all": (["re:.*down_proj"], None),
    "an expression for some": ([r"re:model\.layers\.(0|29)\.mlp"], 28),
    "an expression must match from the beginning": (["re:mlp"], 30),
    "a broken expression names nothing": (["re:("], 30),
}


@pytest.mark.parametrize(("patterns", "left"), IGNORED.values(), ids=IGNORED.keys())
def test_ignored_layers_are_counted(patterns: list[str], left: int | None) -> None:
    found = Linear("model.layers.*.mlp.down_proj", 576, 1536, 30).without(patterns)
    assert (found.count if found else None) == left


def test_experts_are_ignored_as_a_whole() -> None:
    experts = Linear("model.layers.*.mlp.experts.*.up_proj", 8, 8, 64)
    assert experts.without(["re:.*experts.*"]) is None
    assert experts.without(["re:.*gate$"]) == experts
    assert experts.example() == "layers.0.mlp.experts.0.up_proj"
