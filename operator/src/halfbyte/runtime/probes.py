"""HTTP: /livez and /readyz with the reason in words, /metrics for Prometheus."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from halfbyte.adapters.telemetry import Telemetry
from halfbyte.runtime.health import Health


def build_application(health: Health, telemetry: Telemetry) -> web.Application:
    async def livez(_request: web.Request) -> web.Response:
        return _answer(health.why_not_live())

    async def readyz(_request: web.Request) -> web.Response:
        return _answer(health.why_not_ready() or health.why_not_live())

    async def metrics(_request: web.Request) -> web.Response:
        telemetry.resync_age.set(health.resync_age)
        return web.Response(body=telemetry.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes(
        [web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    return application


async def serve(application: web.Application, port: int) -> web.AppRunner:
    """Listen on all addresses; the runner to clean up.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner


def _answer(problem: str | None) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
