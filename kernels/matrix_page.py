"""Write docs/reference/matrix.md from kernels/matrix.yaml; with --check, fail when it is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "kernels" / "matrix.yaml"
PAGE = ROOT / "docs" / "reference" / "matrix.md"

EVIDENCE = {
    "seen": "a server or a test ran it",
    "read": "taken from the engine's source at the pinned version, not run by us",
    "emulated": "its source ran on a CPU under Triton's interpreter or an emulation, never on a GPU",
    "compiled": "built for that target, never run",
}


def render(matrix: dict[str, Any]) -> str:
    """Return the whole page, ending in one newline."""
    distribution = matrix["distribution"]
    sections = [
        "# What runs where",
        "Generated from `kernels/matrix.yaml` by `kernels/matrix_page.py`; edit that file, not this page.\n"
        f"It describes {distribution['name']} {distribution['version']} (torch {distribution['torch']}, vLLM "
        f"{distribution['vllm']}) and "
        + _join(f"{e['name']} {e['version']}" for e in matrix["engines"])
        + ".",
        "Evidence: " + "; ".join(f"**{name}** = {meaning}" for name, meaning in EVIDENCE.items()) + ".",
        "## Serving kernels",
        "The first row that fits is the kernel that serves. Rows and columns (out and in features of every "
        "quantized layer, after tensor parallelism) must be multiples of the numbers given.",
        _table(
            (
                "Methods",
                "Bits",
                "Group sizes",
                "Symmetric",
                "Layers",
                "Hardware",
                "Kernel",
                "From",
                "Dtypes",
                "Rows x columns",
                "Evidence",
            ),
            (_serving_cells(row) for row in matrix["serving"]),
        ),
        "## Not served, and what to do instead",
        _table(
            ("Methods", "Layers", "Hardware", "Why", "Instead"),
            (_refusal_cells(row) for row in matrix["refusals"]),
        ),
        "## Hardware",
        "A node is the first entry of its type that fits. Jobs and servers there compute in its dtype.",
        _table(
            ("Name", "Recognised by", "Compute dtype", "CUDA build target"),
            ((h["name"], _recognised(h), h["dtype"], h.get("target") or "") for h in matrix["hardware"]),
        ),
        _table(
            ("GPU product label", "Hardware", "Memory (MiB)"),
            ((p["name"], p["hardware"], str(p["memoryMiB"])) for p in matrix["products"]),
        ),
        "## Model architectures",
        _table(
            ("Architecture", "Engines", "Routed experts", "Evidence"),
            (
                (a["name"], _join(a["engines"]), "yes" if a["experts"] else "no", a["evidence"])
                for a in matrix["architectures"]
            ),
        ),
        "## Operators of halfbyte-kernels",
        *(_operator(operator) for operator in matrix["operators"]),
    ]
    return "\n\n".join(sections) + "\n"


def _serving_cells(row: dict[str, Any]) -> tuple[str, ...]:
    multiple = row["multipleOf"]
    return (
        _join(row["methods"]),
        _join(row.get("bits", ())),
        _groups(row.get("groupSizes", ())),
        _yes_no(row.get("symmetric", ())),
        _join(row["modules"]),
        _join(row["hardware"]),
        f"`{row['kernel']}`",
        row["provider"],
        _join(row["dtypes"]),
        f"{multiple['rows']} x {multiple['columns']}",
        row["evidence"],
    )


def _refusal_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        _join(row.get("methods", ("all",))),
        _join(row.get("modules", ("all",))),
        _join(row.get("hardware", ("all",))),
        row["reason"],
        row["instead"],
    )


def _operator(operator: dict[str, Any]) -> str:
    head = (
        f"`{operator['name']}`: activations {_join(operator['activations'])}; group sizes "
        f"{_groups(operator['groupSizes'])}; symmetric {_yes_no(operator['symmetric'])}."
    )
    rows = (
        (
            v["name"],
            v["type"],
            _join(v["paths"]),
            _join(v.get("cpuFlags", ())) or _join(v.get("targets", ())),
            _join(v.get("dtypes", operator["dtypes"])),
            v["evidence"],
        )
        for v in operator["variants"]
    )
    return head + "\n\n" + _table(("Variant", "Type", "Paths", "Needs", "Dtypes", "Evidence"), rows)


def _recognised(hardware: dict[str, Any]) -> str:
    if hardware["type"] == "cpu":
        return "CPU flags " + _join(hardware["cpuFlags"])
    return f"compute capability {hardware['computeCapability']}"


def _groups(sizes: Iterable[int]) -> str:
    return _join("per channel" if size == -1 else size for size in sizes)


def _yes_no(values: Iterable[bool]) -> str:
    return _join("yes" if value else "no" for value in values)


def _join(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the page is out of date"
    )
    options = parser.parse_args(arguments)
    page = render(yaml.safe_load(SOURCE.read_text(encoding="utf-8")))
    if options.check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page:
            print(
                f"{PAGE.relative_to(ROOT)} is out of date; run: python kernels/matrix_page.py",
                file=sys.stderr,
            )
            return 1
        return 0
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
