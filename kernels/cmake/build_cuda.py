"""Compile libhalfbyte_cuda.so for every GPU generation and refuse kernels that spill registers.

Called by cmake/cuda.cmake; also a program of its own:

    python kernels/cmake/build_cuda.py --output libhalfbyte_cuda.so [--nvcc PATH] [--report PAGE [--check]]

Results are kept in the cache, keyed by sources, compiler and commands: an unchanged tree compiles nothing.
Exit codes: 0 built, 1 compile error, spills or a stale report, 3 no usable nvcc (the reason is printed).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent
CUDA = KERNELS / "csrc" / "int4_gemm" / "cuda"
SOURCES = ("int4_gemm_cuda.cpp", "request.cpp", "pack.cpp")
NUMBERS = ("BFloat16", "Float16")
GROUPS = (4, 2, 1)  # scale groups in 128 columns: group sizes 32, 64, 128 and per channel
# A target with a letter runs on that generation only ("a") or its family ("f"); PTX is for what comes later.
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120f")
PTX = "compute_80"
LINK = ("-shared", "-cudart=static", "-Xlinker=-s", "-Xlinker=-soname=libhalfbyte_cuda.so")
OLDEST_NVCC = (13, 0)  # the first one with family targets that we have seen compile this

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
NAME = re.compile(r"int4_gemm_(mma|wgmma)INS0_6ConfigINS0_\d+(B?Float16)ELi(\d+)ELi(\d+)ELi(\d+)ELb[01]E")


class BuildError(Exception):
    """The kernels do not build as they must."""


@dataclass(frozen=True)
class Kernel:
    product: str  # mma or wgmma
    number: str
    tokens: int
    row_tiles: int
    groups: int
    target: str
    registers: int
    spilled_bytes: int

    @property
    def group_size(self) -> str:
        return {4: "32", 2: "64", 1: "128, per channel"}[self.groups]


def find_nvcc(chosen: str | None) -> Path:
    """--nvcc, then HALFBYTE_NVCC, the PyPI wheel of this Python, PATH. Raises BuildError naming them all."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) / "cu13/bin/nvcc" for p in (spec.submodule_search_locations or ())] if spec else []
    candidates = [chosen, os.environ.get("HALFBYTE_NVCC"), *map(str, wheels), shutil.which("nvcc")]
    for candidate in filter(None, candidates):
        if Path(candidate).is_file():
            return Path(candidate)
    raise BuildError(
        "no nvcc: looked at HALFBYTE_NVCC, the nvidia-cuda-nvcc wheel and PATH; "
        "install it with: pip install nvidia-cuda-nvcc==13.5.37 nvidia-cuda-cccl==13.3.5.0.6"
    )


def nvcc_version(nvcc: Path) -> str:
    text = run([str(nvcc), "--version"])
    version = re.search(r"V(\d+\.\d+\.\d+)", text)
    if version is None:
        raise BuildError(f"{nvcc} --version does not name a version")
    if tuple(map(int, version[1].split(".")[:2])) < OLDEST_NVCC:
        raise BuildError(f"{nvcc} is {version[1]}; needed: {'.'.join(map(str, OLDEST_NVCC))} or newer")
    return version[1]


def compile_commands(nvcc: Path) -> dict[str, list[str]]:
    """Object name -> command, without its output."""
    virtual = [target.replace("sm_", "compute_") for target in TARGETS]
    codes = [f"-gencode=arch={v},code={t}" for v, t in zip(virtual, TARGETS, strict=True)]
    codes.append(f"-gencode=arch={PTX},code={PTX}")
    common = [str(nvcc), "-std=c++17", "-O3", f"-I{KERNELS / 'csrc'}", "-Werror=all-warnings"]
    common.append("-Xcompiler=-fPIC,-fvisibility=hidden")
    defines = ["-DHB_CUDA_HAS_SM90A=1", f'-DHB_CUDA_TARGETS="{" ".join((*TARGETS, PTX))}"']
    commands = {source: [*common, *defines, "-c", str(CUDA / source)] for source in SOURCES}
    for number in NUMBERS:
        for groups in GROUPS:
            flags = [f"-DHB_NUMBER={number}", f"-DHB_GROUPS={groups}", "-Xptxas=-v", *codes]
            commands[f"kernels_{number}_{groups}"] = [*common, *flags, "-c", str(CUDA / "kernels.cu")]
    return commands


def compile_library(nvcc: Path, folder: Path) -> list[Kernel]:
    """Compile and link into folder; return what ptxas said of every kernel."""
    commands = compile_commands(nvcc)
    log = ""
    for done, (name, command) in enumerate(commands.items(), 1):
        print(f"[{done}/{len(commands)}] {name}", flush=True)
        log += run([*command, "-o", str(folder / f"{name}.o")])
    objects = [str(folder / f"{name}.o") for name in commands]
    library = folder / "libhalfbyte_cuda.so"
    run([str(nvcc), *LINK, *objects, "-o", str(library)])
    return parse_report(log)


def run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if result.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr


def parse_report(log: str) -> list[Kernel]:
    """Kernels of a `ptxas -v` log. Empty wgmma kernels (targets other than sm_90a) are left out."""
    kernels = []
    name, target, spilled = None, "", 0
    for line in log.splitlines():
        if entry := ENTRY.search(line):
            name, target, spilled = NAME.search(entry[1]), entry[2], 0
            if name is None:
                raise BuildError(f"ptxas reports an unknown kernel: {entry[1]}")
        elif spills := SPILLS.search(line):
            spilled = int(spills[2]) + int(spills[3])
        elif (registers := REGISTERS.search(line)) and name is not None:
            if name[1] == "mma" or target == "sm_90a":
                sizes = map(int, name.group(3, 4, 5))
                kernels.append(Kernel(name[1], name[2], *sizes, target, int(registers[1]), spilled))
            name = None
    return sorted(kernels, key=lambda k: (k.product, k.tokens, -k.groups, k.number, k.target))


def check(kernels: list[Kernel]) -> None:
    expected = len(NUMBERS) * len(GROUPS) * (4 * len(TARGETS) + 2)
    if len(kernels) != expected:
        raise BuildError(f"ptxas reported {len(kernels)} kernels, expected {expected}")
    spilling = [kernel for kernel in kernels if kernel.spilled_bytes]
    if spilling:
        lines = [
            f"  {k.product} {k.number} tokens {k.tokens} group {k.group_size} {k.target}" for k in spilling
        ]
        raise BuildError("registers spill to local memory in:\n" + "\n".join(lines))


def render(kernels: list[Kernel], version: str) -> str:
    """The checked-in page: registers a thread, by kernel and target; the larger of bf16 and fp16."""
    lines = [
        "# Registers of the CUDA kernels",
        "",
        "Generated by `kernels/cmake/build_cuda.py --report`; do not edit. Registers a thread as `ptxas -v`",
        f"of nvcc {version} reports (the larger of bf16 and fp16). A kernel that spills fails the build.",
        "None of these kernels was run on a GPU yet; [the support matrix](matrix.md) says what ran where.",
        "",
        "| Kernel | Tokens a block | Group size | " + " | ".join(TARGETS) + " |",
        "|" + " --- |" * (3 + len(TARGETS)),
    ]
    for key in dict.fromkeys((k.product, k.tokens, k.group_size) for k in kernels):
        cells = []
        for target in TARGETS:
            same = [
                k.registers
                for k in kernels
                if (k.product, k.tokens, k.group_size) == key and k.target == target
            ]
            cells.append(str(max(same)) if same else "-")
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cached_build(nvcc: Path, version: str) -> Path:
    """The folder with libhalfbyte_cuda.so and kernels.json for these sources; built when it is not there."""
    flags = [command[1:] for command in compile_commands(nvcc).values()]
    digest = hashlib.sha256(f"{version} {flags} {LINK}".replace(str(KERNELS), "").encode())
    for path in sorted(path for path in CUDA.iterdir() if path.suffix != ".md"):
        digest.update(path.name.encode() + path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = Path(os.environ.get("HALFBYTE_CACHE") or f"{home}/halfbyte") / "cuda"
    target = cache / digest.hexdigest()[:16]
    if target.exists():
        print(f"unchanged since the last build: {target.name}")
        return target
    partial = cache / f"{target.name}.{os.getpid()}"
    partial.mkdir(parents=True)
    try:
        kernels = compile_library(nvcc, partial)
        check(kernels)
        (partial / "kernels.json").write_text(json.dumps([asdict(kernel) for kernel in kernels]))
        for compiled in partial.glob("*.o"):
            compiled.unlink()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvcc", help="compiler to use (default: HALFBYTE_NVCC, PyPI wheel, PATH)")
    parser.add_argument("--output", type=Path, help="where the library is copied to")
    parser.add_argument("--report", type=Path, help="write the table of registers to this page")
    parser.add_argument(
        "--check", action="store_true", help="with --report: write nothing, fail when it differs"
    )
    parser.add_argument("--find", action="store_true", help="only print the nvcc that would be used")
    options = parser.parse_args(arguments)
    try:
        nvcc = find_nvcc(options.nvcc)
        version = nvcc_version(nvcc)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 3
    if options.find:
        print(nvcc)
        return 0
    try:
        built = cached_build(nvcc, version)
        if options.output:
            shutil.copy2(built / "libhalfbyte_cuda.so", options.output)
        if options.report:
            publish(page(built, version), options.report, options.check)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def page(built: Path, version: str) -> str:
    """The page of registers of a build."""
    return render([Kernel(**kernel) for kernel in json.loads((built / "kernels.json").read_text())], version)


def publish(text: str, target: Path, check_only: bool) -> None:
    if not check_only:
        target.write_text(text, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != text:
        raise BuildError(f"{target} is out of date; run kernels/cmake/build_cuda.py --report {target}")


if __name__ == "__main__":
    sys.exit(main())
