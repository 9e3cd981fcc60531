"""The commands over the in-memory gateway, through their real argument parser."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from halfbyte.adapters import resources
from halfbyte.adapters.gateway import ApiError, NotFound
from halfbyte.cli.commands import UsageError
from halfbyte.cli.kubeconfig import current_namespace
from halfbyte.cli.main import build_parser, main, run
from support.fake_clock import FakeClock
from support.fake_gateway import FakeGateway
from support.manifests import a_job, a_model, a_pod
from support.node import FACTS

Json = dict[str, Any]


def ready(reason: str, status: str = "False", **more: str) -> Json:
    conditions = [{"type": "Ready", "status": status, "reason": reason, "message": "in words"}]
    conditions += [
        {"type": each, "status": value, "reason": reason, "message": ""} for each, value in more.items()
    ]
    return {"observedGeneration": 1, "conditions": conditions}


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf"}}
    path.write_text(yaml.safe_dump_all([other, a_model()]))
    return path


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(FACTS))
    return path


async def command(gateway: FakeGateway | None, *arguments: str) -> int:
    options = build_parser().parse_args(arguments)
    options.namespace = options.namespace or "models"
    return await run(options, gateway, FakeClock())


async def test_a_file_is_planned_without_a_cluster(
    manifest: Path, facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command(None, "plan", "-f", str(manifest), "--offline", "--facts", str(facts)) == 0
    text = capsys.readouterr().out
    assert "Planned      True" in text
    assert "QuantizeJob\n" in text
    assert "  create Job quantize-" in text


async def test_without_facts_the_next_step_is_the_inspection(
    manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(manifest.read_text()))
    assert await command(None, "plan", "-f", "-", "--offline") == 0
    assert "create Job tiny-inspect-" in capsys.readouterr().out


async def test_rendered_manifests_are_yaml_of_what_comes_next(
    manifest: Path, facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command(None, "render", "-f", str(manifest), "--offline", "--facts", str(facts)) == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["ConfigMap", "Job"]


async def test_nothing_to_write_is_said(gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.put(a_model(quantization={"method": "INT3"}))
    assert await command(gateway, "render", "tiny") == 0
    assert capsys.readouterr().out == "# nothing to write now\n"


async def test_a_live_model_is_planned_from_what_is_there(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.put(a_model())
    assert await command(gateway, "plan", "tiny") == 0
    assert "ClaimNotFound" in capsys.readouterr().out
    assert gateway.writes == []


async def test_a_file_is_planned_against_the_cluster(
    gateway: FakeGateway, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command(gateway, "plan", "-f", str(manifest)) == 0
    assert "PersistentVolumeClaim weights does not exist" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "needs a NAME or -f FILE"),
        (["plan", "tiny", "-f", "x"], "needs a NAME or -f FILE"),
        (["plan", "tiny", "--offline"], "--offline needs -f FILE"),
        (["plan", "-f", "/nowhere/x.yaml", "--offline"], "No such file"),
    ],
)
async def test_wrong_usage_is_explained(gateway: FakeGateway, arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await command(gateway, *arguments)


async def test_files_that_cannot_be_used_are_explained(manifest: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"layers": 3}')
    with pytest.raises(UsageError, match="the model facts lack"):
        await command(None, "plan", "-f", str(manifest), "--offline", "--facts", str(broken))
    manifest.write_text("kind: Secret\n")
    with pytest.raises(UsageError, match="has 0 objects of kind QuantizedModel"):
        await command(None, "plan", "-f", str(manifest), "--offline")
    manifest.write_text("{")
    with pytest.raises(UsageError, match=r"model\.yaml"):
        await command(None, "plan", "-f", str(manifest), "--offline")


async def test_an_invalid_spec_is_planned_with_its_problem(
    manifest: Path, facts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(yaml.safe_dump(a_model(quantization={"method": "INT3"})))
    assert await command(None, "plan", "-f", str(manifest), "--offline", "--facts", str(facts)) == 0
    assert "InvalidSpec" in capsys.readouterr().out


async def test_status_shows_everything_that_is_known(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    status = ready("Quantizing") | {
        "progress": {"stage": "Quantize", "done": 12, "total": 30, "unit": "layers", "etaSeconds": 40},
        "plan": {
            "digest": "5e0c",
            "artifact": {"bytes": 114000000, "ratio": "0.42"},
            "serving": {"why": "fits"},
        },
        "artifact": {"key": "sha256-1", "bytes": 114000000, "reused": True},
        "validation": {
            "verdict": "Passed",
            "measurements": [
                {
                    "name": "logits/cosine",
                    "value": "0.991",
                    "threshold": "0.985",
                    "verdict": "Passed",
                    "samples": 3072,
                },
                {"name": "perplexity/source", "value": "25.32"},
            ],
        },
        "serving": {"revision": "r1", "arguments": ["--model", "x"], "url": None},
        "history": [
            {"revision": "r0", "servedFrom": "2026-01-01T00:00:00Z", "servedUntil": "2026-01-02T00:00:00Z"}
        ],
        "facts": {"source": {"revision": "sha256-ab"}},
    }
    gateway.put({**a_model(), "status": status})
    assert await command(gateway, "status", "tiny") == 0
    text = capsys.readouterr().out
    for words in (
        "claim weights, path tiny (revision sha256-ab)",
        "12 of 30 layers, about 40 s left",
        "114000000 (",
        "logits/cosine      0.991  0.985      Passed   3072",
        "perplexity/source  25.32  -          -        -",
        "arguments  --model x",
        "r0        2026-01-01T00:00:00Z  2026-01-02T00:00:00Z",
    ):
        assert words in text
    assert "url" not in text


async def test_status_of_a_new_generation_says_what_was_seen(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {**a_model(source={"huggingFace": {"repo": "a/b"}}), "status": {"observedGeneration": 1}}
    raw["metadata"]["generation"] = 2
    gateway.put(raw)
    await command(gateway, "status", "tiny")
    text = capsys.readouterr().out
    assert "2 (the operator has seen 1)" in text
    assert "a/b@main" in text


async def test_waiting_ends_with_ready(gateway: FakeGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.put({**a_model(), "status": ready("Serving", "True")})
    assert await command(gateway, "wait", "tiny") == 0
    assert capsys.readouterr().out == "Serving: in words\n"


async def test_waiting_ends_with_a_stalled_model(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.put({**a_model(), "status": ready("GateFailed", Stalled="True")})
    assert await command(gateway, "wait", "tiny") == 1
    assert capsys.readouterr().out == "GateFailed: in words\n"


async def test_an_old_generation_is_not_ready(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {**a_model(), "status": ready("Serving", "True")}
    raw["metadata"]["generation"] = 2
    gateway.put(raw)
    assert await command(gateway, "wait", "tiny", "--timeout", "10") == 1
    captured = capsys.readouterr()
    assert captured.out == "Serving: in words\n", "a line only when something changed"
    assert "not Ready within 10 s" in captured.err


async def test_a_model_nobody_looked_at_is_pending(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.put(a_model())
    assert await command(gateway, "wait", "tiny", "--timeout", "1") == 1
    assert "the operator has not looked at it yet" in capsys.readouterr().out


async def test_waiting_survives_a_short_outage_and_not_a_missing_model(gateway: FakeGateway) -> None:
    with pytest.raises(NotFound):
        await command(gateway, "wait", "tiny")
    gateway.errors["get", "quantizedmodels"] = ApiError(403, "Forbidden", "no")
    with pytest.raises(ApiError, match="no"):
        await command(gateway, "wait", "tiny")
    gateway.put({**a_model(), "status": ready("Serving", "True")})
    gateway.errors.clear()
    answers = [ApiError(503, "", "busy"), ApiError(0, "", "no answer")]
    live = gateway.get

    async def flaky(*arguments: Any) -> Json:
        if answers:
            raise answers.pop()
        return await live(*arguments)

    gateway.get = flaky  # type: ignore[method-assign]
    assert await command(gateway, "wait", "tiny") == 0


async def test_logs_are_of_the_newest_pod_and_readable(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    model = gateway.put(a_model())
    job = gateway.put(a_job("j", model, "quantize"))
    for name, created in (("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-02T00:00:00Z")):
        pod = a_pod(name, job, "tiny", "quantize")
        pod["metadata"]["creationTimestamp"] = created
        gateway.put(pod)
    progress = {"ts": "2026-01-02T03:04:05Z", "level": "info", "event": "progress", "done": 3, "total": 30}
    started = {
        "ts": "2026-01-02T03:04:04Z",
        "level": "info",
        "event": "started",
        "message": "loads the model",
    }
    gateway.logs["models", "new"] = "\n".join([json.dumps(started), json.dumps(progress), "plain", "[1]"])
    assert await command(gateway, "logs", "tiny", "--stage", "quantize") == 0
    assert capsys.readouterr().out.splitlines() == [
        "# new",
        "03:04:04 info    loads the model",
        "03:04:05 info    3 of 30",
        "plain",
        "[1]",
    ]
    with pytest.raises(UsageError, match="has no pod of stage serve"):
        await command(gateway, "logs", "tiny", "--stage", "serve")


def kubeconfig(path: Path, **more: Any) -> str:
    contexts = [
        {"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}},
        {"name": "b", "context": {"cluster": "c", "user": "u"}},
    ]
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": contexts,
                **more,
            }
        )
    )
    return str(path)


def test_the_namespace_is_the_contexts(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", **{"current-context": "a"})
    assert current_namespace(path) == "team-a"
    assert current_namespace(path, "b") == "default"
    assert current_namespace(f"/nowhere:{path}") == "team-a"
    assert current_namespace("/nowhere") == "default"


def test_problems_become_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = kubeconfig(tmp_path / "k", **{"current-context": "a"})
    assert main(["status", "tiny", "--kubeconfig", path]) == 1
    assert "127.0.0.1" in capsys.readouterr().err
    assert main(["plan", "--kubeconfig", path]) == 2
    assert "needs a NAME or -f FILE" in capsys.readouterr().err
    assert main(["status", "tiny", "--kubeconfig", str(tmp_path / "none")]) == 2
    with pytest.raises(SystemExit) as caught:
        main(["fly"])
    assert caught.value.code == 2


def test_a_file_is_planned_from_the_command_line(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(manifest), "--offline"]) == 0
    assert "Inspecting" in capsys.readouterr().out


async def test_commands_that_read_the_cluster_need_one() -> None:
    with pytest.raises(UsageError, match="needs a cluster"):
        await command(None, "status", "tiny")
    assert resources.MODELS.plural == "quantizedmodels"
