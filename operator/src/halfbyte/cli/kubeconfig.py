"""The namespace that kubectl would use: that of the context."""

import os
from pathlib import Path
from typing import Any

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def current_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Of the named or current context, else of the pod, else ``default``."""
    paths = (kubeconfig or str(Path.home() / ".kube" / "config")).split(os.pathsep)
    files: list[dict[str, Any]] = [
        yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        for path in paths
        if path and Path(path).is_file()
    ]
    named = (each.get("current-context") for each in files)
    current = context or next((name for name in named if name), None)
    for entry in (entry for each in files for entry in each.get("contexts") or []):
        if entry["name"] == current:
            return str(entry["context"].get("namespace") or "default")
    if SERVICE_ACCOUNT.is_file():
        return SERVICE_ACCOUNT.read_text(encoding="utf-8").strip()
    return "default"
