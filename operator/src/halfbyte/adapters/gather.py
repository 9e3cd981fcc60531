"""The only reader of a reconcile: one model and everything around it, as a snapshot."""

import asyncio
from collections import defaultdict
from typing import Final

from halfbyte.adapters import facts, resources
from halfbyte.adapters.gateway import ApiError, Clock, Forbidden, Json, KubeGateway, NotFound, Resource
from halfbyte.adapters.inventory import Inventory
from halfbyte.api import labels
from halfbyte.planning.references import references
from halfbyte.planning.snapshot import (
    ClaimFact,
    DeploymentFact,
    JobFact,
    ModelObject,
    PodFact,
    Snapshot,
)

OURS: Final = f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE}"
SHARED: Final = f"{OURS},{labels.STAGE}={labels.STAGE_QUANTIZE}"

PROGRESS_LINES: Final = 20
SERVER_LOG_BYTES: Final = 256 * 1024
KERNEL_RETRY_SECONDS: Final = 60.0


class Gatherer:
    def __init__(self, gateway: KubeGateway, inventory: Inventory, clock: Clock) -> None:
        self._gateway = gateway
        self._inventory = inventory
        self._clock = clock
        # By pod: the kernel that its log names, and when a missing one is looked for again.
        self._kernels: dict[str, tuple[str | None, float]] = {}

    async def snapshot(self, namespace: str, name: str) -> Snapshot | None:
        """Everything known about a model now; None when it does not exist.

        Raises:
            ApiError: something could not be read; nothing may be decided on a part of the picture.
        """
        try:
            model = facts.model_object(await self._gateway.get(resources.MODELS, name, namespace))
        except NotFound:
            return None
        return await self.around(model)

    async def around(self, model: ModelObject) -> Snapshot:
        """The same for a model at hand, which need not exist. Raises ApiError."""
        namespace = model.namespace
        named = references(model)
        (raw_jobs, raw_deployments, raw_pods, maps), (service, claims, secrets) = await asyncio.gather(
            asyncio.gather(
                self._ours_or_shared(resources.JOBS, model),
                self._gateway.list(resources.DEPLOYMENTS, namespace, labels=_of(model)),
                self._gateway.list(resources.PODS, namespace, labels=_of(model)),
                self._ours_or_shared(resources.CONFIG_MAPS, model, metadata_only=True),
            ),
            asyncio.gather(
                self._optional(resources.SERVICES, model.name, namespace),
                self._claims(namespace, named.claims),
                self._secrets(namespace, named.secrets),
            ),
        )
        raw_deployments = [each for each in raw_deployments if model.uid in facts.owner_uids(each)]
        raw_pods += await self._pods_of_adopted(model, raw_jobs)
        jobs = _jobs(raw_jobs, raw_pods)
        serving_pods = tuple(
            facts.pod_fact(each) for each in raw_pods if _label(each, labels.STAGE) == labels.STAGE_SERVE
        )
        deployments = tuple(facts.deployment_fact(each) for each in raw_deployments)
        progress, kernel, autoscaled, nodes, apis = await asyncio.gather(
            self._progress(model, jobs),
            self._server_kernel(namespace, deployments, serving_pods),
            self._autoscaled(namespace, deployments),
            self._inventory.nodes(),
            self._inventory.optional_apis(),
        )
        return Snapshot(
            model=model,
            jobs=jobs,
            deployments=deployments,
            service=service,
            serving_pods=serving_pods,
            config_maps={each["metadata"]["name"]: facts.object_fact(each) for each in maps},
            claims=claims,
            secrets=secrets,
            nodes=nodes,
            progress=progress,
            server_log_kernel=kernel,
            autoscaled=autoscaled,
            optional_apis=apis,
        )

    async def _ours_or_shared(
        self, resource: Resource, model: ModelObject, *, metadata_only: bool = False
    ) -> list[Json]:
        ours, shared = await asyncio.gather(
            self._gateway.list(resource, model.namespace, labels=_of(model), metadata_only=metadata_only),
            self._gateway.list(resource, model.namespace, labels=SHARED, metadata_only=metadata_only),
        )
        wanted = [
            each
            for each in ours
            if model.uid in facts.owner_uids(each) and _label(each, labels.STAGE) != labels.STAGE_QUANTIZE
        ]
        return [*wanted, *shared]

    async def _pods_of_adopted(self, model: ModelObject, jobs: list[Json]) -> list[Json]:
        # Pods carry the name of the model that created the Job; of a shared Job that is another one.
        adopted = [
            each["metadata"]["name"]
            for each in jobs
            if model.uid in facts.owner_uids(each) and _label(each, labels.MODEL) != model.name
        ]
        found = await asyncio.gather(
            *(
                self._gateway.list(
                    resources.PODS, model.namespace, labels=f"{OURS},batch.kubernetes.io/job-name={name}"
                )
                for name in adopted
            )
        )
        return [pod for pods in found for pod in pods]

    async def _optional(self, resource: Resource, name: str, namespace: str) -> Json | None:
        try:
            return await self._gateway.get(resource, name, namespace)
        except NotFound:
            return None

    async def _claims(self, namespace: str, names: frozenset[str]) -> dict[str, ClaimFact]:
        found = await asyncio.gather(
            *(self._optional(resources.CLAIMS, name, namespace) for name in sorted(names))
        )
        return {each["metadata"]["name"]: facts.claim_fact(each) for each in found if each is not None}

    async def _secrets(self, namespace: str, names: frozenset[str]) -> dict[str, frozenset[str] | None]:
        found: dict[str, frozenset[str] | None] = {}
        for name in sorted(names):
            try:
                raw = await self._optional(resources.SECRETS, name, namespace)
            except Forbidden:
                # An installation may keep Secrets from the operator: unknown, which is not "missing".
                continue
            found[name] = None if raw is None else facts.secret_keys(raw)
        return found

    async def _progress(self, model: ModelObject, jobs: tuple[JobFact, ...]) -> Json | None:
        active = [job for job in jobs if job.active and model.uid in job.owner_uids]
        newest = max(active, key=lambda job: str(job.created), default=None)
        running = [pod for pod in newest.pods if pod.phase == "Running"] if newest else []
        if not running:
            return None
        try:
            text = await self._gateway.pod_log(
                model.namespace, running[-1].name, tail_lines=PROGRESS_LINES, limit_bytes=65536
            )
        except ApiError:
            # The container is just starting or ending, or the node does not answer: no news.
            return None
        return facts.last_progress(text)

    async def _server_kernel(
        self, namespace: str, deployments: tuple[DeploymentFact, ...], pods: tuple[PodFact, ...]
    ) -> str | None:
        newest = max(deployments, key=lambda each: str(each.created), default=None)
        revision = newest.labels.get(labels.REVISION) if newest else None
        ready = [pod for pod in pods if pod.ready and pod.labels.get(labels.REVISION) == revision]
        if not ready:
            return None
        # A pod's name is unique in time (Deployments add a random suffix), a restart keeps kernel and name.
        pod = f"{namespace}/{ready[0].name}"
        kernel, retry_at = self._kernels.get(pod, (None, -1.0))
        if kernel is None and self._clock.monotonic() >= retry_at:
            try:
                text = await self._gateway.pod_log(namespace, ready[0].name, limit_bytes=SERVER_LOG_BYTES)
                kernel = facts.logged_kernel(text)
            except ApiError:
                kernel = None
            self._remember_kernel(pod, kernel)
        return kernel

    def _remember_kernel(self, pod: str, kernel: str | None) -> None:
        if len(self._kernels) >= 2000:
            self._kernels.clear()
        self._kernels[pod] = kernel, self._clock.monotonic() + KERNEL_RETRY_SECONDS

    async def _autoscaled(self, namespace: str, deployments: tuple[DeploymentFact, ...]) -> bool:
        if not deployments:
            return False
        try:
            autoscalers = await self._gateway.list(resources.AUTOSCALERS, namespace)
        except (Forbidden, NotFound):
            return False
        return bool(facts.scaled_deployments(autoscalers) & {each.name for each in deployments})


def _of(model: ModelObject) -> str:
    return f"{OURS},{labels.MODEL}={model.name}"


def _label(raw: Json, key: str) -> str | None:
    value: str | None = (raw["metadata"].get("labels") or {}).get(key)
    return value


def _jobs(raw_jobs: list[Json], raw_pods: list[Json]) -> tuple[JobFact, ...]:
    pods: dict[str, list[PodFact]] = defaultdict(list)
    for each in raw_pods:
        for uid in facts.owner_uids(each):
            pods[uid].append(facts.pod_fact(each))
    return tuple(facts.job_fact(each, pods[each["metadata"]["uid"]]) for each in raw_jobs)
