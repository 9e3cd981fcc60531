"""Loads images of an OCI layout into the node's containerd; `cluster load` calls it inside the namespaces.

    load.py --layout FOLDER IMAGE...

An image whose manifest digest the node has already is skipped; of any other one only the missing blobs are
sent, so a changed program on top of a gigabyte of libraries is loaded in seconds.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

CTR = ["ctr", "--namespace", "k8s.io"]


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def node_images() -> dict[str, str]:
    """Image name -> manifest digest."""
    listing = subprocess.run([*CTR, "images", "ls"], check=True, capture_output=True, text=True).stdout
    return {words[0]: words[2] for words in (line.split() for line in listing.splitlines()[1:])}


def node_blobs() -> set[str]:
    return set(
        subprocess.run(
            [*CTR, "content", "ls", "--quiet"], check=True, capture_output=True, text=True
        ).stdout.split()
    )


def forget_replaced() -> None:
    """Deletes image IDs that no name stands for any more: they keep the layers of every earlier build."""
    images = node_images()
    named = {digest for name, digest in images.items() if not name.startswith("sha256:")}
    for name, digest in images.items():
        if name.startswith("sha256:") and digest not in named:
            subprocess.run([*CTR, "images", "rm", name], check=False, stdout=subprocess.DEVNULL)


def layout_images(layout: Path) -> dict[str, dict]:
    """Image name -> its descriptor in the layout's index."""
    try:
        manifests = json.loads((layout / "index.json").read_text())["manifests"]
    except FileNotFoundError:
        return {}
    return {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in manifests}


def send(layout: Path, name: str, descriptor: dict, present: set[str]) -> int:
    """Streams the image without the blobs in `present` into the node. Returns the bytes sent."""

    def blob(digest: str) -> Path:
        return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    manifest = json.loads(blob(descriptor["digest"]).read_text())
    parts = [
        part
        for part in [descriptor, manifest["config"], *manifest["layers"]]
        if part["digest"] not in present
    ]
    index = {
        "schemaVersion": 2,
        "manifests": [{**descriptor, "annotations": {"io.containerd.image.name": name}}],
    }
    process = subprocess.Popen(
        [*CTR, "images", "import", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    try:
        with process.stdin as pipe, tarfile.open(fileobj=pipe, mode="w|") as archive:
            for path, content in (
                ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
                ("index.json", json.dumps(index).encode()),
            ):
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            for part in parts:
                archive.add(
                    blob(part["digest"]), arcname=f"blobs/sha256/{part['digest'].removeprefix('sha256:')}"
                )
    except BrokenPipeError:
        pass  # ctr ended early and has said why
    if process.wait() != 0:
        sys.exit(f"cluster: could not load {name}: see the message of ctr above")
    return sum(part["size"] for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layout", type=Path, required=True)
    parser.add_argument("images", nargs="+")
    options = parser.parse_args()

    available = layout_images(options.layout)
    missing = [name for name in options.images if name not in available]
    if missing:
        sys.exit(
            f"cluster: not built: {', '.join(missing)}; run images/build "
            f"(built are: {', '.join(sorted(available)) or 'none'})"
        )
    loaded = node_images()
    for name in options.images:
        if loaded.get(name) == available[name]["digest"]:
            say(f"{name} is on the node already")
            continue
        started = time.monotonic()
        size = send(options.layout, name, available[name], node_blobs())
        forget_replaced()
        say(f"loaded {name}: {size / 1e6:.0f} MB sent in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
