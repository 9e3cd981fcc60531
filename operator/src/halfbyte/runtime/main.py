"""The operator process: settings, the wait for the CRD, Kopf as watcher, the parts of a leader, the way out.

Exit codes: 0 asked to end (SIGTERM, SIGINT); 1 a part ended or crashed; 2 a setting is wrong; 3 the lease was
lost. The kubelet starts the process again whatever the code.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import kopf
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException

from halfbyte import __version__
from halfbyte.adapters import schema
from halfbyte.adapters.clock import SystemClock
from halfbyte.adapters.events import EventRecorder
from halfbyte.adapters.execute import Executor
from halfbyte.adapters.gateway import ApiError, Clock, KubeGateway
from halfbyte.adapters.gather import Gatherer
from halfbyte.adapters.inventory import Inventory
from halfbyte.adapters.kube import KubeApi, load_configuration
from halfbyte.adapters.lease import LeaseElector, LeaseLost
from halfbyte.adapters.telemetry import Telemetry
from halfbyte.api.crd import build_crd
from halfbyte.runtime.handlers import kopf_settings, register
from halfbyte.runtime.health import Health
from halfbyte.runtime.logs import configure_logs
from halfbyte.runtime.probes import build_application, serve
from halfbyte.runtime.queue import WorkQueue
from halfbyte.runtime.reconciler import Reconciler, work
from halfbyte.runtime.resync import Resync, probe_lists
from halfbyte.runtime.settings import Settings, SettingsError, load_settings

log = logging.getLogger(__name__)

EXIT_CRASHED: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_LEASE_LOST: Final = 3

CRD_RETRY_SECONDS: Final = 5.0
READY_RETRY_SECONDS: Final = 5.0
LAG_PERIOD_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 10.0
"""How long a running reconcile may take to finish after SIGTERM; well inside the pod's grace period."""


def main(arguments: list[str] | None = None) -> int:
    try:
        settings = load_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
    except SettingsError as error:
        print(f"halfbyte: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    configure_logs(settings.log_format, settings.log_level)
    return asyncio.run(run(settings))


async def run(settings: Settings) -> int:
    """Run the operator until it is told to end; its exit code."""
    where = ", ".join(settings.watch_namespaces) or "the whole cluster"
    log.info("halfbyte %s starts; models of %s", __version__, where)
    try:
        configuration = await load_configuration()
    except ConfigException as error:
        log.error("no credentials for a cluster: %s", error)
        return EXIT_SETTINGS
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        # As process 1 of a container an unhandled SIGTERM is ignored. Kopf takes over once it runs.
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    telemetry, clock = Telemetry(), SystemClock()
    health = Health(clock, settings.resync_seconds)
    kube = KubeApi(configuration, user_agent=f"halfbyte/{__version__}", observer=telemetry.request)
    server = await serve(build_application(health, telemetry), settings.http_port)
    try:
        if not await _unless(stop, wait_for_crd(kube, health, clock)):
            return 0
        installed = await installed_schema(kube, telemetry)
        return await Operator(settings, kube, telemetry, health, clock, installed).run(configuration, stop)
    except ApiError as error:
        log.error("ending: %s", error.message)
        return EXIT_CRASHED
    finally:
        await server.cleanup()
        await kube.close()


async def wait_for_crd(kube: KubeGateway, health: Health, clock: Clock) -> None:
    """Return once the API server serves our kind; say what to do while it does not."""
    said = ""
    while True:
        try:
            if await schema.served(kube):
                return
            problem = f"the CustomResourceDefinition {schema.NAME} is not installed; upgrade the chart, "
            problem += "or kubectl apply --server-side -f crds/"
        except ApiError as error:
            problem = error.message
        health.unlisted = problem
        if problem != said:
            log.error("waiting: %s", problem)
            said = problem
        await clock.sleep(CRD_RETRY_SECONDS)


async def installed_schema(kube: KubeGateway, telemetry: Telemetry) -> schema.InstalledSchema:
    """Compare the installed CRD with our own, say what it lacks. Raises ApiError."""
    installed = await schema.installed_schema(kube)
    missing = installed.missing(schema.schema_of(build_crd()))
    telemetry.schema_outdated.set(1 if missing else 0)
    if missing:
        log.error(
            "the installed %s is older than this operator: it lacks %s%s; upgrade it with the chart. "
            "Until then these fields are neither read nor written.",
            schema.NAME,
            ", ".join(missing[:5]),
            f" and {len(missing) - 5} more" if len(missing) > 5 else "",
        )
    return installed


class Operator:
    """The parts of one process, wired: a watcher always, the rest once it leads."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeApi,
        telemetry: Telemetry,
        health: Health,
        clock: Clock,
        installed: schema.InstalledSchema,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._telemetry = telemetry
        self._health = health
        self._clock = clock
        self._leading = asyncio.Event()
        namespaces = settings.watch_namespaces
        self._queue = WorkQueue(on_depth=telemetry.queue_depth.set)
        self._reconciler = Reconciler(
            Gatherer(kube, Inventory(kube, clock, namespaces), clock),
            Executor(kube),
            EventRecorder(kube, clock, instance=settings.pod_name),
            telemetry,
            clock,
            settings.planning,
            installed,
            forget=self._queue.forget,
        )
        self._resync = Resync(
            kube, self._queue, self._reconciler, telemetry, health, clock, namespaces, settings.resync_seconds
        )
        self._elector = LeaseElector(
            kube,
            clock,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=settings.pod_name,
            duration_seconds=settings.lease_seconds,
        )

    async def run(self, configuration: Configuration, stop: asyncio.Event) -> int:
        """The process's exit code, after ``stop``, a signal, or the end of a part."""
        # All of them before Kopf: at its end it cancels every task that is younger than itself.
        parts = [
            asyncio.create_task(self._become_ready(), name="readiness"),
            asyncio.create_task(self._measure_lag(), name="loop lag"),
            asyncio.create_task(self._elect(), name="election"),
            asyncio.create_task(self._once_leading(self._resync.run), name="resync"),
        ]
        for number in range(self._settings.workers):
            loop = functools.partial(
                work, number, self._queue, self._reconciler, self._telemetry, self._health, self._clock
            )
            parts.append(asyncio.create_task(self._once_leading(loop), name=f"worker {number}"))
        watcher = asyncio.create_task(self._watch(configuration, stop), name="watcher")
        try:
            code = await _first_end(watcher, parts)
            if code == 0:
                await self._drain()
        finally:
            stop.set()
            for part in parts:
                part.cancel()
            await asyncio.gather(watcher, *parts, return_exceptions=True)
        await self._elector.release()
        log.info("halfbyte ends with exit code %d", code)
        return code

    async def _watch(self, configuration: Configuration, stop: asyncio.Event) -> None:
        namespaces = self._settings.watch_namespaces
        registry = kopf.OperatorRegistry()
        register(registry, self._queue.add, self._health)
        kopf.on.login(registry=registry)(_login(configuration))
        settings = kopf.OperatorSettings()
        kopf_settings(settings, instance=self._settings.pod_name)
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )

    async def _elect(self) -> None:
        """Wait for the lease, let the others begin, and keep it; ends only by an exception."""
        if self._settings.lease_name:
            await self._elector.acquire()
        self._telemetry.leader.set(1)
        self._health.lead()
        self._leading.set()
        if self._settings.lease_name:
            await self._elector.hold()
        await asyncio.Event().wait()

    async def _once_leading(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await self._leading.wait()
        await loop()

    async def _become_ready(self) -> None:
        said = None
        while True:
            problem = await probe_lists(self._kube, self._settings.watch_namespaces)
            self._health.unlisted = problem
            if problem is None:
                log.info("ready: every watched kind can be listed")
                await asyncio.Event().wait()
            if problem != said:
                log.error("not ready: %s", problem)
                said = problem
            await self._clock.sleep(READY_RETRY_SECONDS)

    async def _measure_lag(self) -> None:
        while True:
            before = self._clock.monotonic()
            await self._clock.sleep(LAG_PERIOD_SECONDS)
            lag = self._clock.monotonic() - before - LAG_PERIOD_SECONDS
            self._telemetry.loop_lag.set(max(0.0, lag))

    async def _drain(self) -> None:
        """Let running reconciles finish, take no new ones."""
        self._queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._queue.drained()


async def _first_end(watcher: asyncio.Task[None], parts: list[asyncio.Task[None]]) -> int:
    """Wait until a part ends. Only the watcher ends without an error: when the process was told to."""
    done, _ = await asyncio.wait({watcher, *parts}, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        error = task.exception()
        if isinstance(error, LeaseLost):
            log.error("ending: the lease is lost: %s", error)
            return EXIT_LEASE_LOST
        if error is not None:
            log.error("ending: the %s crashed", task.get_name(), exc_info=error)
            return EXIT_CRASHED
        if task is not watcher:
            log.error("ending: the %s ended", task.get_name())
            return EXIT_CRASHED
    return 0


async def _unless(stop: asyncio.Event, waited_for: Coroutine[Any, Any, None]) -> bool:
    """Wait for it unless ``stop`` comes first; whether it finished. Its exception is raised."""
    task = asyncio.create_task(waited_for)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        return False
    task.result()
    return True


def _login(configuration: Configuration) -> Callable[..., Coroutine[Any, Any, kopf.ConnectionInfo]]:
    """Kopf's credentials are the client's own: one place to look, and no need of cluster DNS."""

    async def login(**_: Any) -> kopf.ConnectionInfo:
        header: str = await configuration.get_api_key_with_prefix("BearerToken") or ""
        scheme, _space, token = header.rpartition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    return login
