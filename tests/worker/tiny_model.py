"""A random Llama of two layers with a byte tokenizer: everything that a real checkpoint has, in 400 KB."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 128, 256, 2, 272
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def build_model(folder: Path, **changes: Any) -> Path:
    """Write the model; `changes` go into its configuration. Same bytes every time."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        # Ten times the usual spread: with it, logits of different tokens differ by more than rounding.
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**settings | changes)).to(torch.bfloat16)
    model.save_pretrained(folder)
    build_tokenizer(folder)
    return folder


def build_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def copy_model(model: Path, folder: Path) -> Path:
    """A copy with the same modification times, so with the same revision."""
    shutil.copytree(model, folder, copy_function=shutil.copy2)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
