"""Names from content. Whatever determines an object's content determines its name, so a new intent makes a
new object and the same intent finds the old one:

    what                 name                      from
    Inspect Job          <model>-inspect-<h8>      source (without its Secret), requested-at
    artifact             sha256-<64 hex>           source revision, recipe, RECIPE_VERSION
    quantize Job         quantize-<h12>            artifact key, claim        (shared by models with one
    recipe) validate Job         <model>-validate-<h8>     artifact key, claim, gates server revision
    r<h8>                     pod template attempt              <h8>[@requested-at]       spec without
    replicas: what a person must change to retry a failure

Hashes are SHA-256 over canonical JSON (sorted keys, no spaces), so they do not depend on dict order or on the
process. RECIPE_VERSION stands for the worker's code in the artifact key. It changes only in a release whose
notes say that models are quantized again; a new image alone changes no key, so that an operator upgrade
computes and restarts nothing.

Example: model ``smollm2`` asks for AWQ of revision 12fd25f on claim ``artifacts``: key sha256-5e0c..., Job
``quantize-9b1d07aa41c3``. A second model with the same recipe and claim finds that Job and adds itself as an
owner.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from halfbyte.api import labels
from halfbyte.api.spec import Source, Spec

RECIPE_VERSION: Final = "1"
MAX_NAME: Final = 63


def canonical(value: Any) -> str:
    """JSON with one possible form for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 64) -> str:
    """The first ``length`` hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:length]


def fit(name: str, suffix: str = "") -> str:
    """``name + suffix`` within 63 characters; a name that must be cut keeps a hash of the whole."""
    if len(name) + len(suffix) <= MAX_NAME:
        return name + suffix
    mark = "-" + digest(name, 6)
    return name[: MAX_NAME - len(suffix) - len(mark)].rstrip("-.") + mark + suffix


def source_key(source: Source, requested_at: str | None) -> str:
    """Eight digits that name an inspection. The Secret is left out: it changes access, not content."""
    described = source.model_dump(mode="json", by_alias=True, exclude={"hugging_face": {"token_secret_ref"}})
    return digest({"source": described, "requestedAt": requested_at}, 8)


def inspect_job_name(model: str, key: str) -> str:
    return fit(model, f"-inspect-{key}")


def quantize_job_name(artifact_key: str, claim: str) -> str:
    return f"quantize-{digest([artifact_key, claim], 12)}"


def validate_key(artifact_key: str, claim: str, gates: Mapping[str, Any]) -> str:
    """Eight digits that name a validation: artifact, where it lies, and gates."""
    return digest({"artifact": artifact_key, "claim": claim, "gates": gates}, 8)


def validate_job_name(model: str, key: str) -> str:
    return fit(model, f"-validate-{key}")


def deployment_name(model: str, revision: str) -> str:
    return fit(model, f"-{revision}")


def attempt(spec: Spec, requested_at: str | None) -> str:
    """What a failure is bound to: it is retried when this value changes.

    Replicas are left out, or an autoscaler would retry a blocked model with every step it takes.
    """
    described = spec.model_dump(mode="json", by_alias=True, exclude={"serving": {"replicas"}})
    suffix = f"@{requested_at}" if requested_at else ""
    return digest(described, 8) + suffix


def attempt_annotation(uid: str) -> str:
    return f"{labels.ATTEMPT_PREFIX}{uid}"


def artifact_label(artifact_key: str) -> str:
    """Value of the label ``halfbyte.dev/artifact-key``: 16 digits."""
    return artifact_key.removeprefix("sha256-")[:16]
