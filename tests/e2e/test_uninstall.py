"""Last in the run: the operator goes while a model is there, and nothing is stuck."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support import local_cluster as cluster
from support.quantized_models import MODELS


@pytest.mark.timeout(600)
def test_uninstalling_with_a_model_present_leaves_nothing_stuck(
    model: Callable[..., cluster.Json], tiny: str
) -> None:
    model("orphan")
    cluster.wait_for_model(
        "orphan", MODELS, lambda model: cluster.condition(model, "Ready").get("reason"),
        timeout=60, what="first condition",
    )  # fmt: skip
    cluster.run(cluster.CLUSTER, "helm", "uninstall", "halfbyte", "-n", cluster.SYSTEM_NAMESPACE, "--wait")
    assert cluster.get("quantizedmodel", "orphan", MODELS), "the CRD and the objects stay"
    cluster.kubectl("delete", "qm", "orphan", "-n", MODELS, "--wait=true", "--timeout=60s")
    selector = "halfbyte.dev/model=orphan"

    def gone() -> bool:
        return not cluster.kubectl("get", "jobs,pods", "-n", MODELS, "-l", selector, "-o", "name").strip()

    cluster.poll(gone, timeout=120, what="children gone without the operator")
    cluster.install_chart()
