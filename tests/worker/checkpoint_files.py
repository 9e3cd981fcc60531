"""Checkpoints as bytes by file name, made without torch: real headers and sizes, random data."""

import json
import math
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1, "I32": 4, "F8_E4M3": 1}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}

Shapes = Mapping[str, tuple[int, ...]]


def llama_shapes(layers: int = 2) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (100, 64), "model.norm.weight": (64,)}
    for index in range(layers):
        prefix = f"model.layers.{index}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (64,),
            f"{prefix}.self_attn.q_proj.weight": (64, 64),
            f"{prefix}.self_attn.k_proj.weight": (32, 64),
            f"{prefix}.self_attn.v_proj.weight": (32, 64),
            f"{prefix}.self_attn.o_proj.weight": (64, 64),
            f"{prefix}.mlp.gate_proj.weight": (128, 64),
            f"{prefix}.mlp.up_proj.weight": (128, 64),
            f"{prefix}.mlp.down_proj.weight": (64, 128),
        }
    return shapes


def header_of(shapes: Shapes, dtype: str = "BF16") -> tuple[bytes, int]:
    """Length prefix and header, and how many bytes of data follow."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text, end


def weights(shapes: Shapes, dtype: str = "BF16") -> bytes:
    head, size = header_of(shapes, dtype)
    return head + random.Random(0).randbytes(size)


def model_files(config: Mapping[str, Any] | None = None, shapes: Shapes | None = None) -> dict[str, bytes]:
    """A checkpoint of one weight file, as a hub or a folder has it."""
    return {
        "config.json": json.dumps(LLAMA | dict(config or {})).encode(),
        "tokenizer.json": b'{"model": {"type": "BPE"}}',
        "generation_config.json": b"{}",
        "model.safetensors": weights(llama_shapes() if shapes is None else shapes),
    }


def sharded_files(count: int = 3) -> dict[str, bytes]:
    """The same in `count` shards with an index."""
    files = model_files()
    del files["model.safetensors"]
    shapes = list(llama_shapes().items())
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    index = {}
    for number, name in enumerate(names):
        part = dict(shapes[number::count])
        files[name] = weights(part)
        index |= dict.fromkeys(part, name)
    files["model.safetensors.index.json"] = json.dumps({"weight_map": index}).encode()
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
