"""Model facts: what the Inspect Job reports, typed. Status keeps the same JSON, to be read back."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True)
class Linear:
    """``count`` linear layers of one shape. ``name`` has every index as ``*``."""

    name: str
    rows: int
    columns: int
    count: int

    @property
    def elements(self) -> int:
        return self.rows * self.columns * self.count

    def example(self) -> str:
        """The name of one of the layers, without the prefix that every layer has."""
        return self.name.replace("*", "0").removeprefix("model.")

    def without(self, patterns: Iterable[str]) -> "Linear | None":
        """The layers that an ignore list leaves; None when it names them all.

        A pattern is a full module name or ``re:`` and a regular expression for the beginning of one, as in
        compressed-tensors. Layers with two indices (experts) are taken as a whole: naming the first names
        all.
        """
        kept = [name for name in self._names() if not any(_names(pattern, name) for pattern in patterns)]
        if not kept:
            return None
        single = self.name.count("*") == 1
        return replace(self, count=len(kept)) if single and len(kept) < self.count else self

    def _names(self) -> list[str]:
        if self.name.count("*") != 1:
            return [self.name.replace("*", "0")]
        return [self.name.replace("*", str(index)) for index in range(self.count)]


def _names(pattern: str, name: str) -> bool:
    if not pattern.startswith("re:"):
        return pattern == name
    try:
        return re.match(pattern[3:], name) is not None
    except re.error:
        return False


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a source. Sizes in bytes; ``source_bytes`` counts the safetensors files."""

    revision: str
    source_bytes: int
    architecture: str
    model_type: str
    torch_dtype: str
    layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied_embeddings: bool
    experts: int
    kv_lora_rank: int | None
    qk_rope_head_dim: int | None
    parameters: int
    largest_tensor_bytes: int
    quantized: str | None
    linears: tuple[Linear, ...]
    linears_truncated: bool
    node_name: str | None
    cpu_flags: frozenset[str]
    free_bytes: int | None

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES.get(self.torch_dtype, 2)


def parse_facts(result: Mapping[str, Any]) -> ModelFacts:
    """Facts from the JSON of the Inspect Job or of ``status.facts``.

    Raises:
        ValueError: a field is missing or of the wrong type; the message names it.
    """
    try:
        node = result.get("node") or {}
        return ModelFacts(
            revision=str(result["source"]["revision"]),
            source_bytes=int(result["source"]["bytes"]),
            architecture=str(result["architecture"]),
            model_type=str(result.get("modelType") or ""),
            torch_dtype=str(result.get("torchDtype") or "bfloat16"),
            layers=int(result["layers"]),
            hidden_size=int(result["hiddenSize"]),
            intermediate_size=int(result.get("intermediateSize") or 0),
            attention_heads=int(result["attentionHeads"]),
            key_value_heads=int(result.get("keyValueHeads") or result["attentionHeads"]),
            head_dim=int(result["headDim"]),
            vocab_size=int(result["vocabSize"]),
            max_position_embeddings=int(result["maxPositionEmbeddings"]),
            tied_embeddings=bool(result.get("tiedEmbeddings")),
            experts=int(result.get("experts") or 0),
            kv_lora_rank=_optional(result, "kvLoraRank"),
            qk_rope_head_dim=_optional(result, "qkRopeHeadDim"),
            parameters=int(result["parameters"]),
            largest_tensor_bytes=int(result.get("largestTensorBytes") or 0),
            quantized=result.get("quantized") or None,
            linears=tuple(
                Linear(str(each["name"]), int(each["rows"]), int(each["columns"]), int(each["count"]))
                for each in result.get("linears") or ()
            ),
            linears_truncated=bool(result.get("linearsTruncated")),
            node_name=node.get("name") or None,
            cpu_flags=frozenset(node.get("cpuFlags") or ()),
            free_bytes=_optional(result.get("storage") or {}, "freeBytes"),
        )
    except KeyError as error:
        raise ValueError(f"the model facts lack {error.args[0]}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"the model facts are malformed: {error}") from error


def facts_status(facts: ModelFacts, key: str) -> dict[str, Any]:
    """``status.facts``: everything that ``parse_facts`` needs, and the key of the inspection."""
    return {
        "key": key,
        "source": {"revision": facts.revision, "bytes": facts.source_bytes},
        "architecture": facts.architecture,
        "modelType": facts.model_type,
        "torchDtype": facts.torch_dtype,
        "layers": facts.layers,
        "hiddenSize": facts.hidden_size,
        "intermediateSize": facts.intermediate_size,
        "attentionHeads": facts.attention_heads,
        "keyValueHeads": facts.key_value_heads,
        "headDim": facts.head_dim,
        "vocabSize": facts.vocab_size,
        "maxPositionEmbeddings": facts.max_position_embeddings,
        "tiedEmbeddings": facts.tied_embeddings,
        "experts": facts.experts,
        "kvLoraRank": facts.kv_lora_rank,
        "qkRopeHeadDim": facts.qk_rope_head_dim,
        "parameters": facts.parameters,
        "largestTensorBytes": facts.largest_tensor_bytes,
        "quantized": facts.quantized,
        "linears": [
            {"name": each.name, "rows": each.rows, "columns": each.columns, "count": each.count}
            for each in facts.linears[:64]
        ],
        "linearsTruncated": facts.linears_truncated or len(facts.linears) > 64,
        "node": {"name": facts.node_name, "cpuFlags": sorted(facts.cpu_flags)},
        "storage": {"freeBytes": facts.free_bytes},
    }


def _optional(result: Mapping[str, Any], key: str) -> int | None:
    value = result.get(key)
    return None if value is None else int(value)
