"""Routed experts (mixture of experts) with 4-bit compressed-tensors weights on
``halfbyte::int4_gemm_grouped``.

vLLM 0.32 has no such backend for a CPU without AMX. Tokens are sorted by expert, so that each of the two
products is one call: up and gate with the activation in its epilogue, then down.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_wna16 as module,
)
from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.scalar_type import scalar_types

from halfbyte_kernels.int4_gemm import pack
from halfbyte_kernels.routed_experts import routed_experts
from halfbyte_kernels.selfcheck import verified_variant
from halfbyte_kernels.vllm_plugin.choice import log_kernel, read_settings

VllmMethod = module.CompressedTensorsWNA16MoEMethod

_reason = ""


def register_moe(reason: str) -> None:
    """vLLM imports the class by name when it builds a layer, so the name is given our chooser."""
    global _reason
    _reason = reason
    module.CompressedTensorsWNA16MoEMethod = choose_method


def choose_method(weight_quant: Any, input_quant: Any, moe: Any, layer_name: str | None = None) -> Any:
    """Ours where it can, else vLLM's own, which then says itself what it lacks."""
    if unsupported(weight_quant, moe) is None:
        return HalfbyteInt4MoEMethod(weight_quant, input_quant, moe)
    return VllmMethod(weight_quant, input_quant, moe, layer_name)


def unsupported(weight_quant: Any, moe: Any) -> str | None:
    group = -1 if weight_quant.group_size is None else weight_quant.group_size
    if weight_quant.num_bits != 4:
        return f"{weight_quant.num_bits} bits"
    if group != -1 and group % 32 != 0:
        return f"group size {group} is no multiple of 32"
    if moe.activation != MoEActivation.SILU:
        return f"activation {moe.activation}"
    if moe.hidden_dim % 32 != 0 or moe.intermediate_size_per_partition % 32 != 0:
        return "hidden or intermediate size is no multiple of 32"
    return None


class HalfbyteInt4MoEMethod(VllmMethod):
    """create_weights (the checkpoint's layout and loading) is vLLM's; packing and products are ours."""

    def __init__(self, weight_quant: Any, input_quant: Any, moe: Any) -> None:
        # Not VllmMethod's own: it asks for a backend and finds none.
        super(VllmMethod, self).__init__(moe)
        self.weight_quant = weight_quant
        self.input_quant = input_quant
        self.symmetric = weight_quant.symmetric
        self.num_bits = weight_quant.num_bits
        self.packed_factor = 8
        self.strategy = weight_quant.strategy
        self.group_size = -1 if weight_quant.group_size is None else weight_quant.group_size
        self.quant_type = scalar_types.uint4b8 if self.symmetric else scalar_types.uint4
        self.path = read_settings().path
        self.variant = verified_variant(self.path)

    @property
    def is_monolithic(self) -> bool:
        return False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        for name in ("w13", "w2"):
            zeros = None if self.symmetric else getattr(layer, f"{name}_weight_zero_point").data.contiguous()
            codes = getattr(layer, f"{name}_weight_packed").data.contiguous()
            scales = getattr(layer, f"{name}_weight_scale").data.contiguous()
            packed = pack(codes, scales, zeros, self.group_size)
            replace_parameter(layer, f"{name}_weight_packed", torch.nn.Parameter(packed, requires_grad=False))
            for rest in ("scale", "zero_point"):
                if hasattr(layer, f"{name}_weight_{rest}"):
                    empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)
                    replace_parameter(layer, f"{name}_weight_{rest}", empty)
        log_kernel(type(self).__name__, f"{_reason}; path {self.path}, variant {self.variant}")

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        return None

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """x [T, H]; topk_weights, topk_ids [T, k]; returns [T, H]. vLLM's runner has run the shared experts
        already."""
        if layer.expert_map is not None:
            raise NotImplementedError("expert parallelism is not supported by halfbyte-kernels")
        weights = (layer.w13_weight_packed, layer.w2_weight_packed)
        biases = (getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None))
        on_input = layer.apply_router_weight_on_input
        return routed_experts(x, topk_weights, topk_ids, weights, biases, self.path, self.variant, on_input)
