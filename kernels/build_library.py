#!/usr/bin/env python3
"""Builds the CPU library for this checkout and prints a folder to put on PYTHONPATH; unchanged sources are
not built again.

    python kernels/build_library.py [--fuzz] [--sanitize address,undefined]

The folder holds halfbyte_kernels (links to kernels/python, so edits count at once), its library and metadata.
--fuzz builds the torch-free fuzzer instead and prints its path. Needs a C++20 compiler, CMake and Ninja;
torch comes from the Python that runs this. HALFBYTE_CACHE (default ~/.cache/halfbyte) holds the results,
keyed by the content of CMakeLists.txt and csrc/.
"""

import argparse
import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

KERNELS = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("HALFBYTE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
)


class BuildError(Exception):
    pass


def key_of(*words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    sources = [
        KERNELS / "CMakeLists.txt",
        *(KERNELS / "csrc").rglob("*"),
        *(KERNELS / "tests").glob("*.cpp"),
        KERNELS / "tests" / "emulation" / "avx512_emulation.h",
    ]
    for path in sorted(sources):
        if path.is_file() and "cuda" not in path.parts:
            digest.update(f"{path.relative_to(KERNELS)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def program(name: str) -> str:
    """From the running Python's environment, else from PATH."""
    own = Path(sys.executable).parent / name
    found = str(own) if own.exists() else shutil.which(name)
    if found is None:
        raise BuildError(
            f"no {name}: install it (apt-get install {'ninja-build' if name == 'ninja' else name}, or pip)"
        )
    return found


def build(fuzz: bool = False, sanitize: str = "") -> Path:
    """Returns the folder for PYTHONPATH, or the fuzzer's path. BuildError has the compiler's words."""
    torch = "none" if fuzz else importlib.metadata.version("torch")
    target = CACHE / "kernels" / key_of(torch, sanitize, str(fuzz))
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            shutil.rmtree(target, ignore_errors=True)
            run(
                program("cmake"), "-S", str(KERNELS), "-B", str(target / "build"), "-G", "Ninja",
                f"-DCMAKE_MAKE_PROGRAM={program('ninja')}", f"-DPython_EXECUTABLE={sys.executable}",
                f"-DHALFBYTE_TORCH={'OFF' if fuzz else 'ON'}", f"-DHALFBYTE_FUZZ={'ON' if fuzz else 'OFF'}",
                "-DHALFBYTE_CUDA=OFF", f"-DHALFBYTE_SANITIZE={sanitize}",
            )  # fmt: skip
            run(program("cmake"), "--build", str(target / "build"), "--parallel", "2")
            (target / "complete").touch()
        return target / "build" / "fuzz_int4_gemm" if fuzz else link_package(target)


def link_package(target: Path) -> Path:
    package = target / "halfbyte_kernels"
    package.mkdir(exist_ok=True)
    links = {
        path.name: path
        for path in (KERNELS / "python" / "halfbyte_kernels").iterdir()
        if path.name != "__pycache__"
    }
    links["libhalfbyte_cpu.so"] = target / "build" / "libhalfbyte_cpu.so"
    for name, path in links.items():
        link = package / name
        if not link.is_symlink():
            link.symlink_to(path)
    write_metadata(target)
    return target


def write_metadata(target: Path) -> None:
    """What an installed wheel says of itself: vLLM finds its plugins by entry points alone."""
    project = tomllib.loads((KERNELS / "pyproject.toml").read_text())["project"]
    folder = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(head)
    groups = project["entry-points"].items()
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups
    )
    (folder / "entry_points.txt").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fuzz", action="store_true", help="the fuzzer of the C++ core, without torch")
    parser.add_argument("--sanitize", default="", help="sanitizers, e.g. address,undefined (with --fuzz)")
    options = parser.parse_args()
    try:
        print(build(options.fuzz, options.sanitize))
    except BuildError as error:
        sys.exit(f"build_library: {error}")


if __name__ == "__main__":
    main()
