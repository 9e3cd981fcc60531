"""The CustomResourceDefinition on the real API server: what it refuses, drops, fills in and shows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from halfbyte.api.spec import Spec
from support.manifests import TINY_SPEC, a_model

from .conftest import CRD, ApiServer

Json = dict[str, Any]
SOURCE: Json = TINY_SPEC["source"]
SERVING: Json = TINY_SPEC["serving"]


def tiny(**parts: Any) -> Json:
    return {**copy.deepcopy(TINY_SPEC), **parts}


def serving(**parts: Any) -> Json:
    return tiny(serving={**SERVING, **parts})


REFUSED = {
    "unknown method": (tiny(quantization={"method": "INT3"}), 'Unsupported value: "INT3"'),
    "two sources": (
        tiny(source={**SOURCE, "huggingFace": {"repo": "a/b"}}),
        "exactly one of huggingFace and pvc must be set",
    ),
    "no source": (tiny(source={}), "exactly one of huggingFace and pvc must be set"),
    "4-bit W8A8": (tiny(quantization={"method": "W8A8", "bits": 4}), "method W8A8 works with bits 8"),
    "8-bit AWQ": (tiny(quantization={"method": "AWQ", "bits": 8}), "methods AWQ and GPTQ work with bits 4"),
    "group size of a method without groups": (
        tiny(quantization={"method": "W8A8", "groupSize": 32}),
        "groupSize belongs to the methods AWQ and GPTQ",
    ),
    "odd group size": (tiny(quantization={"method": "AWQ", "groupSize": 100}), "Unsupported value: 100"),
    "owned argument": (serving(extraArgs=["--model=x"]), "--model is owned by the operator"),
    "owned argument, other spelling": (
        serving(extraArgs=["--tensor_parallel_size=2"]),
        "--tensor_parallel_size is owned by the operator",
    ),
    "owned argument, short": (serving(extraArgs=["-tp", "2"]), "-tp is owned by the operator"),
    "no tensor parallelism": (serving(tensorParallel=0), "must be Auto or an integer from 1 to 16"),
    "GPUs of a CPU": (
        serving(accelerator={"type": "cpu", "perReplica": 2}),
        "product, memory and perReplica belong to type nvidia",
    ),
    "unequal parallelism": (
        serving(accelerator={"type": "nvidia", "perReplica": 2}, tensorParallel=4),
        "tensorParallel must equal accelerator.perReplica",
    ),
    "two storages": (
        tiny(storage={"claimName": "a", "size": "1Gi"}),
        "exactly one of claimName and size must be set",
    ),
    "no storage": (tiny(storage={}), "exactly one of claimName and size must be set"),
    "a float": (tiny(validation={"logits": {"minCosineSimilarity": 0.9}}), "must be of type string"),
    "a path that leaves the claim": (
        tiny(source={"pvc": {"claimName": "weights", "path": "../x"}}),
        "spec.source.pvc.path",
    ),
    "a deadline of seconds that is too short": (
        tiny(rollout={"progressDeadline": 5}),
        "must be Auto or an integer from 30 to 86400",
    ),
    "a misspelt field": (tiny(quantisation={"method": "AWQ"}), 'unknown field "spec.quantisation"'),
    "a credential in the endpoint": (
        tiny(source={"huggingFace": {"repo": "a/b", "endpoint": "https://user:secret@hub"}}),
        "spec.source.huggingFace.endpoint",
    ),
}


@pytest.mark.parametrize(("spec", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_refused_in_words(create: Callable[..., str], spec: Json, words: str) -> None:
    answer = create(spec)
    assert words in answer
    assert "uid:" not in answer


@pytest.mark.parametrize("name", ["1st", "a" * 64, "with.dot"])
def test_names_that_services_cannot_have_are_refused(create: Callable[..., str], name: str) -> None:
    assert "metadata.name must be at most 63 lower-case letters" in create(tiny(), name)


ACCEPTED = {
    "the smallest": tiny(),
    "a hub": tiny(source={"huggingFace": {"repo": "HuggingFaceTB/SmolLM2-135M", "revision": "12fd25f"}}),
    "no quantization": tiny(quantization={"method": "None"}),
    "a foreign argument": serving(extraArgs=["--enable-prefix-caching", "--model-impl=vllm"]),
    "a number where a quantity goes": serving(resources={"requests": {"cpu": 4, "memory": "16Gi"}}),
    "GPUs": serving(accelerator={"type": "nvidia", "perReplica": 2}, tensorParallel=2),
    "a claim to be made": tiny(storage={"storageClassName": "fast", "size": "20Gi"}),
}


@pytest.mark.parametrize("spec", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_users_write_is_accepted(create: Callable[..., str], spec: Json) -> None:
    assert "uid:" in create(spec)


def test_defaults_of_the_server_are_those_of_the_models(create: Callable[..., str]) -> None:
    stored = yaml.safe_load(create(tiny()))
    ours = Spec.model_validate(TINY_SPEC)
    assert Spec.model_validate(stored["spec"]) == ours
    assert stored["spec"]["validation"]["logits"]["minCosineSimilarity"] == "0.985"


def test_a_new_object_does_not_look_ready(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(a_model("fresh", namespace)))
    stored = json.loads(api_server.kubectl("get", "qm", "fresh", "-n", namespace, "-o", "json"))
    assert stored["status"] == {"observedGeneration": -1}
    waited = api_server.kubectl(
        "wait", "--for=condition=Ready", "qm/fresh", "-n", namespace, "--timeout=1s", check=False
    )
    assert "timed out" in waited


def test_unknown_fields_are_dropped_where_the_client_does_not_ask_for_strictness(
    api_server: ApiServer, namespace: str
) -> None:
    manifest = a_model("loose", namespace, surprise=1)
    api_server.kubectl("apply", "--validate=ignore", "-f", "-", stdin=yaml.safe_dump(manifest))
    stored = json.loads(api_server.kubectl("get", "qm", "loose", "-n", namespace, "-o", "json"))
    assert "surprise" not in stored["spec"]


def test_status_is_apart_from_spec(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(a_model("apart", namespace)))
    api_server.kubectl(
        "patch", "qm", "apart", "-n", namespace, "--type=merge", "-p",
        '{"status": {"observedGeneration": 7}}',
    )  # fmt: skip
    stored = json.loads(api_server.kubectl("get", "qm", "apart", "-n", namespace, "-o", "json"))
    assert stored["status"] == {"observedGeneration": -1}
    api_server.kubectl(
        "patch", "qm", "apart", "-n", namespace, "--subresource=status", "--type=merge", "-p",
        '{"status": {"observedGeneration": 1}, "spec": {"suspend": true}}',
    )  # fmt: skip
    stored = json.loads(api_server.kubectl("get", "qm", "apart", "-n", namespace, "-o", "json"))
    assert stored["status"] == {"observedGeneration": 1}
    assert stored["spec"]["suspend"] is False
    assert stored["metadata"]["generation"] == 1


def test_scale_changes_replicas(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(a_model("scaled", namespace)))
    api_server.kubectl("scale", "qm/scaled", "--replicas=3", "-n", namespace)
    stored = json.loads(api_server.kubectl("get", "qm", "scaled", "-n", namespace, "-o", "json"))
    assert stored["spec"]["serving"]["replicas"] == 3
    arguments = ("get", "qm/scaled", "--subresource=scale", "-n", namespace, "-o", "json")
    assert json.loads(api_server.kubectl(*arguments))["spec"]["replicas"] == 3


def test_a_claim_cannot_shrink(api_server: ApiServer, namespace: str) -> None:
    def apply(size: str) -> str:
        manifest = a_model("sized", namespace, storage={"size": size})
        return api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest), check=False)

    assert "created" in apply("20Gi")
    assert "configured" in apply("30Gi")
    assert "a claim cannot shrink" in apply("10Gi")


def test_the_table_has_the_columns_that_people_read(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(a_model("shown", namespace)))
    header, row = api_server.kubectl("get", "qm", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "READY", "METHOD", "TP", "REPLICAS", "REASON", "AGE"]
    assert row.split()[0] == "shown"
    assert "W8A8" in row
    assert "shown" in api_server.kubectl("get", "ml", "-n", namespace)


def test_fields_are_explained(api_server: ApiServer) -> None:
    text = api_server.kubectl("explain", "qm.spec.quantization.groupSize")
    assert "DESCRIPTION" in text
    assert "<integer>" in text


def test_the_definition_is_small() -> None:
    assert len(json.dumps(yaml.safe_load(CRD.read_text()))) < 100 * 1024
