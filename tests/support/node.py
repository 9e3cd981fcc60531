"""Plays scheduler, kubelet and the built-in controllers on an API server that has none: statuses by hand.

Works over any KubeGateway, so unit tests (in memory) and API tests (real API server) share one story.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import KubeGateway
from support.models import facts

Json = dict[str, Any]
MANAGER = "test-node"

FACTS: Json = facts()


def artifact_result(task: Mapping[str, Any]) -> Json:
    """What a quantize Job reports for its task."""
    return {
        "key": task["artifact"]["key"],
        "path": task["artifact"]["path"],
        "bytes": 140000000,
        "sourceBytes": FACTS["source"]["bytes"],
        "reused": False,
        "method": task["quantization"]["method"],
        "seconds": 41,
        "layers": 30,
        "peakRssBytes": 900000000,
        "workStartedAt": "2026-01-02T03:04:09Z",
    }


def evidence_result(verdict: str = "Passed") -> Json:
    """What a validate Job reports."""
    value = "0.991" if verdict == "Passed" else "0.947"
    cosine = {"name": "logits/cosine", "value": value, "threshold": "0.985", "verdict": verdict}
    return {
        "verdict": verdict,
        "measurements": [
            {**cosine, "samples": 3072},
            {"name": "perplexity/source", "value": "25.32"},
            {"name": "perplexity/artifact", "value": "25.51"},
        ],
        "reference": {"revision": FACTS["source"]["revision"], "corpusDigest": "sha256-" + "cd" * 32},
        "report": {"path": "halfbyte-report-1234abcd.json", "digest": "sha256-" + "ef" * 32},
        "reused": False,
        "seconds": 55,
    }


class Node:
    """Acts on the objects of one namespace."""

    def __init__(self, kube: KubeGateway, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def claim(self, name: str, *, capacity: str = "50Gi") -> None:
        """A bound claim."""
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": capacity}}},
        }
        await self.kube.apply(claim, manager=MANAGER)
        bound = {"phase": "Bound", "capacity": {"storage": capacity}, "accessModes": ["ReadWriteMany"]}
        await self._status(claim, bound)

    async def jobs(self, stage: str) -> list[Json]:
        return await self.kube.list(resources.JOBS, self.namespace, labels=f"halfbyte.dev/stage={stage}")

    async def job(self, stage: str) -> Json:
        (found,) = await self.jobs(stage)
        return found

    async def open_job(self, stage: str) -> Json:
        """The one Job of a stage that has not succeeded."""
        (found,) = [
            each for each in await self.jobs(stage) if not (each.get("status") or {}).get("succeeded")
        ]
        return found

    async def task(self, job: Json) -> Json:
        """The task that the operator mounts into a Job."""
        raw = await self.kube.get(resources.CONFIG_MAPS, job["metadata"]["name"], self.namespace)
        task: Json = json.loads(next(iter(raw["data"].values())))
        return task

    async def start(self, job: Json) -> Json:
        """The Job's pod runs."""
        pod = await self._pod_of(job, "batch.kubernetes.io/job-name")
        await self._status(pod, {"phase": "Running", "startTime": _now()})
        await self._status(job, {"active": 1, "startTime": _job_started(pod)})
        return pod

    async def succeed(self, job: Json, result: Mapping[str, Any]) -> None:
        stage = job["metadata"]["labels"]["halfbyte.dev/stage"]
        words = {"ok": True, "stage": stage, "reason": "Done", "message": "done", "result": dict(result)}
        pod = await self._end(job, 0, words, "Succeeded")
        await self._status(
            job,
            {
                "succeeded": 1,
                "startTime": _job_started(pod),
                "completionTime": _now(),
                "conditions": [_condition("SuccessCriteriaMet"), _condition("Complete")],
            },
        )

    async def fail(
        self,
        job: Json,
        exit_code: int,
        reason: str,
        message: str,
        result: Mapping[str, Any] | None = None,
    ) -> None:
        stage = job["metadata"]["labels"]["halfbyte.dev/stage"]
        words = {
            "ok": False,
            "stage": stage,
            "reason": reason,
            "message": message,
            "result": dict(result or {}),
        }
        pod = await self._end(job, exit_code, words, "Failed")
        failure = {"reason": "PodFailurePolicy", "message": f"exit code {exit_code}"}
        await self._status(
            job,
            {
                "failed": 1,
                "startTime": _job_started(pod),
                "conditions": [_condition("FailureTarget", **failure), _condition("Failed", **failure)],
            },
        )

    async def serve(self, deployment: Json) -> Json:
        """Every replica of a Deployment is ready; its (only) pod."""
        pod = await self._pod_of(deployment, None)
        await self._status(
            pod,
            {"phase": "Running", "startTime": _now(), "conditions": [_condition("Ready")]},
        )
        replicas = deployment["spec"].get("replicas", 1)
        await self._status(
            deployment,
            {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": replicas,
                "updatedReplicas": replicas,
                "readyReplicas": replicas,
                "availableReplicas": replicas,
                "conditions": [
                    _condition("Available", reason="MinimumReplicasAvailable", message="ready"),
                    _condition("Progressing", reason="NewReplicaSetAvailable", message="done"),
                ],
            },
        )
        return pod

    async def deployments(self) -> list[Json]:
        return await self.kube.list(
            resources.DEPLOYMENTS, self.namespace, labels="app.kubernetes.io/managed-by=halfbyte"
        )

    async def _pod_of(self, owner: Json, job_label: str | None) -> Json:
        template = owner["spec"]["template"]
        name = f"{owner['metadata']['name'][:50]}-abcde"
        labels = dict(template["metadata"].get("labels") or {})
        if job_label is not None:
            labels[job_label] = owner["metadata"]["name"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": labels,
                "ownerReferences": [
                    {
                        "apiVersion": owner["apiVersion"],
                        "kind": owner["kind"],
                        "name": owner["metadata"]["name"],
                        "uid": owner["metadata"]["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": template["spec"],
        }
        return await self.kube.apply(pod, manager=MANAGER)

    async def _end(self, job: Json, exit_code: int, words: Mapping[str, Any], phase: str) -> Json:
        pod = await self._pod_of(job, "batch.kubernetes.io/job-name")
        container = pod["spec"]["containers"][0]
        ended = {
            "exitCode": exit_code,
            "message": json.dumps(words),
            "reason": "Completed" if exit_code == 0 else "Error",
            "startedAt": _now(),
            "finishedAt": _now(),
        }
        await self._status(
            pod,
            {
                "phase": phase,
                "startTime": _now(),
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": "sha256:0",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"terminated": ended},
                    }
                ],
            },
        )
        return pod

    async def _status(self, raw: Json, status: Mapping[str, Any]) -> None:
        metadata = {"name": raw["metadata"]["name"], "namespace": self.namespace}
        manifest = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": metadata}
        await self.kube.apply({**manifest, "status": dict(status)}, manager=MANAGER, subresource="status")


def _condition(kind: str, reason: str = "Test", message: str = "") -> Json:
    now = _now()
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def _job_started(pod: Json) -> str:
    """One time for all states of a Job: the API server refuses another."""
    started: str = pod["metadata"]["creationTimestamp"]
    return started


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
