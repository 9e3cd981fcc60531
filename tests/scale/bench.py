"""Size and speed of the operator as a real process on a real API server. Nothing here passes or fails.

    tests/scale/bench.py [--models 500] [--output docs/benchmarks]

Measures: memory with one model and with many that are Ready; time from apply to the first condition, with
all of them present; writes and reconciles while nothing changes; time of a reconcile; size of the image. A
node is played by hand (tests/support/node.py): no Job and no server runs. The stages' overhead (pod created
to work begun) is read from the real Jobs on the local cluster, such as those that `make demo` leaves there.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "operator" / "src"), str(ROOT / "tests")]

import halfbyte  # noqa: E402
from halfbyte.adapters import resources  # noqa: E402
from halfbyte.adapters.gateway import ApiError  # noqa: E402
from halfbyte.adapters.kube import KubeApi, load_configuration  # noqa: E402
from support.manifests import a_model  # noqa: E402
from support.node import FACTS, Node, artifact_result, evidence_result  # noqa: E402

CLUSTER = ROOT / "tests" / "cluster" / "cluster"
NAMESPACES = 10
APPLIES = 50
QUIET_SECONDS = 60
# The event in a Job's log, by its stage. Inspecting tells no progress and begins as it starts.
WORK_BEGINS_WITH = {"inspect": "start", "quantize": "progress", "validate": "progress"}

NAMESPACE = """
apiVersion: v1
kind: Namespace
metadata: {{name: bench-{number}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: default, namespace: bench-{number}}}
"""

Json = dict[str, Any]


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Operator:
    """One operator process."""

    def __init__(self, kubeconfig: str, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        environment = {**os.environ, "KUBECONFIG": kubeconfig, "PYTHONPATH": str(ROOT / "operator" / "src")}
        flags = [f"--http-port={self.port}", "--lease-name="]
        with log.open("w") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "halfbyte", *flags], env=environment, stderr=output, stdout=output
            )

    def metrics(self) -> dict[str, float]:
        """Every series, by name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def total(self, name: str, *, without: str = "\0") -> float:
        pattern = re.compile(rf"{name}(\{{|$)")
        return sum(
            value for key, value in self.metrics().items() if pattern.match(key) and without not in key
        )

    def rss_mib(self) -> float:
        return self.metrics()["process_resident_memory_bytes"] / 2**20

    def reconcile_quantile(self, quantile: float, before: dict[str, float]) -> float:
        """Upper bound (seconds) of the histogram bucket that holds the quantile, since ``before``."""
        pattern = re.compile(r'halfbyte_reconcile_duration_seconds_bucket\{le="(.+)"\}')
        buckets = [
            (float(match[1]), value - before.get(key, 0.0))
            for key, value in self.metrics().items()
            if (match := pattern.match(key))
        ]
        count = max(value for _, value in buckets)
        return next(bound for bound, value in sorted(buckets) if value >= quantile * count)

    def end(self) -> None:
        self.popen.send_signal(signal.SIGTERM)
        self.popen.wait(timeout=60)


async def patiently(action: Callable[[], Awaitable[Any]], what: str, seconds: float = 600) -> Any:
    """Repeat until it gives something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := await action():
                return found
        except ApiError:
            pass
        await asyncio.sleep(0.2)
    raise TimeoutError(f"not within {seconds:.0f} s: {what}")


def namespace_of(number: int) -> str:
    return f"bench-{number % NAMESPACES}"


async def bring_to_ready(kube: KubeApi, number: int) -> None:
    """Apply one model and play its node until it serves."""
    name, namespace = f"model-{number}", namespace_of(number)
    node = Node(kube, namespace)
    source = {"pvc": {"claimName": "weights", "path": name}}
    await kube.apply(a_model(name, namespace, source=source), manager="kubectl")
    revision = "sha256-" + hashlib.sha256(name.encode()).hexdigest()
    facts = {**FACTS, "source": {**FACTS["source"], "revision": revision}}

    async def child(resource: Any, stage: str) -> Json | None:
        labels = f"halfbyte.dev/model={name},halfbyte.dev/stage={stage}"
        return next(iter(await kube.list(resource, namespace, labels=labels)), None)

    job = await patiently(lambda: child(resources.JOBS, "inspect"), f"{name}: Inspect Job")
    await node.succeed(job, facts)
    job = await patiently(lambda: child(resources.JOBS, "quantize"), f"{name}: quantize Job")
    await node.succeed(job, artifact_result(await node.task(job)))
    job = await patiently(lambda: child(resources.JOBS, "validate"), f"{name}: validate Job")
    await node.succeed(job, evidence_result())
    deployment = await patiently(lambda: child(resources.DEPLOYMENTS, "serve"), f"{name}: Deployment")
    await node.serve(deployment)

    async def ready() -> bool:
        status = (await kube.get(resources.MODELS, name, namespace)).get("status") or {}
        return any(each["type"] == "Ready" and each["status"] == "True" for each in status["conditions"])

    await patiently(ready, f"{name}: Ready")


async def first_condition(kube: KubeApi, number: int) -> float:
    """Seconds from apply to the first condition of a model whose claim is missing."""
    name, namespace = f"fresh-{number}", namespace_of(number)
    manifest = a_model(name, namespace, source={"pvc": {"claimName": "nowhere", "path": "x"}})
    started = time.monotonic()
    await kube.apply(manifest, manager="kubectl")
    while True:
        raw = await kube.get(resources.MODELS, name, namespace)
        if (raw.get("status") or {}).get("conditions"):
            break
        await asyncio.sleep(0.005)
    took = time.monotonic() - started
    uid = raw["metadata"]["uid"]
    await kube.delete(resources.MODELS, name, namespace, uid=uid, propagation="Background")
    return took


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measure(kubeconfig: str, models: int, log: Path) -> Json:
    kube = KubeApi(await load_configuration(kubeconfig), timeout=120)
    for number in range(NAMESPACES):
        for claim in ("weights", "artifacts"):
            await Node(kube, f"bench-{number}").claim(claim)
    operator = Operator(kubeconfig, log)
    result: Json = {}
    try:
        await patiently(lambda: asyncio.to_thread(ready, operator), "the operator is ready")
        await bring_to_ready(kube, 0)
        result["rss_mib_with_1_model"] = round(operator.rss_mib(), 1)
        say(f"1 model: {result['rss_mib_with_1_model']} MiB")

        started, before = time.monotonic(), operator.metrics()
        slots = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with slots:
                await bring_to_ready(kube, number)
            if number % 50 == 0:
                say(f"{number} models")

        await asyncio.gather(*(one(number) for number in range(1, models)))
        result["models"] = models
        result["seconds_until_all_ready"] = round(time.monotonic() - started, 1)
        result[f"rss_mib_with_{models}_models"] = round(operator.rss_mib(), 1)
        result["reconcile_p95_seconds_at_most"] = operator.reconcile_quantile(0.95, before)
        result["reconcile_p50_seconds_at_most"] = operator.reconcile_quantile(0.5, before)

        taken = [await first_condition(kube, number) for number in range(APPLIES)]
        result["first_condition_seconds"] = {
            "applies": APPLIES,
            "p50": round(quantile(taken, 0.5), 3),
            "p95": round(quantile(taken, 0.95), 3),
            "max": round(max(taken), 3),
        }
        await asyncio.sleep(5)
        result["quiet"] = await quiet(kube, operator)
        result["rss_mib_at_the_end"] = round(operator.rss_mib(), 1)
    finally:
        operator.end()
        await kube.close()
    return result


def ready(operator: Operator) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def quiet(kube: KubeApi, operator: Operator) -> Json:
    """What happens while nothing changes: the operator's own writes, and versions that moved."""

    async def versions() -> dict[str, str]:
        kinds = (resources.MODELS, resources.JOBS, resources.DEPLOYMENTS, resources.SERVICES)
        return {
            raw["metadata"]["uid"]: raw["metadata"]["resourceVersion"]
            for kind in kinds
            for raw in await kube.list(kind, metadata_only=True)
        }

    before = await versions()
    writes = operator.total("halfbyte_apiserver_writes_total", without='"leases"')
    looks = operator.total("halfbyte_reconciles_total")
    await asyncio.sleep(QUIET_SECONDS)
    after = await versions()
    return {
        "seconds": QUIET_SECONDS,
        "writes": operator.total("halfbyte_apiserver_writes_total", without='"leases"') - writes,
        "reconciles": operator.total("halfbyte_reconciles_total") - looks,
        "objects": len(before),
        "changed_versions": sum(after.get(uid) != version for uid, version in before.items()),
    }


def image_mb() -> float | None:
    """Compressed size of the built operator image in MB, None when it is not built."""
    done = subprocess.run([ROOT / "images" / "build", "--sizes"], capture_output=True, text=True, check=False)
    match = re.search(r"^\S*/operator:\S+\s+[\d.]+ MB\s+([\d.]+) MB", done.stdout, re.MULTILINE)
    return float(match[1]) if match else None


def cluster_kubectl(*words: str) -> str | None:
    """Output of kubectl on the local cluster; None when it fails, as it does where the cluster is down."""
    done = subprocess.run([CLUSTER, "kubectl", *words], capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout


def stage_overhead() -> list[Json]:
    """Seconds from pod created to work begun, of the worker pods on the local cluster; [] where it is down.

    A pod that found all of its work done is left out.
    """
    listing = cluster_kubectl(
        "get", "pods", "-A", "-l", "app.kubernetes.io/managed-by=halfbyte", "-o", "json"
    )
    found = []
    for pod in json.loads(listing)["items"] if listing else []:
        about = pod["metadata"]
        stage = about["labels"]["halfbyte.dev/stage"]
        if stage not in WORK_BEGINS_WITH:
            continue
        log = cluster_kubectl("logs", "-n", about["namespace"], about["name"], "--timestamps") or ""
        lines = [line for line in log.splitlines() if f'"event": "{WORK_BEGINS_WITH[stage]}"' in line]
        if lines:
            began = datetime.fromisoformat(lines[0].split(" ")[0])
            seconds = (began - datetime.fromisoformat(about["creationTimestamp"])).total_seconds()
            model = about["labels"].get("halfbyte.dev/model", "")
            found.append({"stage": stage, "model": model, "seconds": round(seconds, 1)})
    return found


def machine() -> Json:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 1),
    }


def markdown(report: Json) -> str:
    """The report as a page."""
    found, many = report["operator"], report["operator"]["models"]
    first, quiet_time = found["first_condition_seconds"], found["quiet"]
    image = f"{report['image_mb']} MB" if report["image_mb"] else "not built here"
    rows = [
        ("image, compressed", image, "150 MB"),
        ("memory with 1 model", f"{found['rss_mib_with_1_model']} MiB", "120 MiB"),
        (f"memory with {many} models", f"{found[f'rss_mib_with_{many}_models']} MiB", "250 MiB"),
        ("apply to first condition, p95", f"{first['p95']} s ({first['applies']} applies)", "1 s"),
        (f"writes in {quiet_time['seconds']} s without a change", f"{quiet_time['writes']:.0f}", "0"),
        ("objects whose version moved meanwhile", f"{quiet_time['changed_versions']}", "0"),
        ("reconcile, p50 / p95 at most", f"{found['reconcile_p50_seconds_at_most']} s / "
         f"{found['reconcile_p95_seconds_at_most']} s", ""),
        (f"{many} models from nothing to Ready", f"{found['seconds_until_all_ready']} s", ""),
    ]  # fmt: skip
    lines = ["# Operator: size and speed", "", "Written by `make bench` (tests/scale/bench.py).", ""]
    about = report["machine"]
    lines += [
        f"Version {report['version']}, {report['date']}, {about['cores']} cores ({about['cpu']}), "
        f"Python {about['python']}, load {about['load_at_start']} at the start. The API server is real; the "
        "node is played, so Jobs end at once and no server runs. Lease renewals (one write in 10 s) are not "
        "counted.",
        "",
        "| what | measured | goal |",
        "|---|---|---|",
        *(f"| {what} | {value} | {goal} |" for what, value, goal in rows),
    ]
    if not report["stage_overhead"]:
        lines += [
            "",
            "Stage overhead was not measured: no finished Job on the local cluster (`make demo` first).",
        ]
    else:
        lines += ["", "| stage | model | pod created to work begun |", "|---|---|---|"]
        lines += [
            f"| {each['stage']} | {each['model']} | {each['seconds']} s |"
            for each in report["stage_overhead"]
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    overhead = stage_overhead()
    environment = {**os.environ, "HALFBYTE_CLUSTER": "bench"}
    report: Json = {
        "version": halfbyte.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "image_mb": image_mb(),
        "stage_overhead": overhead,
    }
    subprocess.run([CLUSTER, "up", "--control-plane-only"], env=environment, check=True)
    try:
        answer = subprocess.run(
            ["bash", "-c", f'eval "$("{CLUSTER}" env)"; echo "$KUBECONFIG"'],
            env=environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        kubeconfig = answer.stdout.strip()
        crd = ROOT / "crds" / "halfbyte.dev_quantizedmodels.yaml"
        subprocess.run([CLUSTER, "kubectl", "apply", "--server-side", "-f", crd], env=environment, check=True)
        subprocess.run(
            [CLUSTER, "kubectl", "apply", "-f", "-"],
            input="---".join(NAMESPACE.format(number=number) for number in range(NAMESPACES)),
            env=environment,
            check=True,
            text=True,
            stdout=subprocess.DEVNULL,
        )
        log = Path(kubeconfig).parent / "operator.log"
        report["operator"] = asyncio.run(measure(kubeconfig, options.models, log))
    finally:
        subprocess.run([CLUSTER, "down"], env=environment, check=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "operator.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.output / "operator.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
