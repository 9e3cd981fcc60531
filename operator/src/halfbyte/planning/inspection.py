"""Inspect: read config.json and the tensor headers of the source, never the weights.

Before the Job is made, what the spec names must exist: claims, the Secret and its key. A missing one is
waited for, since it is usually created a moment later by the same ``kubectl apply``. Facts come from the
Job's termination message, else from status, where they are kept under the key of the inspection; a source or
``requested-at`` that changed makes another key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.api.spec import Spec
from halfbyte.planning.facts import ModelFacts, parse_facts
from halfbyte.planning.identity import inspect_job_name, source_key
from halfbyte.planning.jobs import Wanted, follow_job
from halfbyte.planning.manifests.config_map import build_task_config_map
from halfbyte.planning.manifests.job import ARTIFACTS_PATH, WorkerJob, build_job, threads
from halfbyte.planning.manifests.meta import child_labels
from halfbyte.planning.quantities import describe_bytes
from halfbyte.planning.references import artifact_claim_name
from halfbyte.planning.snapshot import ModelObject, Snapshot
from halfbyte.planning.stage import Context, Stage, carry, done, stalled, stopped
from halfbyte.planning.violation import Violation

KIND = "Inspect Job"


@dataclass(frozen=True, slots=True)
class Inspected:
    key: str
    facts: ModelFacts


def inspect(context: Context, now: datetime) -> Stage[Inspected]:
    """The facts of the source, or one step towards them."""
    key = source_key(context.spec.source, context.model.annotations.get(labels.REQUESTED_AT))
    recorded = context.model.status.get("facts") or {}
    known = recorded if recorded.get("key") == key else None
    if known is None:
        missing = missing_reference(context.snapshot, context.spec)
        if missing is not None:
            return stopped(missing)
    name = inspect_job_name(context.model.name, key)
    wanted = Wanted(
        name, KIND, Reason.INSPECTING, lambda annotations: _build(context, name, annotations), known
    )
    stage = follow_job(context, wanted, now, (Reason.FACTS_KNOWN, ""))
    if stage.value is None:
        return carry(stage)
    try:
        facts = parse_facts(stage.value)
    except ValueError as error:
        return stalled(Reason.INTERNAL_ERROR, f"{KIND} {name}: {error}")
    return done(Inspected(key, facts), Reason.FACTS_KNOWN, _describe(facts))


def _describe(facts: ModelFacts) -> str:
    experts = f", {facts.experts} experts" if facts.experts else ""
    return (
        f"{facts.architecture}, {facts.parameters / 1e6:.4g} M parameters in"
        f" {describe_bytes(facts.source_bytes)} of"
        f" {facts.torch_dtype}, {facts.layers} layers, {facts.attention_heads} heads"
        f" ({facts.key_value_heads} KV)"
        f"{experts}; revision {facts.revision[:16]}"
    )


def claim_taken(snapshot: Snapshot, spec: Spec) -> Violation | None:
    """The claim that the operator would make exists and is not this model's.

    To apply it all the same would make the model its owner, and deleting the model would delete somebody's
    data.
    """
    name = artifact_claim_name(snapshot.model.name)
    claim = snapshot.claims.get(name) if spec.storage.size else None
    if claim is None or snapshot.model.uid in claim.owner_uids:
        return None
    whose = "is not the operator's; set spec.storage.claimName to use it"
    if claim.labels.get(labels.MANAGED_BY) == labels.MANAGED_BY_VALUE:
        whose = "belongs to a deleted model of this name and is being removed"
    message = f"PersistentVolumeClaim {name} in namespace {snapshot.model.namespace} {whose}"
    return Violation(Reason.NAME_TAKEN, message, terminal=False)


def missing_reference(snapshot: Snapshot, spec: Spec) -> Violation | None:
    """The first object that the spec names and that is not there, or that it must not touch."""
    namespace = snapshot.model.namespace
    taken = claim_taken(snapshot, spec)
    if taken is not None:
        return taken
    claims = []
    if spec.source.pvc:
        claims.append(("spec.source.pvc.claimName", spec.source.pvc.claim_name))
    if spec.storage.claim_name:
        claims.append(("spec.storage.claimName", spec.storage.claim_name))
    for field, name in claims:
        if name not in snapshot.claims:
            message = (
                f"{field}: PersistentVolumeClaim {name} does not exist in namespace {namespace}; create it"
            )
            return Violation(Reason.CLAIM_NOT_FOUND, message, terminal=False)
    hub = spec.source.hugging_face
    if hub is None or hub.token_secret_ref is None:
        return None
    wanted = hub.token_secret_ref
    # A name that is not among the keys is a Secret that the operator may not read: its absence would show in
    # the pod.
    keys = snapshot.secrets.get(wanted.name, frozenset({wanted.key}))
    if keys is None:
        message = f"tokenSecretRef: Secret {wanted.name} does not exist in namespace {namespace}; create it"
        return Violation(Reason.SECRET_NOT_FOUND, message, terminal=False)
    if wanted.key not in keys:
        present = ", ".join(sorted(keys)) or "none"
        message = f"tokenSecretRef: Secret {wanted.name} has no key {wanted.key}; its keys: {present}"
        return Violation(Reason.SECRET_KEY_NOT_FOUND, message, terminal=False)
    return None


def artifact_claim(context: Context) -> str:
    """Name of the claim that artifacts lie on."""
    return context.spec.storage.claim_name or artifact_claim_name(context.model.name)


def source_task(spec: Spec, revision: str | None = None) -> dict[str, Any]:
    """``source`` of a task; ``revision`` pins a branch to the commit that was inspected."""
    hub = spec.source.hugging_face
    if hub is not None:
        return {
            "type": "huggingFace",
            "repo": hub.repo,
            "revision": revision or hub.revision,
            "endpoint": hub.endpoint,
        }
    path = spec.source.pvc.path if spec.source.pvc else ""
    return {"type": "pvc", "path": path} | ({"revision": revision} if revision else {})


def common_task(
    model: ModelObject, source: Mapping[str, Any], dtype: str, thread_count: int
) -> dict[str, Any]:
    return {
        "version": 1,
        "model": {"name": model.name, "namespace": model.namespace},
        "source": dict(source),
        "compute": {"dtype": dtype, "threads": thread_count},
    }


def _build(context: Context, name: str, annotations: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    model, spec, settings = context.model, context.spec, context.settings
    child = child_labels(model, labels.STAGE_INSPECT)
    task = common_task(model, source_task(spec), "float32", threads(spec.quantization.resources, settings))
    task["artifact"] = {"root": ARTIFACTS_PATH}
    job = WorkerJob(
        name=name,
        stage=labels.STAGE_INSPECT,
        labels=child,
        annotations=annotations,
        claim=artifact_claim(context),
        memory_request=settings.jobs.inspect_memory_bytes,
        memory_limit=settings.jobs.inspect_memory_bytes,
        deadline_seconds=settings.jobs.inspect_deadline_seconds,
        resources=type(spec.quantization.resources)(),
    )
    return (
        build_task_config_map(model, name, child, task, controller=True),
        build_job(model, spec, job, settings),
    )
