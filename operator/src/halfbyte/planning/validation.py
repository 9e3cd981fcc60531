"""Validate: measure the artifact against its source and judge it by the gates.

A verdict is a result, not a failure: Failed with ``onFailure: Block`` stops the rollout until another
artifact or other gates are asked for, and the Job is not tried again, for it would measure the same. The
worker keeps measurements beside the artifact, so other thresholds only judge again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.planning.decision import Decision
from halfbyte.planning.identity import artifact_label, validate_job_name, validate_key
from halfbyte.planning.inspection import artifact_claim, common_task, source_task
from halfbyte.planning.jobs import Wanted, follow_job
from halfbyte.planning.manifests.config_map import build_task_config_map
from halfbyte.planning.manifests.job import WorkerJob, build_job, threads
from halfbyte.planning.manifests.meta import child_labels
from halfbyte.planning.stage import Context, Stage, carry, done

KIND = "Validate Job"

_MEASUREMENT = ("name", "value", "threshold", "verdict", "samples", "eosAt")


@dataclass(frozen=True, slots=True)
class Evidence:
    """``status`` is ``status.validation``; ``passed`` lets the artifact be served."""

    status: dict[str, Any]
    passed: bool
    summary: str


def gates(context: Context) -> dict[str, Any]:
    """``validation`` of the task: what is measured and the thresholds."""
    return context.spec.validation.model_dump(mode="json", by_alias=True, exclude={"resources"})


def key_of(context: Context, decision: Decision) -> str:
    return validate_key(decision.key, artifact_claim(context), gates(context))


def job_name(context: Context, decision: Decision) -> str:
    return validate_job_name(context.model.name, key_of(context, decision))


def validate(context: Context, decision: Decision, now: datetime) -> Stage[Evidence]:
    """The evidence, or one step towards it."""
    key = key_of(context, decision)
    name = job_name(context, decision)
    recorded: dict[str, Any] = context.model.status.get("validation") or {}
    known = recorded if recorded.get("key") == key else None
    wanted = Wanted(
        name,
        KIND,
        Reason.VALIDATING,
        lambda annotations: build(context, decision, annotations),
        known,
        verdict_is_result=True,
    )
    stage = follow_job(context, wanted, now, (Reason.GATES_PASSED, ""))
    if stage.value is None:
        return carry(stage)
    status = known if known is not None and stage.value is known else evidence_status(key, stage.value)
    return _judge(context, decision, status)


def _judge(context: Context, decision: Decision, status: dict[str, Any]) -> Stage[Evidence]:
    measurements = status.get("measurements") or []
    missed = [each for each in measurements if each.get("verdict") == "Failed"]
    summary = summarize(measurements)
    label = decision.recipe.describe()
    if status.get("verdict") == "Passed":
        return done(Evidence(status, True, summary), Reason.GATES_PASSED, f"{label}: {summary}")
    words = "; ".join(_missed(each) for each in missed) or "a gate failed"
    if context.spec.validation.on_failure == "Warn":
        message = f"{label}: {words}; served all the same, spec.validation.onFailure is Warn"
        return done(Evidence(status, True, summary), Reason.GATES_WARNED, message)
    message = (
        f"{label}: {words}; it is not rolled out; use more bits, a smaller group size, more calibration"
        " or thresholds that you can accept"
    )
    return Stage("False", Reason.GATE_FAILED, message, value=Evidence(status, False, summary), terminal=True)


def _missed(measurement: Mapping[str, Any]) -> str:
    name = str(measurement["name"]).replace("/", " ")
    bound = "at least" if measurement["name"] == "logits/cosine" else "at most"
    return f"{name} is {measurement['value']}, {bound} {measurement.get('threshold')} is demanded"


def summarize(measurements: list[Mapping[str, Any]]) -> str:
    """``cosine 0.947, perplexity +18.0 %``."""
    values = {each["name"]: each["value"] for each in measurements}
    parts = []
    if "logits/cosine" in values:
        parts.append(f"cosine {values['logits/cosine']}")
    if "perplexity/increasePercent" in values:
        change = str(values["perplexity/increasePercent"])
        parts.append(f"perplexity {'' if change.startswith('-') else '+'}{change} %")
    if "generation/repetition" in values:
        parts.append(f"repetition {values['generation/repetition']}")
    return ", ".join(parts) or "nothing was measured"


def evidence_status(key: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """``status.validation`` from the worker's result, with known fields only: others would be pruned and
    rewritten for ever."""
    reference, report = result.get("reference") or {}, result.get("report") or {}
    return {
        "key": key,
        "verdict": result.get("verdict"),
        "measurements": [
            {field: each[field] for field in _MEASUREMENT if each.get(field) is not None}
            for each in result.get("measurements") or ()
        ],
        "reference": {"revision": reference.get("revision"), "corpusDigest": reference.get("corpusDigest")},
        "report": {"path": report.get("path"), "digest": report.get("digest")},
        "reused": bool(result.get("reused")),
        "seconds": None if result.get("seconds") is None else round(float(result["seconds"])),
    }


def build(
    context: Context, decision: Decision, annotations: Mapping[str, str]
) -> tuple[Mapping[str, Any], ...]:
    """ConfigMap and Job."""
    model, spec, settings = context.model, context.spec, context.settings
    name = job_name(context, decision)
    child = child_labels(model, labels.STAGE_VALIDATE, **{labels.ARTIFACT_KEY: artifact_label(decision.key)})
    source = source_task(spec, decision.facts.revision)
    task = common_task(model, source, decision.job_dtype, threads(spec.validation.resources, settings))
    task["artifact"] = {"key": decision.key, "path": decision.path}
    task["validation"] = gates(context)
    job = WorkerJob(
        name=name,
        stage=labels.STAGE_VALIDATE,
        labels=child,
        annotations=annotations,
        claim=artifact_claim(context),
        memory_request=decision.validate.memory_request,
        memory_limit=decision.validate.memory_limit,
        deadline_seconds=decision.validate.deadline_seconds,
        resources=spec.validation.resources,
    )
    return (
        build_task_config_map(model, name, child, task, controller=True),
        build_job(model, spec, job, settings),
    )
