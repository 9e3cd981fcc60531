from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.spec import Spec
from halfbyte.planning.facts import parse_facts
from halfbyte.planning.recipe import (
    ROUTERS,
    Recipe,
    artifact_key,
    artifact_path,
    indivisible,
    quantized_linears,
    resolve_recipe,
)
from support.models import facts as raw_facts
from support.models import large_facts
from support.models import spec as raw_spec


def recipe(quantization: dict[str, Any], facts: dict[str, Any] | None = None) -> Recipe:
    return resolve_recipe(
        Spec.model_validate(raw_spec(quantization=quantization)), parse_facts(facts or raw_facts())
    )


RESOLVED: dict[str, tuple[dict[str, Any], tuple[Any, ...], str]] = {
    "AWQ alone": ({}, ("AWQ", 4, 64, False), "AWQ int4 g64 asym"),
    "AWQ symmetric": ({"symmetric": True, "groupSize": 32}, ("AWQ", 4, 32, True), "AWQ int4 g32"),
    "GPTQ alone": ({"method": "GPTQ"}, ("GPTQ", 4, 64, True), "GPTQ int4 g64"),
    "W8A8": ({"method": "W8A8"}, ("W8A8", 8, None, True), "W8A8 int8 per channel"),
    "None": ({"method": "None"}, ("None", None, None, None), "unquantized"),
}


@pytest.mark.parametrize(("wanted", "values", "words"), RESOLVED.values(), ids=RESOLVED.keys())
def test_what_the_spec_leaves_out_is_chosen(
    wanted: dict[str, Any], values: tuple[Any, ...], words: str
) -> None:
    found = recipe(wanted)
    assert (found.method, found.bits, found.group_size, found.symmetric) == values
    assert found.describe() == words
    assert found.why


def test_a_large_model_takes_the_common_group_size() -> None:
    assert recipe({}, large_facts()).group_size == 128


def test_the_message_names_layer_columns_and_what_is_allowed() -> None:
    facts = parse_facts(raw_facts())
    assert indivisible(facts, recipe({"groupSize": 128})) == (
        "layers.0.self_attn.q_proj has 576 columns, not a multiple of groupSize 128; allowed here: 32, 64"
    )
    assert indivisible(facts, recipe({"groupSize": 64})) is None
    assert indivisible(facts, recipe({"method": "W8A8"})) is None
    odd = raw_facts(linears=[{"name": "model.a", "rows": 8, "columns": 100, "count": 1}])
    found = indivisible(parse_facts(odd), recipe({}, odd))
    assert found == "a has 100 columns, not a multiple of groupSize 128; no group size fits this model"


def test_ignoring_the_layers_that_do_not_fit_makes_the_group_size_fit() -> None:
    ignore = ["lm_head", "re:.*(q|k|v|o|gate|up)_proj"]
    assert recipe({"ignore": ignore}).group_size == 128
    assert indivisible(parse_facts(raw_facts()), recipe({"ignore": ignore, "groupSize": 128})) is None


def test_routers_of_a_mixture_of_experts_stay_as_they_are() -> None:
    moe = raw_facts(
        experts=8,
        linears=[
            {"name": "model.layers.*.mlp.gate", "rows": 8, "columns": 576, "count": 4},
            {"name": "model.layers.*.mlp.experts.*.up_proj", "rows": 64, "columns": 576, "count": 32},
        ],
    )
    found = recipe({}, moe)
    assert ROUTERS in found.ignore
    assert [each.name for each in quantized_linears(parse_facts(moe), found)] == [
        "model.layers.*.mlp.experts.*.up_proj"
    ]


def test_the_key_changes_with_what_changes_the_content_and_with_nothing_else() -> None:
    facts = parse_facts(raw_facts())
    base = artifact_key(facts, recipe({"calibration": {"samples": 8}}))
    assert base == artifact_key(facts, recipe({"calibration": {"samples": 8}, "ignore": ["lm_head"]}))
    assert base == artifact_key(
        facts, recipe({"calibration": {"samples": 8}, "resources": {"limits": {"memory": "9Gi"}}})
    )
    elsewhere = parse_facts(
        raw_facts(node={"name": "other", "cpuFlags": ["avx512f"]}, storage={"freeBytes": 1})
    )
    assert base == artifact_key(elsewhere, recipe({"calibration": {"samples": 8}}))
    changes = [
        {"calibration": {"samples": 9}},
        {"calibration": {"samples": 8, "seed": 1}},
        {"calibration": {"samples": 8}, "groupSize": 32},
        {"calibration": {"samples": 8}, "symmetric": True},
        {"calibration": {"samples": 8}, "ignore": []},
        {"calibration": {"samples": 8}, "method": "GPTQ"},
    ]
    keys = {artifact_key(facts, recipe(each)) for each in changes}
    assert len(keys) == len(changes)
    assert base not in keys
    moved = parse_facts(raw_facts(source={"revision": "b" * 40, "bytes": 269_060_552}))
    assert base != artifact_key(moved, recipe({"calibration": {"samples": 8}}))


def test_calibration_counts_only_where_it_is_used() -> None:
    facts = parse_facts(raw_facts())
    for method in ("W8A8", "None"):
        keys = {
            artifact_key(facts, recipe({"method": method, "calibration": {"seed": seed}})) for seed in (1, 2)
        }
        assert len(keys) == 1


def test_the_path_is_one_name() -> None:
    assert artifact_path(recipe({}), "sha256-" + "ab" * 32) == "awq-abababababababab"
