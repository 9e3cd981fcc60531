import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.task import InspectTask, QuantizeTask, ValidateTask, read_task

KEY = "sha256-" + "a" * 64
COMMON: dict[str, Any] = {
    "version": 1,
    "model": {"name": "m", "namespace": "models"},
    "source": {"type": "pvc", "path": "llama"},
    "compute": {"dtype": "float32", "threads": 2},
}
QUANTIZE: dict[str, Any] = COMMON | {
    "quantization": {
        "method": "AWQ",
        "bits": 4,
        "groupSize": 64,
        "symmetric": False,
        "ignore": ["lm_head"],
        "calibration": {"source": {"builtin": "prose"}, "samples": 8, "sequenceLength": 256, "seed": 0},
    },
    "artifact": {"key": KEY, "path": "awq-aaaa"},
}
VALIDATE: dict[str, Any] = COMMON | {
    "artifact": {"key": KEY, "path": "awq-aaaa"},
    "validation": {
        "logits": {"minCosineSimilarity": "0.985"},
        "perplexity": {"maxIncreasePercent": "5"},
        "generation": None,
        "corpus": {"builtin": "prose"},
        "samples": 6,
        "sequenceLength": 512,
        "onFailure": "Block",
    },
}


def with_change(task: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field changed; `value` Ellipsis removes it."""
    copy: dict[str, Any] = json.loads(json.dumps(task))
    *parents, last = path.split(".")
    place = copy
    for name in parents:
        place = place[name]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copy


def read(tmp_path: Path, stage: str, task: Any) -> Any:
    path = tmp_path / "task.json"
    path.write_text(task if isinstance(task, str) else json.dumps(task))
    return read_task(stage, path)


def refusal(tmp_path: Path, stage: str, task: Any) -> str:
    with pytest.raises(Failure) as caught:
        read(tmp_path, stage, task)
    assert (caught.value.reason, caught.value.code) == (Reason.INVALID_TASK, 2)
    return caught.value.message


def test_quantize_task(tmp_path: Path) -> None:
    task = read(tmp_path, "quantize", QUANTIZE)
    assert isinstance(task, QuantizeTask)
    assert (task.quantization.group_size, task.quantization.ignore) == (64, ("lm_head",))
    assert task.quantization.calibration.sequence_length == 256
    assert (task.artifact.key, task.compute.threads, task.source.path) == (KEY, 2, "llama")


def test_validate_task_reads_thresholds_as_decimals(tmp_path: Path) -> None:
    task = read(tmp_path, "validate", VALIDATE)
    assert isinstance(task, ValidateTask)
    assert task.validation.logits.min_cosine_similarity == Decimal("0.985")
    assert task.validation.generation is None


def test_inspect_task_of_a_hub(tmp_path: Path) -> None:
    source = {"type": "huggingFace", "repo": "owner/name", "revision": "main", "endpoint": None}
    task = read(tmp_path, "inspect", COMMON | {"source": source, "artifact": {"root": "/halfbyte/artifacts"}})
    assert isinstance(task, InspectTask)
    assert (task.source.repo, task.source.revision, task.source.endpoint) == ("owner/name", "main", None)


def test_w8a8_needs_no_calibration(tmp_path: Path) -> None:
    quantization = {"method": "W8A8", "bits": 8, "groupSize": None, "symmetric": True, "ignore": []}
    task = read(tmp_path, "quantize", QUANTIZE | {"quantization": quantization | {"calibration": None}})
    assert task.quantization.calibration is None


def test_a_task_cannot_be_changed(tmp_path: Path) -> None:
    task = read(tmp_path, "quantize", QUANTIZE)
    with pytest.raises(ValueError, match="frozen"):
        task.artifact.path = "other"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("version", "1"),
        ("model.name", 7),
        ("model.namespace", ...),
        ("source.path", "/etc"),
        ("source.path", "a/../../b"),
        ("source.revision", "main"),
        ("compute.dtype", "float16"),
        ("compute.threads", -1),
        ("compute.threads", True),
        ("quantization.method", "INT3"),
        ("quantization.bits", 3),
        ("quantization.groupSize", "64"),
        ("quantization.groupSize", None),
        ("quantization.symmetric", None),
        ("quantization.calibration", None),
        ("quantization.calibration.samples", 0),
        ("quantization.calibration.source.builtin", "poems"),
        ("quantization.surprise", 1),
        ("artifact.key", "sha256-short"),
        ("artifact.path", "../elsewhere"),
        ("artifact.path", ".hidden"),
        ("artifact", ...),
        ("surprise", 1),
    ],
)
def test_a_refusal_names_the_field(tmp_path: Path, path: str, value: Any) -> None:
    assert path.rpartition(".")[2] in refusal(tmp_path, "quantize", with_change(QUANTIZE, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("validation.samples", 0),
        ("validation.onFailure", "Ignore"),
        ("validation.logits.minCosineSimilarity", "high"),
        ("validation.corpus", ...),
    ],
)
def test_a_refusal_of_a_validation_names_the_field(tmp_path: Path, path: str, value: Any) -> None:
    assert path in refusal(tmp_path, "validate", with_change(VALIDATE, path, value))


@pytest.mark.parametrize("repo", ["", "a/b/c", "owner/../name", "owner /name", "https://hub/owner/name"])
def test_a_repository_that_is_no_name_is_refused(tmp_path: Path, repo: str) -> None:
    source = {"type": "huggingFace", "repo": repo, "revision": "main", "endpoint": None}
    assert "repo" in refusal(tmp_path, "inspect", COMMON | {"source": source})


@pytest.mark.parametrize(
    "source", [{"type": "s3"}, {"path": "x"}, {"type": "pvc", "path": "", "repo": "a/b"}, None]
)
def test_a_source_that_is_none_of_the_two_is_refused(tmp_path: Path, source: Any) -> None:
    assert "source" in refusal(tmp_path, "inspect", COMMON | {"source": source})


def test_what_is_no_json_object_is_refused(tmp_path: Path) -> None:
    assert "JSON" in refusal(tmp_path, "inspect", "{")
    assert "task" in refusal(tmp_path, "inspect", [])


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"cannot read the task file .*nothing\.json: No such file") as caught:
        read_task("inspect", tmp_path / "nothing.json")
    assert caught.value.code == 2


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    task = with_change(with_change(QUANTIZE, "version", 2), "artifact.key", "x")
    message = refusal(tmp_path, "quantize", task)
    assert "version" in message
    assert "artifact.key" in message
