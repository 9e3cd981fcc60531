from __future__ import annotations

from typing import Any

import kopf
import pytest

from halfbyte.runtime.handlers import CHILDREN, key_of_model, keys_of_child, kopf_settings, register
from halfbyte.runtime.health import Health
from halfbyte.runtime.queue import Key
from support.fake_clock import FakeClock
from support.manifests import a_job, a_model, a_pod, owned_by

MODEL = a_model(uid="u")
JOB = a_job("j", MODEL, "inspect")
JOB["metadata"]["uid"] = "j-uid"


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        pytest.param(a_job("j", MODEL, "inspect"), ["tiny"], id="owner and label agree"),
        pytest.param(a_pod("p", JOB, "tiny", "inspect"), ["tiny"], id="a pod by its label"),
        pytest.param({"metadata": {"name": "x", "namespace": "models"}}, [], id="nobody's"),
    ],
)
def test_a_child_wakes_its_models(raw: dict[str, Any], names: list[str]) -> None:
    assert keys_of_child({"type": "MODIFIED", "object": raw}) == [("models", name) for name in names]  # type: ignore[typeddict-item]


def test_a_shared_job_wakes_every_owner() -> None:
    shared = a_job("quantize-1", MODEL, "quantize")
    shared["metadata"]["ownerReferences"] = owned_by(MODEL, a_model("second", uid="v"))
    keys = keys_of_child({"type": "MODIFIED", "object": shared})  # type: ignore[typeddict-item]
    assert keys == [("models", "second"), ("models", "tiny")]


async def test_events_only_put_keys_into_the_queue() -> None:
    added: list[Key] = []
    health = Health(FakeClock(), 300)
    registry = kopf.OperatorRegistry()
    register(registry, added.append, health)
    handlers = {handler.fn.__name__: handler.fn for handler in registry._watching.get_all_handlers()}
    raw = a_model(uid="u")
    raw["metadata"]["resourceVersion"] = "7"
    await handlers["model_event"](event={"type": "ADDED", "object": raw})
    await handlers["model_event"](event={"type": "DELETED", "object": raw})
    await handlers["child_event"](event={"type": "ADDED", "object": a_job("j", raw, "inspect")})
    assert added == [("models", "tiny")] * 3
    assert key_of_model({"type": "ADDED", "object": raw}) == ("models", "tiny")  # type: ignore[typeddict-item]


def test_only_event_handlers_are_registered() -> None:
    registry = kopf.OperatorRegistry()
    register(registry, lambda _key: None, Health(FakeClock(), 300))
    assert len(list(registry._watching.get_all_handlers())) == 1 + len(CHILDREN)
    for kind in ("_changing", "_spawning", "_indexing"):
        assert not list(getattr(registry, kind).get_all_handlers()), f"{kind} handlers write to objects"


def test_kopf_posts_nothing_elects_nobody_and_scans_nothing() -> None:
    settings = kopf.OperatorSettings()
    kopf_settings(settings, instance="pod-1")
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert settings.process.ultimate_exiting_timeout is not None
    assert settings.process.ultimate_exiting_timeout < 30, "less than the pod's grace period"
