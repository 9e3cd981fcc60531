"""Headers of safetensors files: names, shapes and sizes of the tensors without a byte of their data.

Format (https://huggingface.co/docs/safetensors): 8 bytes, the header's length N as little endian, N bytes of
JSON `{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}`, then the data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

PREFIX = 8
LARGEST_HEADER = 100_000_000
"""Bytes. The limit of the safetensors library itself."""
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    tensors: tuple[Tensor, ...]
    text: bytes
    file_bytes: int
    """Size that the file must have: prefix, header and data."""


def read_header(read: Callable[[int, int], bytes]) -> Header:
    """The header of one file; `read(offset, length)` gives that many of its bytes, fewer only at its end.

    Raises:
        ValueError: this is no safetensors file, or it ends within the header.
    """
    prefix = read(0, PREFIX)
    if len(prefix) < PREFIX:
        raise ValueError(f"ends after {len(prefix)} bytes")
    length = int.from_bytes(prefix, "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise ValueError(f"is no safetensors file: its header would have {length} bytes")
    text = read(PREFIX, length)
    if len(text) < length:
        raise ValueError(f"ends after {PREFIX + len(text)} bytes, its header has {PREFIX + length}")
    try:
        content = json.loads(text)
        content.pop("__metadata__", None)
        tensors = tuple(
            Tensor(
                name,
                entry["dtype"],
                tuple(entry["shape"]),
                entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for name, entry in content.items()
        )
        end = max((entry["data_offsets"][1] for entry in content.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"is no safetensors file: its header is malformed ({error})") from error
    return Header(tensors, text, PREFIX + length + end)
