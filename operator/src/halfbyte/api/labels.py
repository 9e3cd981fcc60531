"""Names that other programs match on: API group, labels, annotations, field managers, ports, mount points."""

from typing import Final

GROUP: Final = "halfbyte.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "QuantizedModel"
PLURAL: Final = "quantizedmodels"
SINGULAR: Final = "quantizedmodel"
SHORT_NAME: Final = "qm"
CATEGORY: Final = "ml"

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "halfbyte"
MODEL: Final = f"{GROUP}/model"
"""Label: name of the QuantizedModel (of the creator, for a quantize Job that several models share)."""
STAGE: Final = f"{GROUP}/stage"
ARTIFACT_KEY: Final = f"{GROUP}/artifact-key"
"""Label: first 16 hexadecimal digits of the artifact key."""
REVISION: Final = f"{GROUP}/revision"

STAGE_INSPECT: Final = "inspect"
STAGE_QUANTIZE: Final = "quantize"
STAGE_VALIDATE: Final = "validate"
STAGE_SERVE: Final = "serve"

APPROVE: Final = f"{GROUP}/approve"
"""Annotation on a QuantizedModel: digest of the plan that a person approved (``spec.approval: Manual``)."""
REQUESTED_AT: Final = f"{GROUP}/requested-at"
"""Annotation on a QuantizedModel: any new value asks for a fresh inspection and a retry of what failed."""
MANIFEST_HASH: Final = f"{GROUP}/manifest-hash"
"""Annotation on children: hash of the rendered manifest; an equal live value means that no write is needed.
"""
RENDERED: Final = f"{GROUP}/rendered"
"""Annotation on a Deployment: the manifest as first rendered, so that a newer operator does not restart
servers.
"""
INTENT: Final = f"{GROUP}/intent"
"""Annotation on a Deployment: hash of what the user asked for, without anything that an operator upgrade
changes.
"""
STARTED: Final = f"{GROUP}/rollout-started"
"""Annotation on a Deployment: when its rollout began, from which its deadline counts."""
STRATEGY: Final = f"{GROUP}/rollout-strategy"
"""Annotation on a Deployment: Surge or Replace, a colon, and why; decided once, when its rollout begins."""
ACTIVATED: Final = f"{GROUP}/activated"
"""Annotation on a Service: when it was pointed to the revision that it selects."""
FAILED: Final = f"{GROUP}/rollout-failed"
"""Annotation on a Deployment that was rolled back: JSON with the attempt and the message."""
ATTEMPT_PREFIX: Final = f"attempt.{GROUP}/"
"""Annotation prefix on Jobs, followed by a model's uid: generation and requested-at for which that model
wants the result.
"""

FIELD_MANAGER: Final = "halfbyte"
"""Field manager of children."""
STATUS_FIELD_MANAGER: Final = "halfbyte-status"
"""Field manager of the status subresource."""

SERVER_PORT: Final = 8000
WORKER_UID: Final = 65532
"""User and group of workers and servers; also the fsGroup of their volumes."""
