"""What a user reads: ``status`` of a QuantizedModel. Every field is optional; all of it can be derived again.

The operator writes status as plain JSON; these models make the schema, and the tests hold what is written
against them.
"""

from typing import Annotated, Literal

from pydantic import Field

from halfbyte.api.fields import Count, Message, Name, Short, Struct, Text, Time, atomic, keyed


class Condition(Struct):
    """A condition as in other Kubernetes APIs."""

    type: Annotated[str, Field(max_length=64)] = Field(description="Ready is the one summary.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="True is good, save for Reconciling and Stalled."
    )
    reason: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z]+$")] = Field(
        description="One of the documented reasons."
    )
    message: Message = Field(description="One sentence: what, where, needed against available, what to do.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that this is about."
    )
    last_transition_time: Time = Field(description="When status last changed.")


class SourceFacts(Struct):
    revision: Name | None = Field(default=None, description="Commit, or digest of the files on a claim.")
    bytes: Count | None = Field(default=None, description="Size of the safetensors files.")


class Linear(Struct):
    """Linear layers of one name and shape."""

    name: Name = Field(description="Full module name with indices as *.")
    rows: Count = Field(description="Outputs.")
    columns: Count = Field(description="Inputs.")
    count: Count = Field(description="Number of such layers.")


class NodeFacts(Struct):
    name: Name | None = Field(default=None, description="Node that the Inspect Job ran on.")
    cpu_flags: Annotated[list[Short], Field(max_length=16, json_schema_extra=atomic())] | None = Field(
        default=None, description="CPU features that matter here."
    )


class StorageFacts(Struct):
    free_bytes: Count | None = Field(default=None, description="Free on the artifact claim at inspection.")


class ModelFacts(Struct):
    """What the Inspect Job found."""

    key: Short | None = Field(default=None, description="Names the inspection: source and requested-at.")
    source: SourceFacts | None = Field(default=None, description="What was inspected.")
    architecture: Name | None = Field(default=None, description="Such as LlamaForCausalLM.")
    model_type: Name | None = Field(default=None, description="Such as llama.")
    torch_dtype: Short | None = Field(default=None, description="Type of the source's weights.")
    layers: Count | None = Field(default=None, description="Decoder layers.")
    hidden_size: Count | None = Field(default=None, description="Width of the residual stream.")
    intermediate_size: Count | None = Field(default=None, description="Width inside the feed-forward part.")
    attention_heads: Count | None = Field(default=None, description="Query heads.")
    key_value_heads: Count | None = Field(default=None, description="Heads in the KV cache.")
    head_dim: Count | None = Field(default=None, description="Width of a head.")
    vocab_size: Count | None = Field(default=None, description="Tokens in the vocabulary.")
    max_position_embeddings: Count | None = Field(
        default=None, description="Longest context that the model was made for."
    )
    tied_embeddings: bool | None = Field(
        default=None, description="Output layer and embedding are one tensor."
    )
    experts: Count | None = Field(default=None, description="Routed experts; 0 for a dense model.")
    kv_lora_rank: Count | None = Field(default=None, description="Rank of the compressed KV cache (MLA).")
    qk_rope_head_dim: Count | None = Field(default=None, description="Rotary part of a key (MLA).")
    parameters: Count | None = Field(default=None, description="All weights.")
    largest_tensor_bytes: Count | None = Field(default=None, description="Size of the largest tensor.")
    quantized: Short | None = Field(
        default=None, description="Method that the source is already quantized with."
    )
    linears: Annotated[list[Linear], Field(max_length=64, json_schema_extra=atomic())] | None = Field(
        default=None, description="Linear layers by name pattern."
    )
    linears_truncated: bool | None = Field(
        default=None, description="The list of linear layers is not complete."
    )
    node: NodeFacts | None = Field(default=None, description="Where it was inspected.")
    storage: StorageFacts | None = Field(default=None, description="Room for artifacts.")


class JobPlan(Struct):
    memory: Short | None = Field(default=None, description="Memory request and limit.")
    scratch: Short | None = Field(default=None, description="Room that it needs on the artifact claim.")
    duration: Short | None = Field(default=None, description="Expected time, from and to.")
    deadline_seconds: Count | None = Field(default=None, description="The Job is ended after this.")
    why: Text | None = Field(default=None, description="Where the numbers come from.")


class ComputePlan(Struct):
    hardware: Short | None = Field(default=None, description="Class of hardware in the compatibility matrix.")
    dtype: Short | None = Field(default=None, description="Type that Jobs and servers compute in.")
    why: Text | None = Field(default=None, description="Where it comes from.")


class RecipePlan(Struct):
    method: Short | None = Field(default=None, description="Method.")
    bits: int | None = Field(default=None, description="Bits of a weight.")
    group_size: int | None = Field(default=None, description="Columns that share a scale.")
    symmetric: bool | None = Field(default=None, description="Scales without zero points.")
    why: Text | None = Field(default=None, description="Where values that the spec leaves out come from.")


class ArtifactPlan(Struct):
    key: Name | None = Field(default=None, description="Hash of source revision and recipe.")
    bytes: Count | None = Field(default=None, description="Expected size of the safetensors files.")
    ratio: Short | None = Field(default=None, description="Expected size over the source's.")


class ServingPlan(Struct):
    tensor_parallel: int | None = Field(default=None, description="Ranks of one replica.")
    gpus: int | None = Field(default=None, description="GPUs of one replica.")
    weights_per_rank: Short | None = Field(default=None, description="Memory for weights in every rank.")
    kv_bytes_per_token: Count | None = Field(
        default=None, description="KV cache of one token over all ranks."
    )
    kv_cache: Short | None = Field(default=None, description="Memory for the KV cache of one replica.")
    max_model_len: Count | None = Field(default=None, description="Tokens of prompt and answer together.")
    max_concurrency: Count | None = Field(
        default=None, description="Requests of that length that fit the KV cache."
    )
    memory: Short | None = Field(default=None, description="Memory request of one replica.")
    shared_memory: Short | None = Field(
        default=None, description="Size of /dev/shm: when parallel, and on CPUs."
    )
    startup_seconds: Count | None = Field(default=None, description="Window of the startup probe.")
    progress_deadline_seconds: Count | None = Field(
        default=None, description="A revision not ready by then is rolled back."
    )
    kernel: Name | None = Field(default=None, description="Kernel that the compatibility matrix names.")
    why: Text | None = Field(default=None, description="Where the numbers come from.")


class Plan(Struct):
    """Decided before anything expensive starts."""

    digest: Short | None = Field(
        default=None, description="Approve this plan by the annotation halfbyte.dev/approve."
    )
    recipe: RecipePlan | None = Field(default=None, description="The recipe with every value filled in.")
    compute: ComputePlan | None = Field(default=None, description="Hardware and computing type.")
    quantize_job: JobPlan | None = Field(default=None, description="The quantize Job.")
    validate_job: JobPlan | None = Field(default=None, description="The validate Job.")
    artifact: ArtifactPlan | None = Field(default=None, description="The expected artifact.")
    serving: ServingPlan | None = Field(default=None, description="One replica.")


class Progress(Struct):
    """Of the running Job."""

    stage: Short | None = Field(default=None, description="Inspect, Quantize or Validate.")
    done: Count | None = Field(default=None, description="Steps done.")
    total: Count | None = Field(default=None, description="Steps in all.")
    unit: Short | None = Field(default=None, description="layers, samples, bytes or tokens.")
    eta_seconds: Count | None = Field(default=None, description="Expected time left.")
    message: Text | None = Field(default=None, description="What is being done.")


class Artifact(Struct):
    """The finished artifact of the current recipe."""

    key: Name | None = Field(default=None, description="Hash of source revision and recipe.")
    claim_name: Name | None = Field(default=None, description="Claim that it lies on.")
    path: Name | None = Field(default=None, description="Directory within the claim.")
    bytes: Count | None = Field(default=None, description="Size of its safetensors files.")
    source_bytes: Count | None = Field(default=None, description="Size of the source's.")
    ratio: Short | None = Field(default=None, description="Size over the source's.")
    method: Short | None = Field(default=None, description="Method.")
    reused: bool | None = Field(default=None, description="It existed already, nothing was computed.")
    seconds: Count | None = Field(default=None, description="Time the worker took.")
    peak_rss_bytes: Count | None = Field(default=None, description="Most memory that the worker used.")
    created_by: Text | None = Field(default=None, description="Worker image of the Job that reported it.")


class Measurement(Struct):
    name: Short = Field(description="Such as logits/cosine.")
    value: Short = Field(description="Measured, a decimal.")
    threshold: Short | None = Field(default=None, description="Demanded, a decimal.")
    verdict: Literal["Passed", "Failed"] | None = Field(default=None, description="Against the threshold.")
    samples: Count | None = Field(default=None, description="Positions or tokens behind the value.")
    eos_at: Count | None = Field(default=None, description="Token at which a generation ended by itself.")


class Reference(Struct):
    revision: Name | None = Field(default=None, description="Source revision that was compared with.")
    corpus_digest: Name | None = Field(default=None, description="Digest of the text.")


class Report(Struct):
    path: Name | None = Field(default=None, description="File beside the artifact.")
    digest: Name | None = Field(default=None, description="Of the file.")


class ValidationEvidence(Struct):
    """Evidence for the artifact of the current recipe."""

    key: Short | None = Field(default=None, description="Names artifact and gates.")
    verdict: Literal["Passed", "Failed"] | None = Field(default=None, description="Over all gates.")
    measurements: (
        Annotated[list[Measurement], Field(max_length=32, json_schema_extra=keyed("name"))] | None
    ) = Field(default=None, description="What was measured.")
    reference: Reference | None = Field(default=None, description="What was compared with.")
    report: Report | None = Field(default=None, description="The full report.")
    reused: bool | None = Field(default=None, description="Measured earlier, only judged now.")
    seconds: Count | None = Field(default=None, description="Time the worker took.")


class ServingStatus(Struct):
    """What serves now, possibly an older revision than the spec asks for."""

    revision: Short | None = Field(default=None, description="Revision behind the Service.")
    target_revision: Short | None = Field(
        default=None, description="Revision that the spec asks for, while it is another."
    )
    artifact_key: Short | None = Field(default=None, description="First digits of the served artifact's key.")
    url: Text | None = Field(default=None, description="OpenAI-compatible endpoint within the cluster.")
    replicas: Count | None = Field(default=None, description="Pods of all revisions.")
    ready_replicas: Count | None = Field(default=None, description="Pods behind the Service that answer.")
    readiness: Short | None = Field(
        default=None, description="Ready of wanted replicas, as kubectl shows it."
    )
    selector: Text | None = Field(default=None, description="Label selector of the pods, for autoscalers.")
    image: Text | None = Field(default=None, description="Server image of the revision.")
    kernel: Name | None = Field(default=None, description="Kernel that the server logged.")
    arguments: Annotated[list[Text], Field(max_length=128, json_schema_extra=atomic())] | None = Field(
        default=None, description="Server arguments of the revision."
    )
    strategy: Text | None = Field(default=None, description="How the latest revision took over, and why.")
    served_from: Time | None = Field(
        default=None, description="When the Service was pointed to the revision."
    )


class HistoryEntry(Struct):
    revision: Short = Field(description="An earlier revision.")
    artifact_key: Short | None = Field(default=None, description="First digits of its artifact's key.")
    served_from: Time | None = Field(default=None, description="When it began to serve.")
    served_until: Time | None = Field(default=None, description="When it ended.")


class Status(Struct):
    """What is the case."""

    observed_generation: int = Field(
        default=-1, description="Generation of the spec that this status is about."
    )
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=keyed("type"))] | None = (
        Field(
            default=None,
            description="Ready is the one summary; Reconciling and Stalled exist only while True.",
        )
    )
    facts: ModelFacts | None = Field(default=None, description="What the Inspect Job found.")
    plan: Plan | None = Field(default=None, description="Decided before anything expensive starts.")
    progress: Progress | None = Field(default=None, description="Of the running Job.")
    artifact: Artifact | None = Field(
        default=None, description="The finished artifact of the current recipe."
    )
    validation: ValidationEvidence | None = Field(default=None, description="Evidence for it.")
    serving: ServingStatus | None = Field(default=None, description="What serves now.")
    history: Annotated[list[HistoryEntry], Field(max_length=10, json_schema_extra=atomic())] | None = Field(
        default=None, description="Earlier revisions, newest first."
    )
    last_handled_reconcile_at: Name | None = Field(
        default=None, description="Value of halfbyte.dev/requested-at that was last acted on."
    )
