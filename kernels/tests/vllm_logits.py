"""Serves one checkpoint in this process with vLLM and compares its logits with an fp32 model of the
dequantized weights.

    python vllm_logits.py MODEL --dtype float32 [--reference]

Prints one JSON line: the cosine similarity of the prompt's logits (mean and least over positions) and greedy
text. Run by test_vllm_serving.py in the vLLM environment; --reference runs transformers alone and writes
reference.pt.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

PROMPT = "The capital of France is Paris, and the capital of Italy is"


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """Weights by name, 4-bit ones expanded as their formats define, without halfbyte_kernels."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    made = {}
    for name in sorted({key.rsplit(".", 1)[0] for key in tensors}):
        if f"{name}.weight" in tensors:
            made[f"{name}.weight"] = tensors[f"{name}.weight"].float()
        elif f"{name}.weight_packed" in tensors:
            codes = nibbles(tensors[f"{name}.weight_packed"], 1)
            zeros = tensors.get(f"{name}.weight_zero_point")
            zero = torch.tensor(8) if zeros is None else nibbles(zeros, 0)
            made[f"{name}.weight"] = expand(codes, tensors[f"{name}.weight_scale"], zero)
        elif config["quant_method"] == "gptq":
            codes = nibbles(tensors[f"{name}.qweight"], 0).T
            made[f"{name}.weight"] = expand(codes, tensors[f"{name}.scales"].T, torch.tensor(8))
        else:
            columns = [0, 4, 1, 5, 2, 6, 3, 7]
            codes, zero = (
                nibbles(words, 1).unflatten(1, (-1, 8))[..., columns].flatten(1)
                for words in (tensors[f"{name}.qweight"], tensors[f"{name}.qzeros"])
            )
            made[f"{name}.weight"] = expand(codes.T, tensors[f"{name}.scales"].T, zero.T)
    return made


def nibbles(words: torch.Tensor, dimension: int) -> torch.Tensor:
    """int32 with 8 nibbles along a dimension -> the values, 8 times as many there."""
    parts = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], dim=dimension + 1)
    return parts.flatten(dimension, dimension + 1)


def expand(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    group = codes.shape[1] // scales.shape[1]
    if zeros.dim():
        zeros = zeros.repeat_interleave(group, 1)
    return (codes - zeros).float() * scales.float().repeat_interleave(group, 1)


def write_reference(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = dequantized(folder)
    known = model.state_dict()
    for name in [key for key in known if key not in state]:
        tied = state["model.embed_tokens.weight"]
        state[name] = merged_experts(state, name, known[name]) if ".experts." in name else tied
    model.load_state_dict({name: state[name] for name in known})
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model.eval()(ids).logits[0]
    torch.save({"ids": ids[0].tolist(), "logits": logits}, folder / "reference.pt")


def merged_experts(state: dict[str, torch.Tensor], name: str, like: torch.Tensor) -> torch.Tensor:
    """transformers 5 keeps experts in one tensor: gate_up_proj [E, 2I, H] or down_proj [E, H, I]."""
    prefix, part = name.rsplit(".", 1)
    rows = []
    for expert in range(like.shape[0]):
        names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
        rows.append(torch.cat([state[f"{prefix}.{expert}.{each}.weight"] for each in names]))
    return torch.stack(rows)


def serve(folder: Path, dtype: str) -> dict[str, object]:
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import LLM, SamplingParams

    reference = torch.load(folder / "reference.pt")
    llm = LLM(
        str(folder), dtype=dtype, enforce_eager=True, max_model_len=256, max_num_seqs=2, max_logprobs=-1,
        logprobs_mode="raw_logits", enable_prefix_caching=False,
    )  # fmt: skip
    prompt = {"prompt_token_ids": reference["ids"]}
    done = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=24, prompt_logprobs=-1))[0]
    cosines = []
    # The entry of position i holds the logits that predict it, those of position i - 1.
    for position, entry in enumerate(done.prompt_logprobs[1:]):
        logits = torch.zeros(reference["logits"].shape[1])
        for token, value in entry.items():
            logits[token] = value.logprob
        expected = reference["logits"][position].double()
        cosines.append(torch.cosine_similarity(logits.double(), expected, dim=0).item())
    return {
        "cosine": {"mean": sum(cosines) / len(cosines), "least": min(cosines)},
        "text": done.outputs[0].text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    if options.reference:
        write_reference(options.model)
    else:
        print("RESULT " + json.dumps(serve(options.model, options.dtype)))


if __name__ == "__main__":
    main()
