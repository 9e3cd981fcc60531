"""Last in the run: the operator goes while a model is there, and nothing is stuck."""

from __future__ import annotations

from collections.abc import Callable

import local_cluster as cluster
import pytest

from .conftest import MODELS


@pytest.mark.timeout(600)
def test_uninstalling_with_a_model_present_leaves_nothing_stuck(model: Callable[..., cluster.Json], tiny: str) -> None:
    model("orphan")
    cluster.poll(
        lambda: cluster.condition(cluster.get("quantizedmodel", "orphan", MODELS), "Ready").get("reason"),
        timeout=60, what="first condition",
    )  # fmt: skip
    cluster.run(cluster.CLUSTER, "helm", "uninstall", "halfbyte", "-n", cluster.SYSTEM_NAMESPACE, "--wait")
    assert cluster.get("quantizedmodel", "orphan", MODELS), "the CRD and the objects stay"
    cluster.kubectl("delete", "qm", "orphan", "-n", MODELS, "--wait=true", "--timeout=60s")
    cluster.poll(
        lambda: not cluster.kubectl("get", "jobs,pods", "-n", MODELS, "-l", "halfbyte.dev/model=orphan", "-o", "name").strip(),
        timeout=120, what="children gone without the operator",
    )  # fmt: skip
    cluster.install_chart()
