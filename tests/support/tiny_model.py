"""Writes a two-layer Llama with random weights as a Hugging Face directory: real files, no meaning.

Only the standard library: a bfloat16 is the upper half of a float32.
"""

from __future__ import annotations

import argparse
import array
import json
import random
import shutil
import struct
import sys
from pathlib import Path

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 256, 2, 2, 1, 64


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of the checkpoint, [out, in] as in Hugging Face's Llama."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for index in range(LAYERS):
        prefix = f"model.layers.{index}"
        found[f"{prefix}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{prefix}.post_attention_layernorm.weight"] = (HIDDEN,)
        found[f"{prefix}.self_attn.q_proj.weight"] = (HEADS * HEAD_DIM, HIDDEN)
        found[f"{prefix}.self_attn.k_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        found[f"{prefix}.self_attn.v_proj.weight"] = (KV_HEADS * HEAD_DIM, HIDDEN)
        found[f"{prefix}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_DIM)
        found[f"{prefix}.mlp.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        found[f"{prefix}.mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        found[f"{prefix}.mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    return found


def bfloat16(shape: tuple[int, ...], source: random.Random) -> bytes:
    """Random weights (norms are ones), little-endian bfloat16."""
    if len(shape) == 1:
        return struct.pack("<H", 0x3F80) * shape[0]
    # A pool repeated at random offsets: six million values one by one would take seconds.
    pool = array.array(
        "H", (struct.unpack("<I", struct.pack("<f", source.gauss(0, 0.05)))[0] >> 16 for _ in range(4096))
    )
    rows = bytearray()
    for _ in range(shape[0]):
        start = source.randrange(len(pool) - shape[1])
        rows += pool[start : start + shape[1]].tobytes()
    return bytes(rows)


def write(directory: Path, tokenizer: Path, architecture: str) -> None:
    source = random.Random(0)
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in shapes(vocabulary).items():
        data = bfloat16(shape, source)
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    config = {
        "architectures": [architecture], "model_type": "llama", "hidden_size": HIDDEN, "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": vocabulary, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for each in tokenizer.iterdir():
        if each.name.startswith(
            ("tokenizer", "special_tokens", "generation_config", "chat_template", "vocab", "merges")
        ):
            shutil.copy2(each, directory / each.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where to write the model")
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="a Hugging Face directory to take the tokenizer from"
    )
    parser.add_argument(
        "--architecture", default="LlamaForCausalLM", help="what config.json says (for tests of refusals)"
    )
    options = parser.parse_args()
    write(options.directory, options.tokenizer, options.architecture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
