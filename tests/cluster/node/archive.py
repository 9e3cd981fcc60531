"""Writes a container image of a few static programs of this machine to standard output, as a Docker archive.

    archive.py NAME:TAG [--entrypoint PROGRAM] [--command WORD]... [--file SOURCE=TARGET]... [--shell]

`--shell` adds /bin/busybox (static) and its commands. It needs neither an engine nor a registry.
"""

import argparse
import hashlib
import io
import json
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path


def add(
    layer: tarfile.TarFile,
    path: str,
    content: bytes | None = None,
    mode: int = 0o755,
    link: str | None = None,
) -> None:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode = mode
    if link is not None:
        entry.type, entry.linkname = tarfile.SYMTYPE, link
    elif content is None:
        entry.type = tarfile.DIRTYPE
    else:
        entry.size = len(content)
    layer.addfile(entry, io.BytesIO(content) if content is not None else None)


def is_static(program: bytes) -> bool:
    """Whether a 64-bit ELF program names no interpreter (program header of type PT_INTERP, 3)."""
    offset, size, count = *struct.unpack_from("<Q", program, 32), *struct.unpack_from("<HH", program, 54)
    return all(struct.unpack_from("<I", program, offset + size * n)[0] != 3 for n in range(count))


def add_shell(layer: tarfile.TarFile) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        sys.exit("archive: needs busybox (Debian, Ubuntu: apt-get install busybox-static)")
    program = Path(busybox).read_bytes()
    if not is_static(program):
        sys.exit(f"archive: {busybox} is linked dynamically; needs the package busybox-static in its place")
    add(layer, "/bin")
    add(layer, "/bin/busybox", program)
    commands = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for command in commands:
        if command != "busybox":
            add(layer, f"/bin/{command}", link="busybox")
    add(layer, "/etc")
    add(layer, "/etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", 0o644)
    add(layer, "/tmp", mode=0o1777)


def build_layer(files: list[str], shell: bool) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        if shell:
            add_shell(layer)
        for pair in files:
            source, _, target = pair.partition("=")
            add(layer, target, Path(source).read_bytes())
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--entrypoint")
    parser.add_argument("--command", action="append", default=[])
    parser.add_argument("--file", action="append", default=[], metavar="SOURCE=TARGET")
    parser.add_argument("--shell", action="store_true")
    options = parser.parse_args()

    layer = build_layer(options.file, options.shell)
    process = {"Env": ["PATH=/bin"], "Cmd": options.command}
    if options.entrypoint:
        process["Entrypoint"] = [options.entrypoint]
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "tests/cluster/node/archive.py"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [options.name], "Layers": ["layer.tar"]}]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        add(archive, "layer.tar", layer, 0o644)
        add(archive, "config.json", json.dumps(config).encode(), 0o644)
        add(archive, "manifest.json", json.dumps(manifest).encode(), 0o644)


if __name__ == "__main__":
    main()
