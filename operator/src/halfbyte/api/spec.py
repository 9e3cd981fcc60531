"""What a user writes: ``spec`` of a QuantizedModel. CEL rules stand beside the models that they judge.

Nothing in the spec is immutable save that a claim made by the operator cannot shrink: every other change
makes new Jobs or a new revision under a new name, and the old revision serves until the new one is ready.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from halfbyte.api.fields import (
    Decimal,
    LooseQuantity,
    ObjectName,
    Quantity,
    SecretKey,
    Struct,
    atomic,
    int_or_auto,
    keyed,
    rule,
    rules,
    unique,
)

OWNED_ARGUMENTS = (
    "--api-key",
    "--config",
    "--data-parallel-size",
    "--dtype",
    "--enforce-eager",
    "--gpu-memory-utilization",
    "--host",
    "--kv-cache-dtype",
    "--max-model-len",
    "--model",
    "--pipeline-parallel-size",
    "--port",
    "--quantization",
    "--revision",
    "--root-path",
    "--served-model-name",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--tensor-parallel-size",
    "--tokenizer",
    "--uds",
    "-dp",
    "-pp",
    "-q",
    "-tp",
)
"""Server arguments that the plan decides, or that would break the probes; ``extraArgs`` may not name them."""

# The engine's parser takes underscores for dashes.
OWNED_PATTERN = f"^({'|'.join(OWNED_ARGUMENTS).replace('-', '[-_]')})(=.*)?$"


class SecretKeyRef(Struct):
    """One key of a Secret in the model's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field(default="token", description="Key within the Secret.")


class HuggingFaceSource(Struct):
    """A repository on a Hugging Face hub or a mirror of one."""

    repo: Annotated[
        str, Field(min_length=1, max_length=200, pattern=r"^[-._A-Za-z0-9]+(/[-._A-Za-z0-9]+)?$")
    ] = Field(description="Repository, such as HuggingFaceTB/SmolLM2-135M-Instruct.")
    revision: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[-._/A-Za-z0-9]+$")] = Field(
        default="main",
        description="Branch, tag or commit. Status pins the commit; halfbyte.dev/requested-at looks again.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Access token for gated or private repositories; Jobs get it as a variable.",
    )
    endpoint: Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s@]+$")] | None = Field(
        default=None, description="URL of a mirror; the public hub when absent."
    )


class ClaimSource(Struct):
    """A Hugging Face model directory on a PersistentVolumeClaim."""

    claim_name: ObjectName = Field(
        description="Claim in the model's namespace that holds the model. It is never written to."
    )
    path: Annotated[str, Field(max_length=512, pattern=r"^([^/.\s][^/\s]*(/[^/.\s][^/\s]*)*)?$")] = Field(
        default="", description="Directory of config.json within the claim; the claim's root when empty."
    )


class Source(Struct):
    """Where the unquantized model comes from: exactly one member."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.huggingFace) ? 1 : 0) + (has(self.pvc) ? 1 : 0) == 1",
                "exactly one of huggingFace and pvc must be set",
            )
        )
    )
    hugging_face: HuggingFaceSource | None = Field(
        default=None, description="A repository on a Hugging Face hub."
    )
    pvc: ClaimSource | None = Field(default=None, description="A directory on a PersistentVolumeClaim.")


class Corpus(Struct):
    """A text to calibrate with or to measure on."""

    builtin: Literal["prose"] = Field(default="prose", description="A text that the worker image carries.")


class ResourceAmounts(Struct):
    """CPU and memory as Kubernetes quantities."""

    cpu: LooseQuantity | None = Field(default=None, description="Cores, such as 4 or 500m.")
    memory: LooseQuantity | None = Field(default=None, description="Bytes, such as 16Gi.")


class Resources(Struct):
    """Requests and limits; what is absent comes from the plan."""

    requests: ResourceAmounts = Field(default=ResourceAmounts(), description="What the scheduler sets aside.")
    limits: ResourceAmounts = Field(default=ResourceAmounts(), description="What is never exceeded.")


class Calibration(Struct):
    """Text that the method watches activations on."""

    source: Corpus = Field(default=Corpus(), description="The text.")
    samples: int = Field(default=256, ge=1, le=8192, description="Number of samples.")
    sequence_length: int = Field(default=512, ge=16, le=32768, description="Tokens in a sample.")
    seed: int = Field(default=0, ge=0, le=2147483647, description="Seed of the choice of samples.")


class Quantization(Struct):
    """The recipe. Together with the source's revision it names the artifact."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.bits) || !(self.method in ['AWQ', 'GPTQ']) || self.bits == 4",
                "methods AWQ and GPTQ work with bits 4",
                fieldPath=".bits",
            ),
            rule(
                "!has(self.bits) || self.method != 'W8A8' || self.bits == 8",
                "method W8A8 works with bits 8",
                fieldPath=".bits",
            ),
            rule(
                "self.method in ['AWQ', 'GPTQ'] || !has(self.groupSize)",
                "groupSize belongs to the methods AWQ and GPTQ",
                fieldPath=".groupSize",
            ),
            rule(
                "self.method != 'W8A8' || !has(self.symmetric) || self.symmetric",
                "method W8A8 is symmetric",
                fieldPath=".symmetric",
            ),
            rule(
                "self.method != 'None' || !(has(self.bits) || has(self.symmetric))",
                "method None takes neither bits nor symmetric",
            ),
        )
    )
    method: Literal["AWQ", "GPTQ", "W8A8", "None"] = Field(
        default="AWQ", description="How weights are made smaller; None serves the source as it is."
    )
    bits: Literal[4, 8] | None = Field(
        default=None, description="Bits of a weight. Default: 4 for AWQ and GPTQ, 8 for W8A8."
    )
    group_size: Literal[32, 64, 128] | None = Field(
        default=None,
        description="Columns that share a scale. Default: the largest of 128, 64, 32 that fits.",
    )
    # A boolean: a grid of values is symmetric about zero or it is not, there is no third case.
    symmetric: bool | None = Field(
        default=None,
        description="Scales without zero points. Default: false for AWQ, true for GPTQ and W8A8.",
    )
    ignore: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]],
        Field(max_length=64, json_schema_extra=unique()),
    ] = Field(
        default=["lm_head"],
        description="Modules left as they are: full names, or regular expressions after re: .",
    )
    calibration: Calibration = Field(default=Calibration(), description="Used by AWQ and GPTQ.")
    resources: Resources = Field(default=Resources(), description="Of the quantize Job.")


class LogitsGate(Struct):
    """Agreement of the logits with the source's."""

    min_cosine_similarity: Annotated[
        str, Field(max_length=16, pattern=r"^(0(\.[0-9]{1,8})?|1(\.0{1,8})?)$")
    ] = Field(default="0.985", description="Least mean cosine similarity over positions, from 0 to 1.")


class PerplexityGate(Struct):
    """Rise of perplexity over the source's."""

    max_increase_percent: Decimal = Field(default="5", description="Greatest rise in percent.")


class GenerationGate(Struct):
    """A long generation that must not fall into a loop."""

    prompt_tokens: int = Field(default=1024, ge=1, le=131072, description="Tokens of the prompt.")
    new_tokens: int = Field(default=4096, ge=1, le=131072, description="Tokens to generate.")
    max_repetition: Annotated[str, Field(max_length=16, pattern=r"^(0(\.[0-9]{1,8})?|1(\.0{1,8})?)$")] = (
        Field(default="0.2", description="Greatest share of repeated n-grams in a segment, from 0 to 1.")
    )


class Validation(Struct):
    """Quality gates: what is measured against the source, and what follows."""

    logits: LogitsGate = Field(default=LogitsGate(), description="Gate on the logits.")
    perplexity: PerplexityGate = Field(default=PerplexityGate(), description="Gate on perplexity.")
    generation: GenerationGate | None = Field(
        default=None, description="Gate on a long generation; not run when absent."
    )
    corpus: Corpus = Field(default=Corpus(), description="Text to measure on; never the one of calibration.")
    samples: int = Field(default=16, ge=1, le=4096, description="Windows of text to measure.")
    sequence_length: int = Field(default=512, ge=16, le=32768, description="Tokens in a window.")
    on_failure: Literal["Block", "Warn"] = Field(
        default="Block", description="Block keeps the artifact from being served; Warn serves it and says so."
    )
    resources: Resources = Field(default=Resources(), description="Of the validate Job.")


class Accelerator(Struct):
    """The hardware of one replica."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.type == 'nvidia' || !(has(self.product) || has(self.memory) || has(self.perReplica))",
                "product, memory and perReplica belong to type nvidia",
            )
        )
    )
    type: Literal["cpu", "nvidia"] = Field(description="Kind of hardware.")
    product: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[-._A-Za-z0-9]+$")] | None = Field(
        default=None,
        description="Value of the node label nvidia.com/gpu.product, such as NVIDIA-H100-80GB-HBM3.",
    )
    memory: Quantity | None = Field(
        default=None, description="Memory of one GPU; read from node labels when absent."
    )
    per_replica: int | None = Field(
        default=None, ge=1, le=16, description="GPUs of one replica; as many as the model needs when absent."
    )


ExtraArgument = Annotated[
    str,
    Field(
        min_length=1,
        max_length=256,
        json_schema_extra=rules(
            rule(
                f"!self.matches('{OWNED_PATTERN}')",
                "the argument is owned by the operator",
                messageExpression="self.split('=')[0] + ' is owned by the operator: use the fields of spec'",
            )
        ),
    ),
]


class Serving(Struct):
    """The server."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.accelerator.perReplica) || type(self.tensorParallel) != int"
                " || self.tensorParallel == self.accelerator.perReplica",
                "tensorParallel must equal accelerator.perReplica: a replica uses all of its GPUs",
            )
        )
    )
    engine: Literal["vLLM"] = Field(default="vLLM", description="The program that serves.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Servers; an autoscaler may own this through the scale subresource.",
    )
    accelerator: Accelerator = Field(description="The hardware of one replica.")
    tensor_parallel: int_or_auto(1, 16) = Field(  # type: ignore[valid-type]
        default="Auto", description="Ranks that share every layer: Auto or a number. The plan says why."
    )
    max_model_len: int | None = Field(
        default=None,
        ge=16,
        le=16777216,
        description="Tokens of prompt and answer; as many as model and memory allow when absent.",
    )
    extra_args: Annotated[list[ExtraArgument], Field(max_length=32, json_schema_extra=atomic())] = Field(
        default=[],
        description="More arguments for the engine, after those of the plan. Owned ones are refused.",
    )
    resources: Resources = Field(default=Resources(), description="Of one replica.")


class Storage(Struct):
    """Where artifacts live: an existing claim, or one that the operator makes and owns."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule("has(self.claimName) != has(self.size)", "exactly one of claimName and size must be set"),
            rule(
                "has(self.size) || !(has(self.storageClassName) || has(self.accessMode))",
                "storageClassName and accessMode go with size",
            ),
            rule(
                "!has(self.size) || !has(oldSelf.size)"
                " || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
                "a claim cannot shrink",
                fieldPath=".size",
            ),
        )
    )
    claim_name: ObjectName | None = Field(default=None, description="An existing claim; models may share it.")
    storage_class_name: ObjectName | None = Field(
        default=None, description="Class of the claim to make; else the default."
    )
    size: Quantity | None = Field(default=None, description="Size of the claim to make. It cannot shrink.")
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] | None = Field(
        default=None,
        description="Of the claim to make: ReadWriteOnce when absent; several nodes need ReadWriteMany.",
    )


class Rollout(Struct):
    """How a new revision takes over."""

    strategy: Literal["Auto", "Surge", "Replace"] = Field(
        default="Auto",
        description="Surge starts the new revision beside the old, Replace stops the old first.",
    )
    progress_deadline: int_or_auto(30, 86400) = Field(  # type: ignore[valid-type]
        default="Auto",
        description="Seconds until a revision that is not ready is rolled back: Auto or a number.",
    )


class Toleration(Struct):
    """As in a pod."""

    key: Annotated[str, Field(max_length=317)] | None = Field(default=None, description="Taint key.")
    operator: Literal["Exists", "Equal"] | None = Field(default=None, description="Default: Equal.")
    value: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="Taint value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="All when absent."
    )
    toleration_seconds: int | None = Field(default=None, ge=0, le=2147483647, description="For NoExecute.")


class LocalObjectReference(Struct):
    name: ObjectName = Field(description="Name of a Secret in the model's namespace.")


class Placement(Struct):
    """Inherited by every Job and server."""

    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] = Field(
        default={}, description="Labels that a node must have."
    )
    tolerations: Annotated[list[Toleration], Field(max_length=32, json_schema_extra=atomic())] = Field(
        default=[], description="Taints that pods put up with."
    )
    runtime_class_name: ObjectName | None = Field(default=None, description="RuntimeClass, such as nvidia.")
    image_pull_secrets: Annotated[
        list[LocalObjectReference], Field(max_length=16, json_schema_extra=keyed("name"))
    ] = Field(default=[], description="Secrets for pulling images.")


class Spec(Struct):
    """What is wanted: a model, quantized, proven and served."""

    source: Source = Field(description="Where the unquantized model comes from.")
    quantization: Quantization = Field(default=Quantization(), description="The recipe.")
    validation: Validation = Field(default=Validation(), description="Quality gates.")
    serving: Serving = Field(description="The server.")
    storage: Storage = Field(description="Where artifacts live.")
    rollout: Rollout = Field(default=Rollout(), description="How a new revision takes over.")
    placement: Placement = Field(
        default=Placement(), description="Where pods may run; inherited by every Job and server."
    )
    approval: Literal["Automatic", "Manual"] = Field(
        default="Automatic",
        description="Manual waits until the annotation halfbyte.dev/approve holds status.plan.digest.",
    )
    # A boolean as in Job and CronJob, whose readers know it.
    suspend: bool = Field(default=False, description="True starts no new work; what runs goes on.")
