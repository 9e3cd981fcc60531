"""Serve folders as repositories of a fake hub: python -m tests.support.hub --port 8090 owner/name=FOLDER"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .server import FakeHub, Repo


def repository(text: str, token: str | None) -> tuple[str, Repo]:
    name, _, folder = text.partition("=")
    files: dict[str, bytes | Path] = {
        path.name: path if path.suffix == ".safetensors" else path.read_bytes()
        for path in sorted(Path(folder).iterdir())
        if path.is_file()
    }
    return name, Repo.of(files, token=token)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", nargs="+", metavar="OWNER/NAME=FOLDER")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free one)")
    parser.add_argument("--token", help="make all repositories gated, with this token")
    options = parser.parse_args()
    repos = dict(repository(each, options.token) for each in options.repositories)
    hub = FakeHub(repos, options.port, options.address)
    for name, repo in repos.items():
        print(f"{hub.endpoint} {name} main {repo.refs['main']}", flush=True)
    try:
        hub.serve_forever()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
