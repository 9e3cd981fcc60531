from __future__ import annotations

import copy
from typing import Any

import pytest

from halfbyte.adapters import schema
from halfbyte.adapters.gateway import ApiError, Forbidden
from halfbyte.api.crd import build_crd
from support.fake_gateway import FakeGateway

OURS = schema.schema_of(build_crd())


def older(*path: str) -> dict[str, Any]:
    """Our own definition without one field."""
    definition = copy.deepcopy(build_crd())
    node = schema.schema_of(definition)
    for each in path[:-1]:
        node = node["properties"][each]
    del node["properties"][path[-1]]
    return definition


def test_our_own_definition_lacks_nothing() -> None:
    assert schema.InstalledSchema(OURS).missing(OURS) == []


def test_an_older_definition_lacks_what_came_later() -> None:
    installed = schema.InstalledSchema(schema.schema_of(older("spec", "rollout")))
    assert installed.missing(OURS) == [".spec.rollout"]


def test_what_would_be_dropped_is_not_written() -> None:
    installed = schema.InstalledSchema(schema.schema_of(older("status", "plan")))
    status = {"plan": {"digest": "x"}, "observedGeneration": 1, "conditions": [{"type": "Ready", "odd": 1}]}
    assert installed.prune(status) == {"observedGeneration": 1, "conditions": [{"type": "Ready"}]}
    assert schema.InstalledSchema(None).prune(status) == status


def test_free_maps_and_unknown_fields_survive() -> None:
    installed = schema.InstalledSchema(
        {
            "properties": {
                "status": {
                    "properties": {
                        "free": {"additionalProperties": {"type": "string"}},
                        "any": {"x-kubernetes-preserve-unknown-fields": True},
                    }
                }
            }
        }
    )
    status = {"free": {"a": "b"}, "any": {"x": [1]}, "gone": 1}
    assert installed.prune(status) == {"free": {"a": "b"}, "any": {"x": [1]}}


async def test_a_definition_that_may_not_be_read_is_unknown() -> None:
    gateway = FakeGateway()
    gateway.errors["get", "customresourcedefinitions"] = Forbidden(403, "Forbidden", "no")
    installed = await schema.installed_schema(gateway)
    assert installed.root is None
    assert installed.missing(OURS) == []


async def test_the_installed_definition_is_read() -> None:
    gateway = FakeGateway()
    gateway.put(older("spec", "rollout"))
    assert (await schema.installed_schema(gateway)).missing(OURS) == [".spec.rollout"]


def test_a_definition_without_our_version_says_so() -> None:
    with pytest.raises(ApiError, match="has no version v1alpha1"):
        schema.schema_of({"spec": {"versions": []}})


async def test_whether_the_kind_is_served() -> None:
    gateway = FakeGateway()
    assert not await schema.served(gateway)
    gateway.apis["/apis/halfbyte.dev/v1alpha1"] = {"resources": [{"name": "quantizedmodels/status"}]}
    assert not await schema.served(gateway)
    gateway.apis["/apis/halfbyte.dev/v1alpha1"] = {"resources": [{"name": "quantizedmodels"}]}
    assert await schema.served(gateway)
