# ruff: noqa: S603, S607 (fixed programs, no input of strangers)
"""The two programs that can build an image: buildah (no service, no registry) and a Docker engine."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from building import layout
from building.source import CACHE, ROOT, bases, fail, reference, say

STORE = layout.STORE


def run_logged(name: str, command: list[str]) -> None:
    """Runs a build, its output in the log; each step of the Dockerfile is a line with the seconds so far."""
    log = CACHE / "log" / f"image-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with log.open("a") as sink, subprocess.Popen(command, text=True, errors="replace", **pipe) as process:
        for line in process.stdout or []:
            sink.write(line)
            sink.flush()
            if "STEP " in line or re.match(r"#\d+ \[", line):
                say(f"{name} [{time.monotonic() - started:4.0f} s] {line.strip()[:100]}")
    if process.returncode:
        sys.stderr.write("".join(log.read_text().splitlines(keepends=True)[-30:]))
        fail(f"building {name} failed (exit {process.returncode}); the whole log: {log}")


def install_missing(*programs: str) -> None:
    """Debian's and Ubuntu's packages of these programs have the programs' names."""
    missing = [name for name in programs if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if not missing:
        return
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        missing.append("debian-archive-keyring")
    if subprocess.run([ROOT / "constraints" / "packages", *missing]).returncode:
        fail(f"needs {', '.join(missing)}")


class Buildah:
    name = "buildah"

    def __init__(self) -> None:
        install_missing("buildah", "debootstrap", "runc")

    def command(self, *words: str) -> list[str]:
        storage = [
            "--root",
            str(STORE / "storage"),
            "--runroot",
            str(STORE / "run"),
            "--storage-driver",
            "overlay",
        ]
        return ["nice", "-n", "10", "buildah", *storage, *words]

    def image_id(self, name: str) -> str:
        """The empty string where the image is not there."""
        command = self.command("images", "--quiet", "--no-trunc", reference(name))
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    def has(self, name: str) -> bool:
        return reference(name) in layout.names() and bool(self.image_id(name))

    def build(self, name: str, context: Path, host: Path) -> None:
        if name == "base":
            self.make_root_file_system(context)
        before = self.image_id(name)
        words = [
            "bud",
            "--isolation",
            "chroot",
            "--layers",
            "--format",
            "oci",
            "--build-context",
            f"host={host}",
        ]
        for argument, base in bases(name).items():
            words += ["--build-arg", f"{argument}={reference(base)}"]
        words += [
            "--file",
            str(context / "images" / name / "Dockerfile"),
            "--tag",
            reference(name),
            str(context),
        ]
        run_logged(name, self.command(*words))
        if before and before != self.image_id(name):
            subprocess.run(self.command("rmi", before), capture_output=True)
        self.export(name)

    @staticmethod
    def make_root_file_system(context: Path) -> None:
        say("base: Debian 12 with Python 3.11 by debootstrap (once, one to five minutes)")
        folder = STORE / "rootfs"
        run_logged("base", [str(context / "images/base/rootfs"), str(folder)])
        tar = ["tar", "--numeric-owner", "-C", str(folder), "-cf", str(context / "rootfs.tar"), "."]
        subprocess.run(tar, check=True)
        shutil.rmtree(folder)

    def export(self, name: str) -> None:
        """Uncompressed: to compress gigabytes for a node on the same disk is waste."""
        # buildah 1.28 compresses for an oci: target whatever it is told; for a dir: target it obeys.
        flat = STORE / f"export-{name}"
        shutil.rmtree(flat, ignore_errors=True)
        push = self.command("push", "--quiet", "--disable-compression", reference(name), f"dir:{flat}")
        if subprocess.run(push, stdout=sys.stderr).returncode:
            fail(f"could not write {name} to {flat}: is the disk full?")
        with layout.locked("layout"):
            layout.put(reference(name), flat)


class Docker:
    name = "docker"

    def __init__(self) -> None:
        if (
            not shutil.which("docker")
            or subprocess.run(["docker", "buildx", "version"], capture_output=True).returncode
        ):
            fail("building with Docker needs an engine with buildx; else leave HALFBYTE_IMAGE_ENGINE unset")

    def has(self, name: str) -> bool:
        return (
            subprocess.run(["docker", "image", "inspect", reference(name)], capture_output=True).returncode
            == 0
        )

    def build(self, name: str, context: Path, host: Path) -> None:
        words = [
            "docker",
            "buildx",
            "build",
            "--load",
            "--progress",
            "plain",
            "--build-context",
            f"host={host}",
        ]
        for argument, base in bases(name).items():
            if base != "base":  # the real python:3.11-slim-bookworm is the Dockerfile's own default
                words += ["--build-arg", f"{argument}={reference(base)}"]
        words += [
            "--file",
            str(context / "images" / name / "Dockerfile"),
            "--tag",
            reference(name),
            str(context),
        ]
        run_logged(name, words)


ENGINES = {"buildah": Buildah, "docker": Docker}
