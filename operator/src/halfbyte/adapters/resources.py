"""The kinds that the operator reads and writes."""

from collections.abc import Mapping
from typing import Any, Final

from halfbyte.adapters.gateway import Resource
from halfbyte.api import labels

MODELS: Final = Resource(labels.API_VERSION, labels.KIND, labels.PLURAL)
JOBS: Final = Resource("batch/v1", "Job", "jobs")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
PODS: Final = Resource("v1", "Pod", "pods")
SERVICES: Final = Resource("v1", "Service", "services")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
SECRETS: Final = Resource("v1", "Secret", "secrets")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
AUTOSCALERS: Final = Resource("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)

WATCHED: Final = (MODELS, JOBS, DEPLOYMENTS, PODS)
"""Kinds whose changes wake a model up. Claims and Secrets are looked at again by ``requeue_after``."""

_BY_KIND: Final = {
    (each.api_version, each.kind): each
    for each in (
        MODELS, JOBS, DEPLOYMENTS, PODS, SERVICES, CONFIG_MAPS, CLAIMS, SECRETS,
        EVENTS, LEASES, AUTOSCALERS, NODES, DEFINITIONS,
    )
}  # fmt: skip


def resource_of(api_version: str, kind: str) -> Resource:
    """Raises LookupError for a kind that the operator does not handle."""
    try:
        return _BY_KIND[api_version, kind]
    except KeyError:
        raise LookupError(f"{api_version} {kind} is not a kind that the operator writes") from None


def resource_of_manifest(manifest: Mapping[str, Any]) -> Resource:
    return resource_of(str(manifest.get("apiVersion")), str(manifest.get("kind")))
