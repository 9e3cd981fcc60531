from __future__ import annotations

import pytest

from halfbyte.adapters import facts, resources
from halfbyte.adapters.events import NOTE_LIMIT, REMEMBERED, SERIES_SECONDS, EventRecorder
from halfbyte.adapters.gateway import ApiError
from halfbyte.planning.plan import EventDraft
from halfbyte.planning.snapshot import ModelObject
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway
from support.manifests import a_model


class Desk:
    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.clock = FakeClock()
        self.model: ModelObject = facts.model_object(self.gateway.put(a_model()))
        self.recorder = EventRecorder(self.gateway, self.clock, instance="pod-1")

    async def post(self, message: str = "layer 3 is odd", reason: str = "OutOfDisk") -> None:
        await self.recorder.post(self.model, (EventDraft("Warning", reason, message, "Quantize"),))

    def events(self) -> list[dict[str, object]]:
        stored = self.gateway.objects.items()
        return [raw for (plural, *_), raw in stored if plural == resources.EVENTS.plural]


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_an_event_regards_the_model(desk: Desk) -> None:
    await desk.post()
    (event,) = desk.events()
    assert event["regarding"] == {
        "apiVersion": "halfbyte.dev/v1alpha1",
        "kind": "QuantizedModel",
        "name": "tiny",
        "namespace": "models",
        "uid": desk.model.uid,
    }
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "OutOfDisk", "Quantize")
    assert event["reportingInstance"] == "pod-1"
    assert event["eventTime"] == "2026-01-02T03:04:05.000000Z"
    assert "series" not in event


async def test_repeats_join_a_series(desk: Desk) -> None:
    for _ in range(3):
        await desk.post()
        desk.clock.advance(60)
    (event,) = desk.events()
    assert event["series"] == {"count": 3, "lastObservedTime": "2026-01-02T03:06:05.000000Z"}


async def test_other_words_are_another_event(desk: Desk) -> None:
    await desk.post("one")
    await desk.post("two")
    await desk.post("one", reason="OutOfMemory")
    assert len(desk.events()) == 3


async def test_a_late_repeat_is_a_new_event(desk: Desk) -> None:
    await desk.post()
    desk.clock.advance(SERIES_SECONDS + 1)
    await desk.post()
    assert len(desk.events()) == 2
    assert not any("series" in event for event in desk.events())


async def test_a_long_message_is_cut_between_characters(desk: Desk) -> None:
    await desk.post("ü" * NOTE_LIMIT)
    (event,) = desk.events()
    assert event["note"] == "ü" * (NOTE_LIMIT // 2)


async def test_a_lost_event_fails_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.gateway.errors["apply", "events"] = ApiError(403, "Forbidden", "events is forbidden")
    await desk.post()
    assert "events is forbidden" in caplog.text


async def test_memory_is_bounded(desk: Desk) -> None:
    await desk.post("first")
    for number in range(REMEMBERED):
        await desk.post(str(number))
    desk.gateway.objects.clear()
    await desk.post("first")
    (event,) = desk.events()
    assert "series" not in event
