"""The rewriter by itself, and lint rules (after kube-api-linter) over everything that it makes for us."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from halfbyte.api.crd import build_crd
from halfbyte.api.schema import structural_schema
from halfbyte.api.spec import Spec
from halfbyte.api.status import Status

BOOLEANS = {
    "spec.quantization.symmetric",
    "spec.suspend",
    "status.facts.tiedEmbeddings",
    "status.facts.linearsTruncated",
    "status.plan.recipe.symmetric",
    "status.artifact.reused",
    "status.validation.reused",
}
"""Every boolean of the API; a new one needs a reason beside its field."""

FORBIDDEN = (
    "$ref",
    "$defs",
    "anyOf",
    "oneOf",
    "allOf",
    "const",
    "title",
    "uniqueItems",
    "prefixItems",
    "nullable",
)


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


FIELDS = dict([*walk(structural_schema(Spec), "spec"), *walk(structural_schema(Status), "status")])


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_keeps_the_rules_of_the_house(path: str) -> None:
    schema = FIELDS[path]
    assert not [key for key in FORBIDDEN if key in schema]
    if not path.endswith(("[]", "{}")) and "." in path:
        assert schema.get("description"), "no description"
        assert len(schema["description"]) <= 200
    kind = schema.get("type")
    assert kind != "number", "no floats in a Kubernetes API"
    if kind is None:
        assert schema["x-kubernetes-int-or-string"] is True
        assert schema["maxLength"]
    if kind == "string":
        assert "maxLength" in schema or "enum" in schema, "unbounded string"
    if kind == "array":
        assert schema["maxItems"]
        assert schema["x-kubernetes-list-type"] in ("atomic", "set", "map")
        if schema["x-kubernetes-list-type"] == "map":
            keys = schema["x-kubernetes-list-map-keys"]
            assert set(keys) <= set(schema["items"]["required"])
    if kind == "object" and "additionalProperties" in schema:
        assert schema["maxProperties"]
    if kind == "object" and "properties" not in schema:
        assert "additionalProperties" in schema, "a free object would be pruned"
    if kind == "boolean":
        assert path in BOOLEANS, "a boolean without a reason"
    for rule in schema.get("x-kubernetes-validations", ()):
        assert set(rule) <= {"rule", "message", "messageExpression", "fieldPath", "reason"}
        assert rule["message"]


def test_status_is_optional_throughout() -> None:
    def required(path: str) -> list[str]:
        return [name for name in FIELDS[path].get("required", ())]

    inside_lists = {path for path in FIELDS if path.endswith("[]")}
    for path in FIELDS:
        if path.startswith("status") and path not in inside_lists:
            assert required(path) == [], path


@pytest.mark.parametrize("model", [Spec, Status])
def test_defaults_of_the_schema_are_those_of_the_model(model: type[BaseModel]) -> None:
    """What the API server fills in is what the operator would have taken anyway."""

    def fill(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        for name, child in schema.get("properties", {}).items():
            if name not in value and "default" in child:
                value[name] = json.loads(json.dumps(child["default"]))
            if isinstance(value.get(name), dict):
                fill(child, value[name])
        return value

    given: dict[str, Any] = {}
    if model is Spec:
        given = {
            "source": {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hf"}}},
            "serving": {"accelerator": {"type": "cpu"}},
            "storage": {"size": "1Gi"},
            "validation": {"generation": {}},
        }
    filled = fill(structural_schema(model), json.loads(json.dumps(given)))
    assert model.model_validate(filled) == model.model_validate(given)
    dumped = model.model_validate(given).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert filled == dumped


def test_patterns_mean_the_same_to_go_and_to_python() -> None:
    # RE2 has neither look-around nor back references nor possessive quantifiers.
    for path, schema in FIELDS.items():
        pattern = schema.get("pattern", "")
        assert not re.search(r"\(\?[=!<]|\\[1-9]|[*+?}]\+", pattern), path
        re.compile(pattern)


def test_the_whole_stays_small() -> None:
    assert len(json.dumps(build_crd())) < 100 * 1024


class Inner(BaseModel):
    number: int = Field(default=3, description="A number.")


class Outer(BaseModel):
    inner: Inner = Field(default=Inner(), description="The inner one.")
    maybe: Inner | None = None
    word: Literal["a"] = "a"
    table: dict[str, Annotated[str, Field(max_length=3)]] = Field(default={}, max_length=2)
    things: list[Inner] = []


class Recursive(BaseModel):
    again: Recursive | None = None


class Union(BaseModel):
    either: int | str


class Numbers(BaseModel):
    above: int = Field(gt=0)


def test_the_rewriter_makes_structural_schemas() -> None:
    schema = structural_schema(Outer)
    number = {"type": "integer", "default": 3, "description": "A number."}
    inner = {"type": "object", "properties": {"number": number}}
    assert schema["properties"]["inner"] == {**inner, "default": {}, "description": "The inner one."}
    assert schema["properties"]["maybe"] == inner
    assert schema["properties"]["word"] == {"type": "string", "enum": ["a"], "default": "a"}
    assert schema["properties"]["table"]["additionalProperties"] == {"type": "string", "maxLength": 3}
    assert schema["properties"]["table"]["maxProperties"] == 2
    assert schema["properties"]["things"]["items"] == inner


@pytest.mark.parametrize(
    ("model", "words"), [(Recursive, "recursive"), (Union, "union of 2"), (Numbers, "exclusiveMinimum")]
)
def test_what_has_no_structural_form_is_refused(model: type[BaseModel], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        structural_schema(model)
