"""The commands: read, let the planner decide as the operator would, print. Nothing is written."""

import argparse
import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from halfbyte.adapters import facts, resources
from halfbyte.adapters.gateway import ApiError, Clock, Json, KubeGateway, NotFound
from halfbyte.adapters.gather import OURS, Gatherer
from halfbyte.adapters.inventory import Inventory
from halfbyte.adapters.matrix import load_matrix
from halfbyte.api import labels
from halfbyte.api.spec import Spec
from halfbyte.cli.report import plan_report, progress_line, status_report, worker_line
from halfbyte.planning.facts import facts_status, parse_facts
from halfbyte.planning.guard import read_spec
from halfbyte.planning.identity import source_key
from halfbyte.planning.pipeline import plan
from halfbyte.planning.plan import Apply, Create
from halfbyte.planning.references import references
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import ClaimFact, ModelObject, Snapshot

STAGES: Final = (
    labels.STAGE_INSPECT,
    labels.STAGE_QUANTIZE,
    labels.STAGE_VALIDATE,
    labels.STAGE_SERVE,
)
POLL_SECONDS: Final = 2.0


class UsageError(Exception):
    """The arguments, or a file that they name, cannot be used; the message says why."""


async def look(options: argparse.Namespace, kube: KubeGateway | None, clock: Clock) -> Snapshot:
    """The snapshot of a model in the cluster or in a file. Raises UsageError, ApiError."""
    if bool(options.name) == bool(options.filename):
        raise UsageError("needs a NAME or -f FILE, one of them")
    if options.offline and not options.filename:
        raise UsageError("--offline needs -f FILE")
    if options.filename:
        model = _read_model(options.filename, options.namespace or "default", clock.now())
    elif kube is None:
        raise UsageError("needs a cluster")
    else:
        model = facts.model_object(await kube.get(resources.MODELS, options.name, options.namespace))
    if options.facts:
        model = _with_facts(model, options.facts)
    if options.offline or kube is None:
        return _assumed(model)
    return await Gatherer(kube, Inventory(kube, clock), clock).around(model)


def show_plan(snapshot: Snapshot, now: datetime) -> str:
    return plan_report(plan(snapshot, now, _settings()))


def show_manifests(snapshot: Snapshot, now: datetime) -> str:
    """What would be created or applied next, as a YAML stream."""
    decided = plan(snapshot, now, _settings())
    manifests = [dict(each.manifest) for each in decided.actions if isinstance(each, Create | Apply)]
    if not manifests:
        return "# nothing to write now"
    return str(yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True)).rstrip()


async def show_status(kube: KubeGateway, namespace: str, name: str) -> str:
    return status_report(await kube.get(resources.MODELS, name, namespace))


async def wait(kube: KubeGateway, clock: Clock, namespace: str, name: str, timeout: float) -> int:
    """Print a line at every change until Ready (0), Stalled or the time-out (1)."""
    deadline = clock.monotonic() + timeout
    shown = ""
    while True:
        model = await _get_patiently(kube, namespace, name)
        line = progress_line(model)
        if line != shown:
            print(line, flush=True)
            shown = line
        generation = (model.get("status") or {}).get("observedGeneration")
        if generation == model["metadata"]["generation"]:
            if _is_true(model, "Ready"):
                return 0
            if _is_true(model, "Stalled"):
                return 1
        if clock.monotonic() >= deadline:
            print(f"kubectl halfbyte: not Ready within {timeout:.0f} s", file=sys.stderr)
            return 1
        await clock.sleep(POLL_SECONDS)


async def show_log(kube: KubeGateway, namespace: str, name: str, stage: str | None, tail: int) -> str:
    """The newest pod's log; lines of workers are made readable."""
    selector = f"{OURS},{labels.MODEL}={name}" + (f",{labels.STAGE}={stage}" if stage else "")
    pods = await kube.list(resources.PODS, namespace, labels=selector)
    if not pods:
        what = f"{namespace}/{name} has no pod{f' of stage {stage}' if stage else ''}"
        raise UsageError(f"{what}; the pod of a shared Job carries the name of the model that created it")
    newest = max(pods, key=lambda each: str(each["metadata"]["creationTimestamp"]))["metadata"]["name"]
    text = await kube.pod_log(namespace, newest, tail_lines=tail, limit_bytes=1 << 20)
    return "\n".join([f"# {newest}", *(worker_line(line) for line in text.splitlines())])


async def _get_patiently(kube: KubeGateway, namespace: str, name: str) -> Json:
    for _ in range(5):
        try:
            return await kube.get(resources.MODELS, name, namespace)
        except NotFound:
            raise
        except ApiError as error:
            if not error.transient:
                raise
    return await kube.get(resources.MODELS, name, namespace)


def _is_true(model: Json, kind: str) -> bool:
    conditions = (model.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _read_model(filename: str, namespace: str, now: datetime) -> ModelObject:
    try:
        text = sys.stdin.read() if filename == "-" else Path(filename).read_text(encoding="utf-8")
        documents = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{filename}: {error}") from error
    models: list[dict[str, Any]] = [each for each in documents if each.get("kind") == labels.KIND]
    if len(models) != 1:
        raise UsageError(f"{filename} has {len(models)} objects of kind {labels.KIND}, must be one")
    metadata = models[0].get("metadata") or {}
    return ModelObject(
        name=str(metadata.get("name") or "unnamed"),
        namespace=str(metadata.get("namespace") or namespace),
        uid="00000000-0000-0000-0000-000000000000",
        generation=1,
        created=now,
        raw_spec=models[0].get("spec") or {},
        annotations=metadata.get("annotations") or {},
    )


def _with_facts(model: ModelObject, filename: str) -> ModelObject:
    spec = read_spec(model.raw_spec, load_matrix())
    if not isinstance(spec, Spec):
        return model
    try:
        found = parse_facts(json.loads(Path(filename).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"{filename}: {error}") from error
    key = source_key(spec.source, model.annotations.get(labels.REQUESTED_AT))
    return replace(model, status={**model.status, "facts": facts_status(found, key)})


def _assumed(model: ModelObject) -> Snapshot:
    """Without a cluster: claims are there and bound, Secrets and nodes unknown."""
    claims = {name: ClaimFact(name, f"assumed-{name}", "Bound") for name in references(model).claims}
    return Snapshot(model=model, claims=claims)


def _settings() -> PlanningSettings:
    return PlanningSettings(matrix=load_matrix())
