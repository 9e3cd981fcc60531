"""matrix.yaml: its shape, its references, and what a planner gets out of it for well-known cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import yaml

import halfbyte_kernels

KERNELS = Path(__file__).resolve().parent.parent
MATRIX: dict[str, Any] = yaml.safe_load((KERNELS / "matrix.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((KERNELS / "matrix.schema.json").read_text(encoding="utf-8"))


def hardware_of(flags: set[str]) -> str:
    return next(h["name"] for h in MATRIX["hardware"] if h["type"] == "cpu" and set(h["cpuFlags"]) <= flags)


def first_kernel(
    hardware: str, method: str, module: str = "linear", group: int = 128, symmetric: bool = True
) -> str | None:
    for row in MATRIX["serving"]:
        fits = hardware in row["hardware"] and method in row["methods"] and module in row["modules"]
        quantized = "bits" not in row or (group in row["groupSizes"] and symmetric in row["symmetric"])
        if fits and quantized:
            return row["kernel"]
    return None


def refusal(hardware: str, method: str, module: str) -> dict[str, str] | None:
    for row in MATRIX["refusals"]:
        selectors = (("hardware", hardware), ("methods", method), ("modules", module))
        if all(value in row.get(key, [value]) for key, value in selectors):
            return row
    return None


def test_the_file_fits_its_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(MATRIX)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hardware", 0, "dtype"), "int8"),
        (("serving", 1, "groupSizes"), [48]),
        (("methods", 0, "name"), "HQQ"),
        (("extra",), 1),
    ],
)
def test_the_schema_refuses_a_wrong_file(path: tuple[Any, ...], value: Any) -> None:
    broken = json.loads(json.dumps(MATRIX))
    target = broken
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(broken)


@pytest.mark.parametrize(
    "section", ["methods", "hardware", "products", "architectures", "engines", "operators"]
)
def test_names_are_unique(section: str) -> None:
    names = [entry["name"] for entry in MATRIX[section]]
    assert len(names) == len(set(names))


def test_every_reference_exists() -> None:
    known = {
        section: {entry["name"] for entry in MATRIX[section]}
        for section in ("hardware", "methods", "engines", "operators")
    }
    for row in MATRIX["serving"] + MATRIX["refusals"]:
        assert set(row.get("hardware", ())) <= known["hardware"]
        assert set(row.get("methods", ())) <= known["methods"]
    for row in MATRIX["serving"]:
        assert row["engine"] in known["engines"]
        assert row.get("operator", "int4_gemm") in known["operators"]
    assert {p["hardware"] for p in MATRIX["products"]} <= known["hardware"]


def test_a_cpu_that_has_more_is_listed_before_one_that_has_less() -> None:
    flags = [set(h["cpuFlags"]) for h in MATRIX["hardware"] if h["type"] == "cpu"]
    for earlier, weaker in enumerate(flags):
        assert not any(weaker < later for later in flags[earlier + 1 :]), (
            "a stronger entry would never be reached"
        )


def test_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    for hardware in MATRIX["hardware"]:
        if hardware["type"] == "cpu":
            assert (hardware["dtype"] == "bfloat16") == bool(
                {"avx512_bf16", "amx_bf16"} & set(hardware["cpuFlags"])
            )


def test_every_served_combination_has_a_kernel_that_takes_the_dtype() -> None:
    rows = [(h, m) for h in MATRIX["hardware"] for m in MATRIX["methods"] if m["served"]]
    for hardware, method in rows:
        kernel = first_kernel(hardware["name"], method["name"], group=method.get("groupSizes", [-1])[-1])
        if kernel is None:
            assert refusal(hardware["name"], method["name"], "linear"), (hardware["name"], method["name"])
            continue
        row = next(
            r for r in MATRIX["serving"] if r["kernel"] == kernel and hardware["name"] in r["hardware"]
        )
        assert hardware["dtype"] in row["dtypes"], (hardware["name"], kernel)


def test_a_method_that_is_not_served_is_refused_in_words() -> None:
    for method in MATRIX["methods"]:
        if not method["served"]:
            assert first_kernel("sm_90", method["name"]) is None
            assert refusal("sm_90", method["name"], "linear")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "fma"}, "cpu-avx2"),
        ({"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}, "cpu-avx512-bf16"),
        ({"avx2", "avx512f"}, "cpu-avx512"),
    ],
)
def test_cpu_recognition(flags: set[str], expected: str) -> None:
    assert hardware_of(flags) == expected


def test_vllm_alone_has_no_4_bit_kernel_on_avx2() -> None:
    providers = {
        r["provider"] for r in MATRIX["serving"] if "cpu-avx2" in r["hardware"] and "AWQ" in r["methods"]
    }
    assert providers == {"halfbyte-kernels"}


def test_routed_experts_on_a_cpu_are_served_in_4_bits_and_refused_in_8_with_a_way_out() -> None:
    assert first_kernel("cpu-avx2", "AWQ", module="experts") == "HalfbyteInt4MoEMethod"
    assert first_kernel("cpu-avx2", "W8A8", group=-1, module="experts") is None
    assert "ignore" in refusal("cpu-avx2", "W8A8", "experts")["instead"]


def test_machete_before_marlin_and_marlin_for_small_groups() -> None:
    assert first_kernel("sm_90", "AWQ", group=128) == "MacheteLinearKernel"
    assert first_kernel("sm_90", "AWQ", group=32) == "MarlinLinearKernel"
    assert first_kernel("sm_80", "GPTQ", group=128) == "MarlinLinearKernel"


def test_the_operators_variants_are_those_that_were_built() -> None:
    variants = [v for v in MATRIX["operators"][0]["variants"] if v["type"] == "cpu"]
    cpu = halfbyte_kernels.info()["cpu"]
    assert [v["name"] for v in variants] == cpu["built"]
    flags = set(
        Path("/proc/cpuinfo").read_text(encoding="utf-8").split("flags", 1)[1].split("\n", 1)[0].split()
    )
    assert [v["name"] for v in variants if set(v["cpuFlags"]) <= flags] == cpu["usable"]


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_operator_takes_the_group_sizes_it_names(group: int, symmetric: bool) -> None:
    operator = MATRIX["operators"][0]
    assert group in operator["groupSizes"]
    assert symmetric in operator["symmetric"]
    groups = 1 if group == -1 else 256 // group
    zeros = None if symmetric else torch.zeros(4, groups, dtype=torch.int32)
    codes, scales = torch.zeros(32, 32, dtype=torch.int32), torch.ones(32, groups, dtype=torch.bfloat16)
    packed = halfbyte_kernels.pack(codes, scales, zeros, group)
    for dtype in operator["dtypes"]:
        for activation in operator["activations"]:
            x = torch.ones(1, 256, dtype=getattr(torch, dtype))
            assert halfbyte_kernels.int4_gemm(x, packed, None, 32, activation).dtype == x.dtype


def test_our_vllm_kernel_takes_what_its_row_says() -> None:
    pytest.importorskip("vllm", reason="the plugin's class needs vLLM (image tests run it)")
    from vllm.model_executor.kernels.linear import MPLinearLayerConfig
    from vllm.scalar_type import scalar_types

    from halfbyte_kernels.vllm_plugin.linear import HalfbyteInt4LinearKernel

    row = next(r for r in MATRIX["serving"] if r["kernel"] == HalfbyteInt4LinearKernel.__name__)
    rows, columns = row["multipleOf"]["rows"], row["multipleOf"]["columns"]

    def takes(n: int, k: int, group: int, symmetric: bool, dtype: str) -> bool:
        weight = scalar_types.uint4b8 if symmetric else scalar_types.uint4
        config = MPLinearLayerConfig((k, n), (k, n), weight, getattr(torch, dtype), group, not symmetric)
        return HalfbyteInt4LinearKernel.can_implement(config)[0]

    for group in row["groupSizes"]:
        k = columns if group == -1 else 128
        assert all(takes(rows, k, group, s, d) for s in row["symmetric"] for d in row["dtypes"])
    assert not takes(rows // 2, columns, -1, True, "float32")
    assert not takes(rows, columns // 2, -1, True, "float32")
    assert not takes(rows, 96, 64, True, "float32")


def test_the_page_is_generated_from_the_file() -> None:
    sys.path.insert(0, str(KERNELS))
    try:
        import matrix_page
    finally:
        sys.path.remove(str(KERNELS))
    assert matrix_page.PAGE.read_text(encoding="utf-8") == matrix_page.render(MATRIX)
    assert matrix_page.main(["--check"]) == 0
