"""The real Helm, and what it renders of our chart as Python objects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "halfbyte"
CACHE = Path(
    os.environ.get("HALFBYTE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
)
RELEASE = "halfbyte"
NAMESPACE = "halfbyte-system"

Manifest = dict[str, Any]


class HelmError(RuntimeError):
    """Helm refused; the message is its standard error."""


@cache
def binary() -> Path:
    found = sorted((CACHE / "bin").glob("helm-v4*/helm"))
    if not found:
        raise FileNotFoundError(f"no helm-v4*/helm under {CACHE / 'bin'}: run tests/cluster/binaries")
    return found[-1]


def helm(*arguments: str | Path, stdin: str = "", timeout: float = 300) -> str:
    """Standard output; raises HelmError with what Helm wrote to standard error."""
    done = subprocess.run(
        [binary(), *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise HelmError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


@dataclass(frozen=True)
class Rendered:
    """The objects that Helm renders for one set of values."""

    manifests: tuple[Manifest, ...]

    def of_kind(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> Manifest:
        found = [each for each in self.of_kind(kind) if name is None or each["metadata"]["name"] == name]
        assert len(found) == 1, (
            f"{len(found)} objects {kind} {name or ''}: {[each['metadata']['name'] for each in found]}"
        )
        return found[0]

    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.manifests}


def template(
    values: Mapping[str, Any] | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
) -> Rendered:
    """`helm template` of the chart with these values on top of its own."""
    return _template(yaml.safe_dump(dict(values or {})), release, namespace)


@cache
def _template(values: str, release: str, namespace: str) -> Rendered:
    text = helm("template", release, CHART, "--namespace", namespace, "--values", "-", stdin=values)
    return Rendered(tuple(each for each in yaml.safe_load_all(text) if each))
