"""The main job: the real model, the examples as they stand, in the order in which the demo shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support import local_cluster as cluster
from support.quantized_models import EXAMPLES, MODELS, reaches

pytestmark = [pytest.mark.usefixtures("node"), pytest.mark.timeout(900)]
STAGE_TIMEOUT = 1500.0


def jobs(stage: str, model: str) -> list[cluster.Json]:
    return cluster.listing("jobs", MODELS, f"halfbyte.dev/stage={stage},halfbyte.dev/model={model}")


def measurement(model: cluster.Json, name: str) -> cluster.Json:
    found: cluster.Json = next(
        each for each in model["status"]["validation"]["measurements"] if each["name"] == name
    )
    return found


def ask(name: str, question: str) -> str:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 32,
        "temperature": 0,
    }
    answer = cluster.post_through_service(MODELS, name, "/v1/chat/completions", body)
    text: str = answer["choices"][0]["message"]["content"]
    return text


@pytest.fixture(scope="module")
def awq(node: Path) -> cluster.Json:
    """The AWQ example followed to Ready, with every line of `kubectl get qm` and the progress on the way."""
    cluster.apply(EXAMPLES / "smollm2-135m-awq.yaml")
    lines: list[str] = []
    progress: list[cluster.Json] = []

    def is_ready(model: cluster.Json) -> bool:
        # The row is read after the object: that of a Ready one shows it.
        row = cluster.kubectl("get", "qm", "smollm2", "-n", MODELS, "--no-headers")
        reason = re.sub(r"\s+\S+$", "", row.strip())
        if not lines or lines[-1] != reason:
            lines.append(reason)
        if (model.get("status") or {}).get("progress"):
            progress.append(model["status"]["progress"])
        return cluster.condition(model, "Ready").get("status") == "True"

    cluster.wait_for_model("smollm2", MODELS, is_ready, timeout=STAGE_TIMEOUT, what="smollm2 Ready")
    return {"lines": lines, "progress": progress}


@pytest.mark.timeout(1800)
def test_every_stage_reads_well_in_kubectl_get(awq: cluster.Json) -> None:
    text = "\n".join(awq["lines"])
    print(text)
    for reason in ("Inspecting", "Quantizing", "Validating", "Serving"):
        assert reason in text
    assert all(line.split()[0] == "smollm2" for line in awq["lines"])


def test_progress_is_counted_in_layers(awq: cluster.Json) -> None:
    layers = [each for each in awq["progress"] if each["stage"] == "Quantize" and each["unit"] == "layers"]
    assert layers, awq["progress"]
    assert max(each["done"] for each in layers) > min(each["done"] for each in layers)
    assert all(0 <= each["done"] <= each["total"] == 30 for each in layers)


def test_kubectl_wait_works(awq: cluster.Json) -> None:
    out = cluster.kubectl("wait", "--for=condition=Ready", "qm/smollm2", "-n", MODELS, "--timeout=30s")
    assert "condition met" in out


def test_the_evidence_is_in_status(awq: cluster.Json) -> None:
    model = cluster.get("quantizedmodel", "smollm2", MODELS)
    assert model is not None
    status = model["status"]
    assert status["validation"]["verdict"] == "Passed"
    assert float(measurement(model, "logits/cosine")["value"]) >= 0.93
    assert float(measurement(model, "perplexity/increasePercent")["value"]) <= 25
    assert 0.3 < status["artifact"]["bytes"] / status["artifact"]["sourceBytes"] < 0.5
    planned, real = status["plan"]["artifact"]["bytes"], status["artifact"]["bytes"]
    assert abs(planned - real) / real < 0.005, f"the plan said {planned} bytes, it became {real}"


def test_the_quantized_model_answers_through_the_service(awq: cluster.Json) -> None:
    models = json.loads(cluster.get_through_service(MODELS, "smollm2", "/v1/models"))
    assert [each["id"] for each in models["data"]] == ["smollm2"]
    text = ask("smollm2", "Why is the sky blue? Answer in one sentence.")
    assert re.search(r"[a-z]{3}", text), text


def test_the_server_starts_with_the_facts_about_model_classes_of_its_image(awq: cluster.Json) -> None:
    at = "modelinfos/vllm-model_executor-models-llama-LlamaForCausalLM.json"
    same = f"cmp /opt/halfbyte/{at} /tmp/vllm/{at} && wc -c < /tmp/vllm/{at}"
    pod = ("-n", MODELS, "-l", "halfbyte.dev/model=smollm2,halfbyte.dev/stage=serve", "-o", "name")
    name = cluster.kubectl("get", "pods", *pod).split()[0]
    assert int(cluster.kubectl("exec", "-n", MODELS, name, "--", "sh", "-c", same)) > 100


def test_describe_explains_each_decision(awq: cluster.Json) -> None:
    text = cluster.kubectl("describe", "qm", "smollm2", "-n", MODELS)
    print(text)
    for word in ("LlamaForCausalLM", "float32", "9 heads", "cosine", "perplexity", "Quantize Job"):
        assert word.lower() in text.lower(), f"describe does not mention {word}"
    assert "Events:" in text
    assert "<none>" not in text.split("Events:")[1]


def test_another_object_reuses_the_artifact(awq: cluster.Json) -> None:
    before = {each["metadata"]["uid"] for each in jobs("quantize", "smollm2")}
    cluster.delete("quantizedmodel", "smollm2", MODELS, "--wait=true")
    cluster.apply(EXAMPLES / "smollm2-135m-awq.yaml")
    model = reaches("smollm2", "Serving", timeout=STAGE_TIMEOUT)
    assert model["status"]["artifact"]["reused"] is True
    after = {each["metadata"]["uid"] for each in jobs("quantize", "smollm2")}
    assert not before & after


@pytest.mark.timeout(1800)
def test_four_bits_on_default_gates_are_blocked_and_the_older_revision_serves(awq: cluster.Json) -> None:
    old = cluster.get("quantizedmodel", "smollm2", MODELS)
    assert old is not None
    cluster.apply(EXAMPLES / "smollm2-135m-blocked.yaml")
    model = reaches("smollm2", "GateFailed", timeout=STAGE_TIMEOUT)
    assert cluster.condition(model, "Validated")["status"] == "False"
    message = cluster.condition(model, "Ready")["message"]
    assert "0.985" in message
    assert measurement(model, "logits/cosine")["value"] in message
    assert cluster.condition(model, "Available")["status"] == "True"
    assert model["status"]["serving"]["revision"] == old["status"]["serving"]["revision"]
    assert ask("smollm2", "What is two plus two?")
    # Back to the spec that passed: nothing is computed again, and the same revision is Ready.
    cluster.apply(EXAMPLES / "smollm2-135m-awq.yaml")
    back = reaches("smollm2", "Serving", timeout=STAGE_TIMEOUT)
    assert back["status"]["serving"]["revision"] == old["status"]["serving"]["revision"]


@pytest.mark.timeout(1800)
def test_eight_bits_pass_the_default_gates(awq: cluster.Json) -> None:
    cluster.delete("quantizedmodel", "smollm2", MODELS, "--wait=true")
    cluster.apply(EXAMPLES / "smollm2-135m-w8a8.yaml")
    model = reaches("smollm2-w8a8", "Serving", timeout=STAGE_TIMEOUT)
    assert float(measurement(model, "logits/cosine")["value"]) >= 0.985
    assert measurement(model, "logits/cosine")["threshold"] == "0.985"
    assert ask("smollm2-w8a8", "What is two plus two?")
    cluster.delete("quantizedmodel", "smollm2-w8a8", MODELS, "--wait=true")
