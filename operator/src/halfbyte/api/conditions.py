"""Condition types and reasons: the public vocabulary of status. Additive only; every entry is documented for
users.

``Reason.meaning`` says what is the case, ``Reason.remedy`` what a person can do; both feed the reasons
reference. A terminal reason puts ``Stalled`` on the model: nothing is retried until the spec or the
annotation ``halfbyte.dev/requested-at`` changes.
"""

from enum import StrEnum


class ConditionType(StrEnum):
    """Types in ``status.conditions``. All but the two abnormal ones are positive: True is good."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> "ConditionType":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    READY = "Ready", "The one summary: the model that the spec asks for is served by every replica."
    RECONCILING = (
        "Reconciling",
        "Present only while the operator is working towards the spec or waiting for something.",
    )
    STALLED = (
        "Stalled",
        "Present only while the operator has given up until the spec or an annotation changes.",
    )
    INSPECTED = "Inspected", "The source was read: architecture, sizes and revision are known."
    PLANNED = "Planned", "Sizes, parallelism and server arguments are decided."
    QUANTIZED = "Quantized", "The artifact of this recipe exists, complete."
    VALIDATED = "Validated", "The artifact was measured against the source and judged."
    AVAILABLE = "Available", "Some revision answers requests, possibly an older one than the spec asks for."
    GPU_HEALTHY = (
        "GPUHealthy",
        "GPUs of the serving pods report no errors; Unknown without metrics. Only for nvidia.",
    )


class Reason(StrEnum):
    """Reasons of conditions and Events."""

    meaning: str
    remedy: str
    terminal: bool

    def __new__(cls, value: str, meaning: str = "", remedy: str = "", terminal: bool = False) -> "Reason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        member.remedy = remedy
        member.terminal = terminal
        return member

    # The flow, in order.
    PENDING = "Pending", "An earlier stage has not finished."
    INSPECTING = "Inspecting", "The Inspect Job reads config.json and the tensor headers of the source."
    FACTS_KNOWN = "FactsKnown", "The source was inspected."
    PLAN_READY = "PlanReady", "Sizes and parallelism are decided; the numbers are in status.plan."
    WAITING_FOR_APPROVAL = (
        "WaitingForApproval",
        "spec.approval is Manual and this plan was not approved yet.",
        "Read status.plan, then set the annotation halfbyte.dev/approve to status.plan.digest.",
    )
    SUSPENDED = (
        "Suspended",
        "spec.suspend is true: no new work starts, what serves goes on.",
        "Set spec.suspend to false.",
    )
    QUANTIZING = "Quantizing", "The quantize Job runs; status.progress has its numbers."
    ARTIFACT_READY = "ArtifactReady", "The artifact of this recipe is complete on the artifact claim."
    VALIDATING = "Validating", "The validate Job compares the artifact with its source."
    GATES_PASSED = "GatesPassed", "Every measurement is within its threshold."
    GATES_WARNED = "GatesWarned", "A measurement misses its threshold and spec.validation.onFailure is Warn."
    ROLLING_OUT = (
        "RollingOut",
        "The new revision starts; the old one keeps serving until it is ready where space allows.",
    )
    SERVING = "Serving", "Every replica of the revision that the spec asks for answers."
    SCALING = "Scaling", "The revision serves; replicas are being added or removed."
    SCALED_TO_ZERO = "ScaledToZero", "spec.serving.replicas is 0.", "Set spec.serving.replicas."
    REPLICAS_READY = "ReplicasReady", "At least one replica answers requests."
    REPLICAS_UNAVAILABLE = "ReplicasUnavailable", "No replica, or fewer than asked for, answers requests."
    DELETING = "Deleting", "The model is being deleted; owner references do the cleaning."

    # Waiting for something outside; looked at again by itself.
    CLAIM_NOT_FOUND = (
        "ClaimNotFound",
        "A PersistentVolumeClaim that the spec names does not exist in the model's namespace.",
        "Create the claim or correct its name; the operator looks again every 30 seconds.",
    )
    CLAIM_NOT_BOUND = (
        "ClaimNotBound",
        "A PersistentVolumeClaim has no volume and its pod cannot start.",
        "Look at the claim's events: a storage class or a matching volume is missing.",
    )
    SECRET_NOT_FOUND = (
        "SecretNotFound",
        "A Secret that the spec names does not exist in the model's namespace.",
        "Create the Secret or correct its name; the operator looks again every 30 seconds.",
    )
    SECRET_KEY_NOT_FOUND = (
        "SecretKeyNotFound",
        "The Secret exists but lacks the key that the spec names.",
        "Add the key to the Secret or correct spec.source.huggingFace.tokenSecretRef.key.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "An object with the name that the operator would use exists and is not this model's.",
        "Give the model another name, or remove the object.",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        "The scheduler finds no node for a pod; the message is the scheduler's.",
        "Free or add capacity, or change spec.placement, spec.serving.resources or spec.serving.accelerator.",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        "A node cannot pull an image.",
        "Check the image name in the operator's settings and spec.placement.imagePullSecrets.",
    )
    POD_CONFIG_ERROR = (
        "PodConfigError",
        "The kubelet cannot create a container from its configuration.",
        "Read the message.",
    )
    INSUFFICIENT_MEMORY = (
        "InsufficientMemory",
        "No node has the memory that a Job or a server needs.",
        "Free or add memory, or choose a smaller model, context or replica count.",
    )
    INSUFFICIENT_DISK = (
        "InsufficientDisk",
        "The artifact claim has no room for the artifact and its staging copy.",
        "Enlarge the claim or delete artifacts that nothing uses.",
    )
    INSUFFICIENT_GPUS = (
        "InsufficientGPUs",
        "No node has as many free GPUs as one replica needs.",
        "Free or add GPUs, or lower spec.serving.accelerator.perReplica.",
    )

    # Terminal: Stalled.
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec contradicts itself or uses a value that this version does not know.",
        "Correct the field that the message names.",
        True,
    )
    SOURCE_NOT_FOUND = (
        "SourceNotFound",
        "The repository, or the directory on the claim, does not exist or holds no model.",
        "Correct spec.source; for a claim, list the directory that the message names.",
        True,
    )
    REVISION_NOT_FOUND = (
        "RevisionNotFound",
        "The repository has no such revision.",
        "Correct the revision.",
        True,
    )
    GATED_REPOSITORY = (
        "GatedRepository",
        "The repository asks for a token that has access, and none or another one was given.",
        "Accept the model's terms with your account and set spec.source.huggingFace.tokenSecretRef.",
        True,
    )
    SOURCE_UNREACHABLE = (
        "SourceUnreachable",
        "The hub could not be reached after every retry.",
        "Check spec.source.huggingFace.endpoint, proxies and network policies.",
        True,
    )
    SOURCE_STALLED = (
        "SourceStalled",
        "A download stopped moving and every retry did too.",
        "Check the network; downloads resume where they stopped.",
        True,
    )
    SOURCE_INCOMPLETE = (
        "SourceIncomplete",
        "Files that the model's index names are missing or cut off.",
        "Complete the model directory or choose another revision.",
        True,
    )
    UNSUPPORTED_ARCHITECTURE = (
        "UnsupportedArchitecture",
        "The engine does not serve this model architecture, or the worker cannot quantize it.",
        "Choose another model or engine; the compatibility page lists architectures.",
        True,
    )
    ALREADY_QUANTIZED = (
        "AlreadyQuantized",
        "The source is quantized already, so another method cannot be applied to it.",
        "Use the unquantized model as the source, or method None.",
        True,
    )
    GROUP_SIZE_INDIVISIBLE = (
        "GroupSizeIndivisible",
        "A layer's columns are not a multiple of the group size.",
        "Choose one of the group sizes in the message, or name the layer in spec.quantization.ignore.",
        True,
    )
    INCOMPATIBLE_PLAN = (
        "IncompatiblePlan",
        "Nothing can serve this method on this hardware, or this parallelism does not fit the model.",
        "The message names what would work.",
        True,
    )
    CONTEXT_TOO_LONG = (
        "ContextTooLong",
        "spec.serving.maxModelLen is beyond what the model was made for, or its KV cache does not fit.",
        "Lower spec.serving.maxModelLen to the number in the message.",
        True,
    )
    OUT_OF_MEMORY = (
        "OutOfMemory",
        "A Job used more memory than its limit.",
        "Raise limits.memory in spec.quantization.resources or spec.validation.resources, or use fewer"
        " samples.",
        True,
    )
    OUT_OF_DISK = (
        "OutOfDisk",
        "A Job filled the artifact claim.",
        "Enlarge the claim or delete artifacts that nothing uses.",
        True,
    )
    GATE_FAILED = (
        "GateFailed",
        "A measurement misses its threshold; the artifact is not rolled out, an older revision serves on.",
        "Change method, bits or group size, calibrate with more text, or set thresholds you can accept.",
        True,
    )
    CLAIM_NOT_WRITABLE = (
        "ClaimNotWritable",
        "The Jobs cannot write to the artifact claim.",
        "Make the volume's directory writable for uid 65532, or use a volume that honours fsGroup.",
        True,
    )
    ARTIFACT_CORRUPT = (
        "ArtifactCorrupt",
        "The artifact's files do not match its manifest.",
        "Set the annotation halfbyte.dev/requested-at: the artifact is made again.",
        True,
    )
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "A Job ran longer than its deadline.",
        "Give it more CPU, or a deadline.",
        True,
    )
    BACKOFF_LIMIT_EXCEEDED = (
        "BackoffLimitExceeded",
        "A Job failed as often as it may; the message has its last error.",
        "Remove the cause, then set the annotation halfbyte.dev/requested-at.",
        True,
    )
    INTERRUPTED = (
        "Interrupted",
        "A Job was ended from outside as often as it may be retried.",
        "Look for node drains and evictions, then set the annotation halfbyte.dev/requested-at.",
        True,
    )
    INVALID_TASK = (
        "InvalidTask",
        "The worker does not understand its task.",
        "Use one version for operator and worker.",
        True,
    )
    INTERNAL_ERROR = (
        "InternalError",
        "A program failed in a way that it does not know.",
        "Read the Job's log.",
        True,
    )
    ROLLOUT_FAILED = (
        "RolloutFailed",
        "The new revision was not ready within its deadline; the last good revision serves.",
        "Read the message and the server's log, then change the spec or set halfbyte.dev/requested-at.",
        True,
    )

    ACTION_FAILED = (
        "ActionFailed",
        "The API server refused a change that the operator tried; it is tried again.",
        "The message has the server's words: a quota, a policy, missing rights of the operator.",
    )

    # GPU health.
    NO_METRICS = (
        "NoMetrics",
        "No GPU metrics are known, so nothing is claimed about health.",
        "Install the GPU exporter.",
    )

    # Only Events.
    REVISION_ACTIVATED = "RevisionActivated", "The Service now points to another revision."
    REVISION_DELETED = "RevisionDeleted", "An older revision's servers were removed."
    JOB_REPLACED = "JobReplaced", "A Job for an outdated spec was removed."
