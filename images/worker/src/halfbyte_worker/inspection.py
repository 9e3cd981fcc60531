"""Inspect: the model's facts, from config.json and the headers of the safetensors files. Imports no torch.

A linear layer is a two-dimensional `*.weight` that is no embedding. Layers of equal shape whose names differ
only in their indices are one row: `model.layers.*.mlp.down_proj`, count 30. A tied output layer has no tensor
of its own and is listed all the same, because recipes name it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from halfbyte_worker import log, node
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.safetensors_header import Header, Tensor
from halfbyte_worker.source import CONFIG, Source, open_source, read_headers
from halfbyte_worker.task import InspectTask

INDICES = re.compile(r"(?<=\.)\d+(?=\.|$)")
EMBEDDING = re.compile(r"(^|\.)(embed\w*|wte|wpe|\w*embedding\w*)\.weight$")
OUTPUT = "lm_head"
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8_e4m3fn"}


def inspect(task: InspectTask) -> dict[str, Any]:
    started = time.monotonic()
    source = open_source(task.source)
    headers = read_headers(source)
    config = read_config(source)
    facts = model_facts(config, headers)
    facts["source"] = {
        "revision": source.revision(headers),
        "bytes": sum(source.files[name] for name in headers),
    }
    facts["node"] = {"name": os.environ.get("NODE_NAME"), "cpuFlags": node.cpu_flags()}
    facts["storage"] = {"freeBytes": node.free_bytes(Path(task.artifact.root)) if task.artifact else None}
    log.info("inspected", files=len(headers), seconds=round(time.monotonic() - started, 2))
    facts["message"] = (
        f"{facts['architecture']} with {facts['parameters']} parameters in {facts['source']['bytes']} bytes"
    )
    return facts


def read_config(source: Source) -> dict[str, Any]:
    try:
        config = json.loads(source.read(CONFIG, 0, source.files[CONFIG]))
    except ValueError as error:
        raise Failure(Reason.SOURCE_INCOMPLETE, f"{source.name}: {CONFIG} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise Failure(Reason.SOURCE_INCOMPLETE, f"{source.name}: {CONFIG} is not a JSON object")
    return config


def model_facts(config: Mapping[str, Any], headers: Mapping[str, Header]) -> dict[str, Any]:
    """ModelFacts without the parts about revision, node and storage.

    Raises:
        Failure: UnsupportedArchitecture when this is no causal language model that the libraries know.
    """
    architecture = check_architecture(config)
    text = config.get("text_config") or config
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    try:
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        # Where the config says nothing, the default differs from class to class.
        separate = any(tensor.name.endswith(f"{OUTPUT}.weight") for tensor in tensors)
        tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", not separate)))
        facts = {
            "architecture": architecture,
            "modelType": text.get("model_type") or config.get("model_type"),
            "torchDtype": weights_dtype(tensors),
            "layers": int(text["num_hidden_layers"]),
            "hiddenSize": hidden,
            "intermediateSize": int(text.get("intermediate_size") or 0),
            "attentionHeads": heads,
            "keyValueHeads": int(text.get("num_key_value_heads") or heads),
            "headDim": int(text.get("head_dim") or hidden // heads),
            "vocabSize": int(text["vocab_size"]),
            "maxPositionEmbeddings": int(text.get("max_position_embeddings") or 0),
            "tiedEmbeddings": tied,
            "experts": expert_count(text),
            "kvLoraRank": text.get("kv_lora_rank"),
            "qkRopeHeadDim": text.get("qk_rope_head_dim"),
        }
    except KeyError as error:
        message = f"{architecture}: {CONFIG} has no {error.args[0]}"
        raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message) from error
    tied_output = (facts["vocabSize"], hidden) if tied else None
    return facts | {
        "parameters": sum(tensor.elements for tensor in tensors),
        "largestTensorBytes": max(tensor.nbytes for tensor in tensors),
        "quantized": (config.get("quantization_config") or {}).get("quant_method"),
        "linears": linear_rows(tensors, tied_output),
        "linearsTruncated": False,
    }


def expert_count(text: Mapping[str, Any]) -> int:
    names = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    return next((int(text[name]) for name in names if text.get(name)), 0)


def weights_dtype(tensors: Iterable[Tensor]) -> str:
    """The type that holds most bytes, by the name that torch and config.json use."""
    nbytes: Counter[str] = Counter()
    for tensor in tensors:
        nbytes[tensor.dtype] += tensor.nbytes
    dtype = nbytes.most_common(1)[0][0]
    return DTYPES.get(dtype, dtype.lower())


def linear_tensors(
    tensors: Iterable[Tensor], tied_output: tuple[int, int] | None
) -> dict[str, tuple[int, int]]:
    """Module name to (rows, columns) = (output, input features) of every linear layer."""
    linears = {
        tensor.name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for tensor in tensors
        if tensor.name.endswith(".weight") and len(tensor.shape) == 2 and not EMBEDDING.search(tensor.name)
    }
    if tied_output and OUTPUT not in linears:
        linears[OUTPUT] = tied_output
    return linears


def linear_rows(tensors: Iterable[Tensor], tied_output: tuple[int, int] | None) -> list[dict[str, Any]]:
    rows: Counter[tuple[str, int, int]] = Counter()
    for name, (height, width) in linear_tensors(tensors, tied_output).items():
        rows[INDICES.sub("*", name), height, width] += 1
    return [
        {"name": name, "rows": height, "columns": width, "count": count}
        for (name, height, width), count in sorted(rows.items())
    ]


def check_architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    if not named:
        message = (
            f"{CONFIG} names no architecture; expected for example 'architectures': ['LlamaForCausalLM']"
        )
        raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message)
    architecture = str(named[0])
    known = known_architectures()
    if known and architecture not in known:
        close = ", ".join(sorted(name for name in known if name[:5].lower() == architecture[:5].lower())[:5])
        message = (
            f"{architecture} is not a causal language model that transformers {transformers_version()} knows"
            + (f"; similar names: {close}" if close else "")
        )
        raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message)
    return architecture


def known_architectures() -> frozenset[str]:
    """Class names in transformers' table of causal language models, empty when it cannot be read.

    The table is read from the source text: importing its module brings torch and takes seconds.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    path = Path(spec.submodule_search_locations[0]) / "models" / "auto" / "modeling_auto.py"
    try:
        text = path.read_text()
    except OSError:
        return frozenset()
    begin = text.find("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(")
    rows = ast.parse(text[begin : text.find("\n)", begin) + 2]) if begin >= 0 else ast.parse("")
    names = set()
    for row in ast.walk(rows):
        if isinstance(row, ast.Tuple) and len(row.elts) == 2:
            value = ast.literal_eval(row.elts[1])
            names.update([value] if isinstance(value, str) else value)
    return frozenset(names)


def transformers_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("transformers")
    except PackageNotFoundError:
        return "(not installed)"
