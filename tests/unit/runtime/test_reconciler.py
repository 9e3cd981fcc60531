"""The reconciler over the in-memory gateway: the order of its steps and what it does when one fails."""

from __future__ import annotations

import asyncio

import pytest

from halfbyte.adapters import resources
from halfbyte.adapters.events import EventRecorder
from halfbyte.adapters.execute import ActionFailed, Executor
from halfbyte.adapters.gateway import ApiError, Conflict, Forbidden, NotFound
from halfbyte.adapters.gather import Gatherer
from halfbyte.adapters.inventory import Inventory
from halfbyte.adapters.matrix import load_matrix
from halfbyte.adapters.schema import InstalledSchema
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.planning.settings import PlanningSettings
from halfbyte.runtime import reconciler as module
from halfbyte.runtime.health import Health
from halfbyte.runtime.queue import Key, WorkQueue
from halfbyte.runtime.reconciler import CONFLICT_DELAY, Reconciler, work
from halfbyte.runtime.resync import Resync
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway
from support.manifests import a_model
from support.node import Node

KEY: Key = ("models", "tiny")


class World:
    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        self.settings = PlanningSettings(matrix=load_matrix())
        self.queue = WorkQueue()
        self.health = Health(self.clock, 300)
        self.reconciler = Reconciler(
            Gatherer(self.gateway, Inventory(self.gateway, self.clock), self.clock),
            Executor(self.gateway),
            EventRecorder(self.gateway, self.clock, instance="test"),
            self.telemetry,
            self.clock,
            self.settings,
            InstalledSchema(None),
            forget=self.queue.forget,
        )
        self.resync = Resync(
            self.gateway, self.queue, self.reconciler, self.telemetry, self.health, self.clock, (), 300
        )

    async def begin(self) -> None:
        """A model whose claims exist."""
        self.gateway.put(a_model())
        node = Node(self.gateway, "models")
        await node.claim("weights")
        await node.claim("artifacts")
        self.gateway.writes.clear()

    def ready(self) -> dict[str, str]:
        conditions = self.gateway.find(resources.MODELS, "tiny")["status"]["conditions"]
        found: dict[str, str] = next(each for each in conditions if each["type"] == "Ready")
        return found

    async def work_once(self) -> None:
        """Let one worker empty the queue."""
        worker = asyncio.create_task(
            work(0, self.queue, self.reconciler, self.telemetry, self.health, self.clock)
        )
        while len(self.queue):
            await asyncio.sleep(0)
        await self.queue.drained()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    def result(self, name: str) -> float:
        value = self.telemetry.registry.get_sample_value("halfbyte_reconciles_total", {"result": name})
        return value or 0.0


@pytest.fixture
async def world() -> World:
    return World()


async def test_status_is_written_before_anything_is_made(world: World) -> None:
    await world.begin()
    assert await world.reconciler.reconcile(KEY) is not None
    plurals = [plural for _, plural, _ in world.gateway.writes]
    assert plurals == ["quantizedmodels/status", "configmaps", "jobs", "events"]
    assert world.ready()["reason"] == "Inspecting"


async def test_a_transition_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.begin()
    with caplog.at_level("INFO"):
        for _ in range(3):
            await world.reconciler.reconcile(KEY)
    lines = [each for each in caplog.messages if each.startswith("Ready False, Inspecting: ")]
    assert len(lines) == 1


async def test_a_second_look_writes_nothing(world: World) -> None:
    await world.begin()
    for _ in range(3):
        await world.reconciler.reconcile(KEY)
    written = len(world.gateway.writes)
    await world.reconciler.reconcile(KEY)
    assert len(world.gateway.writes) == written


async def test_a_model_that_is_gone_is_forgotten(world: World) -> None:
    await world.begin()
    await world.reconciler.reconcile(KEY)
    assert world.telemetry.models() == {KEY}
    world.gateway.objects.clear()
    assert await world.reconciler.reconcile(KEY) is None
    assert world.telemetry.models() == frozenset()


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "gone"), Conflict(409, "Conflict", "replaced")])
async def test_a_model_that_changes_under_the_look_is_looked_at_again(world: World, error: ApiError) -> None:
    await world.begin()
    world.gateway.errors["apply", "quantizedmodels/status"] = error
    assert await world.reconciler.reconcile(KEY) == CONFLICT_DELAY
    assert world.gateway.writes == []


async def test_nothing_is_spent_without_saying_so(world: World) -> None:
    await world.begin()
    world.gateway.errors["apply", "quantizedmodels/status"] = ApiError(500, "InternalError", "etcd is away")
    with pytest.raises(ApiError, match="etcd is away"):
        await world.reconciler.reconcile(KEY)
    assert world.gateway.writes == []


async def test_a_refused_action_is_told_once(world: World) -> None:
    await world.begin()
    world.gateway.errors["create", "jobs"] = Forbidden(403, "Forbidden", "exceeded quota")
    for _ in range(3):
        with pytest.raises(ActionFailed, match="exceeded quota"):
            await world.reconciler.reconcile(KEY)
    assert world.ready()["reason"] == "ActionFailed"
    assert "exceeded quota" in world.ready()["message"]
    statuses = [each for each in world.gateway.writes if each[1] == "quantizedmodels/status"]
    assert len(statuses) == 2, "Inspecting, then the refusal; no change at every retry"
    events = [each for each in world.gateway.writes if each[1] == "events"]
    assert len(events) == 1

    world.gateway.errors.clear()
    await world.reconciler.reconcile(KEY)
    assert world.ready()["reason"] == "Inspecting"


async def test_an_outage_is_not_told_as_a_refusal(world: World) -> None:
    await world.begin()
    world.gateway.errors["create", "jobs"] = ApiError(503, "ServiceUnavailable", "busy")
    with pytest.raises(ActionFailed):
        await world.reconciler.reconcile(KEY)
    assert world.ready()["reason"] == "Inspecting"


async def test_a_conflict_of_an_action_is_no_failure(world: World) -> None:
    await world.begin()
    world.gateway.errors["create", "jobs"] = Conflict(409, "Conflict", "being deleted")
    assert await world.reconciler.reconcile(KEY) == CONFLICT_DELAY


async def test_a_worker_survives_a_crash_and_tells_the_user(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.begin()

    def crash(*_: object) -> None:
        raise ZeroDivisionError("of a layer")

    monkeypatch.setattr(module, "plan", crash)
    world.queue.add(KEY)
    await world.work_once()
    assert world.result("crashed") == 1
    (event,) = [raw for (plural, *_), raw in world.gateway.objects.items() if plural == "events"]
    assert (event["type"], event["reason"]) == ("Warning", "InternalError")
    assert "ZeroDivisionError: of a layer" in event["note"]


async def test_a_crash_that_cannot_be_told_is_survived(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reconciler, "reconcile", _crash)
    world.gateway.errors["get", "quantizedmodels"] = ApiError(503, "", "busy")
    world.queue.add(KEY)
    await world.work_once()
    assert world.result("crashed") == 1


async def _crash(*_: object) -> None:
    raise RuntimeError("broken")


async def test_a_crash_on_a_model_that_is_gone_is_told_to_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reconciler, "reconcile", _crash)
    world.queue.add(KEY)
    await world.work_once()
    assert world.gateway.writes == []


async def test_a_worker_backs_off_as_the_server_asks(world: World) -> None:
    world.gateway.errors["get", "quantizedmodels"] = ApiError(429, "TooManyRequests", "slow down", 17.0)
    world.queue.add(KEY)
    await world.work_once()
    assert world.result("failed") == 1
    assert world.queue._timers[KEY][0] == 17.0
    world.queue.forget(KEY)


async def test_a_worker_counts_successes_and_is_idle_after(world: World) -> None:
    world.queue.add(KEY)
    await world.work_once()
    assert world.result("succeeded") == 1
    assert world.health.busy_since == {}


async def test_a_resync_looks_at_all_and_forgets_ghosts(world: World) -> None:
    await world.begin()
    world.gateway.put(a_model("other"))
    world.telemetry.conditions("models", "ghost", {"conditions": [{"type": "Ready", "status": "True"}]})
    await world.resync.once()
    assert {await world.queue.get(), await world.queue.get()} == {KEY, ("models", "other")}
    assert world.telemetry.models() == frozenset()
    assert world.health.resync_age == 0


async def test_a_resync_that_fails_is_tried_again_soon(world: World) -> None:
    world.gateway.errors["list", "quantizedmodels"] = ApiError(503, "", "busy")
    running = asyncio.create_task(world.resync.run())
    while len(world.clock.slept) < 2:
        await asyncio.sleep(0)
    world.gateway.errors.clear()
    while len(world.clock.slept) < 4:
        await asyncio.sleep(0)
    running.cancel()
    assert world.clock.slept[0] == 10.0
    assert world.clock.slept[-1] == 300


async def test_live_hashes_are_applied_again_only_by_a_resync(world: World) -> None:
    assert not world.reconciler._repair_due(KEY)
    world.clock.advance(299)
    assert not world.reconciler._repair_due(KEY)
    world.clock.advance(1)
    assert world.reconciler._repair_due(KEY)
    assert not world.reconciler._repair_due(KEY)
