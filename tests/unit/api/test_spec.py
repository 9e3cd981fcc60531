from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from halfbyte.api.spec import OWNED_PATTERN, Spec

EXAMPLES = Path(__file__).parents[3] / "examples"
MINIMAL: dict[str, Any] = {
    "source": {"pvc": {"claimName": "weights"}},
    "serving": {"accelerator": {"type": "cpu"}},
    "storage": {"claimName": "artifacts"},
}


def examples() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted(EXAMPLES.glob("*.yaml")):
        found += [
            (path.name, document["spec"])
            for document in yaml.safe_load_all(path.read_text())
            if document and document["kind"] == "QuantizedModel"
        ]
    return found


@pytest.mark.parametrize(("name", "spec"), examples())
def test_examples_are_valid(name: str, spec: dict[str, Any]) -> None:
    Spec.model_validate(spec)


def test_a_short_manifest_has_sane_defaults() -> None:
    spec = Spec.model_validate(MINIMAL)
    assert spec.quantization.method == "AWQ"
    assert spec.quantization.ignore == ["lm_head"]
    assert spec.validation.logits.min_cosine_similarity == "0.985"
    assert spec.validation.perplexity.max_increase_percent == "5"
    assert spec.validation.on_failure == "Block"
    assert spec.serving.replicas == 1
    assert spec.approval == "Automatic"
    assert spec.suspend is False


def test_specs_are_frozen() -> None:
    spec = Spec.model_validate(MINIMAL)
    with pytest.raises(ValidationError):
        spec.suspend = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argument", "owned"),
    [
        ("--model", True),
        ("--model=x", True),
        ("--tensor_parallel_size=2", True),
        ("-tp", True),
        ("--models", False),
        ("--max-num-seqs=8", False),
        ("--enable-prefix-caching", False),
    ],
)
def test_owned_arguments(argument: str, owned: bool) -> None:
    assert bool(re.match(OWNED_PATTERN, argument)) is owned


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/../b", "a b", "."])
def test_a_path_stays_within_its_claim(path: str) -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({**MINIMAL, "source": {"pvc": {"claimName": "weights", "path": path}}})


@pytest.mark.parametrize("endpoint", ["ftp://x", "https://user:secret@hub", "https://a b"])
def test_an_endpoint_carries_no_secret(endpoint: str) -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({**MINIMAL, "source": {"huggingFace": {"repo": "a/b", "endpoint": endpoint}}})
