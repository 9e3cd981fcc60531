"""Quantize: the artifact of a key is found finished, or made in a staging folder and published.

The calculation itself is llm-compressor's (oneshot); around it are the checks that must come before minutes
of work, the progress, and a checkpoint that vLLM loads. Weights are computed in the task's dtype and stored
in the source's.
"""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from halfbyte_worker import __version__, artifact, log, mounts, node
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.inspection import model_facts, read_config
from halfbyte_worker.language_model import load_model, load_tokenizer, prepare_libraries
from halfbyte_worker.safetensors_header import Header
from halfbyte_worker.sizes import artifact_bytes, check_group_size, effective_ignore, quantized_linears
from halfbyte_worker.source import CONFIG, INDEX, SIDE_FILES, Source, is_weights, open_source, read_headers
from halfbyte_worker.task import QuantizeTask

SIDE_BYTES = 64 << 20
"""Bytes. Room for tokenizer, configuration and directory entries in the check of free space."""


def quantize(task: QuantizeTask) -> dict[str, Any]:
    """Result of the stage: the artifact, made or reused."""
    wanted = task.artifact
    with artifact.writer_lock(wanted.path):
        artifact.remove_leftovers(wanted.path)
        folder = mounts.ARTIFACT_ROOT / wanted.path
        fault = artifact.damage(folder, wanted.key)
        if fault is None:
            return result(artifact.read_manifest(folder) or {}, wanted.path, reused=True)
        if folder.exists():
            log.warning("rebuilding", message=f"{fault}; it is made again")
        source = open_source(task.source)
        headers = read_headers(source)
        facts = model_facts(read_config(source), headers)
        check_before_work(task, source, headers, facts)
        local = source.local_folder("quantize")
        with artifact.staging_folder(wanted.path) as staging:
            manifest = fill(task, local, facts, headers, staging)
            manifest = artifact.publish(staging, wanted.path, manifest)
    return result(manifest, wanted.path, reused=False)


def check_before_work(
    task: QuantizeTask, source: Source, headers: Mapping[str, Header], facts: Mapping[str, Any]
) -> None:
    """Everything that can be known to fail from names and sizes alone.

    Raises:
        Failure: UnsupportedArchitecture, GroupSizeIndivisible or OutOfDisk.
    """
    recipe = task.quantization
    if facts["quantized"] and recipe.method != "None":
        message = f"the source is quantized already ({facts['quantized']}): use the original"
        raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message)
    if recipe.method != "None":
        linears = quantized_linears(headers, effective_ignore(recipe.ignore, facts["tiedEmbeddings"]))
        if not linears:
            message = f"{facts['architecture']}: ignore leaves no linear layer to quantize"
            raise Failure(Reason.UNSUPPORTED_ARCHITECTURE, message)
        check_group_size(linears, recipe.group_size)
    needed = artifact_bytes(headers, recipe, facts["tiedEmbeddings"]) + SIDE_BYTES
    require_space(mounts.ARTIFACT_ROOT, needed, "the artifact")


def require_space(folder: Path, needed: int, what: str) -> None:
    available = node.free_bytes(folder)
    if available is not None and available < needed:
        message = (
            f"{what} needs {needed >> 20} MiB on the artifact claim, {available >> 20} MiB are free;"
            " use a larger claim or delete artifacts that no model uses"
        )
        raise Failure(Reason.OUT_OF_DISK, message)


def fill(
    task: QuantizeTask, local: Path, facts: Mapping[str, Any], headers: Mapping[str, Header], staging: Path
) -> dict[str, Any]:
    """All files of the artifact but the manifest; gives the manifest's fields."""
    started = time.monotonic()
    if task.quantization.method == "None":
        work_started = log.timestamp()
        copy_weights(local, headers, staging)
    else:
        work_started = compress(task, local, facts, staging)
    copy_side_files(local, staging, task.quantization.method == "None")
    return {
        "key": task.artifact.key,
        "createdBy": {"worker": __version__, "platform": platform.machine(), **library_versions()},
        "createdAt": log.timestamp(),
        "workStartedAt": work_started,
        "source": task.source.model_dump(mode="json", by_alias=True),
        "sourceBytes": sum((local / name).stat().st_size for name in headers),
        "quantization": task.quantization.model_dump(mode="json", by_alias=True),
        "compute": task.compute.model_dump(mode="json", by_alias=True),
        "layers": facts["layers"],
        "seconds": round(time.monotonic() - started, 1),
        "peakRssBytes": node.peak_rss_bytes(),
    }


def library_versions() -> dict[str, str]:
    names = ("torch", "transformers", "llmcompressor", "compressed-tensors")
    return {name: version(name) for name in names}


def result(manifest: Mapping[str, Any], path: str, *, reused: bool) -> dict[str, Any]:
    method = manifest["quantization"]["method"]
    did = "reused" if reused else "made"
    seconds = 0 if reused else manifest["seconds"]
    return {
        "message": f"{method} artifact {path} {did}: {manifest['sourceBytes']} -> {manifest['bytes']} bytes",
        "key": manifest["key"],
        "path": path,
        "bytes": manifest["bytes"],
        "sourceBytes": manifest["sourceBytes"],
        "reused": reused,
        "method": method,
        "seconds": seconds,
        "layers": manifest["layers"],
        "peakRssBytes": node.peak_rss_bytes() if reused else manifest["peakRssBytes"],
        "workStartedAt": manifest["workStartedAt"],
    }


def copy_weights(local: Path, headers: Mapping[str, Header], staging: Path) -> None:
    """The safetensors files as they are.

    Those that this program fetched are linked. A user's own are copied: a link would change with them when
    they are overwritten in place.
    """
    if local.is_relative_to(mounts.ARTIFACT_ROOT):
        for name in headers:
            (staging / name).hardlink_to((local / name).resolve())
        return
    total = sum((local / name).stat().st_size for name in headers)
    progress = log.Progress("quantize", total, "bytes", "copying weights")
    done = 0
    progress.update(done)
    for name in headers:
        with (local / name).open("rb") as reader, (staging / name).open("wb") as writer:
            while chunk := reader.read(artifact.CHUNK * 8):
                writer.write(chunk)
                done += len(chunk)
                progress.update(done)


def copy_side_files(local: Path, staging: Path, with_config: bool) -> None:
    """Tokenizer, chat template and generation settings, byte for byte as the source has them."""
    made_here = () if with_config else (CONFIG, INDEX)
    for name in SIDE_FILES:
        if name not in made_here and (local / name).is_file():
            shutil.copyfile(local / name, staging / name)


def compress(task: QuantizeTask, local: Path, facts: Mapping[str, Any], staging: Path) -> str:
    """Quantize and save into `staging`; gives the time at which the libraries were loaded: work began."""
    prepare_libraries(task.compute)
    # Imported here: everything before, and a reused artifact, does without torch.
    from halfbyte_worker import compression

    compression.prepare()
    work_started = log.timestamp()
    tokenizer = load_tokenizer(local)
    model = load_model(local, task.compute.dtype)
    recipe = task.quantization
    ignore = effective_ignore(recipe.ignore, facts["tiedEmbeddings"])
    progress = log.Progress("quantize", facts["layers"], "layers", f"{recipe.method}: calibrating")
    compression.compress_model(model, tokenizer, recipe, ignore, progress.update)
    log.info("saving", message=f"writing the checkpoint in {facts['torchDtype']}")
    compression.save_model(model, facts["torchDtype"], staging)
    for path in staging.iterdir():
        if not (is_weights(path.name) or path.name in (CONFIG, INDEX)):
            path.unlink()
    return work_started
