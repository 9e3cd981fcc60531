"""What the cluster as a whole offers: nodes with what is requested of them, and optional APIs.

Both are the same for every model and cost a list over the cluster, so they are remembered for a short while.
A decision made on a value that is some seconds old is corrected by the next look.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from halfbyte.adapters import resources
from halfbyte.adapters.facts import node_fact
from halfbyte.adapters.gateway import ApiError, Clock, Forbidden, Json, KubeGateway
from halfbyte.planning.snapshot import NodeFact

log = logging.getLogger(__name__)

NODES_SECONDS: Final = 15.0
FORBIDDEN_SECONDS: Final = 300.0
APIS_SECONDS: Final = 300.0

OPTIONAL_APIS: Final = frozenset(
    {
        "leaderworkerset.x-k8s.io/LeaderWorkerSet",
        "keda.sh/ScaledObject",
        "monitoring.coreos.com/PodMonitor",
        "monitoring.coreos.com/ServiceMonitor",
        "gateway.networking.k8s.io/HTTPRoute",
        "inference.networking.k8s.io/InferencePool",
        "kueue.x-k8s.io/LocalQueue",
    }
)

T = TypeVar("T")


class _Remembered(Generic[T]):
    """A value and until when it may be used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: T | None = None
        self._until = -1.0

    async def get(self, read: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        if self._value is None or self._clock.monotonic() >= self._until:
            self._value, seconds = await read()
            self._until = self._clock.monotonic() + seconds
        return self._value


class Inventory:
    def __init__(self, gateway: KubeGateway, clock: Clock, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: where pods may be listed; empty means the whole cluster."""
        self._gateway = gateway
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        # A list of one optional element, since None is an answer: "may not be listed".
        self._nodes: _Remembered[list[tuple[NodeFact, ...] | None]] = _Remembered(clock)
        self._apis: _Remembered[frozenset[str]] = _Remembered(clock)

    async def nodes(self) -> tuple[NodeFact, ...] | None:
        """None when RBAC does not allow to list nodes or pods."""
        return (await self._nodes.get(self._read_nodes))[0]

    async def optional_apis(self) -> frozenset[str]:
        """Those of ``OPTIONAL_APIS`` that the API server serves now."""
        return await self._apis.get(self._read_apis)

    async def _read_nodes(self) -> tuple[list[tuple[NodeFact, ...] | None], float]:
        try:
            nodes = await self._gateway.list(resources.NODES)
            bound: dict[str, list[Json]] = defaultdict(list)
            for namespace in self._namespaces:
                pods = await self._gateway.list(
                    resources.PODS,
                    namespace,
                    fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
                )
                for pod in pods:
                    bound[pod["spec"]["nodeName"]].append(pod)
        except Forbidden as error:
            log.info("free capacity of nodes is unknown: %s", error.message)
            return [None], FORBIDDEN_SECONDS
        return [tuple(node_fact(node, bound[node["metadata"]["name"]]) for node in nodes)], NODES_SECONDS

    async def _read_apis(self) -> tuple[frozenset[str], float]:
        try:
            groups = await self._gateway.raw(
                "/apis", accept="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            )
        except ApiError as error:
            log.warning("optional APIs are unknown: %s", error.message)
            return frozenset(), APIS_SECONDS
        served = {
            f"{group['metadata']['name']}/{resource['responseKind']['kind']}"
            for group in groups.get("items") or []
            for version in group.get("versions") or []
            for resource in version.get("resources") or []
            if resource.get("responseKind")
        }
        return OPTIONAL_APIS & served, APIS_SECONDS
