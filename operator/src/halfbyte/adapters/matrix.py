"""``kernels/matrix.yaml``: the one table of what kernels and engines support, as the wheel carries it."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml


def load_matrix() -> dict[str, Any]:
    """The parsed table; in a checkout it is read from ``kernels/``.

    Raises:
        FileNotFoundError: neither the installed package nor a checkout has it.
    """
    installed = resources.files("halfbyte").joinpath("matrix.yaml")
    if installed.is_file():
        text = installed.read_text(encoding="utf-8")
    else:
        checkout = Path(__file__).resolve().parents[4] / "kernels" / "matrix.yaml"
        text = checkout.read_text(encoding="utf-8")
    matrix: dict[str, Any] = yaml.safe_load(text)
    return matrix
