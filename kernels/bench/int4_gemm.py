"""Measures int4_gemm beside its peers and writes JSON, a Markdown page and a plot to docs/benchmarks.

All peers of a shape in one process and in interleaved rounds, so that a busy moment hits everyone. Weights
are rotated over more memory than the last-level cache holds. A figure is the best round; the spread (worst
round over best) stands beside it. Ratios to a peer are what counts, absolute times belong to the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

import numpy as np
import peers
import report
import torch

import halfbyte_kernels as hb

# (K, N): SmolLM2-135M's mlp, a 1B model's mlp, Llama-2-7B's attention and mlp.
SHAPES = ((576, 1536), (2048, 8192), (4096, 4096), (4096, 11008), (11008, 4096))
ROWS = (1, 2, 8, 32, 64, 256)


def make_weight(k: int, n: int) -> peers.Weight:
    generator = torch.Generator().manual_seed(k * n)
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, generator=generator)
    group = 128 if k % 128 == 0 else 64
    scales = torch.rand((n, k // group), generator=generator) * 0.01 + 0.001
    return peers.Weight(codes, scales.bfloat16(), group)


def make_peers(weight: peers.Weight, threads: int, memory: int) -> list[peers.Peer]:
    n, k = weight.shape

    def copies(bits: float) -> int:
        return max(2, int(-(-memory // (n * k * bits / 8))))

    makers: list[Callable[[], peers.Peer]] = [
        lambda: peers.Halfbyte(weight, copies(4), "w4a8"),
        lambda: peers.Halfbyte(weight, copies(4), "w4a16"),
        lambda: peers.TorchInt4(weight, copies(4)),
        lambda: peers.TorchLinear(weight, copies(16), torch.bfloat16),
        lambda: peers.TorchLinear(weight, copies(32), torch.float32),
        lambda: peers.OnnxRuntime(weight, copies(4), 4, threads),
        lambda: peers.OnnxRuntime(weight, copies(4), 0, threads),
        lambda: peers.Ggml(weight, copies(4), "Q4_0", threads, repack=False),
        lambda: peers.Ggml(weight, copies(4), "Q4_0", threads, repack=True),
        lambda: peers.Ggml(weight, copies(4), "Q4_K", threads, repack=False),
        lambda: peers.Ggml(weight, copies(4), "Q4_K", threads, repack=True),
    ]
    made = []
    for make in makers:
        try:
            made.append(make())
        except (LookupError, RuntimeError) as error:
            print(f"left out: {error}", file=sys.stderr)
    return made


def copies_of(peer: peers.Peer) -> int:
    return len(peer.sessions) if isinstance(peer, peers.OnnxRuntime) else len(peer.weights)


def one_round(call: Callable[[int], Any], copies: int, start: int, seconds: float) -> float:
    """Least seconds of a call, over `seconds` of calls and three at least."""
    best, spent, copy = float("inf"), 0.0, start
    calls = 0
    while spent < seconds or calls < 3:
        begin = time.perf_counter()
        call(copy % copies)
        took = time.perf_counter() - begin
        best, spent, copy, calls = min(best, took), spent + took, copy + 1, calls + 1
    return best


def error_of(call: Callable[[int], Any], exact: torch.Tensor) -> float:
    out = call(0)
    out = out() if callable(out) else out
    out = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
    return ((out.double() - exact).norm() / exact.norm()).item()


def measure(k: int, n: int, threads: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    weight = make_weight(k, n)
    made = make_peers(weight, threads, options.memory << 20)
    floats = weight.floats().double()
    entries = []
    for rows in options.rows:
        x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows)).bfloat16()
        exact = x.double() @ floats.T
        calls = [peer.prepare(x) for peer in made]
        errors = [error_of(call, exact) for call in calls]
        rounds: list[list[float]] = [[] for _ in made]
        for turn in range(options.rounds):
            for peer, call, times in zip(made, calls, rounds, strict=True):
                times.append(one_round(call, copies_of(peer), turn * 7, options.seconds))
        for peer, times, error in zip(made, rounds, errors, strict=True):
            entries.append(
                {
                    "k": k, "n": n, "rows": rows, "threads": threads, "name": peer.name, "bits": peer.bits,
                    "milliseconds": min(times) * 1e3, "spread": max(times) / min(times),
                    "weightBytes": peer.weight_bytes, "relativeError": error,
                }
            )  # fmt: skip
        print(report.progress(entries[-len(made) :]), file=sys.stderr, flush=True)
    return entries


def read_bandwidth(threads: int) -> float:
    """bytes/s of the faster reader of 512 MiB in huge pages, torch.sum or the C library's memchr."""
    torch.set_num_threads(threads)
    size = 512 << 20
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, dtype=np.uint8)
    block[:] = 1
    floats, address, part = torch.from_numpy(block).view(torch.float32), block.ctypes.data, size // threads
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    with ThreadPoolExecutor(threads) as pool:

        def scan() -> None:
            list(pool.map(lambda i: memchr(address + i * part, 0, part), range(threads)))

        return max(size / timed(read) for _ in range(10) for read in (floats.sum, scan))


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="K = N = 4096 only, to the screen")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of calls, for a peer in a round")
    parser.add_argument("--memory", type=int, default=224, help="MiB of weights that a peer rotates over")
    options = parser.parse_args()
    shapes = ((4096, 4096),) if options.quick else SHAPES
    started = datetime.now(UTC)
    bandwidth = {str(threads): read_bandwidth(threads) for threads in options.threads}
    entries = []
    for threads in options.threads:
        for k, n in shapes:
            # A process for each shape: ggml and ONNX Runtime keep their copies of a weight until the end.
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                entries += child.submit(measure, k, n, threads, options).result()
    result = {
        "date": started.isoformat(timespec="seconds"),
        "machine": report.machine(),
        "versions": {name: version(name) for name in ("torch", "onnxruntime", "libggml-python", "numpy")}
        | {"halfbyte-kernels": hb.__version__},
        "readBytesPerSecond": bandwidth,
        "entries": entries,
    }
    if options.quick:
        print(report.page(result))
        return
    stem = f"int4_gemm-{result['machine']['variant']}"
    report.save(stem, result, report.page(result, f"{stem}.svg"))
    report.plot(result, report.DOCS / f"{stem}.svg")


if __name__ == "__main__":
    main()
