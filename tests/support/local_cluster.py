"""The local cluster, as the demo and the end-to-end tests use it: through its own programs.

Only the standard library, so that the demo runs with a system Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "cluster" / "cluster"
CHART = ROOT / "charts" / "halfbyte"
VERSION = "0.1.0"
IMAGES = tuple(f"halfbyte.dev/{name}:{VERSION}" for name in ("operator", "worker", "vllm"))
SYSTEM_NAMESPACE = "halfbyte-system"
CLIENT_IMAGE = "halfbyte.dev/cluster/busybox:local"
CACHE = Path(
    os.environ.get("HALFBYTE_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
)

Json = dict[str, Any]


class CommandError(RuntimeError):
    """A program of the local cluster failed; the message holds its command and the end of its output."""


def run(*command: str | Path, stdin: str | None = None, timeout: float = 600, check: bool = True) -> str:
    """Standard output of the command; raises CommandError with its standard error when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise CommandError(
            f"{' '.join(str(part) for part in command)}\nexit status {done.returncode}\n{tail}"
        )
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout: float = 120, check: bool = True) -> str:
    return run(CLUSTER, "kubectl", *arguments, stdin=stdin, timeout=timeout, check=check)


def get(kind: str, name: str, namespace: str) -> Json | None:
    """The live object, or None when there is none of that name."""
    out = kubectl("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
    return json.loads(out) if out.strip() else None


def listing(kind: str, namespace: str, selector: str = "") -> list[Json]:
    out = kubectl("get", kind, "-n", namespace, "-l", selector, "-o", "json")
    items: list[Json] = json.loads(out)["items"]
    return items


def apply(manifest: str | Path | Json, namespace: str | None = None) -> str:
    """Server-side apply of a file, a YAML text or an object."""
    where = ("-n", namespace) if namespace else ()
    if isinstance(manifest, Path):
        return kubectl("apply", "--server-side", *where, "-f", "-", stdin=manifest.read_text())
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    return kubectl("apply", "--server-side", *where, "-f", "-", stdin=text)


def delete(kind: str, name: str, namespace: str, *flags: str) -> None:
    kubectl("delete", kind, name, "-n", namespace, "--ignore-not-found", *flags)


def condition(model: Json | None, kind: str) -> Json:
    """The condition of that type, or {} when the object does not have it."""
    conditions = ((model or {}).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def poll(probe: Callable[[], Any], *, timeout: float, what: str, every: float = 1.0) -> Any:
    """The probe's first true value; TimeoutError names `what` and the last value seen."""
    deadline = time.monotonic() + timeout
    value = None
    while time.monotonic() < deadline:
        value = probe()
        if value:
            return value
        time.sleep(every)
    raise TimeoutError(f"{what} did not happen within {timeout:.0f} s; last seen: {str(value)[:500]}")


def post_through_service(namespace: str, service: str, path: str, body: Json, timeout: float = 300) -> Json:
    """POST to a Service by its name, from a pod of its own: what a client in the cluster does.

    The body comes by stdin, so that nothing is asked before kubectl is attached: it shows no answer that came
    earlier.
    """
    name = f"client-{uuid.uuid4().hex[:8]}"
    ask = 'wget -qO- --header "Content-Type: application/json" --post-data "$(cat)" "$0"'
    out = kubectl(
        "run", name, "-n", namespace, "--rm", "-i", "--quiet", "--restart=Never", f"--image={CLIENT_IMAGE}",
        "--image-pull-policy=IfNotPresent", "--", "sh", "-c", ask, f"http://{service}.{namespace}.svc{path}",
        stdin=json.dumps(body), timeout=timeout,
    )  # fmt: skip
    answer: Json = json.loads(out)
    return answer


def get_through_service(namespace: str, service: str, path: str) -> str:
    return kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}/services/http:{service}:http/proxy{path}")


def watch_model(name: str, namespace: str, timeout: float) -> Generator[Json]:
    """The object as it is and after each change, until the caller stops or the time is over.

    One kubectl that watches: to ask every second takes a tenth of two cores from what is waited for.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        command = [
            str(CLUSTER), "kubectl", "get", "quantizedmodel", "-n", namespace, "--watch", "-o", "json",
            f"--field-selector=metadata.name={name}", f"--request-timeout={left:.0f}s",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                lines: list[str] = []
                for line in process.stdout or ():
                    lines.append(line)
                    if line == "}\n":  # indented but for the object's own braces
                        yield json.loads("".join(lines))
                        lines.clear()
            finally:
                process.terminate()
        kubectl("get", "--raw", "/readyz")  # a cluster that is gone is an error, not silence
        time.sleep(1)


def wait_for_model(
    name: str, namespace: str, wanted: Callable[[Json], Any], *, timeout: float, what: str
) -> Json:
    """The first state of the object that is wanted; TimeoutError names `what` and the last one seen."""
    model: Json = {}
    with closing(watch_model(name, namespace, timeout)) as models:
        for model in models:
            if wanted(model):
                return model
    status = str(model.get("status"))[:2000]
    raise TimeoutError(f"{what} did not happen within {timeout:.0f} s; status last seen: {status}")


@contextmanager
def beside(*command: str | Path) -> Iterator[None]:
    """The program runs while the block does; CalledProcessError when it fails, ended when the block does."""
    arguments = [str(part) for part in command]
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, arguments)


def bring_up(*flags: str) -> None:
    """Cluster up with the three images in it; what they print goes to the caller's terminal.

    In a first run a Go build uses the cores while images come from the network or go to the disk.
    """
    with beside(ROOT / "images" / "build", "all"):
        subprocess.run([CLUSTER, "up", *flags], check=True, stdin=subprocess.DEVNULL)
    with beside(ROOT / "tests" / "cluster" / "binaries", "helm"):
        subprocess.run([CLUSTER, "load", *IMAGES], check=True, stdin=subprocess.DEVNULL)


def build_model() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory, made once; says what it does on the terminal."""
    command = [str(ROOT / "examples" / "model" / "build")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    return Path(done.stdout.strip().splitlines()[-1])


def volumes() -> Path:
    """The host folder that the node sees at /var/lib/halfbyte/volumes."""
    for line in run(CLUSTER, "env").splitlines():
        key, _, value = line.removeprefix("export ").partition("=")
        if key == "HALFBYTE_VOLUMES":
            return Path(value.strip("'\""))
    raise CommandError("tests/cluster/cluster env does not name HALFBYTE_VOLUMES")


def install_chart(*flags: str) -> str:
    """helm upgrade --install of the chart with the local images, waiting for the operator to be ready."""
    return run(
        CLUSTER, "helm", "upgrade", "--install", "halfbyte", CHART, "--namespace", SYSTEM_NAMESPACE,
        "--create-namespace", "--wait", "--timeout", "180s", *flags,
    )  # fmt: skip
