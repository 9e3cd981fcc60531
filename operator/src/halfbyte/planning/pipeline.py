"""The flow of one model, as one pure function.

    read_spec -> inspect -> decide -> (approval) -> quantize -> validate -> roll out
                    |          |                        |           |          |
                Inspected   Planned                 Quantized   Validated   Ready      (conditions)

Every stage either is done and hands its value to the next, or it blocks: then the stages behind it are
pending, its reason is Ready's reason, and its actions are carried out. The rollout is looked at in every
pass, whatever blocks before it: an older revision keeps serving, keeps its replicas, and is reported as
Available.

A model that is being deleted gets no action at all: owner references clean up, and a child made now would
outlive its owner. ``spec.suspend`` and an invalid spec take no action either; what runs goes on and is
reported.

Example, nothing there yet: PVC source exists, no Job -> Create ConfigMap and Job m-inspect-3f9a0c11;
conditions Inspected False Inspecting, Ready False Inspecting, Reconciling True; look again in 3 seconds.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from halfbyte.api import labels
from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.planning.conditions import Condition, of_stage, summarize
from halfbyte.planning.decision import Decision, decide
from halfbyte.planning.facts import facts_status
from halfbyte.planning.guard import read_spec
from halfbyte.planning.identity import inspect_job_name, quantize_job_name, source_key
from halfbyte.planning.inspection import Inspected, artifact_claim, claim_taken, inspect
from halfbyte.planning.jobs import classify_job, deletion, find_job, stale_jobs, tried_again
from halfbyte.planning.manifests.claim import build_artifact_claim
from halfbyte.planning.plan import Action, Apply, Create, EventDraft, Plan
from halfbyte.planning.quantities import describe_bytes, format_bytes
from halfbyte.planning.quantization import quantize, recorded_artifact
from halfbyte.planning.recipe import artifact_key, resolve_recipe
from halfbyte.planning.report import (
    Findings,
    available,
    build_status,
    draft_events,
    progress_status,
    without_nulls,
)
from halfbyte.planning.revisions import living
from halfbyte.planning.rollout import Step, Target, choose_target, intent_of, next_step
from halfbyte.planning.settings import PlanningSettings
from halfbyte.planning.snapshot import Snapshot
from halfbyte.planning.stage import Context, Stage, done, pending, stalled, stopped, working
from halfbyte.planning.validation import Evidence, validate
from halfbyte.planning.validation import job_name as validate_job
from halfbyte.planning.violation import Violation


def plan(snapshot: Snapshot, now: datetime, settings: PlanningSettings) -> Plan:
    """What to do for one model now, and what to say about it."""
    model = snapshot.model
    if model.deletion_timestamp is not None:
        return Plan(status=model.status)
    spec = read_spec(model.raw_spec, settings.matrix)
    if isinstance(spec, Violation):
        return _invalid(snapshot, spec, now)
    return _Pass(Context(snapshot, spec, settings), now).run()


class _Pass:
    """One pass through the stages. Holds what they said; lives as long as one call of ``plan``."""

    def __init__(self, context: Context, now: datetime) -> None:
        self.context, self.now = context, now
        self.inspected: Stage[Inspected] = inspect(context, now)
        self.planned: Stage[Decision] = self._planned()
        self.quantized: Stage[dict[str, Any]] = self._quantized()
        self.validated: Stage[Evidence] = self._validated()
        self.target: Target | None = self._target()
        self.intent = intent_of(context, self.planned.value) if self.planned.value else None
        self.step: Step = self._rolled_out()

    def run(self) -> Plan:
        stages: tuple[Stage[Any], ...] = (
            self.inspected,
            self.planned,
            self.quantized,
            self.validated,
            self.step.stage,
        )
        blocking = next((each for each in stages if each.status != "True"), stages[-1])
        if blocking.status == "True":
            blocking = replace(blocking, message=self._serving_message(blocking.message))
        status = build_status(self.context.snapshot, self._findings(blocking), self.now)
        actions = () if self.context.spec.suspend else self._actions(stages)
        events = (*draft_events(self.context.model.status, status), *self._action_events(actions))
        return Plan(actions, status, events, blocking.requeue)

    def _planned(self) -> Stage[Decision]:
        if self.inspected.value is None:
            return pending("waits for the facts of the source")
        context, facts = self.context, self.inspected.value.facts
        snapshot = context.snapshot
        key = artifact_key(facts, resolve_recipe(context.spec, facts))
        job = find_job(snapshot, quantize_job_name(key, artifact_claim(context)))
        recorded = (context.model.status.get("artifact") or {}).get("key") == key
        decision = decide(
            context.spec,
            facts,
            snapshot.nodes,
            snapshot.claims.get(artifact_claim(context)),
            context.settings,
            artifact_exists=recorded or (job is not None and job.condition_type == "Complete"),
        )
        if isinstance(decision, Violation):
            return stopped(decision)
        return done(decision, Reason.PLAN_READY, _describe_plan(decision))

    def _quantized(self) -> Stage[dict[str, Any]]:
        decision = self.planned.value
        if decision is None:
            return pending("waits for the plan")
        if not self._approved(decision):
            target = f"qm {self.context.model.name} -n {self.context.model.namespace}"
            command = f"kubectl annotate {target} {labels.APPROVE}={decision.digest()} --overwrite"
            message = f"plan {decision.digest()} waits for approval: {command}"
            return Stage("False", Reason.WAITING_FOR_APPROVAL, message)
        rebuild = self._rebuild(decision)
        if rebuild:
            return working(Reason.QUANTIZING, "the artifact was found corrupt, it is made again", rebuild)
        return quantize(self.context, decision, self.now)

    def _rebuild(self, decision: Decision) -> tuple[Action, ...]:
        """Away with both Jobs when validation found the artifact corrupt and the model is tried again."""
        snapshot = self.context.snapshot
        found = find_job(snapshot, validate_job(self.context, decision))
        if found is None or self.context.spec.suspend or not tried_again(self.context, found):
            return ()
        if classify_job(found).reason is not Reason.ARTIFACT_CORRUPT:
            return ()
        made = find_job(snapshot, quantize_job_name(decision.key, artifact_claim(self.context)))
        return (*deletion(snapshot, found), *(deletion(snapshot, made) if made else ()))

    def _approved(self, decision: Decision) -> bool:
        """Automatic, approved by its digest, or rolled out already: what serves needs no second approval."""
        if self.context.spec.approval == "Automatic":
            return True
        if self.context.model.annotations.get(labels.APPROVE) == decision.digest():
            return True
        intent = intent_of(self.context, decision)
        return any(each.annotations.get(labels.INTENT) == intent for each in living(self.context.snapshot))

    def _validated(self) -> Stage[Evidence]:
        if self.planned.value is None or self.quantized.value is None:
            return pending("waits for the artifact")
        return validate(self.context, self.planned.value, self.now)

    def _target(self) -> Target | None:
        evidence, decision = self.validated.value, self.planned.value
        if decision is None or evidence is None or not evidence.passed:
            return None
        return choose_target(self.context, decision)

    def _rolled_out(self) -> Step:
        step = next_step(self.context, self.target, self.intent, self.now)
        if self.target is not None and self.context.spec.suspend and step.stage.status != "True":
            message = f"the rollout of revision {self.target.revision} waits while spec.suspend is true"
            return Step(Stage("False", Reason.SUSPENDED, message))
        return step

    def _serving_message(self, message: str) -> str:
        decision, evidence = self.planned.value, self.validated.value
        if decision is None or evidence is None:
            return message
        return f"{message}; {decision.recipe.describe()}, {evidence.summary}"

    def _findings(self, blocking: Stage[Any]) -> Findings:
        previous, decision = self.context.model.status, self.planned.value
        facts = previous.get("facts")
        if self.inspected.value is not None:
            facts = facts_status(self.inspected.value.facts, self.inspected.value.key)
        shown = previous.get("plan") if self.inspected.value is None else None
        if decision is not None:
            shown = {"digest": decision.digest(), **decision.to_status()}
        unknown = decision is None and not self.planned.terminal
        artifact: Mapping[str, Any] | None = self.quantized.value
        if artifact is None:
            artifact = previous.get("artifact") if unknown else None
        if artifact is None and decision is not None and not self._rebuild(decision):
            artifact = recorded_artifact(self.context, decision)
        evidence = self.validated.value.status if self.validated.value else None
        if evidence is None and unknown:
            evidence = previous.get("validation")
        return Findings(
            conditions=self._conditions(blocking),
            facts=facts,
            plan=shown,
            progress=self._progress(),
            artifact=artifact,
            validation=evidence,
            target_revision=self.target.revision if self.target else None,
            replicas=self.context.spec.serving.replicas,
        )

    def _conditions(self, blocking: Stage[Any]) -> tuple[Condition, ...]:
        found = [
            *summarize(blocking),
            of_stage(ConditionType.INSPECTED, self.inspected),
            of_stage(ConditionType.PLANNED, self.planned),
            of_stage(ConditionType.QUANTIZED, self.quantized),
            of_stage(ConditionType.VALIDATED, self.validated),
            available(self.context.snapshot),
        ]
        if self.context.spec.serving.accelerator.type == "nvidia":
            found.append(
                Condition(
                    ConditionType.GPU_HEALTHY,
                    "Unknown",
                    Reason.NO_METRICS,
                    "no GPU metrics are collected yet",
                )
            )
        return tuple(found)

    def _progress(self) -> dict[str, Any] | None:
        for stage, name in (
            (self.inspected, labels.STAGE_INSPECT),
            (self.quantized, labels.STAGE_QUANTIZE),
            (self.validated, labels.STAGE_VALIDATE),
        ):
            if stage.running:
                return progress_status(self.context.snapshot.progress, name)
        return None

    def _actions(self, stages: tuple[Stage[Any], ...]) -> tuple[Action, ...]:
        context = self.context
        first: tuple[Action, ...] = ()
        if context.spec.storage.size and claim_taken(context.snapshot, context.spec) is None:
            first = (Apply(build_artifact_claim(context.model, context.spec.storage)),)
        return (*first, *self._stale(), *(action for stage in stages for action in stage.actions))

    def _stale(self) -> tuple[Action, ...]:
        context, snapshot = self.context, self.context.snapshot
        requested_at = context.model.annotations.get(labels.REQUESTED_AT)
        wanted = {inspect_job_name(context.model.name, source_key(context.spec.source, requested_at))}
        if self.inspected.value is None and not self.inspected.terminal:
            # Until the facts are known it is open whether the Job that runs is still wanted.
            wanted |= {
                each.name for each in snapshot.jobs if each.labels.get(labels.STAGE) != labels.STAGE_INSPECT
            }
        if self.planned.value is not None:
            wanted.add(quantize_job_name(self.planned.value.key, artifact_claim(context)))
            wanted.add(validate_job(context, self.planned.value))
        kept = frozenset(each.labels.get(labels.ARTIFACT_KEY, "") for each in living(snapshot))
        return stale_jobs(snapshot, frozenset(wanted), kept)

    def _action_events(self, actions: tuple[Action, ...]) -> tuple[EventDraft, ...]:
        if self.context.spec.suspend:
            return ()
        replaced = {
            each.name for each in self._stale() if not isinstance(each, Create | Apply) and each.kind == "Job"
        }
        active = [each for each in self.context.snapshot.jobs if each.name in replaced and each.active]
        drafts = [
            EventDraft(
                "Normal",
                Reason.JOB_REPLACED,
                f"Job {each.name} is for an outdated spec, it ends",
                "DeleteJob",
            )
            for each in active
        ]
        return (*drafts, *self.step.events)


def _describe_plan(decision: Decision) -> str:
    server = decision.server
    return (
        f"{decision.recipe.describe()}; artifact about {describe_bytes(decision.artifact_bytes)}; Quantize"
        " Job"
        f" {format_bytes(decision.quantize.memory_request)} and {decision.quantize.seconds[0]} to"
        f" {decision.quantize.seconds[1]} s in {decision.job_dtype}; server"
        f" {format_bytes(server.memory_request)} in"
        f" {server.dtype}: {server.why}; kernel {decision.kernel or 'unknown'}; {decision.compute_why}"
    )


def _invalid(snapshot: Snapshot, violation: Violation, now: datetime) -> Plan:
    """An invalid spec: say so, take no action, pass on what was known."""
    previous = snapshot.model.status
    blocking: Stage[Any] = stalled(violation.reason, violation.message)
    waiting: Stage[Any] = pending("the spec is invalid")
    kinds = (ConditionType.INSPECTED, ConditionType.PLANNED, ConditionType.QUANTIZED, ConditionType.VALIDATED)
    findings = Findings(
        conditions=(*summarize(blocking), *(of_stage(kind, waiting) for kind in kinds), available(snapshot)),
        facts=previous.get("facts"),
        plan=previous.get("plan"),
        artifact=previous.get("artifact"),
        validation=previous.get("validation"),
    )
    status = build_status(snapshot, findings, now)
    return Plan(status=status, events=draft_events(previous, status))


def report_failure(
    failed: Plan, snapshot: Snapshot, action: Action, reason: str, message: str, now: datetime
) -> Plan:
    """The plan after the API server refused an action: no actions, and the server's words in Ready."""
    if isinstance(action, Create | Apply):
        what = f"{action.manifest['kind']} {action.manifest['metadata']['name']}"
    else:
        what = f"the deletion of {action.kind} {action.name}"
    blocking: Stage[Any] = Stage(
        "False", Reason.ACTION_FAILED, f"{what} was refused ({reason}): {message}"[:1024]
    )
    conditions = [each for each in failed.status.get("conditions", ()) if each["type"] not in _SUMMARY]
    kept = tuple(
        Condition(ConditionType(each["type"]), each["status"], Reason(each["reason"]), each["message"])
        for each in conditions
    )
    findings = Findings(conditions=(*summarize(blocking), *kept))
    rebuilt = build_status(snapshot, findings, now)
    status = without_nulls({**failed.status, "conditions": rebuilt["conditions"]})
    return Plan(status=status, events=draft_events(snapshot.model.status, status))


_SUMMARY = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
