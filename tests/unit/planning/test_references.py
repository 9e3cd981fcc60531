from __future__ import annotations

from typing import Any

import pytest

from halfbyte.planning.references import references
from support.models import model, spec

HUB = {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hf"}}}


def test_what_a_spec_names() -> None:
    found = references(model(spec()))
    assert found.claims == {"weights", "artifacts", "smollm2-artifacts"}
    assert found.secrets == frozenset()
    assert references(model(spec(source=HUB))).secrets == {"hf"}


@pytest.mark.parametrize(
    "raw", [{}, {"source": None}, {"source": {"pvc": "x"}, "storage": []}, {"storage": {"claimName": 4}}]
)
def test_any_spec_is_read(raw: dict[str, Any]) -> None:
    assert references(model(raw)).claims == {"smollm2-artifacts"}
