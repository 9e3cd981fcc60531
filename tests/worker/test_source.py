import os
import shutil
import struct
from pathlib import Path

import pytest

from halfbyte_worker import mounts
from halfbyte_worker.failure import Failure, Reason
from halfbyte_worker.source import ClaimFolder, open_source, read_headers
from halfbyte_worker.task import ClaimSource
from worker.checkpoint_files import llama_shapes, model_files, sharded_files, weights, write_files


@pytest.fixture
def folder(volumes: Path) -> Path:
    return write_files(volumes / "source" / "llama", model_files())


def claim(path: str = "llama", revision: str | None = None) -> ClaimFolder:
    found = open_source(ClaimSource(type="pvc", path=path, revision=revision))
    assert isinstance(found, ClaimFolder)
    return found


def refusal(reason: Reason, path: str = "llama") -> str:
    with pytest.raises(Failure) as caught:
        read_headers(claim(path))
    assert (caught.value.reason, caught.value.code) == (reason, 20)
    return caught.value.message


def revision_of(path: str = "llama") -> str:
    source = claim(path)
    return source.revision(read_headers(source))


def test_a_folder_of_the_claim(folder: Path) -> None:
    source = claim()
    headers = read_headers(source)
    assert list(headers) == ["model.safetensors"]
    assert headers["model.safetensors"].file_bytes == source.files["model.safetensors"]
    assert {tensor.name: tensor.shape for tensor in headers["model.safetensors"].tensors} == llama_shapes()
    assert source.local_folder("quantize") == folder


def test_the_root_of_the_claim(volumes: Path) -> None:
    write_files(volumes / "source", model_files())
    assert read_headers(claim(""))


def test_shards_by_their_index(volumes: Path) -> None:
    write_files(volumes / "source" / "llama", sharded_files() | {"model-extra.safetensors": b"no checkpoint"})
    assert list(read_headers(claim())) == sorted(
        name for name in sharded_files() if name.endswith(".safetensors")
    )


def test_weights_of_another_program_beside_the_model_are_left_alone(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"no checkpoint")
    assert list(read_headers(claim())) == ["model.safetensors"]


# Revision


def test_the_revision_stays_while_the_content_does(folder: Path, volumes: Path) -> None:
    first = revision_of()
    assert first.startswith("sha256-")
    assert len(first) == 71
    shutil.copytree(folder, volumes / "source" / "copy")
    (volumes / "source" / "copy" / "README.md").write_text("not part of the model")
    assert revision_of("copy") == first


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_the_revision_changes_with_every_file_of_the_model(folder: Path, name: str) -> None:
    first = revision_of()
    os.utime(folder / name, (1, 1))
    assert revision_of() != first


def test_the_revision_changes_with_config_and_headers_though_sizes_and_times_stay(folder: Path) -> None:
    seen = {revision_of()}
    for name, old, new in (
        ("config.json", b'"llama"', b'"lloma"'),
        ("model.safetensors", b"mlp.up", b"mlp.ap"),
    ):
        stat = (folder / name).stat()
        (folder / name).write_bytes((folder / name).read_bytes().replace(old, new))
        os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        seen.add(revision_of())
    assert len(seen) == 3


def test_a_model_that_changed_since_its_inspection_is_refused(folder: Path) -> None:
    pinned = revision_of()
    assert claim(revision=pinned).local_folder("quantize") == folder
    os.utime(folder / "model.safetensors", (1, 1))
    with pytest.raises(Failure, match=r"has changed since it was inspected.*requested-at") as caught:
        claim(revision=pinned).local_folder("quantize")
    assert (caught.value.reason, caught.value.code) == (Reason.REVISION_NOT_FOUND, 20)


# What can be wrong with a claim


def test_a_missing_folder_is_told_with_what_is_there(folder: Path) -> None:
    message = refusal(Reason.SOURCE_NOT_FOUND, "lama")
    assert "lama does not exist; the claim has: llama" in message
    assert "llama has: config.json" in refusal(Reason.SOURCE_NOT_FOUND, "llama/deeper")
    assert "the claim has: llama" in refusal(Reason.SOURCE_NOT_FOUND, "a/b/c")


def test_an_empty_claim_and_none_at_all(volumes: Path) -> None:
    assert "the claim has: nothing" in refusal(Reason.SOURCE_NOT_FOUND)
    mounts.SOURCE_ROOT.rmdir()
    assert "nothing" in refusal(Reason.SOURCE_NOT_FOUND)


def test_a_file_where_a_folder_is_expected(folder: Path) -> None:
    assert "is a file" in refusal(Reason.SOURCE_NOT_FOUND, "llama/config.json")


def test_a_folder_without_config_names_what_it_has(folder: Path) -> None:
    (folder / "config.json").unlink()
    message = refusal(Reason.SOURCE_NOT_FOUND)
    assert "has no config.json" in message
    assert "model.safetensors" in message


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no *.safetensors" in refusal(Reason.SOURCE_INCOMPLETE)


def test_a_missing_shard_is_named(volumes: Path) -> None:
    files = sharded_files()
    del files["model-00002-of-00003.safetensors"]
    write_files(volumes / "source" / "llama", files)
    message = refusal(Reason.SOURCE_INCOMPLETE)
    assert "model-00002-of-00003.safetensors (1 of 3 files" in message


@pytest.mark.parametrize("index", [b"{", b"[]", b"{}", b'{"weight_map": 3}'])
def test_a_damaged_index(folder: Path, index: bytes) -> None:
    (folder / "model.safetensors.index.json").write_bytes(index)
    assert "model.safetensors.index.json is damaged" in refusal(Reason.SOURCE_INCOMPLETE)


@pytest.mark.parametrize("cut", [1, 1000, -4])
def test_weights_that_are_being_copied(folder: Path, cut: int) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-cut] if cut > 0 else content + b"more")
    message = refusal(Reason.SOURCE_INCOMPLETE)
    assert f"its header needs {len(content)}" in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 0) + b"{}",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 50) + b'{"a": 1}',
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"{]{]",
        struct.pack("<Q", 19) + b'{"a": {"dtype": 1}}',
    ],
)
def test_weights_that_are_no_safetensors(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(Reason.SOURCE_INCOMPLETE)


def test_a_pointer_of_git_lfs_is_recognized(folder: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    (folder / "model.safetensors").write_bytes(pointer)
    assert "git lfs pull" in refusal(Reason.SOURCE_INCOMPLETE)


def test_links_within_the_claim_are_followed_and_others_are_not(folder: Path, volumes: Path) -> None:
    blobs = volumes / "source" / "blobs"
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / "1")
    (folder / "model.safetensors").symlink_to("../blobs/1")
    assert read_headers(claim())
    (blobs / "1").rename(volumes / "outside")
    assert "model.safetensors is a link" in refusal(Reason.SOURCE_INCOMPLETE)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(volumes / "outside")
    assert "model.safetensors is a link" in refusal(Reason.SOURCE_INCOMPLETE)


def test_a_file_that_may_not_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, who may read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("config.json"))
    assert "cannot be read by user" in refusal(Reason.SOURCE_NOT_FOUND)


def test_weights_of_another_dtype(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(weights(llama_shapes(), "F32"))
    assert {tensor.dtype for tensor in read_headers(claim())["model.safetensors"].tensors} == {"F32"}
