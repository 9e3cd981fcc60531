from __future__ import annotations

import subprocess
import sys

from halfbyte.api.spec import Spec
from halfbyte.planning.identity import (
    MAX_NAME,
    artifact_label,
    attempt,
    canonical,
    digest,
    fit,
    quantize_job_name,
    source_key,
)
from support.models import spec as raw_spec

HUB = {"repo": "org/m", "revision": "main"}


def spec(**parts: object) -> Spec:
    return Spec.model_validate(raw_spec(**parts))


def test_canonical_json_has_one_form() -> None:
    assert canonical({"b": 1, "a": [1, {"y": None, "x": "ü"}]}) == '{"a":[1,{"x":"ü","y":null}],"b":1}'
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_digests_do_not_depend_on_the_process() -> None:
    program = (
        "from halfbyte.planning.identity import digest; print(digest({'a': [1, 'x'], 'b': {'c': None}}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest({"b": {"c": None}, "a": [1, "x"]})}


def test_names_fit_and_stay_apart() -> None:
    long = "a" * 63
    names = {fit(long, f"-inspect-{number:08d}") for number in range(3)} | {
        fit(long[:-1] + "b", "-inspect-00000000")
    }
    assert len(names) == 4
    assert all(len(name) <= MAX_NAME for name in names)
    assert fit("short", "-x") == "short-x"


def test_a_secret_changes_access_and_not_the_inspection() -> None:
    plain = spec(source={"huggingFace": HUB}).source
    with_token = spec(source={"huggingFace": {**HUB, "tokenSecretRef": {"name": "hf"}}}).source
    other = spec(source={"huggingFace": {**HUB, "revision": "v2"}}).source
    assert source_key(plain, None) == source_key(with_token, None)
    assert len({source_key(plain, None), source_key(other, None), source_key(plain, "now")}) == 3


def test_an_attempt_is_the_spec_without_replicas_and_the_request() -> None:
    one = spec()
    scaled = spec(serving={**raw_spec()["serving"], "replicas": 5})
    assert attempt(one, None) == attempt(scaled, None)
    assert attempt(one, None) != attempt(spec(suspend=True), None)
    assert attempt(one, None) != attempt(one, "now")


def test_a_quantize_job_is_named_by_artifact_and_claim() -> None:
    assert quantize_job_name("sha256-a", "x") == quantize_job_name("sha256-a", "x")
    assert len({quantize_job_name(key, claim) for key in ("a", "b") for claim in ("x", "y")}) == 4
    assert artifact_label("sha256-" + "ab" * 32) == "ab" * 8
