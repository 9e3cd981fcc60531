"""Write the golden vectors; with --check, fail when a checked-in file is not what golden.py makes."""

from __future__ import annotations

import argparse
import sys

import golden
import numpy as np


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    options = parser.parse_args(arguments)
    if options.check:
        stale = [case.name for case in golden.CASES if not _current(case)]
        if stale:
            print(f"out of date: {', '.join(stale)}; run: python kernels/golden/generate.py", file=sys.stderr)
        return 1 if stale else 0
    golden.FOLDER.mkdir(exist_ok=True)
    for case in golden.CASES:
        path = golden.FOLDER / f"{case.name}.safetensors"
        path.write_bytes(golden.dump(case, golden.build(case)))
        print(f"wrote {path.name}")
    return 0


def _current(case: golden.Case) -> bool:
    """Bit for bit, save activated outputs: exp and erf may differ in the last place between C libraries."""
    if not (golden.FOLDER / f"{case.name}.safetensors").exists():
        return False
    stored_case, stored = golden.load(case.name)
    made = golden.build(case)
    if stored_case != case or stored.keys() != made.keys():
        return False
    activated = {f"expected_{act}" for act in golden.ACTIVATIONS if act != "none"}
    return all(
        np.allclose(made[key], stored[key], rtol=1e-13, atol=0.0)
        if key in activated
        else np.array_equal(made[key], stored[key])
        for key in made
    )


if __name__ == "__main__":
    sys.exit(main())
