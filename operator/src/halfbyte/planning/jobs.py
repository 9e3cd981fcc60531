"""Worker Jobs: what state one is in, and what follows.

    missing               create it, unless its result is known already or spec.suspend holds
    shared, not ours yet  become an owner, then wait like the creator
    of an earlier life    delete it: this model's name, another uid, no other owner; it is doomed anyway
    running               report progress; say what blocks its pod (image, scheduling, configuration, claim)
    complete              its result is the termination message of the pod that succeeded
    complete, result lost the result known from status serves; without one the Job is made again
    failed                the last error stops the model, until what a person can change changes (attempt):
                          then the Job is deleted, and created again in the next pass

The attempt for which a model wants a Job is an annotation on the Job, one per model. A Job that failed before
the model was created is retried once: its failure belongs to another life of the recipe. Both rules end, so
two models that share a recipe cannot delete each other's retries for ever. Never two Jobs for one key: the
name is the key.

Example: quantize-9b1d07aa41c3 failed with exit code 30 for attempt 1f00ab3c: Stalled, OutOfMemory. The user
raises spec.quantization.resources.limits.memory: attempt becomes 77d0e1f2, the Job is deleted and made again
with the new limit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.planning.identity import attempt, attempt_annotation
from halfbyte.planning.manifests.job import build_adoption
from halfbyte.planning.plan import Action, Apply, Create, Delete
from halfbyte.planning.snapshot import JobFact, PodFact, Snapshot
from halfbyte.planning.stage import Context, Stage, done, stalled, waiting, working

RESULT_GRACE_SECONDS: Final = 60
"""A Job may be seen Complete a moment before its pod's last state."""

_PULL_REASONS: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_CONFIG_REASONS: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_EXIT_REASONS: Final[Mapping[int, Reason]] = {
    2: Reason.INVALID_TASK,
    30: Reason.OUT_OF_MEMORY,
    40: Reason.OUT_OF_DISK,
    50: Reason.GATE_FAILED,
}


class JobState(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class JobView:
    """A Job judged: its state, why, and the worker's result when there is one."""

    state: JobState
    reason: Reason | None = None
    message: str = ""
    result: Mapping[str, Any] | None = None


def classify_job(job: JobFact) -> JobView:
    """The state of a Job from its condition and its pods' last words."""
    if job.condition_type == "Complete":
        spoken = next((each for each in map(_spoken, job.pods) if each and each.get("ok")), None)
        if spoken is None:
            return JobView(JobState.LOST)
        return JobView(JobState.SUCCEEDED, result=spoken.get("result") or {})
    if job.condition_type == "Failed":
        return _classify_failure(job)
    blocked = next((each for each in map(pod_problem, job.pods) if each), None)
    if blocked:
        return JobView(JobState.RUNNING, *blocked)
    if job.failed:
        _, message, _ = _last_error(job)
        return JobView(JobState.RUNNING, message=f"attempt {job.failed + 1} after: {message}")
    return JobView(JobState.RUNNING)


def _classify_failure(job: JobFact) -> JobView:
    reason, message, result = _last_error(job)
    if result and result.get("verdict") == "Failed":
        return JobView(JobState.FAILED, Reason.GATE_FAILED, message, result)
    if job.condition_reason == "DeadlineExceeded":
        return JobView(
            JobState.FAILED, Reason.DEADLINE_EXCEEDED, f"{job.condition_message}; last error: {message}"
        )
    if reason is None:
        return JobView(JobState.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message)
    return JobView(JobState.FAILED, reason, message, result)


def _last_error(job: JobFact) -> tuple[Reason | None, str, Mapping[str, Any] | None]:
    ended = [each for each in job.pods if each.exit_code or each.reason in ("Evicted", "OOMKilled")]
    if not ended:
        return None, job.condition_message or "its pods left no word", None
    pod = max(ended, key=lambda each: (each.created.timestamp() if each.created else 0.0, each.name))
    spoken = _spoken(pod)
    if spoken and not spoken.get("ok"):
        known = Reason.__members__.values()
        reason = next((each for each in known if each == spoken.get("reason")), Reason.INTERNAL_ERROR)
        return (
            reason,
            str(spoken.get("message") or spoken.get("reason") or "no message"),
            spoken.get("result"),
        )
    if pod.reason == "OOMKilled":
        return Reason.OUT_OF_MEMORY, _over_memory(job, pod), None
    by_code = _EXIT_REASONS.get(pod.exit_code or 0)
    return by_code, f"pod {pod.name} ended with exit code {pod.exit_code} ({pod.reason or 'no reason'})", None


def _over_memory(job: JobFact, pod: PodFact) -> str:
    limit = f" of {pod.memory_limit}" if pod.memory_limit else ""
    part = {labels.STAGE_QUANTIZE: "quantization", labels.STAGE_VALIDATE: "validation"}.get(
        job.labels.get(labels.STAGE, "")
    )
    advice = (
        f"; raise limits.memory in spec.{part}.resources, or use fewer or shorter samples" if part else ""
    )
    return f"pod {pod.name} was killed at its memory limit{limit}{advice}"


def _spoken(pod: PodFact) -> Mapping[str, Any] | None:
    try:
        found = json.loads(pod.termination_message or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def pod_problem(pod: PodFact) -> tuple[Reason, str] | None:
    """What keeps a pod from starting that waiting alone does not cure."""
    if pod.phase in ("Succeeded", "Failed") or pod.reason is None:
        return None
    words = f"pod {pod.name}: {pod.message or pod.reason}"
    if pod.reason in _PULL_REASONS:
        return Reason.IMAGE_PULL_FAILED, words
    if pod.reason in _CONFIG_REASONS:
        return Reason.POD_CONFIG_ERROR, words
    if pod.reason == "Unschedulable":
        unbound = "persistentvolumeclaim" in (pod.message or "").lower()
        return (Reason.CLAIM_NOT_BOUND if unbound else Reason.UNSCHEDULABLE), words
    return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Job that a stage wants: how to make it, what it is called in sentences, and a result known from
    before.
    """

    name: str
    kind: str
    reason: Reason
    build: Callable[[Mapping[str, str]], tuple[Mapping[str, Any], ...]]
    recorded: Mapping[str, Any] | None = None
    verdict_is_result: bool = False


def follow_job(
    context: Context, wanted: Wanted, now: datetime, finished: tuple[Reason, str]
) -> Stage[Mapping[str, Any]]:
    """One step towards the result of a Job; ``finished`` is reason and message of the condition once it is
    there.
    """
    snapshot = context.snapshot
    job = find_job(snapshot, wanted.name)
    if job is None:
        if wanted.recorded is not None:
            return done(wanted.recorded, *finished)
        return _start(context, wanted)
    if job.deletion_timestamp is not None:
        return working(wanted.reason, f"waits for the deletion of an earlier {wanted.kind}")
    if _doomed(snapshot, job):
        return working(wanted.reason, f"removes {job.name} of a deleted model", deletion(snapshot, job))
    if snapshot.model.uid not in job.owner_uids and not _outlived(context, job):
        return working(wanted.reason, f"shares {job.name} with another model", adoption(context, job))
    view = classify_job(job)
    if view.state is JobState.SUCCEEDED or (
        wanted.verdict_is_result and view.reason is Reason.GATE_FAILED and view.result
    ):
        return done(view.result or {}, *finished)
    if view.state is JobState.LOST:
        return _lost(context, wanted, job, now, finished)
    if view.state is JobState.FAILED:
        return _failed(context, wanted, job, view)
    if view.reason is not None:
        return waiting(view.reason, f"{wanted.kind} {job.name}: {view.message}")
    running = any(each.phase == "Running" for each in job.pods)
    verb = "runs" if running else "starts"
    message = f"{wanted.kind} {job.name} {verb}" + (f", {view.message}" if view.message else "")
    message = _with_progress(message, snapshot.progress, wanted.kind)
    # The ConfigMap of a deleted model of the same name may have been taken for ours, and then went with that
    # model.
    lost = () if job.name in snapshot.config_maps else (Create(wanted.build({})[0]),)
    return working(wanted.reason, message, lost, running=running)


def _start(context: Context, wanted: Wanted) -> Stage[Mapping[str, Any]]:
    if context.spec.suspend:
        return Stage("False", Reason.SUSPENDED, f"{wanted.kind} is not started while spec.suspend is true")
    annotations = {attempt_annotation(context.model.uid): current_attempt(context)}
    actions = tuple(Create(manifest) for manifest in wanted.build(annotations))
    return working(wanted.reason, f"starts {wanted.kind} {wanted.name}", actions)


def _lost(
    context: Context, wanted: Wanted, job: JobFact, now: datetime, finished: tuple[Reason, str]
) -> Stage[Mapping[str, Any]]:
    if wanted.recorded is not None:
        return done(wanted.recorded, *finished)
    if job.completed and (now - job.completed).total_seconds() < RESULT_GRACE_SECONDS:
        return working(wanted.reason, f"reads the result of {job.name}")
    if context.spec.suspend:
        return Stage("False", Reason.SUSPENDED, f"the result of {job.name} is lost, spec.suspend is true")
    message = f"the result of {job.name} is lost, it runs again"
    return working(wanted.reason, message, deletion(context.snapshot, job))


def _failed(context: Context, wanted: Wanted, job: JobFact, view: JobView) -> Stage[Mapping[str, Any]]:
    if tried_again(context, job) and not context.spec.suspend:
        message = f"the spec or {labels.REQUESTED_AT} changed, {job.name} is tried again"
        return working(wanted.reason, message, deletion(context.snapshot, job))
    return stalled(view.reason or Reason.INTERNAL_ERROR, f"{wanted.kind}: {view.message}")


def tried_again(context: Context, job: JobFact) -> bool:
    """Whether a failed Job belongs to an earlier attempt of this model, or to a time before the model."""
    seen = job.annotations.get(attempt_annotation(context.model.uid))
    if seen is None:
        return _outlived(context, job)
    return job.condition_type == "Failed" and seen != current_attempt(context)


def _doomed(snapshot: Snapshot, job: JobFact) -> bool:
    model = snapshot.model
    return (
        job.labels.get(labels.MODEL) == model.name
        and model.uid not in job.owner_uids
        and len(job.owner_uids) == 1
    )


def _outlived(context: Context, job: JobFact) -> bool:
    """The Job failed before this model existed."""
    return job.condition_type == "Failed" and job.created is not None and job.created < context.model.created


def _with_progress(message: str, progress: Mapping[str, Any] | None, kind: str) -> str:
    if not progress or str(progress.get("stage", "")).lower() not in kind.lower():
        return message
    total, unit = progress.get("total"), progress.get("unit") or "steps"
    text = f"{progress.get('done')} of {total} {unit}" if total else f"{progress.get('done')} {unit}"
    eta = progress.get("etaSeconds")
    return f"{text}" + (f", about {eta} s left" if eta is not None else "")


def current_attempt(context: Context) -> str:
    return attempt(context.spec, context.model.annotations.get(labels.REQUESTED_AT))


def find_job(snapshot: Snapshot, name: str) -> JobFact | None:
    return next((each for each in snapshot.jobs if each.name == name), None)


def adoption(context: Context, job: JobFact) -> tuple[Action, ...]:
    """Add the model to the owners of a shared Job and of its ConfigMap."""
    model = context.model
    manager = f"{labels.FIELD_MANAGER}-{model.uid}"
    annotations = {attempt_annotation(model.uid): current_attempt(context)}
    actions: list[Action] = []
    config_map = context.snapshot.config_maps.get(job.name)
    if config_map is not None and model.uid not in config_map.owner_uids:
        manifest = build_adoption(model, "v1", "ConfigMap", config_map.name, config_map.uid, {})
        actions.append(Apply(manifest, field_manager=manager))
    manifest = build_adoption(model, "batch/v1", "Job", job.name, job.uid, annotations)
    return (*actions, Apply(manifest, field_manager=manager))


def deletion(snapshot: Snapshot, job: JobFact) -> tuple[Action, ...]:
    """Delete a Job with its pods, and its ConfigMap."""
    actions: list[Action] = [Delete("batch/v1", "Job", job.name, job.uid, "Background")]
    config_map = snapshot.config_maps.get(job.name)
    if config_map is not None:
        actions.append(Delete("v1", "ConfigMap", config_map.name, config_map.uid, "Background"))
    return tuple(actions)


def stale_jobs(
    snapshot: Snapshot, wanted: frozenset[str], kept_artifacts: frozenset[str]
) -> tuple[Action, ...]:
    """Delete our Jobs that nothing wants any more.

    Kept are Jobs that another model owns too, and finished ones of artifacts that are still served: their
    results make going back to that revision free. Running Jobs for an outdated spec always go.
    """
    actions: list[Action] = []
    for job in snapshot.jobs:
        if job.name in wanted or job.deletion_timestamp is not None:
            continue
        if job.owner_uids != {snapshot.model.uid}:
            continue
        if job.condition_type and job.labels.get(labels.ARTIFACT_KEY) in kept_artifacts:
            continue
        actions += deletion(snapshot, job)
    return tuple(actions)
