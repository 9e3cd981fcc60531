"""Predictions against files that llm-compressor wrote, and memory against processes that ran."""

from __future__ import annotations

from typing import Any

import pytest

from halfbyte.api.spec import Spec
from halfbyte.planning.facts import parse_facts
from halfbyte.planning.recipe import resolve_recipe
from halfbyte.planning.sizes import (
    MAX_DEADLINE,
    MIN_DEADLINE,
    artifact_bytes,
    disk_bytes,
    kv_bytes_per_token,
    quantize_job_size,
    served_weight_bytes,
    validate_job_size,
)
from support.models import facts as raw_facts
from support.models import large_facts
from support.models import spec as raw_spec

SMALL = parse_facts(raw_facts())
LARGE = parse_facts(large_facts())

WRITTEN = {
    "AWQ g64 asymmetric": ({"groupSize": 64, "symmetric": False}, 114.0e6),
    "GPTQ g64 symmetric": ({"method": "GPTQ", "groupSize": 64, "symmetric": True}, 113.2e6),
    "g32 asymmetric": ({"groupSize": 32, "symmetric": False}, 118.2e6),
    "W8A8": ({"method": "W8A8"}, 163.2e6),
    "None": ({"method": "None"}, 269.06e6),
}


def spec(**parts: Any) -> Spec:
    return Spec.model_validate(raw_spec(**parts))


@pytest.mark.parametrize(("quantization", "size"), WRITTEN.values(), ids=WRITTEN.keys())
def test_artifact_bytes_are_predicted_within_half_a_percent(
    quantization: dict[str, Any], size: float
) -> None:
    wanted = spec(quantization=quantization)
    assert artifact_bytes(SMALL, resolve_recipe(wanted, SMALL)) == pytest.approx(size, rel=0.005)


def test_ignored_layers_keep_their_size() -> None:
    everything = spec(quantization={"ignore": ["re:.*"]})
    assert artifact_bytes(SMALL, resolve_recipe(everything, SMALL)) == SMALL.source_bytes
    most = spec(quantization={"ignore": ["lm_head", "re:.*down_proj"]})
    usual = spec(quantization={"ignore": ["lm_head"]})
    kept = artifact_bytes(SMALL, resolve_recipe(most, SMALL)) - artifact_bytes(
        SMALL, resolve_recipe(usual, SMALL)
    )
    weights = 30 * 576 * 1536
    # 16 bits become 4 and a scale and a zero point for every 64: 4.3125.
    assert kept == pytest.approx(weights * (16 - 4 - 20 / 64) / 8, rel=0.01)


def test_the_quantize_job_has_more_memory_than_llm_compressor_took() -> None:
    calibration = {"samples": 8, "sequenceLength": 256}
    for method, seen in (("AWQ", 1.2e9), ("GPTQ", 1.006e9), ("W8A8", 0.866e9)):
        wanted = spec(quantization={"method": method, "calibration": calibration})
        size = quantize_job_size(wanted, SMALL, resolve_recipe(wanted, SMALL), "float32")
        assert 1.2 * seen < size.memory_request < 3 * seen
        assert size.memory_limit == size.memory_request


def test_more_calibration_needs_more_memory_and_time() -> None:
    def size(samples: int) -> Any:
        wanted = spec(quantization={"calibration": {"samples": samples}})
        return quantize_job_size(wanted, SMALL, resolve_recipe(wanted, SMALL), "float32")

    assert size(512).memory_request > size(64).memory_request
    assert size(512).seconds > size(64).seconds
    assert size(1).deadline_seconds == MIN_DEADLINE
    low, high = size(64).seconds
    assert low < high


def test_the_estimate_holds_the_times_that_were_measured() -> None:
    wanted = spec(quantization={"calibration": {"samples": 8, "sequenceLength": 256}})
    low, high = quantize_job_size(wanted, SMALL, resolve_recipe(wanted, SMALL), "float32").seconds
    assert low <= 67 <= high
    assert low <= 163 <= high


def test_a_deadline_has_an_end() -> None:
    wanted = spec(quantization={"calibration": {"samples": 8192, "sequenceLength": 32768}})
    assert (
        quantize_job_size(wanted, LARGE, resolve_recipe(wanted, LARGE), "bfloat16").deadline_seconds
        == MAX_DEADLINE
    )


def test_given_resources_win() -> None:
    resources = {"requests": {"memory": "1Gi"}, "limits": {"memory": "8Gi"}}
    wanted = spec(
        quantization={"resources": resources}, validation={"resources": {"limits": {"memory": "1Gi"}}}
    )
    size = quantize_job_size(wanted, SMALL, resolve_recipe(wanted, SMALL), "float32")
    assert (size.memory_request, size.memory_limit) == (1024**3, 8 * 1024**3)
    size = validate_job_size(wanted, SMALL, resolve_recipe(wanted, SMALL))
    assert (size.memory_request, size.memory_limit) == (1024**3, 1024**3)


def test_a_generation_gate_takes_time() -> None:
    plain, long = spec(), spec(validation={"generation": {"promptTokens": 1024, "newTokens": 4096}})
    recipe = resolve_recipe(plain, SMALL)
    assert validate_job_size(long, SMALL, recipe).seconds > validate_job_size(plain, SMALL, recipe).seconds
    nothing = resolve_recipe(spec(quantization={"method": "None"}), SMALL)
    assert (
        validate_job_size(plain, SMALL, nothing).memory_request
        < validate_job_size(plain, SMALL, recipe).memory_request
    )


def test_a_hub_download_is_kept_beside_the_artifact() -> None:
    claim, hub = spec(), spec(source={"huggingFace": {"repo": "a/b"}})
    recipe = resolve_recipe(claim, SMALL)
    assert disk_bytes(hub, SMALL, recipe) - disk_bytes(claim, SMALL, recipe) == SMALL.source_bytes


def test_kv_bytes_per_token() -> None:
    assert kv_bytes_per_token(SMALL, "bfloat16") == 23040
    assert kv_bytes_per_token(SMALL, "float32") == 46080
    assert kv_bytes_per_token(LARGE, "bfloat16") == 131072
    compressed = parse_facts(raw_facts(layers=27, kvLoraRank=512, qkRopeHeadDim=64))
    assert kv_bytes_per_token(compressed, "bfloat16") == 27 * 576 * 2


def test_served_weights_keep_layers_packed_and_the_rest_in_the_engines_type() -> None:
    recipe = resolve_recipe(spec(), SMALL)
    wide, narrow = (
        served_weight_bytes(SMALL, recipe, "float32"),
        served_weight_bytes(SMALL, recipe, "bfloat16"),
    )
    rest = SMALL.parameters - 106_168_320
    assert wide - narrow == rest * 2
    assert narrow == pytest.approx(114e6, rel=0.01)
