"""What goes wrong: a killed operator, a spec changed under a running Job, deletion at every stage."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support import local_cluster as cluster
from support.quantized_models import MODELS, reaches, tiny_manifest

Model = Callable[..., cluster.Json]
KILLS = 10


def kill_operator() -> None:
    """SIGKILL through containerd; then the pod is replaced, so that no restart back-off is waited for."""
    for pod in cluster.listing("pods", cluster.SYSTEM_NAMESPACE, "app.kubernetes.io/name=halfbyte"):
        for status in pod["status"].get("containerStatuses") or []:
            container = status.get("containerID", "").rpartition("/")[2]
            if container and "running" in status["state"]:
                cluster.run(
                    cluster.CLUSTER,
                    "exec",
                    "ctr",
                    "-n",
                    "k8s.io",
                    "tasks",
                    "kill",
                    "-s",
                    "SIGKILL",
                    container,
                )
        cluster.delete(
            "pod",
            pod["metadata"]["name"],
            cluster.SYSTEM_NAMESPACE,
            "--force",
            "--grace-period=0",
            "--wait=false",
        )


def leader_runs() -> bool:
    """Whether a pod that is there holds the Lease: before that a kill would hit nothing."""
    lease = cluster.get("lease", "halfbyte-operator", cluster.SYSTEM_NAMESPACE)
    holder = ((lease or {}).get("spec") or {}).get("holderIdentity") or ""
    pods = cluster.listing("pods", cluster.SYSTEM_NAMESPACE, "app.kubernetes.io/name=halfbyte")
    return any(
        holder.startswith(pod["metadata"]["name"]) and "deletionTimestamp" not in pod["metadata"]
        for pod in pods
    )


def job_runs() -> dict[str, tuple[str, int]]:
    """Name -> uid and pods of every Job of `killed`: a second uid or pod means that it ran twice."""
    pods = cluster.listing("pods", MODELS, "app.kubernetes.io/managed-by=halfbyte,halfbyte.dev/model=killed")
    found = {}
    for job in cluster.listing("jobs", MODELS, "halfbyte.dev/model=killed"):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        owned = [
            each for each in pods if any(o["uid"] == uid for o in each["metadata"].get("ownerReferences", []))
        ]
        found[name] = (uid, len(owned))
    return found


@pytest.mark.timeout(1500)
def test_the_operator_killed_ten_times_ends_ready_and_no_job_runs_twice(model: Model, tiny: str) -> None:
    source = random.Random()
    model("killed")
    seen: dict[str, set[str]] = {}
    moments = []
    for _ in range(KILLS):
        cluster.poll(leader_runs, timeout=120, what="an operator that leads", every=0.5)
        pause = source.uniform(0, 8)
        time.sleep(pause)
        for name, (uid, _count) in job_runs().items():
            seen.setdefault(name, set()).add(uid)
        moments.append(
            (
                round(pause, 1),
                cluster.condition(cluster.get("quantizedmodel", "killed", MODELS), "Ready").get("reason"),
            )
        )
        kill_operator()
    print(f"killed at: {moments}")
    reaches("killed", "Serving")
    for name, (uid, count) in job_runs().items():
        seen.setdefault(name, set()).add(uid)
        assert count == 1, f"{name} has {count} pods"
    assert {name: len(uids) for name, uids in seen.items()} == dict.fromkeys(seen, 1)
    assert len(seen) == 3, seen


@pytest.mark.timeout(900)
def test_a_spec_change_while_a_job_runs_starts_the_new_job_and_ends_the_old(model: Model, tiny: str) -> None:
    source = {"pvc": {"claimName": "weights", "path": "smollm2-135m-instruct"}}
    model("changed", source=source, quantization={"method": "GPTQ", "bits": 4, "groupSize": 64})

    def running() -> list[cluster.Json]:
        found = cluster.listing("jobs", MODELS, "halfbyte.dev/model=changed,halfbyte.dev/stage=quantize")
        return [each for each in found if each["status"].get("active")]

    old = cluster.poll(running, timeout=180, what="the first quantize Job")[0]["metadata"]["name"]
    cluster.apply(tiny_manifest("changed"))
    reaches("changed", "Serving")
    names = [
        each["metadata"]["name"] for each in cluster.listing("jobs", MODELS, "halfbyte.dev/model=changed")
    ]
    assert old not in names


@pytest.mark.timeout(900)
@pytest.mark.parametrize("reason", ["Inspecting", "Quantizing", "Validating", "RollingOut"])
def test_deletion_at_every_stage_leaves_nothing(reason: str, model: Model, tiny: str, node: Path) -> None:
    name = f"deleted-{reason.lower()}"
    # A recipe of its own for every stage, so that no stage is skipped by reuse.
    group = {"Inspecting": 32, "Quantizing": 64, "Validating": 128, "RollingOut": 32}[reason]
    symmetric = reason != "RollingOut"
    model(name, quantization={"method": "GPTQ", "bits": 4, "groupSize": group, "symmetric": symmetric})

    reaches(name, reason, timeout=300)
    cluster.kubectl("delete", "qm", name, "-n", MODELS, "--wait=true", "--timeout=60s")
    selector = f"halfbyte.dev/model={name}"

    def gone() -> bool:
        kinds = "jobs,pods,deployments,services,configmaps"
        return not cluster.kubectl("get", kinds, "-n", MODELS, "-l", selector, "-o", "name").strip()

    cluster.poll(gone, timeout=120, what=f"children of {name} gone")


@pytest.mark.timeout(600)
def test_no_write_when_nothing_changes(model: Model, tiny: str) -> None:
    model("quiet")
    reaches("quiet", "Serving")
    time.sleep(10)

    def versions() -> dict[str, str]:
        kinds = "qm,jobs,deployments,services,configmaps,events"
        items = cluster.kubectl(
            "get",
            kinds,
            "-n",
            MODELS,
            "-o",
            "jsonpath={range .items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion} {end}",
        )
        return dict(each.split("=") for each in items.split())

    before = versions()
    time.sleep(60)
    assert versions() == before
