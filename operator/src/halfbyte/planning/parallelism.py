"""Into how many ranks a model may be cut.

A number of ranks is allowed when it divides the query heads; when the KV heads can be dealt out evenly or be
repeated evenly (n divides the KV heads or is a multiple of them; a compressed cache has none to deal out);
and when every layer that is cut along its columns keeps whole groups: columns / n must be a multiple of the
group size (vllm-project/vllm#21695).

Example: SmolLM2-135M has 9 query and 3 KV heads: 1, 3 and 9. With group size 64 ``down_proj`` (1536 columns)
rules out 9 and leaves 3: ``9 heads allow 1 or 3``.
"""

from typing import Final

from halfbyte.planning.compatibility import ROW_PARALLEL
from halfbyte.planning.facts import ModelFacts
from halfbyte.planning.recipe import Recipe, quantized_linears

MAX_RANKS: Final = 16


def allowed_ranks(facts: ModelFacts, recipe: Recipe) -> tuple[int, ...]:
    """Every allowed number of ranks up to 16, ascending; 1 is always among them."""
    return tuple(
        ranks
        for ranks in range(1, MAX_RANKS + 1)
        if _heads_divide(facts, ranks) and _groups_whole(facts, recipe, ranks)
    )


def describe_allowed(facts: ModelFacts, allowed: tuple[int, ...]) -> str:
    """``9 heads allow 1, 3 or 9``."""
    numbers = [str(each) for each in allowed]
    listed = numbers[0] if len(numbers) == 1 else f"{', '.join(numbers[:-1])} or {numbers[-1]}"
    return f"{facts.attention_heads} heads allow {listed}"


def _heads_divide(facts: ModelFacts, ranks: int) -> bool:
    if facts.attention_heads % ranks:
        return False
    return (
        bool(facts.kv_lora_rank) or facts.key_value_heads % ranks == 0 or ranks % facts.key_value_heads == 0
    )


def _groups_whole(facts: ModelFacts, recipe: Recipe, ranks: int) -> bool:
    unit = ranks * (recipe.group_size or 1)
    return all(
        each.columns % unit == 0
        for each in quantized_linears(facts, recipe)
        if each.name.rpartition(".")[2] in ROW_PARALLEL
    )
