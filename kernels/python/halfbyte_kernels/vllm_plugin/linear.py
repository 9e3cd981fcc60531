"""vLLM's mixed-precision linear layer on ``halfbyte::int4_gemm``: compressed-tensors W4A16, AWQ and GPTQ."""

from __future__ import annotations

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.model_executor.layers.quantization.utils import replace_parameter
from vllm.platforms import PlatformEnum
from vllm.scalar_type import scalar_types

from halfbyte_kernels.info import cpu_variants_usable
from halfbyte_kernels.int4_gemm import pack
from halfbyte_kernels.selfcheck import verified_variant
from halfbyte_kernels.vllm_plugin.choice import log_kernel, read_settings

WEIGHT_TYPES = (scalar_types.uint4, scalar_types.uint4b8)
ACTIVATION_TYPES = (torch.float32, torch.bfloat16, torch.float16)

_reason = ""


def register_linear(reason: str) -> None:
    """Put the kernel first in the CPU platform's list. ``register_linear_kernel`` would append it behind
    vLLM's own."""
    global _reason
    _reason = reason
    candidates = kernels._POSSIBLE_KERNELS.setdefault(PlatformEnum.CPU, [])
    if HalfbyteInt4LinearKernel not in candidates:
        candidates.insert(0, HalfbyteInt4LinearKernel)


class HalfbyteInt4LinearKernel(MPLinearKernel):
    """Weights are repacked once, after loading; the checkpoint's layout stays what it was."""

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        columns, rows = c.partition_weight_shape
        if c.weight_type not in WEIGHT_TYPES:
            return False, f"weight type {c.weight_type} is not uint4 or uint4b8"
        if c.act_type not in ACTIVATION_TYPES:
            return False, f"activation dtype {c.act_type} is not float32, bfloat16 or float16"
        if c.group_size != -1 and (c.group_size % 32 != 0 or columns % c.group_size != 0):
            return (
                False,
                f"group size {c.group_size} is not -1 or a multiple of 32 that divides {columns} columns",
            )
        if columns % 32 != 0 or rows % 8 != 0:
            return False, f"{columns} columns are no multiple of 32, or {rows} rows no multiple of 8"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        codes, scales, zeros = self._get_weight_params(layer)
        # compressed-tensors is [out, in / 8] already; GPTQ (and AWQ, which vLLM turns into it) is [in / 8,
        # out].
        if codes.input_dim != codes.packed_dim:
            raise ValueError(
                f"{self.w_q_name} is packed along dimension {codes.packed_dim}, not along its inputs"
            )
        codes_data = codes.data if codes.input_dim == 1 else codes.data.t()
        scales_data = scales.data if scales.output_dim == 0 else scales.data.t()
        zeros_data = None
        if self.config.zero_points:
            zeros_data = (zeros.data if zeros.output_dim == 0 else zeros.data.t()).contiguous()
        packed = pack(codes_data.contiguous(), scales_data.contiguous(), zeros_data, self.config.group_size)
        replace_parameter(layer, self.w_q_name, torch.nn.Parameter(packed, requires_grad=False))
        for name in (self.w_s_name, self.w_zp_name):
            if name is not None and getattr(layer, name, None) is not None:
                empty = torch.nn.Parameter(torch.empty(0, dtype=scales.dtype), requires_grad=False)
                replace_parameter(layer, name, empty)
        self.path = read_settings().path
        self.variant = verified_variant(self.path)
        best = cpu_variants_usable()[0]
        note = "" if self.variant == best else f" ({best} failed its self-check)"
        log_kernel(type(self).__name__, f"{_reason}; path {self.path}, variant {self.variant}{note}")

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight = getattr(layer, self.w_q_name)
        rows = self.config.partition_weight_shape[1]
        if x.stride(-1) != 1 or x.dim() != 2:
            x = x.contiguous()
        return torch.ops.halfbyte.int4_gemm(x, weight, bias, rows, "none", self.path, self.variant)
