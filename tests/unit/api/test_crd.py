from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from halfbyte.api import crd, reference
from halfbyte.api.conditions import ConditionType, Reason
from halfbyte.api.crd import TARGETS, build_crd, render_crd

ROOT = Path(__file__).parents[3]
VERSION = build_crd()["spec"]["versions"][0]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_what_is_checked_in_is_what_the_models_say(target: Path) -> None:
    assert (ROOT / target).read_text() == render_crd()


def test_reference_pages_are_up_to_date() -> None:
    assert (ROOT / reference.API_PAGE).read_text() == reference.render_api()
    assert (ROOT / reference.REASONS_PAGE).read_text() == reference.render_reasons()


def test_columns_names_and_subresources() -> None:
    columns = [each["name"] for each in VERSION["additionalPrinterColumns"] if not each["priority"]]
    assert columns == ["Ready", "Method", "TP", "Replicas", "Reason", "Age"]
    assert build_crd()["spec"]["names"]["shortNames"] == ["qm"]
    assert build_crd()["spec"]["names"]["categories"] == ["ml"]
    assert set(VERSION["subresources"]) == {"status", "scale"}


def test_every_path_that_columns_and_scale_name_exists() -> None:
    schema = VERSION["schema"]["openAPIV3Schema"]
    paths = [each["jsonPath"] for each in VERSION["additionalPrinterColumns"]]
    paths += VERSION["subresources"]["scale"].values()
    for path in paths:
        if path.startswith(".metadata") or "[?" in path:
            continue
        here = schema
        for part in path.strip(".").split("."):
            assert part in here["properties"], path
            here = here["properties"][part]


def test_a_new_object_never_looks_current() -> None:
    status = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}


def test_check_and_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert crd.main(["--check"]) == 1
    assert "run `make generate`" in capsys.readouterr().err
    assert crd.main([]) == 0
    assert crd.main(["--check"]) == 0
    (tmp_path / TARGETS[0]).write_text("kind: Nothing\n")
    assert crd.main(["--check"]) == 1
    assert "-kind: Nothing" in capsys.readouterr().err
    assert crd.main(["--output", "other.yaml"]) == 0
    assert yaml.safe_load((tmp_path / "other.yaml").read_text()) == build_crd()
    assert crd.main(["--output", "-"]) == 0
    assert capsys.readouterr().out == render_crd()


def test_reference_check_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_every_reason_and_condition_is_explained() -> None:
    page = reference.render_reasons()
    for reason in Reason:
        assert f"### {reason}\n" in page
        assert reason.meaning.endswith("."), reason
        assert not reason.terminal or reason.remedy, f"{reason} stalls and does not say what to do"
        assert not reason.remedy or reason.remedy.endswith("."), reason
    for kind in ConditionType:
        assert kind.meaning.endswith("."), kind


def test_the_api_page_has_fields_rules_and_annotations() -> None:
    page = reference.render_api()
    assert '| `spec.quantization.method` | `AWQ` \\| `GPTQ` \\| `W8A8` \\| `None` | `"AWQ"` |' in page
    assert "| `spec.serving.replicas` | integer 0 to 1000 | `1` |" in page
    assert "| `spec.serving.extraArgs` | list of string |" in page
    assert "| `spec.serving.tensorParallel` | integer or string |" in page
    assert "| `spec.source` | object | **required** |" in page
    assert "- `spec.source`: exactly one of huggingFace and pvc must be set" in page
    assert "- `spec.serving.extraArgs[]`: the argument is owned by the operator" in page
    assert "`halfbyte.dev/approve`" in page
