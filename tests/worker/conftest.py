import shutil
from pathlib import Path

import pytest

from halfbyte_worker import mounts


@pytest.fixture
def volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty source and artifact volumes, where the worker finds them."""
    for name in ("source", "artifacts"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(mounts, "SOURCE_ROOT", tmp_path / "source")
    monkeypatch.setattr(mounts, "ARTIFACT_ROOT", tmp_path / "artifacts")
    return tmp_path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny model for the whole run; copy it before changing it."""
    from worker.tiny_model import build_model

    return build_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def tiny(volumes: Path, tiny_model: Path) -> Path:
    """The tiny model on the source volume, as `tiny`."""
    return Path(shutil.copytree(tiny_model, volumes / "source" / "tiny", copy_function=shutil.copy2))
