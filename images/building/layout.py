# ruff: noqa: S603, S607 (fixed programs, no input of strangers)
"""The OCI layout in which built images lie, layers uncompressed; `tests/cluster/cluster load` reads it."""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from building.source import CACHE, fail, say

STORE = CACHE / "images"
LAYOUT = STORE / "oci"
BLOBS = LAYOUT / "blobs" / "sha256"
NAME = "org.opencontainers.image.ref.name"


@contextmanager
def locked(name: str, waiting: str = "") -> Iterator[None]:
    """One process at a time per name: two callers may build different images side by side."""
    STORE.mkdir(parents=True, exist_ok=True)
    with (STORE / f".lock-{name}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def entries() -> list[dict]:
    try:
        return json.loads((LAYOUT / "index.json").read_text())["manifests"]
    except FileNotFoundError:
        return []


def names() -> set[str]:
    return {entry["annotations"][NAME] for entry in entries()}


def blob(digest: str) -> Path:
    return BLOBS / digest.removeprefix("sha256:")


def manifest_of(entry: dict) -> dict:
    return json.loads(blob(entry["digest"]).read_text())


def put(name: str, folder: Path) -> None:
    """Moves an image written as a `dir:` (flat files named by digest, manifest.json) into the layout."""
    BLOBS.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if re.fullmatch(r"[0-9a-f]{64}", file.name) and not (BLOBS / file.name).exists():
            file.rename(BLOBS / file.name)
    manifest = (folder / "manifest.json").read_bytes()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    blob(digest).write_bytes(manifest)
    shutil.rmtree(folder)
    entry = {
        "mediaType": json.loads(manifest).get("mediaType", "application/vnd.oci.image.manifest.v1+json"),
        "digest": digest,
        "size": len(manifest),
        "annotations": {NAME: name},
    }
    write([*(other for other in entries() if other["annotations"][NAME] != name), entry])


def write(images: list[dict]) -> None:
    """Writes the index by rename, then deletes the blobs that no image uses."""
    (LAYOUT / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = LAYOUT / "index.json.new"
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": images}, indent=1))
    index.rename(LAYOUT / "index.json")
    used = set()
    for entry in images:
        manifest = manifest_of(entry)
        used.update(blob(part["digest"]).name for part in [entry, manifest["config"], *manifest["layers"]])
    for file in BLOBS.iterdir():
        if file.name not in used:
            file.unlink()


def clean() -> None:
    """Deletes the store. buildah keeps its storage mounted on itself, and a killed build its layers too."""
    mounts = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{STORE}/")]):
        if subprocess.run(["umount", mount]).returncode:
            fail(f"{mount} is in use: end the builds that run, then try again")
    if STORE.exists():
        shutil.rmtree(STORE)


def compressed_size(digest: str) -> int:
    """Bytes of a layer after gzip, remembered by digest."""
    memory = STORE / "compressed-sizes.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}
    if digest not in known:
        compressor, total = zlib.compressobj(6, wbits=31), 0
        with blob(digest).open("rb") as layer:
            while chunk := layer.read(1 << 20):
                total += len(compressor.compress(chunk))
        known[digest] = total + len(compressor.flush())
        memory.write_text(json.dumps(known))
    return known[digest]


def print_sizes() -> None:
    if not entries():
        fail("no image is built yet: images/build all")
    print(f"{'IMAGE':36} {'UNCOMPRESSED':>14} {'COMPRESSED':>12}  LAYERS (MB)")
    for entry in entries():
        layers = manifest_of(entry)["layers"]
        plain = sum(layer["size"] for layer in layers) / 1e6
        packed = sum(compressed_size(layer["digest"]) for layer in layers) / 1e6
        each = " + ".join(f"{layer['size'] / 1e6:.1f}" for layer in layers)
        print(f"{entry['annotations'][NAME]:36} {plain:11.1f} MB {packed:9.1f} MB  {each}")
