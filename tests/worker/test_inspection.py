import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfbyte_worker import inspection
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.inspection import inspect, known_architectures, model_facts
from halfbyte_worker.node import cpu_flags
from halfbyte_worker.safetensors_header import Header, Tensor
from halfbyte_worker.task import InspectTask
from halfbyte_worker.termination import build_message
from worker.checkpoint_files import LLAMA, WIDTHS, llama_shapes, model_files, weights, write_files


def facts_of(
    config: dict[str, Any], shapes: dict[str, tuple[int, ...]], dtype: str = "BF16"
) -> dict[str, Any]:
    tensors = []
    for name, shape in shapes.items():
        size = WIDTHS[dtype]
        for extent in shape:
            size *= extent
        tensors.append(Tensor(name, dtype, shape, size))
    return model_facts(config, {"model.safetensors": Header(tuple(tensors), b"", 0)})


def rows_of(facts: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
    return {row["name"]: (row["rows"], row["columns"], row["count"]) for row in facts["linears"]}


def task_of(source: dict[str, Any], root: Path) -> InspectTask:
    return InspectTask.model_validate(
        {
            "version": 1,
            "model": {"name": "m", "namespace": "models"},
            "source": source,
            "artifact": {"root": str(root)},
        }
    )


def test_facts_of_a_model_on_a_claim(volumes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(volumes / "source" / "llama", model_files())
    monkeypatch.setenv("NODE_NAME", "worker-1")
    facts = inspect(task_of({"type": "pvc", "path": "llama"}, volumes / "artifacts"))
    parameters = 100 * 64 + 64 + 2 * (64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    assert facts.pop("message") == (
        f"LlamaForCausalLM with {parameters} parameters in {len(weights(llama_shapes()))} bytes"
    )
    revision, free = facts["source"].pop("revision"), facts.pop("storage")["freeBytes"]
    assert len(revision) == 71
    assert free > 0
    assert facts == {
        "source": {"bytes": len(weights(llama_shapes()))},
        "architecture": "LlamaForCausalLM",
        "modelType": "llama",
        "torchDtype": "bfloat16",
        "layers": 2,
        "hiddenSize": 64,
        "intermediateSize": 128,
        "attentionHeads": 4,
        "keyValueHeads": 2,
        "headDim": 16,
        "vocabSize": 100,
        "maxPositionEmbeddings": 256,
        "tiedEmbeddings": True,
        "experts": 0,
        "kvLoraRank": None,
        "qkRopeHeadDim": None,
        "parameters": parameters,
        "largestTensorBytes": 128 * 64 * 2,
        "quantized": None,
        "linears": [
            {"name": "lm_head", "rows": 100, "columns": 64, "count": 1},
            {"name": "model.layers.*.mlp.down_proj", "rows": 64, "columns": 128, "count": 2},
            {"name": "model.layers.*.mlp.gate_proj", "rows": 128, "columns": 64, "count": 2},
            {"name": "model.layers.*.mlp.up_proj", "rows": 128, "columns": 64, "count": 2},
            {"name": "model.layers.*.self_attn.k_proj", "rows": 32, "columns": 64, "count": 2},
            {"name": "model.layers.*.self_attn.o_proj", "rows": 64, "columns": 64, "count": 2},
            {"name": "model.layers.*.self_attn.q_proj", "rows": 64, "columns": 64, "count": 2},
            {"name": "model.layers.*.self_attn.v_proj", "rows": 32, "columns": 64, "count": 2},
        ],
        "linearsTruncated": False,
        "node": {"name": "worker-1", "cpuFlags": cpu_flags()},
    }


def test_inspect_imports_no_torch(tmp_path: Path) -> None:
    write_files(tmp_path / "source" / "llama", model_files())
    (tmp_path / "task.json").write_text(
        task_of({"type": "pvc", "path": "llama"}, tmp_path).model_dump_json(by_alias=True)
    )
    code = (
        "import sys, os\n"
        "from halfbyte_worker import main\n"
        "code, message = main.run_stage('inspect', main.Path(sys.argv[1]))\n"
        "print(int(code), [n for n in ('torch', 'transformers', 'safetensors') if n in sys.modules])\n"
    )
    environment = os.environ | {"HALFBYTE_ROOT": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path / "task.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_an_untied_output_layer_is_the_one_of_the_file() -> None:
    shapes = llama_shapes() | {"lm_head.weight": (100, 64)}
    facts = facts_of(LLAMA | {"tie_word_embeddings": False}, shapes)
    assert facts["tiedEmbeddings"] is False
    assert rows_of(facts)["lm_head"] == (100, 64, 1)


@pytest.mark.parametrize("has_output_layer", [True, False])
def test_without_a_word_in_the_config_the_file_tells_whether_embeddings_are_tied(
    has_output_layer: bool,
) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    shapes = llama_shapes() | ({"lm_head.weight": (100, 64)} if has_output_layer else {})
    facts = facts_of(config, shapes)
    assert facts["tiedEmbeddings"] is not has_output_layer
    assert rows_of(facts)["lm_head"] == (100, 64, 1)


def test_a_mixture_of_experts() -> None:
    config = LLAMA | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 3}
    shapes = llama_shapes(1)
    for expert in range(3):
        shapes[f"model.layers.0.mlp.experts.{expert}.down_proj.weight"] = (64, 32)
    shapes["model.layers.0.mlp.gate.weight"] = (3, 64)
    facts = facts_of(config, shapes)
    assert facts["experts"] == 3
    assert rows_of(facts)["model.layers.*.mlp.experts.*.down_proj"] == (64, 32, 3)
    assert rows_of(facts)["model.layers.*.mlp.gate"] == (3, 64, 1)


@pytest.mark.parametrize(
    ("field", "architecture"),
    [("num_local_experts", "MixtralForCausalLM"), ("n_routed_experts", "DeepseekV3ForCausalLM")],
)
def test_experts_by_the_names_of_different_families(field: str, architecture: str) -> None:
    assert facts_of(LLAMA | {"architectures": [architecture], field: 8}, llama_shapes())["experts"] == 8


def test_a_compressed_cache() -> None:
    config = LLAMA | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    }
    facts = facts_of(config, llama_shapes())
    assert (facts["kvLoraRank"], facts["qkRopeHeadDim"]) == (512, 64)


def test_the_text_part_of_a_multimodal_model() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": LLAMA | {"model_type": "gemma3_text", "head_dim": 32},
        "vision_config": {"hidden_size": 9999},
    }
    facts = facts_of(config, llama_shapes())
    assert (facts["architecture"], facts["modelType"]) == ("Gemma3ForConditionalGeneration", "gemma3_text")
    assert (facts["hiddenSize"], facts["headDim"]) == (64, 32)


@pytest.mark.parametrize(
    ("dtype", "name"), [("F16", "float16"), ("F32", "float32"), ("F8_E4M3", "float8_e4m3fn")]
)
def test_the_dtype_is_the_one_on_the_disk(dtype: str, name: str) -> None:
    assert facts_of(LLAMA | {"torch_dtype": "bfloat16"}, llama_shapes(), dtype)["torchDtype"] == name


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_a_quantized_source_is_told(method: str) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": method, "bits": 4}}
    assert facts_of(config, llama_shapes())["quantized"] == method


def test_embeddings_norms_and_biases_are_no_linear_layers() -> None:
    shapes = {
        "transformer.wte.weight": (10, 4),
        "transformer.wpe.weight": (10, 4),
        "model.embed_positions.weight": (10, 4),
        "model.word_embeddings.weight": (10, 4),
        "model.norm.weight": (4,),
        "model.layers.0.q_proj.bias": (4,),
        "model.layers.0.conv.weight": (4, 1, 4),
        "model.layers.0.q_proj.weight": (4, 4),
    }
    assert list(rows_of(facts_of(LLAMA | {"tie_word_embeddings": False}, shapes))) == [
        "model.layers.*.q_proj"
    ]


def test_layers_of_different_shapes_are_different_rows() -> None:
    shapes = {f"model.layers.{n}.mlp.up_proj.weight": (64 * (1 + n % 2), 64) for n in range(4)}
    facts = facts_of(LLAMA | {"tie_word_embeddings": False}, shapes)
    assert [(row["rows"], row["count"]) for row in facts["linears"]] == [(64, 2), (128, 2)]


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(Failure) as caught:
        facts_of(config, llama_shapes())
    assert (caught.value.reason, caught.value.code) == (Reason.UNSUPPORTED_ARCHITECTURE, 20)
    return caught.value.message


def test_unknown_architectures_are_refused_with_similar_names() -> None:
    assert "names no architecture" in refusal(LLAMA | {"architectures": None})
    message = refusal(LLAMA | {"architectures": ["LlamaForTalking"]})
    assert "LlamaForTalking" in message
    assert "LlamaForCausalLM" in message
    assert "BertModel" in refusal(LLAMA | {"architectures": ["BertModel"]})


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_field_that_the_config_lacks_is_named(field: str) -> None:
    config = {name: value for name, value in LLAMA.items() if name != field}
    assert f"config.json has no {field}" in refusal(config)


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_damaged_config(volumes: Path, content: bytes) -> None:
    write_files(volumes / "source" / "llama", model_files() | {"config.json": content})
    with pytest.raises(Failure, match=r"config\.json is not") as caught:
        inspect(task_of({"type": "pvc", "path": "llama"}, volumes))
    assert caught.value.reason == Reason.SOURCE_INCOMPLETE


def test_the_table_of_architectures_is_the_librarys() -> None:
    known = known_architectures()
    assert {"LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"} <= known
    assert "BertForMaskedLM" not in known


def test_without_the_library_no_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection.importlib.util, "find_spec", lambda name: None)
    assert known_architectures() == frozenset()
    assert (
        facts_of(LLAMA | {"architectures": ["NewForCausalLM"]}, llama_shapes())["architecture"]
        == "NewForCausalLM"
    )


def test_facts_of_a_large_model_fit_into_the_termination_message() -> None:
    shapes = dict(llama_shapes(4))
    for layer in range(4):
        for expert in range(8):
            for name in ("gate_proj", "up_proj", "down_proj"):
                shapes[f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight"] = (64, 64)
        for kind in range(60):
            shapes[f"model.layers.{layer}.block.with.a.long.name.part{kind}.weight"] = (64, 64)
    result = facts_of(LLAMA, shapes) | {"source": {"revision": "a" * 71, "bytes": 1}}
    encoded = build_message(ok=True, stage="inspect", reason="Done", message="m", result=result)
    assert len(encoded) <= 4096
    kept = json.loads(encoded)["result"]
    assert kept["linearsTruncated"] is True
    assert kept["parameters"] == result["parameters"]
