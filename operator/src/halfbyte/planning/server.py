"""The size of one replica: ranks, context, KV cache, memory, start-up window.

CPU: one rank unless the spec says more. KV cache in whole GiB (the engine takes no less), for WANTED_REQUESTS
requests of the full length where the node has room, else for fewer, at the least for one.
    memory = BASE + weights + KV cache + shared memory

NVIDIA: every rank holds weights / n, and of GPU_SHARE of a GPU's memory what weights and overhead (fixed,
plus a share that grows with the weights: kaito-project/kaito#2132) leave is KV cache. Auto takes perReplica
ranks where the spec names it, else the least allowed number of ranks in which one request of the wanted
length fits.

KV cache of one rank: KV heads are dealt out (never below one head a rank); a compressed cache (MLA) is
repeated in every rank. Without maxModelLen the context is the model's own, cut to what fits, and the plan
says so.

Example, SmolLM2-135M on a CPU in float32, maxModelLen 2048: 46080 bytes per token, 1 GiB of KV cache hold
23301 tokens, 11 requests of 2048; weights 163 MiB (packed layers, embedding in float32); memory 3 GiB + 163
MiB + 1 GiB.
"""

from dataclasses import dataclass
from typing import Final

from halfbyte.api.conditions import Reason
from halfbyte.api.spec import Spec
from halfbyte.planning.capacity import Gpu, largest_memory
from halfbyte.planning.facts import ModelFacts
from halfbyte.planning.parallelism import allowed_ranks, describe_allowed
from halfbyte.planning.quantities import GIB, MIB, describe_bytes, parse_bytes, parse_millis, round_up
from halfbyte.planning.recipe import Recipe
from halfbyte.planning.sizes import kv_bytes_per_token, served_weight_bytes
from halfbyte.planning.snapshot import NodeFact
from halfbyte.planning.violation import Violation

CPU_BASE: Final = 3 * GIB
GPU_HOST_BASE: Final = 4 * GIB
GPU_SHARE: Final = 0.90
GPU_OVERHEAD: Final = GIB + GIB // 2
GPU_OVERHEAD_SHARE: Final = 0.05
SHARED_MEMORY: Final = 2 * GIB
# On CPUs even one rank is a process of its own: vLLM 0.32 refuses to start with less than 160 MiB in
# /dev/shm, and a pod has 64 MiB without a volume.
CPU_SHARED_MEMORY: Final = 512 * MIB
WANTED_REQUESTS: Final = 8
LEAST_CONTEXT: Final = 4096
STARTUP_SECONDS: Final = 600
LOAD_BYTES_PER_SECOND: Final = 20 * MIB
PULL_SECONDS: Final = 300
CPU_MILLIS: Final = {"cpu": 250, "nvidia": 1000}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One replica. Bytes throughout; ``max_concurrency`` is None where GPU memory is unknown."""

    dtype: str
    tensor_parallel: int
    gpus: int
    weights_per_rank: int
    kv_bytes_per_token: int
    kv_cache: int | None
    max_model_len: int
    max_concurrency: int | None
    cpu_request_millis: int
    cpu_limit_millis: int | None
    memory_request: int
    memory_limit: int | None
    shared_memory: int | None
    startup_seconds: int
    progress_deadline_seconds: int
    why: str


@dataclass(frozen=True, slots=True)
class _Cache:
    """Context, cache and the sentence that explains them."""

    max_model_len: int
    kv_cache: int | None
    requests: int | None
    why: str


def plan_server(
    spec: Spec,
    facts: ModelFacts,
    recipe: Recipe,
    dtype: str,
    nodes: tuple[NodeFact, ...] | None,
    gpu: Gpu | None,
) -> ServerPlan | Violation:
    """The replica, or why there can be none. ``nodes`` are the admissible ones, ``gpu`` is None on CPUs."""
    wanted = spec.serving.max_model_len
    if wanted and wanted > facts.max_position_embeddings:
        return Violation.of(
            Reason.CONTEXT_TOO_LONG,
            f"spec.serving.maxModelLen is {wanted}, {facts.architecture} of this source was made for"
            f" {facts.max_position_embeddings} tokens; lower it to {facts.max_position_embeddings} or less",
        )
    ranks = _ranks(spec, facts, recipe, dtype, gpu)
    if isinstance(ranks, Violation):
        return ranks
    count, rank_why = ranks
    weights = served_weight_bytes(facts, recipe, dtype)
    shared = SHARED_MEMORY if count > 1 else CPU_SHARED_MEMORY if gpu is None else None
    if gpu is None:
        base = CPU_BASE + weights + (shared or 0)
        cache = _cpu_cache(spec, facts, dtype, base, nodes)
    else:
        base = GPU_HOST_BASE + count * GIB + (shared or 0)
        cache = _gpu_cache(spec, facts, dtype, weights, count, gpu)
    if isinstance(cache, Violation):
        return cache
    planned = round_up(base + ((cache.kv_cache or 0) if gpu is None else 0), 100 * MIB)
    return _assemble(spec, facts, dtype, count, weights, cache, planned, shared, rank_why)


def _assemble(
    spec: Spec, facts: ModelFacts, dtype: str, ranks: int, weights: int, cache: _Cache, planned: int,
    shared: int | None, rank_why: str,
) -> ServerPlan:  # fmt: skip
    given = spec.serving.resources
    on_cpu = spec.serving.accelerator.type == "cpu"
    request = parse_bytes(given.requests.memory) if given.requests.memory is not None else None
    limit = parse_bytes(given.limits.memory) if given.limits.memory is not None else None
    if limit is None and on_cpu:
        limit = max(round_up(planned * 3 // 2, 100 * MIB), request or 0)
    if request is None:
        request = min(planned, limit) if limit is not None else planned
    startup = STARTUP_SECONDS + weights // LOAD_BYTES_PER_SECOND
    deadline = spec.rollout.progress_deadline
    return ServerPlan(
        dtype=dtype,
        tensor_parallel=ranks,
        gpus=0 if on_cpu else ranks,
        weights_per_rank=weights // ranks,
        kv_bytes_per_token=kv_bytes_per_token(facts, dtype),
        kv_cache=cache.kv_cache,
        max_model_len=cache.max_model_len,
        max_concurrency=cache.requests,
        cpu_request_millis=parse_millis(given.requests.cpu)
        if given.requests.cpu is not None
        else CPU_MILLIS[spec.serving.accelerator.type],
        cpu_limit_millis=parse_millis(given.limits.cpu) if given.limits.cpu is not None else None,
        memory_request=request,
        memory_limit=limit,
        shared_memory=shared,
        startup_seconds=round_up(startup, 10),
        progress_deadline_seconds=round_up(startup, 10) + PULL_SECONDS if deadline == "Auto" else deadline,
        why=f"{rank_why}; {cache.why}",
    )


def _ranks(
    spec: Spec, facts: ModelFacts, recipe: Recipe, dtype: str, gpu: Gpu | None
) -> tuple[int, str] | Violation:
    allowed = allowed_ranks(facts, recipe)
    allows = describe_allowed(facts, allowed)
    asked = spec.serving.tensor_parallel
    named = asked if asked != "Auto" else spec.serving.accelerator.per_replica
    if named is not None:
        field = "serving.tensorParallel" if asked != "Auto" else "serving.accelerator.perReplica"
        if named not in allowed:
            return Violation.of(
                Reason.INCOMPATIBLE_PLAN,
                f"spec.{field} is {named}, but {allows} with {recipe.describe()}; choose one of these",
            )
        return named, f"{named} ranks as spec.{field} says; {allows}"
    if gpu is None:
        return 1, f"fits one rank; {allows}"
    if gpu.memory_bytes is None:
        return (
            1,
            f"GPU memory is unknown, so one rank is taken; {allows}; set spec.serving.accelerator.memory",
        )
    weights = served_weight_bytes(facts, recipe, dtype)
    wanted = spec.serving.max_model_len or min(LEAST_CONTEXT, facts.max_position_embeddings)
    for count in allowed:
        if _gpu_tokens(facts, dtype, weights, count, gpu.memory_bytes) >= wanted:
            if gpu.per_node is not None and count > gpu.per_node:
                break
            return count, f"{count} is the least number of ranks that fits {wanted} tokens; {allows}"
    best = max(allowed, key=lambda count: _gpu_tokens(facts, dtype, weights, count, gpu.memory_bytes or 0))
    within = "" if gpu.per_node is None else f" and the largest node has {gpu.per_node} GPUs"
    return Violation(
        Reason.INSUFFICIENT_GPUS,
        f"{describe_bytes(weights)} of weights and a context of {wanted} tokens do not fit {allowed[-1]}"
        " GPUs of"
        f" {describe_bytes(gpu.memory_bytes)} ({allows}{within});"
        f" {best} would hold {max(0, _gpu_tokens(facts, dtype, weights, best, gpu.memory_bytes))} tokens;"
        " choose larger GPUs, fewer bits, or a smaller spec.serving.maxModelLen",
        terminal=False,
    )


def _gpu_tokens(facts: ModelFacts, dtype: str, weights: int, ranks: int, memory: int) -> int:
    """Tokens that fit the KV cache of a rank; negative when not even the weights fit."""
    share = weights / ranks
    free = memory * GPU_SHARE - share * (1 + GPU_OVERHEAD_SHARE) - GPU_OVERHEAD
    return int(free // _kv_bytes_per_rank(facts, dtype, ranks))


def _kv_bytes_per_rank(facts: ModelFacts, dtype: str, ranks: int) -> float:
    whole = kv_bytes_per_token(facts, dtype)
    if facts.kv_lora_rank:
        return whole
    return whole * max(1, facts.key_value_heads / ranks) / facts.key_value_heads


def _gpu_cache(
    spec: Spec, facts: ModelFacts, dtype: str, weights: int, ranks: int, gpu: Gpu
) -> _Cache | Violation:
    length = spec.serving.max_model_len or facts.max_position_embeddings
    if gpu.memory_bytes is None:
        return _Cache(length, None, None, "KV cache unknown without the GPU's memory")
    tokens = _gpu_tokens(facts, dtype, weights, ranks, gpu.memory_bytes)
    if tokens < (spec.serving.max_model_len or min(LEAST_CONTEXT, length)):
        return Violation.of(
            Reason.CONTEXT_TOO_LONG,
            f"{ranks} GPUs of {describe_bytes(gpu.memory_bytes)} hold {describe_bytes(weights)} of weights"
            " and"
            f" {max(0, tokens)} tokens of KV cache, {length} are wanted;"
            f" lower spec.serving.maxModelLen to {max(0, tokens)} or add GPUs",
        )
    cut = min(length, tokens)
    note = (
        f"context cut from {length} to {cut} tokens, as many as fit"
        if cut < length
        else f"context {cut} tokens"
    )
    cache = int(tokens * _kv_bytes_per_rank(facts, dtype, ranks) * ranks)
    return _Cache(
        cut, cache, tokens // cut, f"{note}; {describe_bytes(cache)} of KV cache hold {tokens} tokens"
    )


def _cpu_cache(
    spec: Spec, facts: ModelFacts, dtype: str, base: int, nodes: tuple[NodeFact, ...] | None
) -> _Cache | Violation:
    length = spec.serving.max_model_len or facts.max_position_embeddings
    per_token = kv_bytes_per_token(facts, dtype)
    room = _cpu_room(spec, nodes)
    most = None if room is None else (room - base) // GIB
    for requests in range(WANTED_REQUESTS, 0, -1):
        space = max(1, -(-per_token * length * requests // GIB))
        if most is None or space <= most:
            return _cpu_settled(space, per_token, length, length)
    if most is None or most < 1:
        # No room for any cache at all: that is InsufficientMemory's business, not the context's.
        return _cpu_settled(1, per_token, min(length, GIB // per_token), length)
    tokens = most * GIB // per_token
    if spec.serving.max_model_len:
        return Violation.of(
            Reason.CONTEXT_TOO_LONG,
            f"one request of spec.serving.maxModelLen {length} needs {describe_bytes(per_token * length)} of"
            " KV cache"
            f" ({per_token} bytes a token in {dtype}), {describe_bytes(most * GIB)} are left"
            " beside the"
            f" weights; lower it to {tokens} or give the server more memory",
        )
    return _cpu_settled(most, per_token, min(length, tokens), length)


def _cpu_settled(space: int, per_token: int, length: int, asked: int) -> _Cache:
    tokens = space * GIB // per_token
    note = (
        f"context cut from {asked} to {length} tokens, as many as fit"
        if length < asked
        else f"context {length} tokens"
    )
    return _Cache(
        length, space * GIB, tokens // length, f"{note}; {space} GiB of KV cache hold {tokens} tokens"
    )


def _cpu_room(spec: Spec, nodes: tuple[NodeFact, ...] | None) -> int | None:
    if spec.serving.resources.limits.memory is not None:
        return parse_bytes(spec.serving.resources.limits.memory)
    largest = largest_memory(nodes)
    return largest[1] if largest else None
