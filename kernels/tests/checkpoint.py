"""Writes small 4-bit checkpoints in each public layout from a float model: round to nearest, no calibration.

What tests and the end-to-end benchmark serve. Linear weights under ``model.layers`` are quantized, the rest
is copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LAYOUTS = ("compressed-tensors", "awq", "gptq")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def quantize(
    weight: torch.Tensor, group: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float [N, K] -> codes uint8 [N, K], scales [N, G], zeros uint8 [N, G]; w = (code - zero) * scale."""
    groups = weight.float().reshape(weight.shape[0], -1, group)
    if symmetric:
        scales = (groups.abs().amax(-1) / 7.5).clamp(min=1e-8).to(torch.bfloat16).float()
        zeros = torch.full_like(scales, 8)
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = ((high - low) / 15).clamp(min=1e-8).to(torch.bfloat16).float()
        zeros = (-low / scales).round().clamp(0, 15)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return codes.reshape(weight.shape).to(torch.uint8), scales, zeros.to(torch.uint8)


def nibbles(values: torch.Tensor) -> torch.Tensor:
    """[..., 8] below 16 -> int32 [...], value i in bits 4i..4i+3."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int64)
    words = (values.to(torch.int64) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def tensors_of(
    name: str,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    layout: str,
    symmetric: bool,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    n, k = codes.shape
    if layout == "compressed-tensors":
        made = {
            f"{name}.weight_packed": nibbles(codes.reshape(n, -1, 8)),
            f"{name}.weight_scale": scales.to(dtype).contiguous(),
            f"{name}.weight_shape": torch.tensor([n, k], dtype=torch.int64),
        }
        if not symmetric:
            made[f"{name}.weight_zero_point"] = nibbles(zeros.T.reshape(zeros.shape[1], -1, 8)).T.contiguous()
        return made
    if layout == "awq":
        order = torch.tensor(AWQ_ORDER)
        return {
            f"{name}.qweight": nibbles(codes.T.reshape(k, -1, 8)[..., order]),
            f"{name}.qzeros": nibbles(zeros.T.reshape(zeros.shape[1], -1, 8)[..., order]),
            f"{name}.scales": scales.T.to(torch.float16).contiguous(),
        }
    group = k // scales.shape[1]
    return {
        f"{name}.qweight": nibbles(codes.reshape(n, -1, 8)).T.contiguous(),
        f"{name}.qzeros": nibbles((zeros.T.reshape(zeros.shape[1], -1, 8).to(torch.int64) - 1) & 15),
        f"{name}.scales": scales.T.to(torch.float16).contiguous(),
        f"{name}.g_idx": (torch.arange(k) // group).to(torch.int32),
    }


def quantization_config(layout: str, group: int, symmetric: bool, ignore: list[str]) -> dict[str, object]:
    if layout == "awq":
        return {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": group, "zero_point": True}
    if layout == "gptq":
        return {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": True, "desc_act": False}
    weights = {
        "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group,
        "dynamic": False,
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ignore,
    }


def is_quantized(name: str, tensor: torch.Tensor, keep: tuple[str, ...]) -> bool:
    return (
        ".layers." in name
        and name.endswith("proj.weight")
        and tensor.dim() == 2
        and not any(part in name for part in keep)
    )


def write_checkpoint(
    source: Path, target: Path, layout: str, group: int, symmetric: bool, keep: tuple[str, ...] = ()
) -> None:
    """Quantize the safetensors model in ``source`` into ``target``; layers whose name holds one of ``keep``
    stay float."""
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; known: {', '.join(LAYOUTS)}")
    if (layout == "gptq" and not symmetric) or (layout == "awq" and symmetric):
        raise ValueError("gptq is written symmetric and awq with zero points")
    target.mkdir(parents=True, exist_ok=True)
    made: dict[str, torch.Tensor] = {}
    kept: list[str] = ["lm_head"]
    for file in sorted(source.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  safe_open has no __iter__
                tensor = tensors.get_tensor(key)
                if is_quantized(key, tensor, keep):
                    name = key.removesuffix(".weight")
                    made |= tensors_of(
                        name, *quantize(tensor, group, symmetric), layout, symmetric, tensor.dtype
                    )
                else:
                    made[key] = tensor
                    if ".layers." in key and key.endswith(".weight") and tensor.dim() == 2:
                        kept.append(key.removesuffix(".weight"))
    save_file(made, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization_config(layout, group, symmetric, kept)
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja", ".model") and file.name not in (
            "config.json",
            "model.safetensors.index.json",
        ):
            shutil.copy(file, target / file.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layout", choices=LAYOUTS, default="compressed-tensors")
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--asymmetric", action="store_true")
    options = parser.parse_args()
    write_checkpoint(options.source, options.target, options.layout, options.group, not options.asymmetric)


if __name__ == "__main__":
    main()
