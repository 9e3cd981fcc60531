"""The adapter of the Kubernetes API against the real one: what the in-memory fake only pretends."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from halfbyte.adapters import facts, resources, schema
from halfbyte.adapters.clock import SystemClock
from halfbyte.adapters.events import EventRecorder
from halfbyte.adapters.gateway import ApiError, Conflict, NotFound
from halfbyte.adapters.inventory import Inventory
from halfbyte.adapters.kube import KubeApi
from halfbyte.adapters.lease import LeaseElector
from halfbyte.api.crd import build_crd
from halfbyte.planning.plan import EventDraft
from support.fake_clock import FakeClock
from support.manifests import a_model

Json = dict[str, Any]


def config_map(namespace: str, name: str = "c", **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"test": "yes"}},
        "data": data,
    }


async def test_apply_owns_its_fields_and_leaves_the_others(kube: KubeApi, namespace: str) -> None:
    await kube.apply(config_map(namespace, a="1", b="1"), manager="halfbyte")
    await kube.apply(config_map(namespace, c="1"), manager="somebody")
    await kube.apply(config_map(namespace, a="2"), manager="halfbyte")
    live = await kube.get(resources.CONFIG_MAPS, "c", namespace)
    assert live["data"] == {"a": "2", "c": "1"}, "b was ours and is gone, c is not ours and stays"
    assert {each["manager"] for each in live["metadata"]["managedFields"]} == {"halfbyte", "somebody"}


async def test_an_equal_apply_changes_nothing(kube: KubeApi, namespace: str) -> None:
    first = await kube.apply(config_map(namespace, a="1"), manager="halfbyte")
    second = await kube.apply(config_map(namespace, a="1"), manager="halfbyte")
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_a_uid_keeps_an_apply_from_making_an_object_again(kube: KubeApi, namespace: str) -> None:
    live = await kube.apply(config_map(namespace), manager="halfbyte")
    uid = live["metadata"]["uid"]
    await kube.delete(resources.CONFIG_MAPS, "c", namespace, uid=uid, propagation="Background")
    stale = config_map(namespace)
    stale["metadata"]["uid"] = uid
    with pytest.raises(Conflict):
        await kube.apply(stale, manager="halfbyte")
    with pytest.raises(NotFound):
        await kube.get(resources.CONFIG_MAPS, "c", namespace)


async def test_create_and_delete_have_their_conflicts(kube: KubeApi, namespace: str) -> None:
    await kube.create(config_map(namespace), manager="halfbyte")
    with pytest.raises(Conflict) as caught:
        await kube.create(config_map(namespace), manager="halfbyte")
    assert caught.value.reason == "AlreadyExists"
    with pytest.raises(Conflict):
        await kube.delete(resources.CONFIG_MAPS, "c", namespace, uid="another", propagation="Background")
    with pytest.raises(NotFound):
        await kube.delete(resources.CONFIG_MAPS, "nobody", namespace, uid="u", propagation="Background")


async def test_a_misspelt_field_in_a_manifest_of_ours_is_an_error(kube: KubeApi, namespace: str) -> None:
    with pytest.raises(ApiError, match='unknown field "spelling"'):
        await kube.create({**config_map(namespace), "spelling": 1}, manager="halfbyte")


async def test_replace_needs_the_current_version(kube: KubeApi, namespace: str) -> None:
    first = await kube.create(config_map(namespace, a="1"), manager="halfbyte")
    await kube.replace({**first, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await kube.replace({**first, "data": {"a": "3"}})


async def test_lists_are_paged_and_selected(
    kube: KubeApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfbyte.adapters.kube.PAGE", 2)
    for number in range(5):
        await kube.create(config_map(namespace, f"c{number}", a="x" * 100), manager="halfbyte")
    found = await kube.list(resources.CONFIG_MAPS, namespace, labels="test=yes")
    assert [each["metadata"]["name"] for each in found] == [f"c{number}" for number in range(5)]
    assert await kube.list(resources.CONFIG_MAPS, namespace, labels="test=no") == []
    named = await kube.list(resources.CONFIG_MAPS, namespace, fields="metadata.name=c3")
    assert [each["metadata"]["name"] for each in named] == ["c3"]
    (bare, *_) = await kube.list(resources.CONFIG_MAPS, namespace, labels="test=yes", metadata_only=True)
    assert "data" not in bare
    assert bare["metadata"]["labels"] == {"test": "yes"}


async def test_a_status_written_by_us_is_ours_alone(kube: KubeApi, namespace: str) -> None:
    model = await kube.apply(a_model("tiny", namespace), manager="kubectl")
    metadata = {"name": "tiny", "namespace": namespace, "uid": model["metadata"]["uid"]}
    manifest = {"apiVersion": model["apiVersion"], "kind": model["kind"], "metadata": metadata}
    status = {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": "Test",
                "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
                "observedGeneration": 1,
            }
            for kind in ("Ready", "Reconciling")
        ],
    }
    await kube.apply({**manifest, "status": status}, manager="halfbyte-status", subresource="status")
    status["conditions"] = status["conditions"][:1]  # type: ignore[index]
    live = await kube.apply({**manifest, "status": status}, manager="halfbyte-status", subresource="status")
    assert [each["type"] for each in live["status"]["conditions"]] == ["Ready"]
    assert live["metadata"]["generation"] == 1
    (entry,) = [each for each in live["metadata"]["managedFields"] if each.get("subresource") == "status"]
    assert (entry["manager"], entry["operation"]) == ("halfbyte-status", "Apply")


async def test_events_are_accepted_and_counted(kube: KubeApi, namespace: str) -> None:
    raw = await kube.apply(a_model("tiny", namespace), manager="kubectl")
    recorder = EventRecorder(kube, SystemClock(), instance="pod-1")
    draft = EventDraft("Warning", "GateFailed", "cosine 0.947 < 0.985", "Validate")
    model = facts.model_object(raw)
    await recorder.post(model, (draft, draft, draft))
    (event,) = await kube.list(resources.EVENTS, namespace)
    assert event["series"]["count"] == 3
    assert event["note"] == "cosine 0.947 < 0.985"
    assert event["reportingController"] == "halfbyte.dev/operator"


async def test_two_candidates_and_one_lease(kube: KubeApi, namespace: str) -> None:
    def candidate(identity: str, clock: FakeClock) -> LeaseElector:
        return LeaseElector(
            kube, clock, namespace=namespace, name="op", identity=identity, duration_seconds=30
        )

    first_clock, second_clock = FakeClock(), FakeClock()
    first, second = candidate("a", first_clock), candidate("b", second_clock)
    await first.acquire()
    await second.acquire()
    assert 30 < second_clock.seconds < 45, "a never renewed, so b took it after a whole duration"
    await second.release()
    await first.acquire()
    live = await kube.get(resources.LEASES, "op", namespace)
    assert live["spec"]["holderIdentity"] == "a"
    assert live["spec"]["leaseTransitions"] == 2


async def test_the_installed_definition_is_ours(kube: KubeApi) -> None:
    assert await schema.served(kube)
    installed = await schema.installed_schema(kube)
    assert installed.missing(schema.schema_of(build_crd())) == []


async def test_optional_apis_are_found_by_discovery(kube: KubeApi) -> None:
    inventory = Inventory(kube, SystemClock())
    assert await inventory.optional_apis() == frozenset()
    name = f"scaledobjects{secrets.token_hex(3)}"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{name}.keda.sh",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": "keda.sh",
            "names": {"kind": "ScaledObject", "plural": name, "singular": name},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    live = await kube.apply(definition, manager="test")
    try:
        for _ in range(100):
            if await Inventory(kube, SystemClock()).optional_apis():
                break
            await SystemClock().sleep(0.1)
        assert await Inventory(kube, SystemClock()).optional_apis() == {"keda.sh/ScaledObject"}
    finally:
        await kube.delete(
            resources.DEFINITIONS,
            definition["metadata"]["name"],  # type: ignore[index]
            None,
            uid=live["metadata"]["uid"],
            propagation="Background",
        )
