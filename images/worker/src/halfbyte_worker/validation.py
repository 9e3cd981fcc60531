"""Validate: the artifact's quality, measured against the unquantized source, and whether the gates are met.

Measuring takes minutes, judging nothing. So what was measured is kept beside the artifact, in a file named by
all that determines the numbers (not the thresholds), and a rerun with other thresholds only judges again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte_worker import __version__, artifact, log, node
from halfbyte_worker.corpus import EVALUATION, corpus_digest, read_corpus, spread_windows
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.gates import FAILED, GenerationValues, TextValues, describe_failed, judge
from halfbyte_worker.language_model import (
    load_artifact,
    load_model,
    load_tokenizer,
    prepare_libraries,
    tokenize,
)
from halfbyte_worker.source import open_source
from halfbyte_worker.task import ValidateTask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MEASURES_VERSION = 1
"""Raise when a measurement is computed in another way, so that kept ones are not used."""


def validate(task: ValidateTask) -> dict[str, Any]:
    """Result of the stage.

    Raises:
        Failure: GateFailed, with the same result, when a gate is missed and the task says Block.
    """
    started = time.monotonic()
    folder, manifest = artifact.require_artifact(task.artifact.key, task.artifact.path)
    session = Session(task, folder, manifest)
    text, generation, reused = session.values()
    verdict, rows = judge(task.validation, text, generation)
    reference = {"revision": session.revision, "corpusDigest": session.corpus}
    result = {
        "verdict": verdict,
        "measurements": rows,
        "reference": reference,
        "report": write_report(task, folder, verdict, rows, reference, generation),
        "reused": reused,
        "seconds": round(time.monotonic() - started, 1),
    }
    log.info("judged", verdict=verdict, peakRssBytes=node.peak_rss_bytes())
    if verdict == FAILED:
        message = f"quality gate missed: {describe_failed(rows)}"
        if task.validation.on_failure == "Block":
            raise Failure(Reason.GATE_FAILED, message, result=result)
        return {"message": f"{message}; onFailure is Warn", **result}
    shown = ", ".join(f"{row['name']} {row['value']}" for row in rows[:2])
    return {"message": f"all gates met: {shown}", **result}


class Session:
    """One validation: gives kept values, or loads the models once and measures."""

    def __init__(self, task: ValidateTask, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.task, self.folder = task, folder
        self.revision = manifest["source"].get("revision")
        self.corpus = corpus_digest(task.validation.corpus.builtin, EVALUATION)
        self.candidate: PreTrainedModel | None = None

    def values(self) -> tuple[TextValues, GenerationValues | None, bool]:
        """Text and generation values, and whether all were kept ones."""
        wanted = self.task.validation
        text_key = {"samples": wanted.samples, "sequenceLength": wanted.sequence_length}
        text, kept = self.kept("text", text_key, self.measure_text)
        if wanted.generation is None:
            return TextValues(**text), None, kept
        gate = wanted.generation
        generation_key = {"promptTokens": gate.prompt_tokens, "newTokens": gate.new_tokens}
        generation, also_kept = self.kept("generation", generation_key, self.measure_generation)
        generation["segments"] = tuple(generation["segments"])
        return TextValues(**text), GenerationValues(**generation), kept and also_kept

    def kept(
        self, kind: str, parameters: Mapping[str, Any], measure: Callable[[], Any]
    ) -> tuple[dict[str, Any], bool]:
        """The values of the file that these parameters name; measured and written when there is none."""
        determined_by = {
            "version": MEASURES_VERSION,
            "kind": kind,
            "artifact": self.task.artifact.key,
            "corpus": self.corpus,
            "dtype": self.task.compute.dtype,
            **parameters,
        }
        digest = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"halfbyte-{kind}-{digest[:16]}.json"
        try:
            return json.loads(path.read_text())["values"], True
        except (OSError, ValueError, KeyError):
            values = asdict(measure())
        record = {
            "determinedBy": determined_by,
            "measuredAt": log.timestamp(),
            "worker": __version__,
            "values": values,
        }
        artifact.write_atomically(path, json.dumps(record, indent=2).encode())
        return values, False

    def measure_text(self) -> TextValues:
        source_folder = open_source(self.task.source).local_folder("validate")
        candidate = self.load_candidate()
        from halfbyte_worker import measurement

        wanted = self.task.validation
        windows = spread_windows(self.tokens(), wanted.samples, wanted.sequence_length)
        log.info("loading", message="loading the source")
        source = load_model(source_folder, self.task.compute.dtype)
        progress = log.Progress(
            "validate", len(windows), "samples", "logits and perplexity of source and artifact"
        )
        return measurement.measure_text(source, candidate, windows, progress.update)

    def measure_generation(self) -> GenerationValues:
        candidate = self.load_candidate()
        from halfbyte_worker import measurement

        gate = self.task.validation.generation
        assert gate is not None  # noqa: S101 - values() asks only then
        prompt = self.tokens()[: gate.prompt_tokens]
        stops = candidate.generation_config.eos_token_id if candidate.generation_config else None
        ids = stops if isinstance(stops, list) else [stops]
        progress = log.Progress("validate", gate.new_tokens, "tokens", "long generation with the artifact")
        return measurement.measure_generation(
            candidate, prompt, gate.new_tokens, frozenset(ids) - {None}, progress.update
        )

    def load_candidate(self) -> PreTrainedModel:
        if self.candidate is None:
            prepare_libraries(self.task.compute)
            log.info("loading", message="loading the artifact")
            self.candidate = load_artifact(self.folder, self.task.compute.dtype)
        return self.candidate

    def tokens(self) -> list[int]:
        return tokenize(
            load_tokenizer(self.folder), read_corpus(self.task.validation.corpus.builtin, EVALUATION)
        )


def write_report(
    task: ValidateTask,
    folder: Path,
    verdict: str,
    rows: list[dict[str, Any]],
    reference: Mapping[str, Any],
    generation: GenerationValues | None,
) -> dict[str, str]:
    """Write the full report beside the artifact; gives its name and digest, both decided by its content."""
    report = {
        "version": 1,
        "artifact": task.artifact.model_dump(mode="json", by_alias=True),
        "validation": task.validation.model_dump(mode="json", by_alias=True),
        "compute": {"dtype": task.compute.dtype},
        "reference": reference,
        "verdict": verdict,
        "measurements": rows,
        "generation": asdict(generation) if generation else None,
        "worker": __version__,
    }
    content = (json.dumps(report, indent=2, sort_keys=True) + "\n").encode()
    digest = hashlib.sha256(content).hexdigest()
    name = f"halfbyte-report-{digest[:8]}.json"
    artifact.write_atomically(folder / name, content)
    return {"path": name, "digest": f"sha256-{digest}"}
