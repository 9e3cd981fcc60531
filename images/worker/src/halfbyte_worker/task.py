"""The task file: what the operator asks of one run. Unknown fields are refused: no typo becomes a default."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from halfbyte_worker.failure import Failure, Reason

Key = Annotated[str, StringConstraints(pattern=r"^sha256-[0-9a-f]{64}$")]
# One folder name: neither hidden, where staging and sources are, nor outside the claim.
FolderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]


class Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid", strict=True
    )


class ModelName(Part):
    name: str
    namespace: str


class HubSource(Part):
    type: Literal["huggingFace"]
    repo: Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
    revision: Annotated[str, StringConstraints(min_length=1, max_length=255)] = "main"
    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://")] | None = None


class ClaimSource(Part):
    type: Literal["pvc"]
    path: str = ""
    revision: Key | None = None

    @field_validator("path")
    @classmethod
    def inside_claim(cls, path: str) -> str:
        if path.startswith("/") or ".." in Path(path).parts:
            raise ValueError("must be a path inside the claim, without a leading slash and without '..'")
        return path


Source = Annotated[HubSource | ClaimSource, Field(discriminator="type")]


class Compute(Part):
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: Annotated[int, Field(ge=0)] = 0


class BuiltinCorpus(Part):
    builtin: Literal["prose"]


class Calibration(Part):
    source: BuiltinCorpus
    samples: Annotated[int, Field(ge=1)]
    sequence_length: Annotated[int, Field(ge=8)]
    seed: int = 0


class Quantization(Part):
    method: Literal["AWQ", "GPTQ", "W8A8", "None"]
    bits: Literal[4, 8] | None = None
    group_size: Annotated[int, Field(ge=8)] | None = None
    symmetric: bool | None = None
    ignore: tuple[str, ...] = ()
    calibration: Calibration | None = None

    def missing(self) -> list[str]:
        """Names of the fields that the method needs and the task leaves out."""
        needed = ("bits", "group_size", "symmetric", "calibration") if self.method in ("AWQ", "GPTQ") else ()
        return [to_camel(name) for name in needed if getattr(self, name) is None]


class Artifact(Part):
    key: Key
    path: FolderName


class ArtifactRoot(Part):
    root: str


class LogitsGate(Part):
    min_cosine_similarity: Decimal


class PerplexityGate(Part):
    max_increase_percent: Decimal


class GenerationGate(Part):
    prompt_tokens: Annotated[int, Field(ge=1)]
    new_tokens: Annotated[int, Field(ge=1)]
    max_repetition: Decimal


class Validation(Part):
    logits: LogitsGate | None = None
    perplexity: PerplexityGate | None = None
    generation: GenerationGate | None = None
    corpus: BuiltinCorpus
    samples: Annotated[int, Field(ge=1)]
    sequence_length: Annotated[int, Field(ge=8)]
    on_failure: Literal["Block", "Warn"] = "Block"


class InspectTask(Part):
    version: Literal[1]
    model: ModelName
    source: Source
    compute: Compute = Compute()
    artifact: ArtifactRoot | None = None


class QuantizeTask(Part):
    version: Literal[1]
    model: ModelName
    source: Source
    compute: Compute
    quantization: Quantization
    artifact: Artifact


class ValidateTask(Part):
    version: Literal[1]
    model: ModelName
    source: Source
    compute: Compute
    artifact: Artifact
    validation: Validation


Task = InspectTask | QuantizeTask | ValidateTask
TASKS: dict[str, type[Task]] = {"inspect": InspectTask, "quantize": QuantizeTask, "validate": ValidateTask}


def read_task(stage: str, path: Path) -> Task:
    """The checked task of one stage.

    Raises:
        Failure: InvalidTask, with every fault by the name of its field.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise Failure(Reason.INVALID_TASK, f"cannot read the task file {path}: {error.strerror}") from error
    try:
        task = TASKS[stage].model_validate_json(text)
    except ValidationError as error:
        raise Failure(Reason.INVALID_TASK, f"{path}: {describe_faults(error)}") from error
    if isinstance(task, QuantizeTask) and (missing := task.quantization.missing()):
        names = ", ".join(f"quantization.{name}" for name in missing)
        raise Failure(Reason.INVALID_TASK, f"{path}: {task.quantization.method} needs {names}")
    return task


def describe_faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'task'}: {fault['msg']}" for fault in faults)
