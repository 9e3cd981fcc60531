"""Kubernetes quantities and byte counts: parsing, and the forms in which people read them."""

import math
import re
from decimal import Decimal
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_FACTORS: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_NUMBER: Final = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_QUANTITY: Final = re.compile(rf"({_NUMBER})([numkMGTPE]|[KMGTPE]i)?|({_NUMBER}[eE][-+]?[0-9]{{1,3}})")


def parse_quantity(text: str | int | float) -> Decimal:
    """The value of a quantity such as ``16Gi``, ``500m`` or ``1e3`` in base units.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 16Gi or 500m")
    if match.group(3):
        return Decimal(match.group(3))
    return Decimal(match.group(1)) * _FACTORS[match.group(2) or ""]


def parse_bytes(text: str | int) -> int:
    """Whole bytes, rounded up."""
    return math.ceil(parse_quantity(text))


def parse_millis(text: str | int) -> int:
    """Thousandths, rounded up: ``500m`` is 500, ``4`` is 4000."""
    return math.ceil(parse_quantity(text) * 1000)


def format_bytes(count: int) -> str:
    """A quantity that Kubernetes reads too: whole Gi where exact, else Mi rounded up (``2300Mi``,
    ``4000Gi``).
    """
    if count and count % GIB == 0:
        return f"{count // GIB}Gi"
    return f"{math.ceil(count / MIB)}Mi"


def describe_bytes(count: int) -> str:
    """For sentences: three significant digits (``113 MiB``, ``3.81 GiB``)."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:.0f} {unit}"
    return f"{count} bytes"


def format_millis(millis: int) -> str:
    """``500m``, or whole cores as ``4``."""
    return f"{millis}m" if millis % 1000 else str(millis // 1000)


def round_up(count: int, step: int) -> int:
    """The least multiple of ``step`` that is not below ``count``."""
    return -(-count // step) * step


def ratio(part: int, whole: int) -> str:
    """A decimal with two places, ``0.42``."""
    return f"{part / whole:.2f}" if whole else "0.00"
