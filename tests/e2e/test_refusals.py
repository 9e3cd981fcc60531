"""Bad input on the real cluster: each is refused or reported with what is wrong, where and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support import local_cluster as cluster
from support.quantized_models import EXAMPLES, MODELS, reported, tiny_manifest

pytestmark = pytest.mark.timeout(600)
Model = Callable[..., cluster.Json]


def refused(**spec: object) -> str:
    """The API server's words for a spec that it must not accept."""
    with pytest.raises(cluster.CommandError) as error:
        cluster.apply(tiny_manifest("refused", **spec))
    assert cluster.get("quantizedmodel", "refused", MODELS) is None
    return str(error.value)


@pytest.mark.usefixtures("node")
class TestTheApiServerRefuses:
    def test_an_unknown_method(self) -> None:
        message = refused(quantization={"method": "INT3"})
        assert "INT3" in message
        assert "AWQ" in message

    def test_two_sources(self) -> None:
        two = {
            "pvc": {"claimName": "weights", "path": "tiny"},
            "huggingFace": {"repo": "a/b", "revision": "main"},
        }
        assert "exactly one" in refused(source=two)

    @pytest.mark.parametrize(
        "argument", ["--model=x", "--tensor-parallel-size", "--quantization=awq", "--port=1"]
    )
    def test_an_owned_argument(self, argument: str) -> None:
        serving = {"engine": "vLLM", "accelerator": {"type": "cpu"}, "extraArgs": [argument]}
        assert argument.split("=")[0] in refused(serving=serving)


class TestTheOperatorReports:
    def test_a_missing_claim(self, model: Model, node: Path) -> None:
        model("no-claim", storage={"claimName": "nowhere"})
        assert "nowhere" in reported("no-claim", "ClaimNotFound")

    def test_a_missing_secret(self, model: Model, node: Path) -> None:
        hub = {"repo": "org/model", "revision": "main", "tokenSecretRef": {"name": "nowhere", "key": "token"}}
        model("no-secret", source={"huggingFace": hub})
        assert "nowhere" in reported("no-secret", "SecretNotFound")

    def test_a_missing_model(self, model: Model, node: Path) -> None:
        model("no-model", source={"pvc": {"claimName": "weights", "path": "nothing-here"}})
        assert "nothing-here" in reported("no-model", "SourceNotFound")

    def test_a_group_size_that_does_not_divide(self, model: Model, tiny: str) -> None:
        model("groups", source={"pvc": {"claimName": "weights", "path": "smollm2-135m-instruct"}},
              quantization={"method": "GPTQ", "bits": 4, "groupSize": 128})  # fmt: skip
        message = reported("groups", "GroupSizeIndivisible")
        assert "576" in message
        assert "64" in message
        assert not cluster.listing("jobs", MODELS, "halfbyte.dev/model=groups,halfbyte.dev/stage=quantize")

    def test_an_architecture_that_the_engine_does_not_know(self, model: Model, tiny: str, node: Path) -> None:
        source, copy = node / "weights" / "tiny", node / "weights" / "unknown"
        copy.mkdir()
        for each in source.iterdir():
            (copy / each.name).write_bytes(each.read_bytes())
        config = (copy / "config.json").read_text().replace("LlamaForCausalLM", "AbacusForCausalLM")
        (copy / "config.json").write_text(config)
        model("unknown", source={"pvc": {"claimName": "weights", "path": "unknown"}})
        assert "AbacusForCausalLM" in reported("unknown", "UnsupportedArchitecture")

    def test_too_little_memory(self, model: Model, tiny: str) -> None:
        model("memory", serving={"engine": "vLLM", "accelerator": {"type": "cpu"}, "maxModelLen": 512,
                                 "resources": {"requests": {"memory": "4000Gi"}}})  # fmt: skip
        message = reported("memory", "InsufficientMemory", "InsufficientCapacity", timeout=400)
        assert "4000Gi" in message

    def test_a_claim_without_room(self, model: Model, tiny: str) -> None:
        at = "/var/lib/halfbyte/volumes/cramped"
        cluster.run(cluster.CLUSTER, "exec", "mkdir", "-p", at)
        cluster.run(cluster.CLUSTER, "exec", "mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "cramped", at)
        volume = (EXAMPLES / "storage.yaml").read_text().split("---\n")[-2:]
        cluster.apply("---\n".join(volume).replace("artifacts", "cramped"))
        model("disk", storage={"claimName": "cramped"})
        message = reported("disk", "InsufficientDisk")
        assert "cramped" in message
        assert not cluster.listing("jobs", MODELS, "halfbyte.dev/model=disk,halfbyte.dev/stage=quantize")

    def test_a_job_that_needs_more_memory_than_its_limit(self, model: Model, tiny: str) -> None:
        resources = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
        model("limit", quantization={"method": "GPTQ", "bits": 4, "groupSize": 32, "resources": resources})
        message = reported("limit", "OutOfMemory")
        assert "64Mi" in message
        assert "limits.memory" in message
