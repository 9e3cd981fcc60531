"""Bytes and seconds of Jobs and artifacts, from facts and recipe alone.

Artifact (safetensors files), per quantized layer with R rows, C columns, group size g, source dtype of d
bytes:

    AWQ, GPTQ   R*C/2 packed weights + d*R*C/g scales + 16 shape  (+ 4*ceil(R/8)*C/g zero points when
    asymmetric) W8A8        R*C weights + d*R scales the rest    as in the source; HEADER bytes for each
    tensor that is added

Worked example, SmolLM2-135M, AWQ int4 g64 asymmetric: 106 168 320 weights in layers give 53.1 MB packed, 3.3
MB scales, 0.8 MB zero points; embedding and norms stay, 56.7 MB; together 114.0 MB of 269.1 MB, which is what
llm-compressor 0.14 wrote.

Memory of the quantize Job: the interpreter with torch (BASE), all weights in the computing dtype, the
artifact that is collected before it is saved, the hidden states of every calibration sample (input and output
of the running layer), and the logits of one sample; times MARGIN. llm-compressor on the same model took 1.2
GB (float32, 8 x 256 tokens), this gives 2.0 GB. Memory of the validate Job: source and artifact side by side
in float32, and three times the logits of one window.

Time: SECONDS_PER_WEIGHT_TOKEN was measured on two cores (AVX2, float32, AWQ: 163 s for 2048 tokens; AVX512,
bf16: 67 s); it is an estimate shown to people, and its upper end times ten is the Job's deadline.
"""

from dataclasses import dataclass
from typing import Final

from halfbyte.api.spec import Spec, Validation
from halfbyte.planning.facts import DTYPE_BYTES, Linear, ModelFacts
from halfbyte.planning.quantities import MIB, describe_bytes, parse_bytes, round_up
from halfbyte.planning.recipe import Recipe, quantized_linears

BASE: Final = 768 * MIB
MARGIN: Final = 1.3
HEADER: Final = 120
SECONDS_PER_WEIGHT_TOKEN: Final = {"AWQ": 7e-10, "GPTQ": 2e-10}
MEASURE_SECONDS_PER_WEIGHT_TOKEN: Final = 6e-11
MIN_DEADLINE: Final = 3600
MAX_DEADLINE: Final = 14 * 86400


@dataclass(frozen=True, slots=True)
class JobSize:
    """What a worker Job is given. ``memory_limit`` differs from the request only where the spec says so."""

    memory_request: int
    memory_limit: int
    seconds: tuple[int, int]
    deadline_seconds: int
    why: str


def artifact_bytes(facts: ModelFacts, recipe: Recipe) -> int:
    """Expected size of the artifact's safetensors files."""
    total = facts.source_bytes
    for each in quantized_linears(facts, recipe):
        total += each.count * (
            _quantized_bytes(each, recipe, facts.dtype_bytes) - each.rows * each.columns * facts.dtype_bytes
        )
    return total


def _quantized_bytes(layer: Linear, recipe: Recipe, dtype_bytes: int) -> int:
    elements = layer.rows * layer.columns
    if recipe.group_size is None:
        return elements + layer.rows * dtype_bytes + HEADER
    groups = layer.columns // recipe.group_size
    size = layer.rows * -(-layer.columns // 8) * 4 + layer.rows * groups * dtype_bytes + 16 + 2 * HEADER
    if not recipe.symmetric:
        size += -(-layer.rows // 8) * 4 * groups + HEADER
    return size


def quantize_job_size(spec: Spec, facts: ModelFacts, recipe: Recipe, dtype: str) -> JobSize:
    """Memory and time of the quantize Job; limits and requests of the spec win."""
    width = DTYPE_BYTES[dtype]
    artifact = artifact_bytes(facts, recipe)
    weights = facts.parameters * width
    tokens, activations = 0, 0
    if recipe.calibration:
        length = min(recipe.calibration.sequence_length, facts.max_position_embeddings)
        tokens = recipe.calibration.samples * length
        activations = tokens * facts.hidden_size * width * 2 + length * facts.vocab_size * 4 * 2
    memory = round_up(int((BASE + weights + artifact + activations) * MARGIN), 100 * MIB)
    elements = sum(each.elements for each in quantized_linears(facts, recipe))
    rate = SECONDS_PER_WEIGHT_TOKEN.get(recipe.method, 0.0)
    expected = 20 + facts.source_bytes / 50e6 + rate * tokens * elements
    why = (
        f"1.3 x ({describe_bytes(BASE)} for the program + {describe_bytes(weights)} weights in {dtype}"
        f" + {describe_bytes(artifact)} artifact + {describe_bytes(activations)} activations)"
    )
    return _job_size(spec.quantization.resources.requests.memory, spec.quantization.resources.limits.memory,
                     memory, expected, why)  # fmt: skip


def validate_job_size(spec: Spec, facts: ModelFacts, recipe: Recipe) -> JobSize:
    """Memory and time of the validate Job; limits and requests of the spec win."""
    gates: Validation = spec.validation
    length = min(gates.sequence_length, facts.max_position_embeddings)
    models = 1 if recipe.method == "None" else 2
    weights = models * facts.parameters * 4
    logits = 3 * length * facts.vocab_size * 4
    memory = round_up(int((BASE + weights + logits) * MARGIN), 100 * MIB)
    tokens = gates.samples * length * models + (gates.generation.new_tokens * 20 if gates.generation else 0)
    expected = 30 + facts.source_bytes / 50e6 + MEASURE_SECONDS_PER_WEIGHT_TOKEN * tokens * facts.parameters
    why = (
        f"1.3 x ({describe_bytes(BASE)} for the program + {describe_bytes(weights)} for {models} models in"
        " float32"
        f" + {describe_bytes(logits)} logits)"
    )
    return _job_size(gates.resources.requests.memory, gates.resources.limits.memory,
                     memory, expected, why)  # fmt: skip


def disk_bytes(spec: Spec, facts: ModelFacts, recipe: Recipe) -> int:
    """Room that the artifact claim must have: the artifact with its staging, and a hub's files, which are
    kept there.
    """
    download = facts.source_bytes if spec.source.hugging_face else 0
    return int(artifact_bytes(facts, recipe) * 1.05) + download


def _job_size(
    request: str | int | None, limit: str | int | None, planned: int, expected: float, why: str
) -> JobSize:
    memory_limit = parse_bytes(limit) if limit is not None else max(planned, parse_bytes(request or 0))
    memory_request = parse_bytes(request) if request is not None else min(planned, memory_limit)
    low, high = round_up(int(expected * 0.3), 5), round_up(int(expected * 1.5), 5)
    deadline = min(MAX_DEADLINE, max(MIN_DEADLINE, 10 * high))
    return JobSize(memory_request, memory_limit, (low, high), deadline, why)


def kv_bytes_per_token(facts: ModelFacts, dtype: str) -> int:
    """KV cache of one token over all layers, for one copy of the cache.

    ``2 * layers * key_value_heads * head_dim * bytes``; with a compressed cache (MLA, DeepSeek-V2)
    ``layers * (kv_lora_rank + qk_rope_head_dim) * bytes``.
    """
    width = DTYPE_BYTES[dtype]
    if facts.kv_lora_rank:
        return facts.layers * (facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)) * width
    return 2 * facts.layers * facts.key_value_heads * facts.head_dim * width


def served_weight_bytes(facts: ModelFacts, recipe: Recipe, dtype: str) -> int:
    """Weights of the artifact in the server's memory: packed layers as stored, everything else in the
    engine's dtype.
    """
    quantized = sum(
        each.count * _quantized_bytes(each, recipe, facts.dtype_bytes)
        for each in quantized_linears(facts, recipe)
    )
    elements = sum(each.elements for each in quantized_linears(facts, recipe))
    return quantized + max(0, facts.parameters - elements) * DTYPE_BYTES[dtype]
