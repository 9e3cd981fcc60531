"""Rewrites the JSON schema that pydantic emits into a structural schema that Kubernetes accepts.

What differs, and what is done about it:
    $ref, $defs                        inlined; recursion is refused
    anyOf of X and null                X (absent means null), its null default dropped
    const                              enum with one value
    additionalProperties: false        dropped: the API server prunes
    title, examples                    dropped
    default of an object               {}: the defaults of its fields fill it in
    description of a referenced model  kept only where the field has none
Everything else passes through: x-kubernetes-* keys, bounds, patterns, enums, defaults, formats.
"""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "examples", "$defs")


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of a model.

    Raises:
        ValueError: the model is recursive or uses a construct that has no structural form.
    """
    emitted = model.model_json_schema(by_alias=True, mode="validation")
    return _rewrite(emitted, emitted.get("$defs", {}), path=model.__name__, seen=())


def _rewrite(schema: Schema, definitions: dict[str, Schema], path: str, seen: tuple[str, ...]) -> Schema:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in seen:
            raise ValueError(f"{path}: {name} is recursive, a structural schema cannot be")
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _rewrite({**definitions[name], **beside}, definitions, path, (*seen, name))
    if "anyOf" in schema:
        return _rewrite(_without_null(schema, path), definitions, path, seen)
    for key in ("oneOf", "allOf", "prefixItems", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum"):
        if key in schema:
            raise ValueError(f"{path}: {key} has no structural form")
    result = {key: value for key, value in schema.items() if key not in _DROPPED}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if result.get("default", ...) is None:
        del result["default"]
    if "properties" in result:
        if "default" in result:
            # The default of a whole object is an empty one: the defaults of its fields fill it in.
            result["default"] = {}
        result["properties"] = {
            name: _rewrite(child, definitions, f"{path}.{name}", seen)
            for name, child in result["properties"].items()
        }
    if "items" in result:
        result["items"] = _rewrite(result["items"], definitions, f"{path}[]", seen)
    values = result.pop("additionalProperties", False)
    if isinstance(values, dict):
        result["additionalProperties"] = _rewrite(values, definitions, f"{path}{{}}", seen)
    return result


def _without_null(schema: Schema, path: str) -> Schema:
    members = [member for member in schema["anyOf"] if member != {"type": "null"}]
    if len(members) != 1:
        raise ValueError(f"{path}: a union of {len(members)} types has no structural form")
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**members[0], **beside}
