"""vLLM's own 4-bit kernels as peers of the benchmark, through the classes that its servers use (0.32)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels.linear import (
    MacheteLinearKernel,
    MarlinLinearKernel,
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedvLLMParameter
from vllm.scalar_type import scalar_types


def build(
    codes: list[torch.Tensor],
    scales: torch.Tensor,
    bias: torch.Tensor,
    group: int,
    kernels: tuple[type[MPLinearKernel], ...] = (MarlinLinearKernel, MacheteLinearKernel),
) -> dict[str, Callable[[torch.Tensor], Callable[[int], object]]]:
    """Name -> (x -> (round -> launch)) for each kernel that takes this shape here; the rest is named.

    codes: int32 [n, k/8] each; scales [n, k/group]; bias [n]; symmetric. SiLU is its own launch, as in vLLM.
    """
    n, k = codes[0].shape[0], codes[0].shape[1] * 8
    config = MPLinearLayerConfig((k, n), (k, n), scalar_types.uint4b8, scales.dtype, group, False)
    peers = {}
    for kernel_class in kernels:
        possible, reason = kernel_class.can_implement(config)
        if not possible:
            print(f"without {kernel_class.__name__}: {reason}")
            continue
        with set_current_vllm_config(VllmConfig()):
            layers = [load(kernel_class, config, one, scales) for one in codes]
        peers[kernel_class.__name__.removesuffix("LinearKernel")] = launcher(layers, bias)
    return peers


def load(
    kernel_class: type[MPLinearKernel], config: MPLinearLayerConfig, codes: torch.Tensor, scales: torch.Tensor
) -> tuple[MPLinearKernel, torch.nn.Module]:
    """One layer as compressed_tensors_wNa16 makes it, repacked by the kernel class."""

    def loader(*_: object) -> None:
        """vLLM's parameters ask for one; nothing is loaded through it here."""

    layer = torch.nn.Module()
    layer.bias = None
    layer.register_parameter(
        "weight_packed",
        PackedvLLMParameter(
            data=codes.clone(), input_dim=1, output_dim=0, packed_dim=1, packed_factor=8, weight_loader=loader
        ),
    )
    layer.register_parameter(
        "weight_scale",
        GroupQuantScaleParameter(data=scales.clone(), input_dim=1, output_dim=0, weight_loader=loader),
    )
    kernel = kernel_class(config, "weight_packed", "weight_scale", "weight_zero_point")
    kernel.process_weights_after_loading(layer)
    return kernel, layer


def launcher(
    layers: list[tuple[MPLinearKernel, torch.nn.Module]], bias: torch.Tensor
) -> Callable[[torch.Tensor], Callable[[int], object]]:
    def make(x: torch.Tensor) -> Callable[[int], object]:
        def launch(turn: int) -> object:
            kernel, layer = layers[turn % len(layers)]
            return torch.nn.functional.silu(kernel.apply_weights(layer, x, bias))

        return launch

    return make
