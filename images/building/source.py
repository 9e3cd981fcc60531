# ruff: noqa: S603 (fixed programs, no input of strangers)
"""What an image is made from: Dockerfile, declared inputs, the images it starts from; and their key."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_XDG = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
CACHE = Path(os.environ.get("HALFBYTE_CACHE") or f"{_XDG}/halfbyte")
_VERSION_FILE = ROOT / "operator/src/halfbyte/__init__.py"
VERSION = re.findall(r'^__version__ = "(.+)"', _VERSION_FILE.read_text(), re.MULTILINE)[0]
# Build argument of a Dockerfile -> the image of ours that it names.
BASES = {"BASE": "base", "TORCH_BASE": "torch-base"}


def say(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> None:
    say(text)
    sys.exit(1)


def reference(name: str) -> str:
    return f"halfbyte.dev/{name}:{VERSION}"


def known_images() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "images").glob("*/Dockerfile"))


def dockerfile(name: str) -> Path:
    return ROOT / "images" / name / "Dockerfile"


def bases(name: str) -> dict[str, str]:
    """Build arguments of NAME that name images of ours, in the order of the Dockerfile."""
    arguments = re.findall(r"^ARG (\w+)", dockerfile(name).read_text(), re.MULTILINE)
    return {argument: BASES[argument] for argument in arguments if argument in BASES}


def files_below(folder: Path) -> list[Path]:
    """Files that git does not ignore; outside a git checkout, all but byte code."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard", "--", str(folder)]
    listing = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    if listing is not None and listing.returncode == 0:
        return [ROOT / path for path in listing.stdout.split("\0") if path and (ROOT / path).is_file()]
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def inputs(name: str) -> list[Path]:
    """The Dockerfile and every file that images/NAME/inputs lists, sorted."""
    declared = ROOT / "images" / name / "inputs"
    if not declared.is_file():
        fail(f"images/{name}/inputs is missing: list there, one a line, the paths that the Dockerfile copies")
    found = {dockerfile(name)}
    for line in declared.read_text().splitlines():
        pattern = line.partition("#")[0].strip()
        if not pattern:
            continue
        matches = [match for match in ROOT.glob(pattern.rstrip("/")) if "__pycache__" not in match.parts]
        if not matches:
            fail(f"images/{name}/inputs: nothing is at {pattern}")
        for match in matches:
            found.update(files_below(match) if match.is_dir() else [match])
    return sorted(found)


def content_of(path: Path) -> bytes:
    """A lock that names PyTorch's CPU build becomes what this machine can install (constraints/locked)."""
    content = path.read_bytes()
    if path.parent == ROOT / "constraints" and path.suffix == ".txt" and b"+cpu" in content:
        locked = subprocess.run([str(path.parent / "locked"), path.stem], stdout=subprocess.PIPE)
        if locked.returncode:
            fail(f"constraints/locked {path.stem} failed: see above")
        content = locked.stdout
    return content


def key_of(name: str, engine: str) -> str:
    """sha256 over the image's inputs (path, mode, content), its bases' keys, the version and the engine."""
    digest = hashlib.sha256(f"{engine} {VERSION}\n".encode())
    for path in inputs(name):
        mode = "x" if os.access(path, os.X_OK) else "-"
        content = hashlib.sha256(content_of(path)).hexdigest()
        digest.update(f"{path.relative_to(ROOT)} {mode} {content}\n".encode())
    for base in bases(name).values():
        digest.update(f"base {key_of(base, engine)}\n".encode())
    return digest.hexdigest()


def lay_out_context(name: str, folder: Path) -> None:
    """Copies the inputs below `folder`; times and modes are fixed, or a new clone misses cached layers."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in inputs(name):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content_of(path))
        target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (1_600_000_000, 1_600_000_000))
