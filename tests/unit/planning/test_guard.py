"""Specs that reach the operator although the API server would refuse them today."""

from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.spec import OWNED_ARGUMENTS, Spec
from halfbyte.planning.guard import read_spec
from halfbyte.planning.violation import Violation
from support.models import MATRIX
from support.models import spec as raw_spec

CPU = {"type": "cpu"}
HUB = {"huggingFace": {"repo": "a/b"}}
REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "two sources": (raw_spec(source={**HUB, **raw_spec()["source"]}), ("spec.source", "exactly one")),
    "no source": (raw_spec(source={}), ("spec.source", "exactly one")),
    "two storages": (raw_spec(storage={"claimName": "a", "size": "1Gi"}), ("spec.storage", "exactly one")),
    "no storage": (raw_spec(storage={}), ("spec.storage", "exactly one")),
    "unknown method": (
        raw_spec(quantization={"method": "INT3"}),
        ("spec.quantization.method", "INT3", "AWQ"),
    ),
    "unknown field": (raw_spec(flavour="sweet"), ("spec.flavour", "sweet")),
    "bits of AWQ": (raw_spec(quantization={"bits": 8}), ("spec.quantization.bits", "AWQ", "4", "8")),
    "bits of W8A8": (raw_spec(quantization={"method": "W8A8", "bits": 4}), ("W8A8", "8")),
    "bits of None": (raw_spec(quantization={"method": "None", "bits": 4}), ("takes no bits",)),
    "group of W8A8": (raw_spec(quantization={"method": "W8A8", "groupSize": 32}), ("groupSize", "W8A8")),
    "asymmetric W8A8": (raw_spec(quantization={"method": "W8A8", "symmetric": False}), ("symmetric",)),
    "broken expression": (
        raw_spec(quantization={"ignore": ["re:("]}),
        ("spec.quantization.ignore[0]", "re:("),
    ),
    "owned argument": (
        raw_spec(serving={"accelerator": CPU, "extraArgs": ["--seed=1", "--tensor_parallel_size=2"]}),
        ("--tensor_parallel_size=2", "owned by the operator"),
    ),
    "memory of a CPU": (raw_spec(serving={"accelerator": {**CPU, "memory": "80Gi"}}), ("nvidia",)),
    "ranks and GPUs": (
        raw_spec(serving={"accelerator": {"type": "nvidia", "perReplica": 2}, "tensorParallel": 4}),
        ("tensorParallel is 4", "perReplica 2"),
    ),
    "request above limit": (
        raw_spec(
            serving={
                "accelerator": CPU,
                "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
            }
        ),
        ("spec.serving.resources.requests.memory 2Gi is above limits.memory 1Gi",),
    ),
    "not a quantity": (
        raw_spec(quantization={"resources": {"limits": {"cpu": "lots"}}}),
        ("spec.quantization.resources", "lots"),
    ),
    "wrong type": (
        raw_spec(serving={"accelerator": CPU, "replicas": "many"}),
        ("spec.serving.replicas", "many"),
    ),
    "empty": ({}, ("spec.source", "(and 2 more)")),
}


@pytest.mark.parametrize(("raw", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_with_field_and_value(raw: dict[str, Any], said: tuple[str, ...]) -> None:
    found = read_spec(raw, MATRIX)
    assert isinstance(found, Violation), found
    assert found.terminal
    for words in said:
        assert words in found.message


@pytest.mark.parametrize("argument", OWNED_ARGUMENTS)
def test_every_owned_argument_is_refused_in_all_spellings(argument: str) -> None:
    for spelling in (argument, f"{argument}=x", argument.replace("-", "_").replace("__", "--", 1)):
        found = read_spec(raw_spec(serving={"accelerator": CPU, "extraArgs": [spelling]}), MATRIX)
        assert isinstance(found, Violation), spelling


def test_a_method_that_the_matrix_does_not_serve_is_refused_with_those_that_it_does() -> None:
    matrix = {"methods": [{"name": "AWQ", "served": False}, {"name": "W8A8", "served": True}]}
    found = read_spec(raw_spec(), matrix)
    assert isinstance(found, Violation)
    assert found.message == "spec.quantization.method: AWQ is not served; allowed: W8A8"


def test_a_good_spec_is_typed() -> None:
    found = read_spec(raw_spec(), MATRIX)
    assert isinstance(found, Spec)
    assert found.serving.tensor_parallel == "Auto"
