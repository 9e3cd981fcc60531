"""What serves what: look-ups in ``kernels/matrix.yaml``, the one file that image builds and planner share.

    1. hardware: the first entry of the accelerator's type whose cpuFlags the node has, or whose
    computeCapability it is 2. serving: the first row with engine, hardware, method, bits, groupSize,
    symmetry, modules and dtype whose multipleOf
       divides every quantized layer of every rank; its kernel is the one that runs
    3. refusals: the first that matches says why not, and what to do instead

Example: AWQ int4 g64 on a CPU with AVX2 only is ``cpu-avx2``, computing in float32, by the kernel of
halfbyte-kernels; without a row for it the plan would say so before a quantize Job starts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halfbyte.planning.facts import Linear, ModelFacts
from halfbyte.planning.recipe import Recipe, quantized_linears

Row = Mapping[str, Any]

PER_CHANNEL: Final = -1
ROW_PARALLEL: Final = ("o_proj", "down_proj", "out_proj", "fc2", "wo", "w2", "dense_4h_to_h")
"""Last part of the names of layers that tensor parallelism cuts along their columns; all others are cut along
rows.
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """A class of hardware; ``memory_bytes`` of one GPU where the matrix knows it."""

    name: str
    dtype: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The outcome of a look-up: the kernel, or why there is none."""

    kernel: str | None
    refusal: str | None = None


def cpu_hardware(matrix: Row, flags: Iterable[str]) -> Hardware | None:
    """The best class of CPUs that these flags satisfy."""
    owned = set(flags)
    for row in matrix.get("hardware", ()):
        if row["type"] == "cpu" and owned.issuperset(row.get("cpuFlags", ())):
            return Hardware(row["name"], row["dtype"])
    return None


def gpu_hardware(matrix: Row, capability: str | None, product: str | None) -> Hardware | None:
    """The class of a GPU by its compute capability ("9.0"), else by its product name."""
    known = next((row for row in matrix.get("products", ()) if row["name"] == product), None)
    memory = known["memoryMiB"] * 1024**2 if known and known.get("memoryMiB") else None
    for row in matrix.get("hardware", ()):
        if row["type"] != "nvidia":
            continue
        if row.get("computeCapability") == capability or (
            known and not capability and row["name"] == known["hardware"]
        ):
            return Hardware(row["name"], row["dtype"], memory)
    return None


def architecture_supported(matrix: Row, engine: str, architecture: str) -> bool:
    """Whether the engine serves models of this architecture."""
    rows = matrix.get("architectures", ())
    return any(row["name"] == architecture and engine in row.get("engines", ()) for row in rows)


def supported_architectures(matrix: Row, engine: str) -> list[str]:
    return [row["name"] for row in matrix.get("architectures", ()) if engine in row.get("engines", ())]


def find_kernel(
    matrix: Row, engine: str, hardware: Hardware, facts: ModelFacts, recipe: Recipe, ranks: int
) -> Match:
    """The kernel that serves the recipe, cut into ``ranks``, or the reason why none does."""
    layers = quantized_linears(facts, recipe)
    groups: dict[str, list[Linear]] = {"linear": [], "experts": []}
    for each in layers:
        groups["experts" if facts.experts and ".experts." in each.name else "linear"].append(each)
    kernel: str | None = None
    for module, members in groups.items():
        if module == "experts" and not members:
            continue
        row = _serving_row(matrix, engine, hardware, recipe, module, members, ranks)
        if row is None:
            return Match(None, _refusal(matrix, hardware, recipe, module, members, ranks))
        kernel = kernel or row["kernel"]
    return Match(kernel)


def _serving_row(
    matrix: Row,
    engine: str,
    hardware: Hardware,
    recipe: Recipe,
    module: str,
    layers: list[Linear],
    ranks: int,
) -> Row | None:
    rows: list[Row] = matrix.get("serving", [])
    for row in rows:
        if (
            row["engine"] == engine
            and hardware.name in row["hardware"]
            and module in row.get("modules", ("linear",))
            and hardware.dtype in row.get("dtypes", (hardware.dtype,))
            and _recipe_matches(row, recipe)
            and all(_divides(row.get("multipleOf") or {}, layer, ranks) for layer in layers)
        ):
            return row
    return None


def _recipe_matches(row: Row, recipe: Recipe) -> bool:
    if recipe.method not in row.get("methods", (recipe.method,)):
        return False
    if recipe.method == "None":
        return True
    group = PER_CHANNEL if recipe.group_size is None else recipe.group_size
    return bool(
        recipe.bits in row.get("bits", (recipe.bits,))
        and group in row.get("groupSizes", (group,))
        and recipe.symmetric in row.get("symmetric", (recipe.symmetric,))
    )


def rank_shape(layer: Linear, ranks: int) -> tuple[float, float]:
    """Rows and columns of one rank's part of a layer."""
    if layer.name.rpartition(".")[2] in ROW_PARALLEL:
        return layer.rows, layer.columns / ranks
    return layer.rows / ranks, layer.columns


def _divides(multiple: Row, layer: Linear, ranks: int) -> bool:
    rows, columns = rank_shape(layer, ranks)
    return bool(rows % multiple.get("rows", 1) == 0 and columns % multiple.get("columns", 1) == 0)


def _refusal(
    matrix: Row, hardware: Hardware, recipe: Recipe, module: str, layers: list[Linear], ranks: int
) -> str:
    for row in matrix.get("refusals", ()):
        if (
            hardware.name in row.get("hardware", (hardware.name,))
            and module in row.get("modules", (module,))
            and _recipe_matches(row, recipe)
        ):
            return f"{row['reason']} {row['instead']}"
    worst = max(layers, key=lambda each: each.elements, default=None)
    shape = ""
    if worst is not None:
        rows, columns = rank_shape(worst, ranks)
        shape = f" with layers such as {worst.example()} ({rows:g} x {columns:g} per rank)"
    return (
        f"no kernel serves {recipe.describe()} on {hardware.name} in {hardware.dtype}{shape};"
        " choose another method, group size or accelerator"
    )
