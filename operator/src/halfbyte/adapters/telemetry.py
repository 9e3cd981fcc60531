"""The operator's own metrics, for Prometheus. Series of a model that is gone are removed."""

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from halfbyte import __version__

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
STATUSES: Final = ("True", "False", "Unknown")


class Telemetry:
    """One registry of its own, so that tests and a second instance in one process do not share series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._reconciles = Counter(
            "halfbyte_reconciles",
            "Reconciles of models, by how they ended.",
            ["result"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "halfbyte_reconcile_duration_seconds",
            "Duration of one reconcile: gather, plan, status, actions.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._requests = Counter(
            "halfbyte_apiserver_requests",
            "Requests to the Kubernetes API, by verb, resource and status (0: no answer).",
            ["verb", "resource", "status"],
            registry=self.registry,
        )
        self._writes = Counter(
            "halfbyte_apiserver_writes",
            "Requests that may change something, by verb and resource; lease renewals are resource leases.",
            ["verb", "resource"],
            registry=self.registry,
        )
        self._conditions = Gauge(
            "halfbyte_model_condition",
            "1 for the current status of each condition of a model, 0 for its other statuses.",
            ["namespace", "name", "type", "status"],
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "halfbyte_queue_depth", "Models that wait for a worker.", registry=self.registry
        )
        self.leader = Gauge("halfbyte_leader", "1 while this process leads.", registry=self.registry)
        self.resync_age = Gauge(
            "halfbyte_resync_age_seconds",
            "Seconds since all models were last listed; -1 before the first time.",
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "halfbyte_loop_lag_seconds",
            "How late the event loop woke a sleeper; a blocking call shows here.",
            registry=self.registry,
        )
        self.schema_outdated = Gauge(
            "halfbyte_crd_outdated",
            "1 when the installed CustomResourceDefinition lacks fields of this version.",
            registry=self.registry,
        )
        Gauge("halfbyte_build_info", "Version of the operator.", ["version"], registry=self.registry).labels(
            __version__
        ).set(1)
        self._models: dict[tuple[str, str], set[str]] = {}

    def request(self, verb: str, resource: str, status: int) -> None:
        """Observer of ``halfbyte.adapters.kube.KubeApi``."""
        self._requests.labels(verb, resource, str(status)).inc()
        if verb in WRITES:
            self._writes.labels(verb, resource).inc()

    def reconciled(self, result: str, seconds: float) -> None:
        self._reconciles.labels(result).inc()
        self._duration.observe(seconds)

    def conditions(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """Set the gauges of a model from its status; conditions that it no longer has lose theirs."""
        current = {each["type"]: each["status"] for each in status.get("conditions") or ()}
        for condition in self._models.get((namespace, name), set()) - current.keys():
            self._remove(namespace, name, condition)
        self._models[namespace, name] = set(current)
        for condition, value in current.items():
            for each in STATUSES:
                self._conditions.labels(namespace, name, condition, each).set(1 if each == value else 0)

    def forget(self, namespace: str, name: str) -> None:
        """Remove every series of a model that does not exist any more."""
        for condition in self._models.pop((namespace, name), set()):
            self._remove(namespace, name, condition)

    def models(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of the models that have series."""
        return frozenset(self._models)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _remove(self, namespace: str, name: str, condition: str) -> None:
        for each in STATUSES:
            self._conditions.remove(namespace, name, condition, each)
