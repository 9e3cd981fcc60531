"""Roll out: one Deployment per revision, one Service that points to the revision that serves.

    intent    what was asked for: artifact key, claim, spec.serving without replicas, spec.placement
    revision  what was rendered for it: r + hash of the pod template, image included
    target    the revision for the current intent; there is none while its artifact is not validated
    active    the revision that the Service selects: it was fully ready once

One pass does one step, from what is there; nothing is remembered elsewhere:
    target missing, or its failure belongs to an earlier attempt -> start it (Replace: scale the active one to
    0) target fully ready, not active                               -> point the Service to it target active
    -> delete every other revision target not ready by its deadline, another is active          -> roll back:
    target to 0, active back to its replicas target not ready by its deadline, nothing else ever served   ->
    Stalled, but left running: it may still come up no target (blocked, or stages before it run)
    -> keep the active one, delete abandoned ones

The image rule: a Deployment keeps the manifest as first rendered, in an annotation, and a live Deployment
with the current intent is that intent's revision whatever this operator would render. So an operator upgrade
(new images, other probes) restarts no server; the next change of the spec renders with the new operator.

Strategy, decided once when a rollout begins: what the spec says; else Surge when the replicas of the new
revision fit beside the old on what is free now, Replace when they do not (kserve and dynamo deadlock there:
airunway#400). Going back to an earlier spec in the middle finds the old Deployment, which still serves
(dynamo#13620).

Example: rA serves on the only GPU, the spec changes to rB. Nothing is free: Replace. rB is created and rA
scaled to 0; rB is ready: the Service flips; rA is deleted. Had rB crashed until its deadline: rB to 0, rA
back to 1, Stalled RolloutFailed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.planning.capacity import admissible_nodes, fits_free
from halfbyte.planning.decision import Decision
from halfbyte.planning.identity import digest
from halfbyte.planning.inspection import artifact_claim
from halfbyte.planning.jobs import current_attempt
from halfbyte.planning.manifests.deployment import build_revision, finish_revision
from halfbyte.planning.manifests.service import build_service
from halfbyte.planning.plan import Action, Apply, Delete, EventDraft
from halfbyte.planning.quantities import describe_bytes
from halfbyte.planning.revisions import (
    active_revision,
    find_revision,
    fully_ready,
    living,
    rendered_of,
    revision_of,
    server_problem,
)
from halfbyte.planning.snapshot import DeploymentFact, ResourceAmounts, Snapshot
from halfbyte.planning.stage import Context, Stage, done, waiting

Manifest = Mapping[str, Any]

PROXY_SECONDS: Final = 2.0
"""From pointing the Service until it counts as answering: kube-proxy writes at most once a second, and a
client that asks a Service without rules waits for an address that nobody has.
"""
KEPT: Final = (labels.STARTED, labels.STRATEGY, labels.FAILED)


@dataclass(frozen=True, slots=True)
class Target:
    """What should serve: the Deployment's manifest without replicas, and how long it may take."""

    intent: str
    rendered: Manifest
    deadline_seconds: int
    need: ResourceAmounts

    @property
    def revision(self) -> str:
        return revision_of(self.rendered["metadata"]["labels"])


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rollout."""

    stage: Stage[str]
    events: tuple[EventDraft, ...] = ()


def intent_of(context: Context, decision: Decision) -> str:
    """Sixteen digits of what was asked for: no operator upgrade and no node changes them."""
    spec = context.spec
    return digest(
        {
            "artifact": decision.key,
            "claim": artifact_claim(context),
            "serving": spec.serving.model_dump(mode="json", by_alias=True, exclude={"replicas"}),
            "placement": spec.placement.model_dump(mode="json", by_alias=True),
        },
        16,
    )


def choose_target(context: Context, decision: Decision) -> Target:
    """The revision for the current intent: a live one as it was rendered, else a new one."""
    intent = intent_of(context, decision)
    server = decision.server
    need = ResourceAmounts(server.cpu_request_millis, server.memory_request, server.gpus)
    rendered = build_revision(
        context.model, context.spec, decision, artifact_claim(context), intent, context.settings
    )
    for live in living(context.snapshot):
        pinned = rendered_of(live)
        if pinned is not None and live.annotations.get(labels.INTENT) == intent:
            rendered = dict(pinned)
            break
    return Target(intent, rendered, server.progress_deadline_seconds, need)


def _service_taken(snapshot: Snapshot) -> str | None:
    if snapshot.service is None:
        return None
    found = snapshot.service["metadata"].get("labels") or {}
    if found.get(labels.MANAGED_BY) == labels.MANAGED_BY_VALUE:
        return None
    model = snapshot.model
    return f"Service {model.name} in namespace {model.namespace} is not the operator's, it is left alone"


def wanted_replicas(context: Context, deployment: DeploymentFact | None) -> int:
    """Replicas to be ready: the spec's, or what an autoscaler has set on the Deployment."""
    if context.snapshot.autoscaled and deployment is not None:
        return deployment.replicas
    return context.spec.serving.replicas


def next_step(context: Context, target: Target | None, intent: str | None, now: datetime) -> Step:
    """The next step; ``intent`` is known before ``target`` is, and tells which revisions are abandoned."""
    if target is None:
        return Step(Stage("Unknown", Reason.PENDING, "", actions=_keep_active(context, intent)))
    taken = _service_taken(context.snapshot)
    if taken is not None:
        return Step(waiting(Reason.NAME_TAKEN, taken))
    live = find_revision(context.snapshot, target.revision)
    active = find_revision(context.snapshot, active_revision(context.snapshot))
    failure = _failure(context, live)
    if live is None or (failure is None and labels.FAILED in live.annotations):
        return _start(context, target, active, now)
    if failure is not None:
        return _rolled_back(context, target, live, active, failure)
    if active is not None and active.name == live.name:
        return _serve(context, target, live, now)
    if fully_ready(live, wanted_replicas(context, live)):
        return _activate(context, target, live, active, now)
    if (now - _started(live, now)).total_seconds() > target.deadline_seconds:
        return _expire(context, target, live, active)
    return _progress(context, target, live)


def _start(context: Context, target: Target, active: DeploymentFact | None, now: datetime) -> Step:
    strategy, why = choose_strategy(context, target, active)
    annotations = {labels.STARTED: now.isoformat(timespec="seconds"), labels.STRATEGY: f"{strategy}: {why}"}
    actions: list[Action] = [Apply(finish_revision(dict(target.rendered), _replicas(context), annotations))]
    if active is not None and strategy == "Replace":
        actions += _scale(active, 0)
    return Step(_rolling(f"revision {target.revision} starts; {strategy}: {why}", tuple(actions)))


def _progress(context: Context, target: Target, live: DeploymentFact) -> Step:
    wanted = wanted_replicas(context, live)
    problem = server_problem(context.snapshot, target.revision)
    strategy = live.annotations.get(labels.STRATEGY, "")
    message = f"revision {target.revision}: {live.ready_replicas} of {wanted} replicas are ready; {strategy}"
    actions = (Apply(_again(context, target.rendered, live)),)
    if problem is None:
        return Step(_rolling(message, actions))
    return Step(waiting(problem[0], f"{message}; {problem[1]}", actions))


def _activate(
    context: Context, target: Target, live: DeploymentFact, active: DeploymentFact | None, now: datetime
) -> Step:
    message = f"revision {target.revision} is ready, the Service is pointed to it"
    actions = (
        Apply(_again(context, target.rendered, live)),
        Apply(build_service(context.model, target.revision, now.isoformat(timespec="milliseconds"))),
    )
    before = f" in place of {revision_of(active.labels)}" if active is not None else ""
    event = EventDraft(
        "Normal", Reason.REVISION_ACTIVATED, f"revision {target.revision} serves{before}", "PointService"
    )
    return Step(replace(_rolling(message, actions), requeue=PROXY_SECONDS), (event,))


def _serve(context: Context, target: Target, live: DeploymentFact, now: datetime) -> Step:
    snapshot = context.snapshot
    others = [each for each in living(snapshot) if each.name != live.name]
    actions: list[Action] = [
        Apply(_again(context, target.rendered, live)),
        Apply(build_service(context.model, target.revision, _activated(snapshot))),
    ]
    actions += [_delete(each) for each in others]
    events = tuple(
        EventDraft(
            "Normal",
            Reason.REVISION_DELETED,
            f"revision {revision_of(each.labels)} is removed",
            "DeleteRevision",
        )
        for each in others
    )
    wanted = wanted_replicas(context, live)
    if wanted == 0 and live.replicas == 0:
        stage = done(target.revision, Reason.SCALED_TO_ZERO, "spec.serving.replicas is 0", tuple(actions))
        return Step(stage, events)
    if not fully_ready(live, wanted):
        stage = _incomplete(context, target, live, wanted, now)
        return Step(replace(stage, actions=tuple(actions)), events)
    if others or _foreign_pods(snapshot, target.revision):
        return Step(_rolling("the last pods of the older revision end", tuple(actions)), events)
    settling = _settling(snapshot, now)
    if settling > 0:
        message = f"revision {target.revision} is ready, the nodes take up its Service"
        return Step(replace(_rolling(message, tuple(actions)), requeue=settling), events)
    message = f"{live.ready_replicas} of {wanted} replicas answer"
    return Step(done(target.revision, Reason.SERVING, message, tuple(actions)), events)


def _incomplete(
    context: Context, target: Target, live: DeploymentFact, wanted: int, now: datetime
) -> Stage[str]:
    """Replicas that are missing: on their way, or in trouble."""
    problem = server_problem(context.snapshot, target.revision)
    message = f"{live.ready_replicas} of {wanted} replicas answer"
    if problem is not None:
        return waiting(problem[0], f"{message}; {problem[1]}")
    pods = (each for each in context.snapshot.serving_pods if revision_of(each.labels) == target.revision)
    young = all(
        each.created is not None and (now - each.created).total_seconds() < target.deadline_seconds
        for each in pods
        if not each.ready
    )
    return waiting(Reason.SCALING if young else Reason.REPLICAS_UNAVAILABLE, message)


def _expire(context: Context, target: Target, live: DeploymentFact, active: DeploymentFact | None) -> Step:
    problem = server_problem(context.snapshot, target.revision)
    words = problem[1] if problem else "its pods run, but do not answer /v1/models"
    if problem is not None and problem[0] is Reason.UNSCHEDULABLE and active is not None:
        words += "; free resources, or set spec.rollout.strategy to Replace"
    message = (
        f"revision {target.revision}: {live.ready_replicas} of {wanted_replicas(context, live)} replicas"
        " were ready"
        f" within {target.deadline_seconds} s; {words}"
    )
    if active is None:
        actions: tuple[Action, ...] = (Apply(_again(context, target.rendered, live)),)
        return Step(Stage("False", Reason.ROLLOUT_FAILED, message, actions=actions, terminal=True))
    failed = json.dumps({"attempt": current_attempt(context), "message": message[:900]}, sort_keys=True)
    annotations = {**_kept(live), labels.FAILED: failed}
    actions = (
        Apply(finish_revision(dict(target.rendered), 0, annotations)),
        *_revive(context, active),
    )
    stage: Stage[str] = Stage("False", Reason.ROLLOUT_FAILED, message, actions=actions, terminal=True)
    return Step(stage)


def _rolled_back(
    context: Context, target: Target, live: DeploymentFact, active: DeploymentFact | None, message: str
) -> Step:
    actions: list[Action] = [Apply(finish_revision(dict(target.rendered), 0, _kept(live)))]
    if active is not None and active.name != live.name:
        actions += _revive(context, active)
    return Step(Stage("False", Reason.ROLLOUT_FAILED, message, actions=tuple(actions), terminal=True))


def _keep_active(context: Context, intent: str | None) -> tuple[Action, ...]:
    actions: list[Action] = []
    active = active_revision(context.snapshot)
    for each in living(context.snapshot):
        if revision_of(each.labels) == active:
            actions += _scale(each, _replicas(context))
        elif intent is not None and each.annotations.get(labels.INTENT) != intent:
            actions.append(_delete(each))
    return tuple(actions)


def choose_strategy(context: Context, target: Target, active: DeploymentFact | None) -> tuple[str, str]:
    """Surge or Replace, and why."""
    asked = context.spec.rollout.strategy
    if active is None or active.replicas == 0:
        return "Surge", "nothing else serves"
    if asked != "Auto":
        return asked, "as spec.rollout.strategy says"
    nodes = admissible_nodes(context.snapshot.nodes, context.spec.placement, context.spec.serving.accelerator)
    need = f"{context.spec.serving.replicas} x {describe_need(target.need)}"
    if not nodes:
        return "Surge", "what is free is unknown"
    if fits_free(nodes, target.need, context.spec.serving.replicas):
        return "Surge", f"{need} fit beside the older revision"
    return "Replace", f"{need} do not fit beside the older revision, so it ends first"


def describe_need(need: ResourceAmounts) -> str:
    parts = [f"{need.gpus} GPUs"] if need.gpus else []
    return ", ".join([*parts, f"{describe_bytes(need.memory_bytes)} memory", f"{need.cpu_millis}m CPU"])


def _failure(context: Context, live: DeploymentFact | None) -> str | None:
    try:
        found = json.loads(live.annotations.get(labels.FAILED, "")) if live is not None else None
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("attempt") != current_attempt(context):
        return None
    return str(found.get("message", ""))


def _started(live: DeploymentFact, now: datetime) -> datetime:
    return _moment(live.annotations.get(labels.STARTED, "")) or live.created or now


def _activated(snapshot: Snapshot) -> str:
    if snapshot.service is None:
        return ""
    found: Mapping[str, str] = snapshot.service["metadata"].get("annotations") or {}
    return found.get(labels.ACTIVATED, "")


def _settling(snapshot: Snapshot, now: datetime) -> float:
    """Seconds until the nodes have taken up where the Service points to; a time of a clock that is ahead
    delays nothing.
    """
    activated = _moment(_activated(snapshot))
    age = (now - activated).total_seconds() if activated else PROXY_SECONDS
    return PROXY_SECONDS - age if 0 <= age < PROXY_SECONDS else 0.0


def _moment(text: str) -> datetime | None:
    """A point in time out of an annotation, which anybody may have edited: without a zone it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _kept(live: DeploymentFact) -> dict[str, str]:
    return {key: live.annotations[key] for key in KEPT if key in live.annotations}


def _again(context: Context, rendered: Manifest, live: DeploymentFact) -> Manifest:
    return finish_revision(dict(rendered), _replicas(context), _kept(live))


def _replicas(context: Context) -> int | None:
    return None if context.snapshot.autoscaled else context.spec.serving.replicas


def _scale(deployment: DeploymentFact, replicas: int | None) -> tuple[Action, ...]:
    rendered = rendered_of(deployment)
    if rendered is None:
        return ()
    return (Apply(finish_revision(dict(rendered), replicas, _kept(deployment))),)


def _revive(context: Context, deployment: DeploymentFact) -> tuple[Action, ...]:
    """Back to the wanted replicas. An autoscaler leaves a Deployment at 0 alone, so there the spec's number
    starts it.
    """
    return _scale(deployment, _replicas(context) if deployment.replicas else context.spec.serving.replicas)


def _delete(deployment: DeploymentFact) -> Delete:
    return Delete("apps/v1", "Deployment", deployment.name, deployment.uid, "Background")


def _foreign_pods(snapshot: Snapshot, revision: str) -> bool:
    return any(revision_of(each.labels) != revision for each in snapshot.serving_pods)


def _rolling(message: str, actions: tuple[Action, ...]) -> Stage[str]:
    return waiting(Reason.ROLLING_OUT, message, actions)
