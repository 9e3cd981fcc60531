"""Settings of one operator process: flags, else environment variables, else defaults."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from halfbyte import __version__
from halfbyte.adapters.matrix import load_matrix
from halfbyte.planning.settings import Images, JobDefaults, PlanningSettings

PREFIX: Final = "HALFBYTE_"

_DEFAULT_IMAGES: Final = Images()
_DEFAULT_JOBS: Final = JobDefaults()

# Name, default, what it is. The flag is --name-with-dashes, the variable HALFBYTE_NAME_WITH_UNDERSCORES.
OPTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("namespace", "default", "the operator's own namespace; its Lease is there"),
    ("pod-name", "", "this process in Events and in the Lease (default: host and process)"),
    ("watch-namespaces", "", "comma-separated namespaces of models; empty: the whole cluster"),
    ("worker-image", _DEFAULT_IMAGES.worker, "image of the Jobs"),
    ("vllm-image", _DEFAULT_IMAGES.vllm, "image of vLLM servers on CPUs"),
    ("vllm-cuda-image", _DEFAULT_IMAGES.vllm_cuda, "image of vLLM servers on NVIDIA GPUs"),
    ("image-pull-policy", _DEFAULT_IMAGES.pull_policy, "Always, IfNotPresent or Never"),
    ("job-cpu-millis", str(_DEFAULT_JOBS.cpu_millis), "CPU request of Jobs, thousandths of a core"),
    ("job-cpu-limit-millis", "", "CPU limit of Jobs, thousandths of a core; empty: none"),
    ("lease-name", "halfbyte-operator", "Lease of the leader election; empty: no election"),
    ("lease-seconds", "30", "a leader that is silent for so long is replaced; it renews every third of it"),
    ("resync-seconds", "300", "period in which all models are looked at without an event"),
    ("workers", "4", "models that are reconciled at the same time"),
    ("http-port", "8080", "port of /livez, /readyz and /metrics"),
    ("log-format", "json", "json or text"),
    ("log-level", "info", "debug, info, warning or error"),
)


class SettingsError(ValueError):
    """A setting has no usable value; the message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    namespace: str
    pod_name: str
    watch_namespaces: tuple[str, ...]
    lease_name: str
    lease_seconds: int
    workers: int
    http_port: int
    log_format: str
    log_level: str
    planning: PlanningSettings

    @property
    def resync_seconds(self) -> float:
        return self.planning.resync_seconds


def load_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError; exits on --help and on unknown flags, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m halfbyte",
        description="The Halfbyte operator. Every flag has a variable.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    for name, default, meaning in OPTIONS:
        variable = PREFIX + name.replace("-", "_").upper()
        shown = f"{meaning} [{variable}; default: {default or 'empty'}]"
        parser.add_argument(f"--{name}", default=environment.get(variable, default), help=shown)
    given: dict[str, str] = vars(parser.parse_args(arguments))
    resync = _number(given, "resync_seconds", 10, 86400)
    limit = given["job_cpu_limit_millis"]
    return Settings(
        namespace=given["namespace"],
        pod_name=given["pod_name"] or f"{os.uname().nodename}-{os.getpid()}",
        watch_namespaces=tuple(each.strip() for each in given["watch_namespaces"].split(",") if each.strip()),
        lease_name=given["lease_name"],
        lease_seconds=_number(given, "lease_seconds", 6, 3600),
        workers=_number(given, "workers", 1, 64),
        http_port=_number(given, "http_port", 0, 65535),
        log_format=_choice(given, "log_format", ("json", "text")),
        log_level=_choice(given, "log_level", ("debug", "info", "warning", "error")),
        planning=PlanningSettings(
            operator_version=__version__,
            images=Images(
                worker=given["worker_image"],
                vllm=given["vllm_image"],
                vllm_cuda=given["vllm_cuda_image"],
                pull_policy=_choice(given, "image_pull_policy", ("Always", "IfNotPresent", "Never")),
            ),
            jobs=JobDefaults(
                cpu_millis=_number(given, "job_cpu_millis", 1, 1_000_000),
                cpu_limit_millis=_number(given, "job_cpu_limit_millis", 1, 1_000_000) if limit else None,
            ),
            resync_seconds=resync,
            matrix=load_matrix(),
        ),
    )


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = given[name]
    if not text.isdigit() or not least <= int(text) <= most:
        allowed = f"a whole number from {least} to {most}"
        raise SettingsError(f"{PREFIX}{name.upper()} is {text!r}, must be {allowed}")
    return int(text)


def _choice(given: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    if given[name] not in allowed:
        raise SettingsError(f"{PREFIX}{name.upper()} is {given[name]!r}, must be one of {', '.join(allowed)}")
    return given[name]
