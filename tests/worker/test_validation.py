"""From artifact to verdict: measured once, judged as often as thresholds change."""

import json
import shutil
from pathlib import Path

import pytest

from halfbyte_worker import mounts, validation
from halfbyte_worker.failure import ExitCode, Failure, Reason
from halfbyte_worker.quantization import quantize
from halfbyte_worker.validation import validate
from worker.task_file import artifact_of, quantize_task, validate_task


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifact volume with one W8A8 artifact."""
    root = tmp_path_factory.mktemp("artifacts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounts, "SOURCE_ROOT", tiny_model.parent)
        patch.setattr(mounts, "ARTIFACT_ROOT", root)
        quantize(quantize_task("W8A8"))
    return root


@pytest.fixture
def folder(made: Path, tiny: Path) -> Path:
    """The artifact, fresh for each test."""
    path = artifact_of("W8A8")["path"]
    return Path(shutil.copytree(made / path, mounts.ARTIFACT_ROOT / path))


ARTIFACT = artifact_of("W8A8")


def by_name(result: dict) -> dict[str, dict]:
    return {row["name"]: row for row in result["measurements"]}


def test_good_artifact_passes_with_evidence(folder: Path, capsys) -> None:
    result = validate(validate_task(ARTIFACT))
    rows = by_name(result)
    assert result["verdict"] == "Passed"
    assert float(rows["logits/cosine"]["value"]) > 0.99
    assert rows["logits/cosine"]["samples"] == 96
    increase = float(rows["perplexity/artifact"]["value"]) / float(rows["perplexity/source"]["value"]) - 1
    assert float(rows["perplexity/increasePercent"]["value"]) == pytest.approx(100 * increase, abs=0.01)
    assert rows["generation/repetition"]["samples"] == 24
    assert result["reference"]["corpusDigest"].startswith("sha256-")
    assert len(json.dumps(result)) < 2048
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ends = [(line["done"], line["unit"]) for line in told if line["event"] == "progress"]
    assert (2, "samples") in ends
    assert ends[-1] == (24, "tokens")


def test_report_is_named_by_its_content_and_complete(folder: Path) -> None:
    import hashlib

    result = validate(validate_task(ARTIFACT))
    content = (folder / result["report"]["path"]).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert result["report"] == {"path": f"halfbyte-report-{digest[:8]}.json", "digest": f"sha256-{digest}"}
    report = json.loads(content)
    assert report["verdict"] == "Passed"
    assert report["measurements"] == result["measurements"]
    assert report["artifact"] == ARTIFACT
    assert len(report["generation"]["segments"]) == 1


def test_other_thresholds_only_judge_again(folder: Path, monkeypatch) -> None:
    first = validate(validate_task(ARTIFACT))
    monkeypatch.setattr(validation.Session, "load_candidate", lambda _: pytest.fail("it measured again"))
    strict = validate_task(ARTIFACT, logits={"minCosineSimilarity": "1"})
    with pytest.raises(Failure) as failed:
        validate(strict)
    again = failed.value.result
    assert again["reused"] is True
    assert again["verdict"] == "Failed"
    assert by_name(again)["logits/cosine"]["value"] == by_name(first)["logits/cosine"]["value"]
    assert again["report"] != first["report"]


@pytest.mark.parametrize("change", [{"samples": 1}, {"sequenceLength": 32}])
def test_other_windows_are_measured(folder: Path, change: dict) -> None:
    validate(validate_task(ARTIFACT))
    result = validate(validate_task(ARTIFACT, **change))
    assert result["reused"] is False


def test_missed_gate_blocks_with_its_numbers(folder: Path) -> None:
    task = validate_task(ARTIFACT, logits={"minCosineSimilarity": "1"}, generation=None)
    with pytest.raises(Failure) as failed:
        validate(task)
    failure = failed.value
    assert (failure.reason, failure.code) == (Reason.GATE_FAILED, ExitCode.GATE_FAILED)
    assert "logits/cosine 0.99" in failure.message
    assert "needed: at least 1" in failure.message
    assert failure.result["verdict"] == "Failed"
    assert "generation/repetition" not in by_name(failure.result)


def test_missed_gate_warns_with_the_same_result(folder: Path) -> None:
    gates = {"logits": {"minCosineSimilarity": "1"}, "generation": None}
    with pytest.raises(Failure) as failed:
        validate(validate_task(ARTIFACT, **gates))
    warned = validate(validate_task(ARTIFACT, onFailure="Warn", **gates))
    assert warned["verdict"] == "Failed"
    assert warned["measurements"] == failed.value.result["measurements"]
    assert "onFailure is Warn" in warned["message"]


def test_artifact_without_manifest_is_refused(folder: Path) -> None:
    (folder / "halfbyte.json").unlink()
    with pytest.raises(Failure) as failed:
        validate(validate_task(ARTIFACT))
    assert failed.value.reason == Reason.ARTIFACT_CORRUPT
    assert "quantize again" in failed.value.message


def test_truncated_artifact_is_refused(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(Failure) as failed:
        validate(validate_task(ARTIFACT))
    assert failed.value.reason == Reason.ARTIFACT_CORRUPT


def test_damaged_measurements_are_made_again(folder: Path) -> None:
    validate(validate_task(ARTIFACT))
    for path in folder.glob("halfbyte-text-*.json"):
        path.write_text('{"determinedBy"')
    assert validate(validate_task(ARTIFACT))["reused"] is False


def test_unquantized_artifact_equals_its_source(tiny: Path) -> None:
    quantize(quantize_task("None"))
    result = validate(validate_task(artifact_of("None"), logits={"minCosineSimilarity": "1"}))
    rows = by_name(result)
    assert rows["logits/cosine"]["value"] == "1.0000"
    assert rows["perplexity/increasePercent"]["value"] == "0.00"


def test_source_that_is_gone_is_named(folder: Path, tiny: Path) -> None:
    shutil.rmtree(tiny)
    with pytest.raises(Failure) as failed:
        validate(validate_task(ARTIFACT))
    assert failed.value.reason == Reason.SOURCE_NOT_FOUND
