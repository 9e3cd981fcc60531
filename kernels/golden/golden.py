"""Golden vectors of the int4 GEMM: cases, layouts, fp64 reference, error bounds, and their safetensors files.

One file a case, ``int4_gemm/<case>.safetensors``; M tokens, N out features, K in features, G groups:

    x [M, K] f32                      every value is exact in bf16, fp16 and fp32
    codes [N, K] u8, zeros [N, G] u8  w = (code - zero) * scale; zero is 8 everywhere when symmetric
    scales [N, G] f32, bias [N] f32   exact in bf16, fp16 and fp32
    ct_weight_packed [N, K/8] i32, ct_zero_point [N/8, G] i32     compressed-tensors "pack-quantized"
    awq_qweight [K, N/8] i32, awq_qzeros [G, N/8] i32             AutoAWQ "gemm", columns 0 2 4 6 1 3 5 7
    gptq_qweight [K/8, N] i32, gptq_qzeros [G, N/8] i32           GPTQ v1, zeros minus one, g_idx = k // group
    expected_<act> [M, N] f64 (silu_mul: [M, N/2])                act(x @ w.T + bias)
    magnitude [M, N] f64              |x| @ |w|.T + |bias|, what rounding errors scale with

``silu_mul`` takes the first N/2 columns as the gate and the last as the value (as vLLM's merged gate_up_proj
does); ``gelu`` is the erf form. ``exact`` cases hold integers and powers of two: a correct kernel gives
the expected sum bit for bit on both the W4A16 and the W4A8 path (every 32 columns of every row of x have an
absolute maximum of 127, so the int8 step is 1 per token or per group); one wrong nibble cannot hide in a
tolerance. ``real`` cases look like model weights and are compared within ``tolerance``. Every sum of products
fits 53 bits, so the fp64 reference is exact whatever the order of summation.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent / "int4_gemm"
ACTIVATIONS = ("none", "silu", "gelu", "silu_mul")
DTYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "U8": "|u1"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

# Unit roundoff of what a value is rounded to.
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
# What a path rounds x by at most, relative to the largest |x|: not at all (GPU, Triton), to 16 bits with a
# shared power of two, to int8 (both CPU).
STEPS = {"float": 0.0, "w4a16": 2.0**-15, "w4a8": 1 / 254}


@dataclass(frozen=True)
class Case:
    name: str
    exact: bool
    m: int
    n: int
    k: int
    group: int  # -1: per channel
    symmetric: bool
    seed: int

    @property
    def groups(self) -> int:
        return 1 if self.group == -1 else self.k // self.group


CASES = (
    Case("exact_g32_sym", True, 17, 64, 352, 32, True, 1),
    Case("exact_g64_asym", True, 17, 64, 320, 64, False, 2),
    Case("exact_g128_asym", True, 33, 32, 384, 128, False, 3),
    Case("exact_channel_sym", True, 9, 96, 160, -1, True, 4),
    Case("real_g32_asym", False, 17, 64, 256, 32, False, 5),
    Case("real_g64_sym", False, 9, 96, 576, 64, True, 6),
    Case("real_g128_sym", False, 33, 64, 256, 128, True, 7),
    Case("real_channel_asym", False, 17, 32, 352, -1, False, 8),
)


def build(case: Case) -> dict[str, NDArray[np.generic]]:
    """Make every tensor of a case; the same on every machine (RandomState's streams are frozen)."""
    random = np.random.RandomState(case.seed)
    codes = random.randint(0, 16, (case.n, case.k)).astype(np.uint8)
    zeros = np.full((case.n, case.groups), 8, np.uint8)
    if not case.symmetric:
        zeros = random.randint(0, 16, zeros.shape).astype(np.uint8)
    if case.exact:
        x = random.randint(-127, 128, (case.m, case.k)).astype(np.float64)
        slices = x.reshape(-1, 32)
        slices[np.arange(len(slices)), random.randint(0, 32, len(slices))] = 127.0
        scales = 2.0 ** random.randint(-5, -2, zeros.shape)
        bias = random.randint(-64, 65, case.n) * 0.5
    else:
        x = _eight_bits(random.standard_normal((case.m, case.k)))
        scales = random.randint(128, 256, zeros.shape) * 2.0**-14
        bias = _eight_bits(random.standard_normal(case.n))
    weights = dequantize(codes, zeros, scales)
    total = x @ weights.T + bias
    tensors: dict[str, NDArray[np.generic]] = {
        "x": x.astype(np.float32),
        "codes": codes,
        "zeros": zeros,
        "scales": scales.astype(np.float32),
        "bias": bias.astype(np.float32),
        "magnitude": np.abs(x) @ np.abs(weights).T + np.abs(bias),
        **pack(codes, zeros),
    }
    for act in ACTIVATIONS:
        tensors[f"expected_{act}"] = activate(total, act)
    return tensors


def dequantize(codes: NDArray, zeros: NDArray, scales: NDArray) -> NDArray[np.float64]:
    """[N, K] u8, [N, G] u8, [N, G] -> [N, K] f64: w = (code - zero) * scale, one of each per K/G columns."""
    group = codes.shape[1] // zeros.shape[1]
    signed = codes.astype(np.float64) - np.repeat(zeros, group, axis=1)
    return signed * np.repeat(scales.astype(np.float64), group, axis=1)


def activate(total: NDArray[np.float64], act: str) -> NDArray[np.float64]:
    if act == "none":
        return total
    if act == "silu":
        return _silu(total)
    if act == "gelu":
        return 0.5 * total * (1.0 + np.vectorize(math.erf)(total / math.sqrt(2.0)))
    if act == "silu_mul":
        gate, value = np.split(total, 2, axis=1)
        return _silu(gate) * value
    raise ValueError(f"unknown activation {act!r}; known: {', '.join(ACTIVATIONS)}")


def tolerance(tensors: dict[str, NDArray], path: str, dtype: str, act: str) -> NDArray[np.float64]:
    """The largest |out - expected_<act>| that rounding explains, per output element.

    Weights rounded once to ``dtype`` (u), fp32 accumulation over K terms, output rounded (u):
    (u + K * 2^-24) * magnitude + u * |expected|, and the rounding of x per row: max|x| * step * sum_k |w|.
    The activations are 1.13-Lipschitz; silu_mul is bounded by its two factors.
    """
    if path not in STEPS:
        raise ValueError(f"unknown path {path!r}; known: {', '.join(STEPS)}")
    roundoff = ROUNDOFF[dtype]
    weights = np.abs(dequantize(tensors["codes"], tensors["zeros"], tensors["scales"]))
    x = np.abs(tensors["x"].astype(np.float64))
    error = (roundoff + x.shape[1] * 2.0**-24) * tensors["magnitude"]
    error = error + x.max(axis=1, keepdims=True) * STEPS[path] * weights.sum(axis=1)
    if act == "silu_mul":
        gate, value = np.split(tensors["expected_none"], 2, axis=1)
        gate_error, value_error = np.split(error, 2, axis=1)
        error = 1.13 * gate_error * (np.abs(value) + value_error) + np.abs(_silu(gate)) * value_error
    elif act != "none":
        error = 1.13 * error
    return error + 2.0 * roundoff * np.abs(tensors[f"expected_{act}"]) + 1e-30


def pack(codes: NDArray[np.uint8], zeros: NDArray[np.uint8]) -> dict[str, NDArray[np.int32]]:
    """The three public layouts of one weight; see the module's head."""
    awq = np.array(AWQ_ORDER)
    columns = codes.T.reshape(codes.shape[1], -1, 8)
    zero_columns = zeros.T.reshape(zeros.shape[1], -1, 8)
    return {
        "ct_weight_packed": _nibbles(codes.reshape(codes.shape[0], -1, 8)),
        "ct_zero_point": _nibbles(zeros.T.reshape(zeros.shape[1], -1, 8)).T.copy(),
        "awq_qweight": _nibbles(columns[..., awq]),
        "awq_qzeros": _nibbles(zero_columns[..., awq]),
        "gptq_qweight": _nibbles(codes.reshape(codes.shape[0], -1, 8)).T.copy(),
        "gptq_qzeros": _nibbles((zero_columns.astype(np.int64) - 1) & 15),
    }


def load(name: str) -> tuple[Case, dict[str, NDArray]]:
    """Read one case; safetensors = u64 header length, JSON header, raw little-endian tensors."""
    raw = (FOLDER / f"{name}.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    meta = header.pop("__metadata__")
    tensors = {}
    for key, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[key] = np.frombuffer(raw[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    numbers = {field: int(meta[field]) for field in ("m", "n", "k", "group", "seed")}
    flags = {field: meta[field] == "true" for field in ("exact", "symmetric")}
    case = Case(name=meta["case"], **flags, **numbers)
    return case, tensors


def dump(case: Case, tensors: dict[str, NDArray]) -> bytes:
    """The file of a case; tensors in alphabetical order, so the same bytes for the same case."""
    names = {np.dtype(value): key for key, value in DTYPES.items()}
    meta = {field: str(getattr(case, field)) for field in ("m", "n", "k", "group", "seed")}
    flags = {field: str(getattr(case, field)).lower() for field in ("exact", "symmetric")}
    header: dict[str, object] = {"__metadata__": {"case": case.name, **flags, **meta}}
    body = b""
    for key in sorted(tensors):
        data = np.ascontiguousarray(tensors[key])
        end = len(body) + data.nbytes
        header[key] = {
            "dtype": names[data.dtype],
            "shape": list(data.shape),
            "data_offsets": [len(body), end],
        }
        body += data.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def _nibbles(groups: NDArray) -> NDArray[np.int32]:
    """[..., 8] values below 16 -> [...] i32, value i in bits 4i..4i+3."""
    shifts = np.arange(8, dtype=np.uint32) * 4
    return (groups.astype(np.uint32) << shifts).sum(axis=-1, dtype=np.uint32).view(np.int32)


def _eight_bits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to 8 significant bits and flush what is below 2^-9 to zero: exact in bf16, fp16 and fp32."""
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(mantissa * 256.0), exponent - 8)
    return np.where(np.abs(rounded) < 2.0**-9, 0.0, rounded)


def _silu(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.vectorize(lambda v: v / (1.0 + math.exp(-v)) if v > -700.0 else 0.0)(values)
