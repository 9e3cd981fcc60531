"""Quantize: one Job per artifact key and claim, shared by every model that wants the same artifact there.

The artifact is known from the Job's termination message, else from status under its key. When validation
found the artifact corrupt and the model is tried again, both Jobs go and the artifact is made anew.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.planning.decision import Decision
from halfbyte.planning.identity import artifact_label, quantize_job_name
from halfbyte.planning.inspection import artifact_claim, common_task, source_task
from halfbyte.planning.jobs import Wanted, follow_job
from halfbyte.planning.manifests.config_map import build_task_config_map
from halfbyte.planning.manifests.job import WorkerJob, build_job, threads
from halfbyte.planning.manifests.meta import child_labels
from halfbyte.planning.quantities import describe_bytes, ratio
from halfbyte.planning.stage import Context, Stage, carry, done

KIND = "Quantize Job"


def job_name(context: Context, decision: Decision) -> str:
    return quantize_job_name(decision.key, artifact_claim(context))


def recorded_artifact(context: Context, decision: Decision) -> Mapping[str, Any] | None:
    """The artifact as status has it, when it is this one."""
    recorded = context.model.status.get("artifact") or {}
    same = recorded.get("key") == decision.key and recorded.get("claimName") == artifact_claim(context)
    return recorded if same else None


def quantize(context: Context, decision: Decision, now: datetime) -> Stage[dict[str, Any]]:
    """``status.artifact``, or one step towards it."""
    name = job_name(context, decision)
    recorded = recorded_artifact(context, decision)
    wanted = Wanted(
        name,
        KIND,
        Reason.QUANTIZING,
        lambda annotations: build(context, decision, annotations),
        recorded,
    )
    stage = follow_job(context, wanted, now, (Reason.ARTIFACT_READY, ""))
    if stage.value is None:
        return carry(stage)
    artifact = dict(stage.value)
    if recorded is None or stage.value is not recorded:
        artifact = _artifact_status(context, decision, stage.value)
    # The Job may have been made by an older operator: who made an artifact does not change with this one.
    if recorded is not None and recorded.get("createdBy"):
        artifact["createdBy"] = recorded["createdBy"]
    return done(artifact, Reason.ARTIFACT_READY, _describe(decision, artifact))


def _artifact_status(context: Context, decision: Decision, result: Mapping[str, Any]) -> dict[str, Any]:
    size, source = (
        int(result.get("bytes") or 0),
        int(result.get("sourceBytes") or decision.facts.source_bytes),
    )
    return {
        "key": decision.key,
        "claimName": artifact_claim(context),
        "path": str(result.get("path") or decision.path),
        "bytes": size,
        "sourceBytes": source,
        "ratio": ratio(size, source),
        "method": decision.recipe.method,
        "reused": bool(result.get("reused")),
        "seconds": _whole(result.get("seconds")),
        "peakRssBytes": _whole(result.get("peakRssBytes")),
        "createdBy": context.settings.images.worker,
    }


def _whole(value: Any) -> int | None:
    return None if value is None else round(float(value))


def _describe(decision: Decision, artifact: Mapping[str, Any]) -> str:
    made = (
        "found complete, nothing was computed"
        if artifact.get("reused")
        else f"made in {artifact.get('seconds')} s"
    )
    return (
        f"{decision.recipe.describe()}: {describe_bytes(artifact['bytes'])} of"
        f" {describe_bytes(artifact['sourceBytes'])}"
        f" ({artifact['ratio']}) at {artifact['path']} on claim {artifact['claimName']}, {made}"
    )


def build(
    context: Context, decision: Decision, annotations: Mapping[str, str]
) -> tuple[Mapping[str, Any], ...]:
    """ConfigMap and Job."""
    model, spec, settings = context.model, context.spec, context.settings
    name = job_name(context, decision)
    child = child_labels(model, labels.STAGE_QUANTIZE, **{labels.ARTIFACT_KEY: artifact_label(decision.key)})
    source = source_task(spec, decision.facts.revision)
    task = common_task(model, source, decision.job_dtype, threads(spec.quantization.resources, settings))
    task["quantization"] = decision.recipe.task()
    task["artifact"] = {"key": decision.key, "path": decision.path}
    job = WorkerJob(
        name=name,
        stage=labels.STAGE_QUANTIZE,
        labels=child,
        annotations=annotations,
        claim=artifact_claim(context),
        memory_request=decision.quantize.memory_request,
        memory_limit=decision.quantize.memory_limit,
        deadline_seconds=decision.quantize.deadline_seconds,
        resources=spec.quantization.resources,
        shared=True,
    )
    return (
        build_task_config_map(model, name, child, task, controller=False),
        build_job(model, spec, job, settings),
    )
