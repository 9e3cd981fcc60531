"""What is known of the revisions that exist: which there are, which one serves, whether it is ready, what
ails it.
"""

import json
from collections.abc import Mapping
from typing import Any

from halfbyte.api import labels
from halfbyte.api.conditions import Reason
from halfbyte.planning.jobs import pod_problem
from halfbyte.planning.snapshot import DeploymentFact, PodFact, Snapshot


def revision_of(of: Mapping[str, str]) -> str:
    return of.get(labels.REVISION, "")


def living(snapshot: Snapshot) -> tuple[DeploymentFact, ...]:
    return tuple(each for each in snapshot.deployments if each.deletion_timestamp is None)


def active_revision(snapshot: Snapshot) -> str | None:
    """The revision that the Service selects."""
    if snapshot.service is None:
        return None
    selector: Mapping[str, str] = (snapshot.service.get("spec") or {}).get("selector") or {}
    return selector.get(labels.REVISION)


def find_revision(snapshot: Snapshot, revision: str | None) -> DeploymentFact | None:
    return next(
        (each for each in living(snapshot) if revision and revision_of(each.labels) == revision), None
    )


def fully_ready(deployment: DeploymentFact, replicas: int) -> bool:
    return (
        deployment.observed_generation >= deployment.generation
        and deployment.replicas == replicas
        and deployment.status_replicas == deployment.updated_replicas == deployment.ready_replicas == replicas
    )


def rendered_of(deployment: DeploymentFact) -> Mapping[str, Any] | None:
    """The manifest that a Deployment was made from, out of its annotation."""
    try:
        found = json.loads(deployment.annotations.get(labels.RENDERED, ""))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def server_problem(snapshot: Snapshot, revision: str) -> tuple[Reason, str] | None:
    """What keeps the pods of a revision from answering, in words."""
    pods = [each for each in snapshot.serving_pods if revision_of(each.labels) == revision]
    for pod in sorted(pods, key=lambda each: each.name):
        if pod.ready or pod.deletion_timestamp is not None:
            continue
        problem = pod_problem(pod)
        if problem:
            return problem
        if pod.restarts or pod.exit_code:
            return Reason.REPLICAS_UNAVAILABLE, _last_words(pod)
    return None


def _last_words(pod: PodFact) -> str:
    lines = [line.strip() for line in (pod.termination_message or "").splitlines() if line.strip()]
    said = f": {lines[-1][:300]}" if lines else ""
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else "no exit code"
    reason = f", {pod.reason}" if pod.reason else ""
    return f"pod {pod.name} restarted {pod.restarts} times ({code}{reason}){said}"
