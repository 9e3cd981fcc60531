import json
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker.termination import LIMIT, build_message, write_message


def message(**fields: Any) -> dict[str, Any]:
    encoded = build_message(**({"ok": True, "stage": "inspect", "reason": "Done", "message": "m"} | fields))
    assert len(encoded) <= LIMIT
    found: dict[str, Any] = json.loads(encoded)
    return found


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"name": f"model.layers.*.kind{n}.down_proj", "rows": 1, "columns": 2, "count": 3}
        for n in range(count)
    ]


def test_small_messages_are_kept_whole() -> None:
    result = {"bytes": 12, "linears": rows(3)}
    assert message(result=result) == {
        "ok": True, "stage": "inspect", "reason": "Done", "message": "m", "result": result,
    }  # fmt: skip


def test_too_many_linears_are_cut_from_the_end_and_it_says_so() -> None:
    found = message(result={"parameters": 5, "linears": rows(200), "linearsTruncated": False})["result"]
    assert found["parameters"] == 5
    assert found["linearsTruncated"] is True
    assert 10 < len(found["linears"]) < 200
    assert found["linears"] == rows(200)[: len(found["linears"])]


def test_the_message_is_one_short_line() -> None:
    found = message(message="first\n  second " + "x" * 9000)["message"]
    assert found.startswith("first second x")
    assert found.endswith("…")
    assert len(found) == 1024


@pytest.mark.parametrize("text", ["ä" * 9000, "\U0001f600" * 9000, '"\\' * 9000])
def test_bytes_count_not_characters(text: str) -> None:
    assert message(ok=False, message=text, result={"linears": rows(100)})["ok"] is False


def test_a_result_that_cannot_fit_gives_way_to_the_reason() -> None:
    found = message(ok=False, reason="GateFailed", result={"blob": "x" * 9000})
    assert (found["reason"], found["result"]) == ("GateFailed", {})


def test_it_is_written_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFBYTE_TERMINATION_LOG", str(tmp_path / "log"))
    write_message(b"{}")
    assert (tmp_path / "log").read_bytes() == b"{}"


def test_no_place_to_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFBYTE_TERMINATION_LOG", str(tmp_path / "no" / "folder"))
    write_message(b"{}")
