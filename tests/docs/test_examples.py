"""What the pages show can be used as it stands: manifests are valid; targets, files and values exist."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from halfbyte.api.spec import Spec
from support.markdown import ROOT, Block, blocks, pages

MINIMAL: dict[str, Any] = {
    "source": {"pvc": {"claimName": "weights", "path": "model"}},
    "serving": {"accelerator": {"type": "cpu"}},
    "storage": {"claimName": "artifacts"},
}
BLOCKS = [block for page in pages() for block in blocks(page)]
HEREDOC = re.compile(r"<<'?(\w+)'?\n(.*?)\n\s*\1$", re.MULTILINE | re.DOTALL)


def yaml_texts(block: Block) -> list[str]:
    if block.language == "yaml":
        return [block.text]
    if block.language in {"bash", "console"}:
        return [match[2] for match in HEREDOC.finditer(block.text)]
    return []


def manifests(block: Block) -> list[dict[str, Any]]:
    loaded = [each for text in yaml_texts(block) for each in yaml.safe_load_all(text)]
    return [each for each in loaded if isinstance(each, dict)]


def specs() -> list[Any]:
    found = []
    for block in BLOCKS:
        for manifest in manifests(block):
            if manifest.get("kind") == "QuantizedModel":
                found.append(pytest.param(manifest["spec"], id=block.where))
            elif set(manifest) == {"spec"}:
                found.append(pytest.param(MINIMAL | manifest["spec"], id=block.where))
    return found


@pytest.mark.parametrize("spec", specs())
def test_manifests_are_valid(spec: dict[str, Any]) -> None:
    Spec.model_validate(spec)


def test_manifests_were_found() -> None:
    assert len(specs()) >= 5


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        (match, page.name)
        for page in pages()
        for match in re.findall(r"(?:`|\$ |^)make ([a-z0-9-]+)", page.read_text(), flags=re.MULTILINE)
    }
    assert named
    assert {each for each in named if each[0] not in targets} == set()


def values_paths() -> set[str]:
    def walk(node: dict[str, Any], prefix: str) -> set[str]:
        found = set()
        for key, value in node.items():
            found.add(prefix + key)
            if isinstance(value, dict):
                found |= walk(value, f"{prefix}{key}.")
        return found

    return walk(yaml.safe_load((ROOT / "charts" / "halfbyte" / "values.yaml").read_text()), "")


SET_FLAG = re.compile(r"--set ([\w.]+)=")
DOTTED_NAME = re.compile(r"`([a-zA-Z]+\.[a-zA-Z.]+?)(?:[=:][^`]*)?`")
REPOSITORY_PATH = re.compile(
    r"(?<![\w/.$}-])((?:charts|examples|tests|images|constraints|kernels)/[\w./-]*[\w])"
)


def test_chart_values_exist() -> None:
    known = values_paths()
    tops = {path for path in known if "." not in path} - {"resources"}
    named = {
        (page.name, name)
        for page in pages()
        for name in SET_FLAG.findall(page.read_text()) + DOTTED_NAME.findall(page.read_text())
        if name.split(".")[0] in tops
    }
    assert named
    assert {each for each in named if each[1] not in known} == set()


def test_files_named_in_commands_exist() -> None:
    named = {
        (block.where, path)
        for block in BLOCKS
        if block.language in {"bash", "console"}
        for path in REPOSITORY_PATH.findall(block.text)
    }
    assert named
    assert {each for each in named if not (ROOT / each[1]).exists()} == set()
