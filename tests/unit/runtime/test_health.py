from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import Forbidden
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.runtime.health import STUCK_SECONDS, Health
from halfbyte.runtime.probes import build_application
from halfbyte.runtime.resync import probe_lists
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway

KEY = ("models", "tiny")
PERIOD = 300.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def health(clock: FakeClock) -> Health:
    return Health(clock, PERIOD)


def test_a_leader_that_lists_is_alive(health: Health, clock: FakeClock) -> None:
    health.lead()
    for _ in range(5):
        health.listed({})
        clock.advance(PERIOD)
        assert health.why_not_live() is None


def test_a_leader_that_no_longer_lists_is_not(health: Health, clock: FakeClock) -> None:
    health.lead()
    clock.advance(2 * PERIOD + 61)
    assert health.why_not_live() == "models were last listed 661 s ago"
    health.listed({})
    assert health.why_not_live() is None


def test_a_standby_need_not_list(health: Health, clock: FakeClock) -> None:
    clock.advance(100 * PERIOD)
    assert health.why_not_live() is None
    assert health.resync_age == -1.0


def test_a_watch_that_delivers_is_alive(health: Health) -> None:
    health.listed({KEY: "1"})
    health.delivered(KEY, "1")
    health.listed({KEY: "1"})
    assert health.why_not_live() is None
    health.listed({KEY: "2"})
    assert health.why_not_live() is None, "the change may be on its way"
    health.delivered(KEY, "2")
    health.listed({KEY: "2"})
    assert health.why_not_live() is None


def test_a_watch_that_went_silent_is_noticed_by_the_second_list(health: Health) -> None:
    health.delivered(KEY, "1")
    health.listed({KEY: "2"})
    health.listed({KEY: "2"})
    assert health.why_not_live() == "the watch has not delivered 1 models, e.g. models/tiny"


def test_a_deleted_model_is_not_waited_for(health: Health) -> None:
    health.delivered(KEY, "1")
    health.listed({KEY: "1"})
    health.deleted(KEY)
    health.listed({})
    health.listed({})
    assert health.why_not_live() is None


def test_a_hanging_reconcile_is_noticed(health: Health, clock: FakeClock) -> None:
    health.busy_since[0] = clock.monotonic()
    assert health.why_not_live() is None
    clock.advance(STUCK_SECONDS + 1)
    assert health.why_not_live() == "a reconcile has been running for 601 s"


async def test_probes_answer_in_words(health: Health) -> None:
    telemetry = Telemetry()
    async with TestClient(TestServer(build_application(health, telemetry))) as client:
        answer = await client.get("/readyz")
        assert (answer.status, await answer.text()) == (503, "nothing was listed yet\n")
        health.unlisted = None
        answer = await client.get("/readyz")
        assert (answer.status, await answer.text()) == (200, "ok\n")
        health.delivered(KEY, "1")
        for _ in range(2):
            health.listed({KEY: "2"})
        for path in ("/livez", "/readyz"):
            answer = await client.get(path)
            assert answer.status == 503
            assert "the watch has not delivered" in await answer.text()
        metrics = await client.get("/metrics")
        assert "halfbyte_resync_age_seconds 0.0" in await metrics.text()


async def test_every_watched_kind_must_be_listable_in_every_namespace() -> None:
    gateway = FakeGateway()
    assert await probe_lists(gateway, ["a", "b"]) is None
    assert len(gateway.reads) == 2 * len(resources.WATCHED)
    gateway.errors["list", "pods"] = Forbidden(403, "Forbidden", "pods is forbidden")
    assert await probe_lists(gateway, []) == "pods is forbidden"
