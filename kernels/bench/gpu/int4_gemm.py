"""INT4 GEMM on a GPU beside its peers, in one process: K, N of real models, M = 1 to 512.

Peers, each with its bias and activation counted: cuBLAS (torch's bf16 linear on expanded weights), and vLLM's
Marlin and Machete where vllm is installed. Weights are rotated over more than twice the L2 cache, rounds are
interleaved, the best round counts and the spread is printed. Writes JSON and prints a table. Without a GPU it
says so and exits with 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

SHAPES = {"qkv 8B": (4096, 6144), "up 8B": (4096, 28672), "down 8B": (14336, 4096), "up 7B": (4096, 11008)}
ROWS = (1, 2, 8, 16, 32, 64, 128, 256, 512)
GROUP = 128


@dataclass
class Timing:
    shape: str
    rows: int
    kernel: str
    milliseconds: float  # best round
    spread: float  # slowest round / best round
    gigabytes_per_second: float  # weight bytes read / best time


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("int4-gemm-gpu.json"), help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("skipped: no NVIDIA GPU here (torch.cuda.is_available() is False); nothing was measured")
        return 0
    from halfbyte_kernels import cuda

    if not cuda.load_operators():
        print("halfbyte-kernels was built without CUDA: nothing to measure", file=sys.stderr)
        return 1
    properties = torch.cuda.get_device_properties(0)
    timings = []
    for shape, (k, n) in SHAPES.items():
        copies = max(2, 2 * properties.L2_cache_size // (n * k // 2) + 1)
        kernels = build_kernels(n, k, copies)
        for rows in ROWS:
            x = torch.randn(rows, k, device="cuda").bfloat16()
            timings += measure(
                shape, rows, {name: make(x) for name, make in kernels.items()}, n * k // 2, options
            )
            print_rows(timings[-len(kernels) :])
    report = {
        "gpu": properties.name,
        "copyGBs": copy_roof(),
        "torch": torch.__version__,
        "halfbyte": cuda.info(),
        "group": GROUP,
        "epilogue": "bias + silu",
        "timings": [asdict(timing) for timing in timings],
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.output}")
    return 0


def build_kernels(
    n: int, k: int, copies: int
) -> dict[str, Callable[[torch.Tensor], Callable[[int], object]]]:
    """Name -> (x -> (round -> launch)); every kernel holds `copies` different weights."""
    codes = [torch.randint(-(2**31), 2**31, (n, k // 8), device="cuda").int() for _ in range(copies)]
    scales = (torch.rand(n, k // GROUP, device="cuda") * 0.01).bfloat16()
    bias = torch.randn(n, device="cuda").bfloat16()
    packed = [torch.ops.halfbyte.int4_gemm_pack(one, scales, None, GROUP) for one in codes]
    dense = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(2)]
    silu = torch.nn.functional.silu
    kernels: dict[str, Callable[[torch.Tensor], Callable[[int], object]]] = {
        "halfbyte": lambda x: lambda i: torch.ops.halfbyte.int4_gemm(x, packed[i % copies], bias, n, "silu"),
        "cuBLAS bf16": lambda x: lambda i: silu(torch.nn.functional.linear(x, dense[i % 2], bias)),
    }
    try:
        import vllm_peers
    except ImportError as error:
        print(f"without vLLM's kernels: {error}")
        return kernels
    return {**kernels, **vllm_peers.build(codes, scales, bias, GROUP)}


def measure(
    shape: str,
    rows: int,
    kernels: dict[str, Callable[[int], object]],
    weight_bytes: int,
    options: argparse.Namespace,
) -> list[Timing]:
    launches = 64
    rounds: dict[str, list[float]] = {name: [] for name in kernels}
    for turn in range(options.rounds + 1):
        for name, launch in kernels.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for i in range(launches):
                launch(turn * launches + i)
            end.record()
            end.synchronize()
            if turn > 0:  # the first round warms up
                rounds[name].append(start.elapsed_time(end) / launches)
    return [
        Timing(shape, rows, name, min(times), max(times) / min(times), weight_bytes / min(times) / 1e6)
        for name, times in rounds.items()
    ]


def copy_roof() -> float:
    """GB/s of a device-to-device copy of 1 GiB, read and write counted."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return 2 * source.numel() / statistics.median(times) / 1e6


def print_rows(timings: list[Timing]) -> None:
    ours = next(timing for timing in timings if timing.kernel == "halfbyte")
    for timing in timings:
        print(
            f"{timing.shape:8} M={timing.rows:<4} {timing.kernel:12} {timing.milliseconds:8.4f} ms "
            f"{timing.gigabytes_per_second:7.0f} GB/s  spread {timing.spread:4.2f}  "
            f"ours is {timing.milliseconds / ours.milliseconds:5.2f} times as fast"
        )


if __name__ == "__main__":
    sys.exit(main())
