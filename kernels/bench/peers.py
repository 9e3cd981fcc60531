"""The products that int4_gemm is measured against; each holds several copies of one weight, so that they come
from memory.

A peer is made from the same codes and scales (symmetric; ggml has its own formats and quantizes the same
float matrix). ``prepare(x)`` returns ``call(copy)``: one product, [M, N].
``bits`` says what the activations are rounded to: peers of 8 bits compare with W4A8, of 16 and 32 with W4A16.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Weight:
    codes: torch.Tensor  # uint8 [N, K]
    scales: torch.Tensor  # bfloat16 [N, K / group]
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def floats(self) -> torch.Tensor:
        return (self.codes.float() - 8) * self.scales.float().repeat_interleave(self.group, 1)


class Peer:
    name = ""
    bits = 16
    weight_bytes = 0

    def prepare(self, x: torch.Tensor) -> Callable[[int], Any]:
        raise NotImplementedError


class Halfbyte(Peer):
    def __init__(self, weight: Weight, copies: int, path: str) -> None:
        import halfbyte_kernels as hb

        self.name = f"halfbyte {path.upper()}"
        self.bits = 8 if path == "w4a8" else 16
        self.path = path
        words = (weight.codes.reshape(weight.shape[0], -1, 8).long() << torch.arange(0, 32, 4)).sum(-1)
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        self.features = weight.shape[0]
        # Packed one by one, as a server does it: a clone would lose what packing advises about its memory.
        self.weights = [hb.pack(words, weight.scales, None, weight.group) for _ in range(copies)]
        self.weight_bytes = self.weights[0].numel()

    def prepare(self, x: torch.Tensor) -> Callable[[int], torch.Tensor]:
        x = x.bfloat16()
        run, weights, features, path = torch.ops.halfbyte.int4_gemm, self.weights, self.features, self.path
        return lambda copy: run(x, weights[copy], None, features, "none", path, None)


class TorchLinear(Peer):
    def __init__(self, weight: Weight, copies: int, dtype: torch.dtype) -> None:
        self.name = f"torch linear {str(dtype).removeprefix('torch.')}"
        self.bits = 32 if dtype == torch.float32 else 16
        matrix = weight.floats().to(dtype)
        self.weight_bytes = matrix.numel() * matrix.element_size()
        self.weights = [matrix.clone() for _ in range(copies)]
        self.dtype = dtype

    def prepare(self, x: torch.Tensor) -> Callable[[int], torch.Tensor]:
        x, weights = x.to(self.dtype), self.weights
        return lambda copy: torch.nn.functional.linear(x, weights[copy])


class TorchInt4(Peer):
    name = "torch int4pack bfloat16"

    def __init__(self, weight: Weight, copies: int) -> None:
        self.group = weight.group
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weight.codes.int(), 1)
        # The operator's zero is added after scaling, at the middle of the range: (code - 8) * scale + zero.
        scales = weight.scales.t().contiguous()
        self.zeros = torch.stack([scales, torch.zeros_like(scales)], dim=-1).contiguous()
        self.weight_bytes = packed.numel() * packed.element_size() + self.zeros.numel() * 2
        self.weights = [packed.clone() for _ in range(copies)]

    def prepare(self, x: torch.Tensor) -> Callable[[int], torch.Tensor]:
        x, weights, group, zeros = x.bfloat16(), self.weights, self.group, self.zeros
        return lambda copy: torch.ops.aten._weight_int4pack_mm_for_cpu(x, weights[copy], group, zeros)


class OnnxRuntime(Peer):
    """One session a copy, each with its own data: sessions share pre-packed initialisers of equal content."""

    def __init__(self, weight: Weight, copies: int, accuracy: int, threads: int) -> None:
        self.name = f"ONNX Runtime MatMulNBits accuracy {accuracy}"
        self.bits = 8 if accuracy == 4 else 32
        self.sessions = [self.session(weight, accuracy, threads, copy) for copy in range(copies)]
        self.weight_bytes = weight.codes.numel() // 2 + weight.scales.numel() * 4

    @staticmethod
    def session(weight: Weight, accuracy: int, threads: int, copy: int) -> Any:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        (n, k), group = weight.shape, weight.group
        codes = weight.codes.numpy().copy()
        codes[0, 0] = copy % 16
        codes[0, 1] = copy // 16
        pairs = (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(n, k // group, group // 2)
        node = helper.make_node(
            "MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=group,
            accuracy_level=accuracy,
        )  # fmt: skip
        graph = helper.make_graph(
            [node],
            "product",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
            [
                numpy_helper.from_array(pairs, "b"),
                numpy_helper.from_array(weight.scales.float().numpy().ravel(), "s"),
            ],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)

    def prepare(self, x: torch.Tensor) -> Callable[[int], np.ndarray]:
        sessions, feed = self.sessions, {"x": x.float().numpy()}
        return lambda copy: sessions[copy].run(None, feed)[0]


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml(Peer):
    """ggml's mul_mat with Q4_0 or Q4_K weights, in its repacked buffers where it has them for this CPU."""

    bits = 8
    TYPES = {"Q4_0": 2, "Q4_K": 12}  # noqa: RUF012
    BLOCKS = {"Q4_0": 32, "Q4_K": 256}  # noqa: RUF012
    FLOAT32 = 0

    def __init__(self, weight: Weight, copies: int, kind: str, threads: int, repack: bool) -> None:
        self.name = f"ggml {kind}{' repacked' if repack else ''}"
        if weight.shape[1] % self.BLOCKS[kind]:
            raise LookupError(f"{self.name}: K {weight.shape[1]} is no multiple of {self.BLOCKS[kind]}")
        self.lib, self.cpu = load_ggml()
        self.backend = self.cpu.ggml_backend_cpu_init()
        self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
        self.n, self.k = weight.shape
        number = self.TYPES[kind]
        floats = np.ascontiguousarray(weight.floats().numpy(), dtype=np.float32)
        row = self.lib.ggml_row_size(number, self.k)
        data = ctypes.create_string_buffer(row * self.n)
        self.lib.ggml_quantize_chunk(number, floats.ctypes.data, data, 0, self.n, self.k, None)
        self.weight_bytes = row * self.n
        buffers = self.repack_buffers() if repack else self.cpu.ggml_backend_cpu_buffer_type()
        if not buffers:
            raise LookupError("this ggml has no repacked buffers")
        self.weights = []
        for _ in range(copies):
            context = self.context()
            tensor = self.lib.ggml_new_tensor_2d(context, number, self.k, self.n)
            if not self.lib.ggml_backend_alloc_ctx_tensors_from_buft(context, buffers):
                raise LookupError(f"ggml could not allocate {kind} in these buffers")
            self.lib.ggml_backend_tensor_set(tensor, data, 0, row * self.n)
            self.weights.append(tensor)

    def context(self) -> int:
        return self.lib.ggml_init(_InitParams(1 << 20, None, True))

    def repack_buffers(self) -> int | None:
        registry = self.cpu.ggml_backend_cpu_reg()
        address = self.lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            return None
        listing = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        found = listing(self.lib.ggml_backend_reg_dev_get(registry, 0))
        return found[0] if found else None

    def prepare(self, x: torch.Tensor) -> Callable[[int], Any]:
        rows = x.shape[0]
        values = x.float().contiguous()
        graphs, outs = [], []
        for weight in self.weights:
            context = self.context()
            tensor = self.lib.ggml_new_tensor_2d(context, self.FLOAT32, self.k, rows)
            out = self.lib.ggml_mul_mat(context, weight, tensor)
            graph = self.lib.ggml_new_graph(context)
            self.lib.ggml_build_forward_expand(graph, out)
            self.lib.ggml_backend_alloc_ctx_tensors(context, self.backend)
            self.lib.ggml_backend_tensor_set(tensor, values.data_ptr(), 0, values.numel() * 4)
            graphs.append(graph)
            outs.append(out)
        compute, backend = self.lib.ggml_backend_graph_compute, self.backend

        def call(copy: int) -> Callable[[], torch.Tensor]:
            compute(backend, graphs[copy])
            return lambda: self.read(outs[copy], rows)

        return call

    def read(self, tensor: int, rows: int) -> torch.Tensor:
        out = torch.empty(rows, self.n)
        self.lib.ggml_backend_tensor_get(tensor, out.data_ptr(), 0, out.numel() * 4)
        return out


def load_ggml() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """libggml-base and libggml-cpu of the PyPI package libggml-python, with the signatures used here."""
    spec = importlib.util.find_spec("libggml")
    if spec is None or spec.origin is None:
        raise LookupError("libggml-python is not installed")
    folder = Path(spec.origin).parent / "lib64"
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    pointer, size, whole = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    for library, name, result, arguments in (
        (base, "ggml_init", pointer, [_InitParams]),
        (base, "ggml_row_size", size, [ctypes.c_int, whole]),
        (base, "ggml_quantize_chunk", size, [ctypes.c_int, pointer, pointer, whole, whole, whole, pointer]),
        (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, whole, whole]),
        (base, "ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        (base, "ggml_new_graph", pointer, [pointer]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (base, "ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
        (base, "ggml_backend_alloc_ctx_tensors_from_buft", pointer, [pointer, pointer]),
        (base, "ggml_backend_tensor_set", None, [pointer, pointer, size, size]),
        (base, "ggml_backend_tensor_get", None, [pointer, pointer, size, size]),
        (base, "ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
        (base, "ggml_backend_reg_get_proc_address", pointer, [pointer, ctypes.c_char_p]),
        (base, "ggml_backend_reg_dev_get", pointer, [pointer, size]),
        (cpu, "ggml_backend_cpu_init", pointer, []),
        (cpu, "ggml_backend_cpu_reg", pointer, []),
        (cpu, "ggml_backend_cpu_buffer_type", pointer, []),
        (cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return base, cpu
