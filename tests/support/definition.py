"""Waiting for a CustomResourceDefinition to be served."""

from __future__ import annotations

import time
from collections.abc import Callable

NAME = "quantizedmodels.halfbyte.dev"


def wait_established(kubectl: Callable[..., str], name: str = NAME, timeout: float = 30) -> None:
    """Until the API server serves it; ``kubectl`` takes arguments and gives its standard output.

    Not by ``kubectl wait``: it ends with "accessor error" on a definition whose conditions are still null.
    """
    query = 'jsonpath={.status.conditions[?(@.type=="Established")].status}'
    deadline = time.monotonic() + timeout
    while kubectl("get", "crd", name, "-o", query).strip() != "True":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} was not established within {timeout:.0f} s")
        time.sleep(0.2)
