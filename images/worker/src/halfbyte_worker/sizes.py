"""How large an artifact becomes, from shapes alone, and whether the group size fits them. Imports no torch.

Bytes of one linear layer of R rows and C columns, with a source type of s bytes (compressed-tensors formats):

    pack-quantized, b bits, group g   R * ceil(C / (32/b)) * 4  packed weights
                                      R * C/g * s               scales
                                      ceil(R / (32/b)) * 4 * C/g  zero points, only when asymmetric
                                      16                        weight_shape, two int64
    int-quantized (W8A8)              R * C + R * s             weights, one scale a row

Example: down_proj of SmolLM2-135M, 576 x 1536, 4 bits, g 64 asymmetric, bf16: 442368 + 27648 + 6912 + 16.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.inspection import OUTPUT, linear_tensors
from halfbyte_worker.safetensors_header import DTYPE_BYTES, Header
from halfbyte_worker.task import Quantization

GROUP_SIZES = (32, 64, 128, 256)
HEADER_BYTES = 160
"""Bytes that one more tensor adds to a safetensors header, about."""

Shape = tuple[int, int]


def is_ignored(name: str, ignore: Iterable[str]) -> bool:
    """compressed-tensors' rule: a full module name, or `re:` and an expression that matches its beginning."""
    return any(re.match(entry[3:], name) if entry.startswith("re:") else entry == name for entry in ignore)


def effective_ignore(ignore: Iterable[str], tied: bool) -> list[str]:
    """The ignore list, with the output layer when it is tied: quantizing it would quantize the embedding."""
    names = list(ignore)
    return [*names, OUTPUT] if tied and not is_ignored(OUTPUT, names) else names


def quantized_linears(headers: Mapping[str, Header], ignore: Iterable[str]) -> dict[str, Shape]:
    """Module name to (rows, columns) of the layers that the recipe quantizes."""
    tensors = [tensor for header in headers.values() for tensor in header.tensors]
    names = list(ignore)
    return {
        name: shape for name, shape in linear_tensors(tensors, None).items() if not is_ignored(name, names)
    }


def check_group_size(linears: Mapping[str, Shape], group_size: int | None) -> None:
    """
    Raises:
        Failure: GroupSizeIndivisible, with the first layer that does not divide and the sizes that would do.
    """
    if group_size is None:
        return
    for name, (_, columns) in sorted(linears.items()):
        if columns % group_size:
            common = math.gcd(*(width for _, width in linears.values()))
            allowed = (
                ", ".join(str(size) for size in GROUP_SIZES if common % size == 0) or "none; ignore the layer"
            )
            raise Failure(
                Reason.GROUP_SIZE_INDIVISIBLE,
                f"{name} has {columns} columns, not a multiple of groupSize {group_size};"
                f" allowed here: {allowed}",
            )


def linear_bytes(shape: Shape, quantization: Quantization, scale_bytes: int) -> int:
    rows, columns = shape
    if quantization.method == "W8A8":
        return rows * columns + rows * scale_bytes
    bits, group = quantization.bits or 4, quantization.group_size or columns
    per_word, groups = 32 // bits, math.ceil(columns / group)
    packed = rows * math.ceil(columns / per_word) * 4
    zero_points = 0 if quantization.symmetric else math.ceil(rows / per_word) * 4 * groups
    return packed + rows * groups * scale_bytes + zero_points + 16


def artifact_bytes(headers: Mapping[str, Header], quantization: Quantization, tied: bool) -> int:
    """Predicted size of the artifact's safetensors files in bytes, without their headers."""
    tensors = {tensor.name: tensor for header in headers.values() for tensor in header.tensors}
    total = sum(tensor.nbytes for tensor in tensors.values())
    if quantization.method == "None":
        return total
    for name, shape in quantized_linears(headers, effective_ignore(quantization.ignore, tied)).items():
        tensor = tensors[f"{name}.weight"]
        total += linear_bytes(shape, quantization, DTYPE_BYTES[tensor.dtype]) - tensor.nbytes
    return total
