"""Every method on a tiny model through the real llm-compressor: what comes out, and what is refused."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from halfbyte_worker import artifact, compression, mounts, node, quantization
from halfbyte_worker.corpus import EVALUATION, read_corpus, spread_windows
from halfbyte_worker.failure import Failure, Reason, classify_exception
from halfbyte_worker.language_model import load_artifact, load_model, load_tokenizer, tokenize
from halfbyte_worker.quantization import quantize
from halfbyte_worker.sizes import artifact_bytes
from halfbyte_worker.source import ClaimFolder, read_headers
from halfbyte_worker.task import ClaimSource
from worker.task_file import artifact_of, quantize_task
from worker.tiny_model import build_model, edit_json

METHODS = ("AWQ", "GPTQ", "W8A8", "None")


@pytest.fixture(scope="module")
def made(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict, Path]]:
    """Result and folder of each method, made once."""
    root = tmp_path_factory.mktemp("made")
    (root / "artifacts").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounts, "SOURCE_ROOT", tiny_model.parent)
        patch.setattr(mounts, "ARTIFACT_ROOT", root / "artifacts")
        results = {method: quantize(quantize_task(method)) for method in METHODS}
    return {method: (result, root / "artifacts" / result["path"]) for method, result in results.items()}


def source_headers(tiny_model: Path) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounts, "SOURCE_ROOT", tiny_model.parent)
        return read_headers(ClaimFolder(ClaimSource(type="pvc", path="tiny")))


@pytest.mark.parametrize("method", METHODS)
def test_result_tells_what_was_made(made, tiny_model: Path, method: str) -> None:
    result, folder = made[method]
    assert {key: result[key] for key in ("key", "path")} == artifact_of(method)
    assert result["bytes"] == (folder / "model.safetensors").stat().st_size
    assert result["sourceBytes"] == (tiny_model / "model.safetensors").stat().st_size
    assert (result["reused"], result["method"], result["layers"]) == (False, method, 2)
    assert result["workStartedAt"].endswith("Z")
    assert artifact.damage(folder, result["key"]) is None
    assert len(json.dumps(result)) < 1024


@pytest.mark.parametrize("method", METHODS)
def test_size_is_as_predicted(made, tiny_model: Path, method: str) -> None:
    """The planner promises half a percent; the header of a file this small is left out of it."""
    task = quantize_task(method)
    _, folder = made[method]
    tensors = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert artifact_bytes(source_headers(tiny_model), task.quantization, True) == tensors


@pytest.mark.parametrize(
    ("method", "form", "suffixes"),
    [
        ("AWQ", "pack-quantized", {"weight_packed", "weight_scale", "weight_shape", "weight_zero_point"}),
        ("GPTQ", "pack-quantized", {"weight_packed", "weight_scale", "weight_shape"}),
        ("W8A8", "int-quantized", {"weight", "weight_scale"}),
    ],
)
def test_checkpoint_is_what_the_server_reads(made, method: str, form: str, suffixes: set[str]) -> None:
    _, folder = made[method]
    config = json.loads((folder / "config.json").read_text())
    described = config["quantization_config"]
    assert (described["quant_method"], described["format"]) == ("compressed-tensors", form)
    assert described["ignore"] == ["lm_head"]
    assert config["tie_word_embeddings"] is True
    assert config["dtype"] == "bfloat16"
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    layer = "model.layers.1.mlp.down_proj."
    assert {name.removeprefix(layer) for name in tensors if name.startswith(layer)} == suffixes
    floating = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    assert floating == {torch.bfloat16}


@pytest.mark.parametrize("method", METHODS)
def test_tokenizer_and_generation_settings_are_the_sources(made, tiny_model: Path, method: str) -> None:
    _, folder = made[method]
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in tiny_model.iterdir()} | {artifact.MANIFEST}
    for name in names - {artifact.MANIFEST, "config.json", "model.safetensors"}:
        assert (folder / name).read_bytes() == (tiny_model / name).read_bytes()


@pytest.mark.parametrize(("method", "close"), [("AWQ", 0.84), ("GPTQ", 0.88), ("W8A8", 0.99), ("None", 1)])
def test_artifact_computes_nearly_what_the_source_does(made, tiny_model: Path, method: str, close) -> None:
    """Random weights are the worst case; plain rounding to 4 bits, symmetric, gives 0.83 here."""
    _, folder = made[method]
    tokens = tokenize(load_tokenizer(tiny_model), read_corpus("prose", EVALUATION))
    text = torch.tensor(spread_windows(tokens, 4, 64))
    with torch.no_grad():
        wanted = load_model(tiny_model, "float32")(text).logits
        found = load_artifact(folder, "float32")(text).logits
    cosine = torch.nn.functional.cosine_similarity(wanted, found, dim=-1).mean().item()
    assert cosine >= close - 1e-6
    if method != "None":
        assert not torch.equal(wanted, found)


def test_unquantized_artifact_is_the_source(made, tiny_model: Path) -> None:
    _, folder = made["None"]
    for name in ("model.safetensors", "config.json"):
        assert (folder / name).read_bytes() == (tiny_model / name).read_bytes()


def test_progress_is_told_by_layers(tiny: Path, capsys) -> None:
    quantize(quantize_task("GPTQ"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    told = [(line["done"], line["total"], line["unit"]) for line in lines if line["event"] == "progress"]
    assert told[0] == (0, 2, "layers")
    assert told[-1] == (2, 2, "layers")


@pytest.mark.parametrize("method", ["GPTQ", "AWQ"])
def test_same_task_gives_the_same_bytes(made, tiny: Path, method: str) -> None:
    result = quantize(quantize_task(method))
    again = mounts.ARTIFACT_ROOT / result["path"]
    for name in ("model.safetensors", "config.json"):
        assert (again / name).read_bytes() == (made[method][1] / name).read_bytes()


@pytest.fixture
def artifacts(made, tiny: Path) -> Path:
    """The artifact volume with the made artifact of method None."""
    folder = made["None"][1]
    shutil.copytree(folder, mounts.ARTIFACT_ROOT / folder.name)
    return mounts.ARTIFACT_ROOT


def test_finished_artifact_is_reused_without_the_libraries(artifacts: Path, monkeypatch) -> None:
    monkeypatch.setattr(quantization, "fill", lambda *_: pytest.fail("it was made again"))
    result = quantize(quantize_task("None"))
    assert (result["reused"], result["seconds"]) == (True, 0)


def test_reuse_does_not_need_the_source(artifacts: Path, tiny: Path) -> None:
    shutil.rmtree(tiny)
    assert quantize(quantize_task("None"))["reused"] is True


@pytest.mark.parametrize("harm", ["truncate", "manifest", "other key"])
def test_damaged_artifact_is_made_again(artifacts: Path, harm: str) -> None:
    folder = artifacts / artifact_of("None")["path"]
    if harm == "truncate":
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(100)
    elif harm == "manifest":
        (folder / artifact.MANIFEST).unlink()
    else:
        edit_json(folder / artifact.MANIFEST, key="sha256-" + "0" * 64)
    result = quantize(quantize_task("None"))
    assert result["reused"] is False
    assert artifact.damage(folder, result["key"]) is None


def test_source_that_changed_since_inspection_is_refused(tiny: Path) -> None:
    task = quantize_task("None")
    source = task.source.model_copy(update={"revision": "sha256-" + "0" * 64})
    with pytest.raises(Failure) as failed:
        quantize(task.model_copy(update={"source": source}))
    assert failed.value.reason == Reason.REVISION_NOT_FOUND
    assert "has changed since it was inspected" in failed.value.message


def test_group_size_is_refused_before_any_work(volumes: Path, monkeypatch) -> None:
    build_model(volumes / "source" / "tiny", hidden_size=96, head_dim=24)
    monkeypatch.setattr(quantization, "fill", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(Failure) as failed:
        quantize(quantize_task("GPTQ"))
    assert failed.value.reason == Reason.GROUP_SIZE_INDIVISIBLE
    assert "96 columns, not a multiple of groupSize 64; allowed here: 32" in failed.value.message


def test_quantized_source_is_refused(tiny: Path) -> None:
    edit_json(tiny / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(Failure, match="quantized already"):
        quantize(quantize_task("W8A8"))


def test_ignoring_everything_is_refused(tiny: Path) -> None:
    with pytest.raises(Failure, match="leaves no linear layer"):
        quantize(quantize_task("W8A8", ignore=["re:.*"]))


def test_unknown_architecture_is_refused(tiny: Path) -> None:
    edit_json(tiny / "config.json", architectures=["LlamaForSpeech"])
    with pytest.raises(Failure) as failed:
        quantize(quantize_task("GPTQ"))
    assert failed.value.reason == Reason.UNSUPPORTED_ARCHITECTURE
    assert "LlamaForCausalLM" in failed.value.message


def test_model_type_that_transformers_does_not_know(tiny: Path) -> None:
    """The architecture's name is known, the rest of the configuration is not."""
    edit_json(tiny / "config.json", model_type="llama9")
    with pytest.raises(Failure, match="transformers cannot load this model") as failed:
        quantize(quantize_task("W8A8"))
    assert failed.value.reason == Reason.UNSUPPORTED_ARCHITECTURE


def test_source_without_tokenizer_cannot_be_calibrated(tiny: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / name).unlink()
    with pytest.raises(Failure) as failed:
        quantize(quantize_task("GPTQ"))
    assert failed.value.reason == Reason.SOURCE_INCOMPLETE


def test_too_little_space_is_known_before_the_work(tiny: Path, monkeypatch) -> None:
    monkeypatch.setattr(node, "free_bytes", lambda _: 1 << 20)
    monkeypatch.setattr(quantization, "fill", lambda *_: pytest.fail("it began to work"))
    with pytest.raises(Failure) as failed:
        quantize(quantize_task("W8A8"))
    assert failed.value.reason == Reason.OUT_OF_DISK
    assert "needs 64 MiB on the artifact claim, 1 MiB are free" in failed.value.message


@pytest.fixture
def small_disk(volumes: Path):
    """A real file system of 300 KB on the artifact volume."""
    folder = volumes / "artifacts"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("method", ["W8A8", "None"])
def test_full_disk_leaves_nothing_half_done(small_disk: Path, tiny: Path, monkeypatch, method: str) -> None:
    monkeypatch.setattr(node, "free_bytes", lambda _: None)
    with pytest.raises(BaseException) as failed:
        quantize(quantize_task(method))
    failure = classify_exception(failed.value)
    assert (failure.reason, failure.code) == (Reason.OUT_OF_DISK, 40)
    assert [path.name for path in small_disk.iterdir() if path.is_dir()] == []


def test_weights_of_a_user_are_copied(tiny: Path) -> None:
    """A link would follow the user's file when it is overwritten in place, and the artifact with it."""
    result = quantize(quantize_task("None"))
    (tiny / "model.safetensors").write_bytes(b"other")
    assert artifact.damage(mounts.ARTIFACT_ROOT / result["path"], result["key"]) is None


def test_weights_that_were_fetched_are_linked(tiny: Path, tiny_model: Path) -> None:
    fetched = shutil.copytree(tiny, mounts.ARTIFACT_ROOT / ".sources" / "tiny")
    staging = mounts.ARTIFACT_ROOT / "staging"
    staging.mkdir()
    quantization.copy_weights(fetched, source_headers(tiny_model), staging)
    assert (staging / "model.safetensors").samefile(fetched / "model.safetensors")


def test_fewer_samples_than_asked_for_are_said(tiny: Path, capsys) -> None:
    calibration = {"source": {"builtin": "prose"}, "samples": 3, "sequenceLength": 200_000, "seed": 0}
    task = quantize_task("GPTQ", calibration=calibration)
    batches = compression.calibration_batches(task.quantization.calibration, load_tokenizer(tiny))
    assert len(list(batches)) == 2
    assert "has 2 samples, not 3" in capsys.readouterr().out


def test_short_windows_share_a_forward_pass(tiny: Path) -> None:
    calibration = {"source": {"builtin": "prose"}, "samples": 20, "sequenceLength": 256, "seed": 0}
    task = quantize_task("GPTQ", calibration=calibration)
    batches = list(compression.calibration_batches(task.quantization.calibration, load_tokenizer(tiny)))
    assert [tuple(each["input_ids"].shape) for each in batches] == [(8, 256), (8, 256), (4, 256)]
