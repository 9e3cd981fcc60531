"""Writes a random DeepSeek-V2 of three layers: latent attention of real widths, one dense, two expert layers.

python tiny_deepseek_v2.py FOLDER --tokenizer MODEL      in the serving environment
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

# vLLM's latent attention on a CPU is built for these widths alone.
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "q_lora_rank": None,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    options = parser.parse_args()
    words = len(json.loads((options.tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    config = AutoConfig.for_model(
        "deepseek_v2", vocab_size=words, bos_token_id=1, eos_token_id=2, **LATENT, **SIZES, **EXPERTS
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(options.folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(options.tokenizer / name, options.folder / name)


if __name__ == "__main__":
    main()
