"""``kubectl halfbyte``: arguments, the connection, exit codes.

Exit codes: 0 done; 1 the model stalled, a time-out, or the cluster refused; 2 wrong usage.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence

from kubernetes.aio.config import ConfigException

from halfbyte import __version__
from halfbyte.adapters.clock import SystemClock
from halfbyte.adapters.gateway import ApiError, Clock, KubeGateway
from halfbyte.adapters.kube import KubeApi, load_configuration
from halfbyte.cli import commands
from halfbyte.cli.commands import UsageError
from halfbyte.cli.kubeconfig import current_namespace

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        return asyncio.run(_connect_and_run(options))
    except (UsageError, ConfigException) as error:
        print(f"kubectl halfbyte: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ApiError as error:
        print(f"kubectl halfbyte: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except (KeyboardInterrupt, BrokenPipeError):
        return 130


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl halfbyte", description="Read what the Halfbyte operator decides about a QuantizedModel."
    )
    parser.add_argument("--version", action="version", version=__version__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-n", "--namespace", help="namespace of the model (default: the context's)")
    common.add_argument("--kubeconfig", help="kubeconfig file (default: KUBECONFIG or ~/.kube/config)")
    common.add_argument("--context", help="context of the kubeconfig")
    kinds = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for name, what in (
        ("plan", "show sizes, parallelism and the next steps, before anything is spent"),
        ("render", "print the manifests that the operator would write next, as YAML"),
    ):
        each = kinds.add_parser(name, parents=[common], help=what, description=what)
        each.add_argument("name", nargs="?", help="a QuantizedModel in the cluster")
        each.add_argument("-f", "--filename", help="a manifest instead ('-' reads standard input)")
        each.add_argument(
            "--facts", help="JSON file with the model facts, e.g. status.facts of another model"
        )
        each.add_argument(
            "--offline", action="store_true", help="with -f: ask no cluster; claims and Secrets are assumed"
        )

    status = kinds.add_parser("status", parents=[common], help="show conditions, evidence and what serves")
    status.add_argument("name")

    wait = kinds.add_parser("wait", parents=[common], help="follow a model until it is Ready or has stalled")
    wait.add_argument("name")
    wait.add_argument("--timeout", type=float, default=3600.0, help="seconds (default: 3600)")

    logs = kinds.add_parser("logs", parents=[common], help="print the log of the newest worker or server pod")
    logs.add_argument("name")
    logs.add_argument(
        "--stage", choices=commands.STAGES, help="of this stage (default: the newest pod of any)"
    )
    logs.add_argument("--tail", type=int, default=100, help="lines (default: 100)")
    return parser


async def _connect_and_run(options: argparse.Namespace) -> int:
    clock = SystemClock()
    if getattr(options, "offline", False):
        return await run(options, None, clock)
    configuration = await load_configuration(options.kubeconfig, options.context)
    if options.namespace is None:
        files = options.kubeconfig or os.environ.get("KUBECONFIG")
        options.namespace = current_namespace(files, options.context)
    kube = KubeApi(configuration, user_agent=f"kubectl-halfbyte/{__version__}")
    try:
        return await run(options, kube, clock)
    finally:
        await kube.close()


async def run(options: argparse.Namespace, kube: KubeGateway | None, clock: Clock) -> int:
    """Carry a command out; the exit code. Raises UsageError, ApiError."""
    if options.command in {"plan", "render"}:
        snapshot = await commands.look(options, kube, clock)
        show = commands.show_plan if options.command == "plan" else commands.show_manifests
        print(show(snapshot, clock.now()))
        return 0
    if kube is None:
        raise UsageError("needs a cluster")
    if options.command == "status":
        print(await commands.show_status(kube, options.namespace, options.name))
        return 0
    if options.command == "wait":
        return await commands.wait(kube, clock, options.namespace, options.name, options.timeout)
    print(await commands.show_log(kube, options.namespace, options.name, options.stage, options.tail))
    return 0
