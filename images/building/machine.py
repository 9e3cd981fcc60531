"""This machine's settings that a build needs and no image may keep: pip's index and trust, local wheels.

They are laid out in a folder that the Dockerfiles see as the context `host`, at /run/host.
"""

import configparser
import os
import shutil
from pathlib import Path

from building.source import ROOT

ADDRESSES = ["index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "cert"]
PATIENCE = ["timeout", "default-timeout", "retries"]


def pip_settings() -> dict[str, str]:
    """The machine's pip settings that matter in a build, environment over files."""
    home = Path.home()
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    parser = configparser.RawConfigParser()
    parser.read([str(file) for file in [*files, os.environ.get("PIP_CONFIG_FILE", "")] if file])
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update(parser.items(section))
    for variable, value in os.environ.items():
        if variable.startswith("PIP_"):
            settings[variable.removeprefix("PIP_").lower().replace("_", "-")] = value
    return {key: settings[key] for key in ADDRESSES + PATIENCE if settings.get(key)}


def lay_out_wheels(folder: Path, sources: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        for wheel in source.glob("*.whl"):
            target = folder / wheel.name
            if not target.exists() or target.stat().st_size != wheel.stat().st_size:
                shutil.copyfile(wheel, target)


def lay_out_host(folder: Path) -> None:
    """`folder` gets pip.conf, its certificate, and the wheels of ../shared/wheels and of links."""
    settings = pip_settings()
    links = settings.pop("find-links", "").split()
    local = [Path(link) for link in links if link.startswith("/")]
    lay_out_wheels(folder / "wheels", [ROOT.parent / "shared" / "wheels", *local])
    default_certificate = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
    certificate = Path(settings.get("cert") or default_certificate)
    if certificate.is_file():
        shutil.copyfile(certificate, folder / "ca-certificates.crt")
        if "cert" in settings:
            settings["cert"] = "/run/host/ca-certificates.crt"
    remote = [link for link in links if not link.startswith("/")]
    settings["find-links"] = " ".join([*remote, "/run/host/wheels"])
    target = folder / "pip.conf"
    target.touch(0o600)  # an index address may hold a password
    target.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
