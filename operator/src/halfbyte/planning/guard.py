"""Cross-field checks of a spec, made in every reconcile: what CEL says at admission, once more, and what it
cannot say.

The API server's rules protect new objects only: an object stored under an older schema, or on a cluster whose
CRD was not upgraded, reaches the operator as it is. Unknown fields are refused too, because ignoring one
silently would serve something else than what was asked for.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from halfbyte.api.conditions import Reason
from halfbyte.api.spec import OWNED_PATTERN, Spec
from halfbyte.planning.quantities import parse_quantity
from halfbyte.planning.violation import Violation

Check = Callable[[Spec, Mapping[str, Any]], str | None]


def read_spec(raw: Mapping[str, Any], matrix: Mapping[str, Any]) -> Spec | Violation:
    """The typed spec, or what is wrong with it."""
    try:
        spec = Spec.model_validate(raw)
    except ValidationError as error:
        return Violation.of(Reason.INVALID_SPEC, _first_error(error))
    for check in CHECKS:
        problem = check(spec, matrix)
        if problem:
            return Violation.of(Reason.INVALID_SPEC, problem)
    return spec


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    given = f", not {first['input']!r}" if isinstance(first["input"], str | int | float) else ""
    return f"spec{path}: {first['msg']}{given}{more}"[:1000]


def source_not_exactly_one(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    members = [spec.source.hugging_face, spec.source.pvc]
    if sum(each is not None for each in members) == 1:
        return None
    return "spec.source: exactly one of huggingFace and pvc must be set"


def storage_not_exactly_one(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    if (spec.storage.claim_name is None) == (spec.storage.size is None):
        return "spec.storage: exactly one of claimName and size must be set"
    return None


def method_not_served(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    rows = matrix.get("methods", ())
    served = [row["name"] for row in rows if row.get("served")]
    if not rows or spec.quantization.method in served:
        return None
    return f"spec.quantization.method: {spec.quantization.method} is not served; allowed: {', '.join(served)}"


def bits_contradict_method(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    recipe = spec.quantization
    allowed = {"AWQ": (4,), "GPTQ": (4,), "W8A8": (8,)}.get(recipe.method, ())
    if recipe.bits is not None and recipe.bits not in allowed:
        said = f"works with bits {allowed[0]}" if allowed else "takes no bits"
        return f"spec.quantization.bits: method {recipe.method} {said}, not {recipe.bits}"
    if recipe.group_size is not None and recipe.method not in ("AWQ", "GPTQ"):
        return f"spec.quantization.groupSize belongs to AWQ and GPTQ, not to {recipe.method}"
    if recipe.symmetric is False and recipe.method == "W8A8":
        return "spec.quantization.symmetric: method W8A8 is symmetric"
    return None


def pattern_broken(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    for index, pattern in enumerate(spec.quantization.ignore):
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                return f"spec.quantization.ignore[{index}]: {pattern} is not a regular expression: {error}"
    return None


def argument_owned(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    owned = [each for each in spec.serving.extra_args if re.match(OWNED_PATTERN, each)]
    if owned:
        return f"spec.serving.extraArgs: {', '.join(owned)}: owned by the operator; use the fields of spec"
    return None


def accelerator_contradicts(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    accelerator, ranks = spec.serving.accelerator, spec.serving.tensor_parallel
    if accelerator.type != "nvidia" and (
        accelerator.product or accelerator.memory or accelerator.per_replica
    ):
        return "spec.serving.accelerator: product, memory and perReplica belong to type nvidia"
    if ranks != "Auto" and accelerator.per_replica not in (None, ranks):
        return (
            f"spec.serving.tensorParallel is {ranks} and accelerator.perReplica {accelerator.per_replica}:"
            " they must be"
            " equal, a replica uses all of its GPUs"
        )
    return None


def requests_above_limits(spec: Spec, matrix: Mapping[str, Any]) -> str | None:
    for field, resources in (
        ("quantization", spec.quantization.resources),
        ("validation", spec.validation.resources),
        ("serving", spec.serving.resources),
    ):
        for name in ("cpu", "memory"):
            try:
                request, limit = (
                    parse_quantity(value) if value is not None else None
                    for value in (getattr(resources.requests, name), getattr(resources.limits, name))
                )
            except ValueError as error:
                return f"spec.{field}.resources: {error}"
            if request is not None and limit is not None and request > limit:
                return (
                    f"spec.{field}.resources.requests.{name} {getattr(resources.requests, name)} is above"
                    f" limits.{name} {getattr(resources.limits, name)}"
                )
    return None


CHECKS: tuple[Check, ...] = (
    source_not_exactly_one,
    storage_not_exactly_one,
    method_not_served,
    bits_contradict_method,
    pattern_broken,
    argument_owned,
    accelerator_contradicts,
    requests_above_limits,
)
