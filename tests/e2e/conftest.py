"""A real cluster for the end-to-end tests: real images, real Helm, fresh volumes; ended afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import local_cluster as cluster
from support.quantized_models import EXAMPLES, MODELS, tiny_manifest

# Modules that mostly wait come first, while tests/run has other groups beside them; those that compute then
# have the cores for themselves. The last one takes the operator away.
ORDER = ("test_faults", "test_hub", "test_refusals", "test_examples", "test_tutorial", "test_uninstall")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else len(ORDER) - 2)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cluster with images, chart, storage and the model in it; yields the host side of its volumes.

    HALFBYTE_E2E_CLUSTER=running uses the cluster that is up, with its volumes, and leaves it up: for
    developing one test.
    """
    if os.environ.get("HALFBYTE_E2E_CLUSTER") == "running":
        yield cluster.volumes()
        return
    volumes = tmp_path_factory.mktemp("volumes")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HALFBYTE_VOLUMES", str(volumes))
        cluster.run(cluster.CLUSTER, "down")
        try:
            cluster.bring_up()
            shutil.copytree(cluster.build_model(), volumes / "weights" / "smollm2-135m-instruct")
            # Each of ten killed operators leaves a Lease to outwait, of 30 s by default.
            cluster.install_chart(
                "--set=extraEnv[0].name=HALFBYTE_LEASE_SECONDS", "--set-string=extraEnv[0].value=10"
            )
            cluster.apply(EXAMPLES / "storage.yaml")
            yield volumes
        finally:
            print(cluster.kubectl("get", "qm,jobs,pods", "-A", check=False))
            operator = ("-n", cluster.SYSTEM_NAMESPACE, "deploy/halfbyte-operator", "--tail=60")
            print(cluster.kubectl("logs", *operator, check=False))
            cluster.run(cluster.CLUSTER, "down")


@pytest.fixture(scope="session")
def tiny(node: Path) -> str:
    """Path in the weights claim of a two-layer random model: the same flow as a real one, in seconds."""
    subprocess.run(
        [sys.executable, cluster.ROOT / "tests/support/tiny_model.py", node / "weights" / "tiny",
         "--tokenizer", node / "weights" / "smollm2-135m-instruct"],
        check=True,
    )  # fmt: skip
    return "tiny"


@pytest.fixture
def model(node: Path) -> Iterator[Callable[..., cluster.Json]]:
    """Apply QuantizedModels that are deleted when the test ends."""
    names: list[str] = []

    def apply(name: str, **spec: object) -> cluster.Json:
        manifest = tiny_manifest(name, **spec)
        names.append(name)
        cluster.apply(manifest)
        return manifest

    yield apply
    for name in names:
        cluster.delete("quantizedmodel", name, MODELS, "--wait=true")
