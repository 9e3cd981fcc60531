"""llm-compressor behind two functions: quantize a loaded model, save it as a checkpoint that vLLM loads.

Imports torch and llm-compressor at its head; import it only when there is work for them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from llmcompressor import oneshot
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from pydantic import PrivateAttr
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from halfbyte_worker import log
from halfbyte_worker.corpus import CALIBRATION, random_windows, read_corpus
from halfbyte_worker.language_model import tokenize, torch_dtype
from halfbyte_worker.task import Calibration, Quantization

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
SHARD_SIZE = "5GB"
BATCH_TOKENS = 2048
"""Calibration tokens of one forward pass, whatever the length of a window."""


def prepare() -> None:
    """Once, before work: logs as ours, and what the libraries get wrong without an accelerator."""
    log.route_loguru()
    if not torch.accelerator.is_available():
        # llm-compressor pins the batches of AWQ without asking whether there is a device to pin them for:
        # "RuntimeError: Cannot access accelerator device when none is available" (seen with 0.14.0.1).
        IntermediatesCache._pin_intermediate = classmethod(lambda cls, intermediate: None)


class LayerReport(Modifier):
    """Tells which decoder layer is finished. The last modifier of a recipe, after all that do work."""

    _report: Callable[[int], None] = PrivateAttr()
    _layer_of: dict[torch.nn.Module, int] = PrivateAttr(default_factory=dict)

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self._report = report

    def on_initialize(self, state: Any, **kwargs: Any) -> bool:
        for name, module in state.model.named_modules():
            if match := LAYER.search(name):
                self._layer_of[module] = int(match[1])
        return True

    def on_sequential_epoch_end(self, state: Any, event: Any, modules: Any, **kwargs: Any) -> None:
        layers = [self._layer_of[module] for module in modules if module in self._layer_of]
        if layers:
            self._report(max(layers) + 1)


def scheme(quantization: Quantization) -> dict[str, Any]:
    """compressed-tensors' config group for every linear layer."""
    if quantization.method == "W8A8":
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        return {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    weights = {
        "num_bits": quantization.bits,
        "type": "int",
        "symmetric": quantization.symmetric,
        "strategy": "group",
        "group_size": quantization.group_size,
    }
    return {"targets": ["Linear"], "weights": weights}


def modifiers(quantization: Quantization, ignore: list[str]) -> list[Modifier]:
    groups = {"config_groups": {"group_0": scheme(quantization)}, "ignore": ignore}
    if quantization.method == "GPTQ":
        return [GPTQModifier(**groups)]
    rounding = QuantizationModifier(**groups)
    return [AWQModifier(), rounding] if quantization.method == "AWQ" else [rounding]


def calibration_batches(calibration: Calibration, tokenizer: PreTrainedTokenizerBase) -> DataLoader:
    """Batches of windows: `input_ids` and `attention_mask`, int64 (windows, sequenceLength).

    Every forward pass rounds the weights anew, which costs more than the multiplication of a short window.
    """
    tokens = tokenize(tokenizer, read_corpus(calibration.source.builtin, CALIBRATION))
    windows = random_windows(tokens, calibration.samples, calibration.sequence_length, calibration.seed)
    if len(windows) < calibration.samples:
        log.warning(
            "calibration", message=f"the corpus has {len(windows)} samples, not {calibration.samples}"
        )
    size = max(1, BATCH_TOKENS // calibration.sequence_length)
    rows = [torch.tensor(windows[start : start + size]) for start in range(0, len(windows), size)]
    batches = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
    return DataLoader(batches, batch_size=None)


def compress_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    quantization: Quantization,
    ignore: list[str],
    report: Callable[[int], None],
) -> None:
    """Quantize `model` in place; `report(n)` is called when n decoder layers are finished."""
    calibrated = quantization.calibration if quantization.method in ("AWQ", "GPTQ") else None
    torch.manual_seed(calibrated.seed if calibrated else 0)
    report(0)
    oneshot(
        model=model,
        tokenizer=tokenizer,
        recipe=[*modifiers(quantization, ignore), LayerReport(report)],
        dataset=calibration_batches(calibrated, tokenizer) if calibrated else None,
        num_calibration_samples=calibrated.samples if calibrated else 0,
        pipeline="sequential" if calibrated else "datafree",
    )


def save_model(model: PreTrainedModel, dtype: str, folder: Path) -> None:
    """config.json and safetensors with every floating-point tensor in `dtype`.

    Scales are rounded to `dtype` before the weights are divided by them, so that the stored integers are the
    nearest ones for the scale that a server will multiply with.
    """
    stored = torch_dtype(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("_scale"):
            parameter.data = parameter.data.to(stored).to(parameter.dtype)
    ModelCompressor.from_pretrained_model(model).compress_model(model)
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(stored)
    model.config.dtype = stored
    with warnings.catch_warnings():
        # llm-compressor hands the model to accelerate for saving; here nothing is really offloaded.
        warnings.filterwarnings("ignore", message="Attempting to save a model with offloaded modules")
        model.save_pretrained(folder, max_shard_size=SHARD_SIZE)
