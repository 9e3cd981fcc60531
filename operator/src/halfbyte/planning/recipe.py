"""The recipe with every value filled in, and the artifact key that it gives.

What the spec leaves out is chosen from the facts: bits by the method; symmetric false for AWQ, true for GPTQ
and W8A8; the group size is the largest of 128, 64, 32 that divides the columns of every layer that is
quantized. Routers of mixture-of-experts models are always left as they are, because a wrong route costs more
than the few bytes gained.

Example: SmolLM2-135M has layers with 576 and 1536 columns, so AWQ without a group size becomes 4 bits, group
size 64, asymmetric. Asking for 128 is refused: ``layers.0.mlp.gate_proj has 576 columns, not a multiple of
groupSize 128``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from halfbyte.api.spec import Calibration, Spec
from halfbyte.planning.facts import Linear, ModelFacts
from halfbyte.planning.identity import RECIPE_VERSION, digest

GROUP_SIZES: Final = (128, 64, 32)
CALIBRATED: Final = ("AWQ", "GPTQ")
ROUTERS: Final = r"re:.*mlp\.gate$"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights are quantized. ``group_size`` is None for a scale per channel and for method None."""

    method: str
    bits: int | None
    group_size: int | None
    symmetric: bool | None
    ignore: tuple[str, ...]
    calibration: Calibration | None
    why: str

    def describe(self) -> str:
        """``AWQ int4 g64 asym``, ``W8A8 int8 per channel``, ``unquantized``."""
        if self.method == "None":
            return "unquantized"
        group = f"g{self.group_size}" if self.group_size else "per channel"
        symmetry = "" if self.symmetric else " asym"
        return f"{self.method} int{self.bits} {group}{symmetry}"

    def task(self) -> dict[str, Any]:
        """``quantization`` of the worker's task."""
        return {
            "method": self.method,
            "bits": self.bits,
            "groupSize": self.group_size,
            "symmetric": self.symmetric,
            "ignore": list(self.ignore),
            "calibration": self.calibration.model_dump(mode="json", by_alias=True)
            if self.calibration
            else None,
        }


def resolve_recipe(spec: Spec, facts: ModelFacts) -> Recipe:
    """The recipe for this source. Whether its group size divides is judged by ``indivisible``."""
    wanted = spec.quantization
    ignore = tuple(sorted(wanted.ignore))
    if wanted.method == "None":
        return Recipe("None", None, None, None, (), None, "the source is served as it is")
    reasons = []
    if facts.experts and ROUTERS not in ignore:
        ignore = tuple(sorted((*ignore, ROUTERS)))
        reasons.append("routers stay as they are")
    if wanted.method == "W8A8":
        reasons.append("weights int8 per channel, activations int8 per token")
        return Recipe("W8A8", 8, None, True, ignore, None, "; ".join(reasons))
    group_size: int | None = wanted.group_size
    if group_size is None:
        group_size = next(iter(allowed_group_sizes(facts, ignore)), GROUP_SIZES[0])
        reasons.append(
            f"groupSize {group_size} is the largest of 128, 64, 32 that divides every layer's columns"
        )
    symmetric = wanted.symmetric
    if symmetric is None:
        symmetric = wanted.method == "GPTQ"
        reasons.append(f"{'symmetric' if symmetric else 'asymmetric'} is the default of {wanted.method}")
    why = "; ".join(reasons) or "every value comes from the spec"
    return Recipe(wanted.method, wanted.bits or 4, group_size, symmetric, ignore, wanted.calibration, why)


def quantized_linears(facts: ModelFacts, recipe: Recipe) -> tuple[Linear, ...]:
    """The layers that the recipe quantizes."""
    if recipe.method == "None":
        return ()
    return _remaining(facts.linears, recipe.ignore)


def allowed_group_sizes(facts: ModelFacts, ignore: tuple[str, ...]) -> tuple[int, ...]:
    """Group sizes, largest first, that divide the columns of every layer that is not ignored."""
    columns = [each.columns for each in _remaining(facts.linears, ignore)]
    return tuple(size for size in GROUP_SIZES if all(count % size == 0 for count in columns))


def indivisible(facts: ModelFacts, recipe: Recipe) -> str | None:
    """Why the group size does not fit, with the sizes that do; None when it fits."""
    if recipe.group_size is None:
        return None
    for each in quantized_linears(facts, recipe):
        if each.columns % recipe.group_size:
            allowed = sorted(allowed_group_sizes(facts, recipe.ignore))
            hint = (
                f"allowed here: {', '.join(map(str, allowed))}"
                if allowed
                else "no group size fits this model"
            )
            return (
                f"{each.example()} has {each.columns} columns,"
                f" not a multiple of groupSize {recipe.group_size}; {hint}"
            )
    return None


def artifact_key(facts: ModelFacts, recipe: Recipe) -> str:
    """``sha256-<64 hex>``: equal for equal content, whoever asks and wherever it is computed."""
    return "sha256-" + digest(
        {"version": RECIPE_VERSION, "source": facts.revision, "quantization": recipe.task()}
    )


def artifact_path(recipe: Recipe, key: str) -> str:
    """Directory of the artifact within its claim, ``awq-5e0c...``."""
    return f"{recipe.method.lower()}-{key.removeprefix('sha256-')[:16]}"


@lru_cache(maxsize=512)
def _remaining(linears: tuple[Linear, ...], ignore: tuple[str, ...]) -> tuple[Linear, ...]:
    left = (each.without(ignore) for each in linears)
    return tuple(each for each in left if each is not None)
