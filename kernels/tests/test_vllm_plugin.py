"""When vLLM gets our kernels, with stand-ins for its modules; a real server is in test_vllm_serving.py."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator

import pytest
import torch

from halfbyte_kernels import selfcheck
from halfbyte_kernels.vllm_plugin import choice, register


class Platform:
    device_name = "cuda"

    def __init__(self, cpu: bool) -> None:
        self.cpu = cpu

    def is_cpu(self) -> bool:
        return self.cpu


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A fake vllm 0.32 on a CPU whose library lacks the 4-bit operator."""
    module, platforms, logger = (types.ModuleType(name) for name in ("vllm", "vllm.platforms", "vllm.logger"))
    module.__version__ = "0.32.0"
    platforms.current_platform = Platform(cpu=True)
    logger.init_logger = logging.getLogger
    for each in (module, platforms, logger):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.setattr(choice, "vllm_has_int4", lambda: False)
    monkeypatch.setattr(choice, "vllm_uses_amx", lambda: False)
    monkeypatch.setattr(choice, "_logged", False)
    monkeypatch.delenv("HALFBYTE_KERNELS", raising=False)
    monkeypatch.delenv("HALFBYTE_INT4_PATH", raising=False)
    return module


def decide() -> choice.Decision:
    return choice.decide(choice.read_settings())


def test_auto_registers_where_vllm_has_nothing(vllm: types.ModuleType) -> None:
    assert decide() == choice.Decision(True, "vLLM has no 4-bit kernel for this CPU")


def test_auto_leaves_amx_to_vllm(vllm: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "vllm_has_int4", lambda: True)
    assert decide().register
    monkeypatch.setattr(choice, "vllm_uses_amx", lambda: True)
    assert not decide().register
    assert decide().kernel == "CPUWNA16LinearKernel"


def test_off_logs_the_one_line_and_registers_nothing(
    vllm: types.ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HALFBYTE_KERNELS", "off")
    with caplog.at_level(logging.INFO):
        register()
        register()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["halfbyte-kernels: kernel=CPUWNA16LinearKernel reason=HALFBYTE_KERNELS=off"]


def test_another_vllm_is_named_with_what_to_do(
    vllm: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.__version__ = "0.33.1"
    assert not decide().register
    assert "knows vLLM 0.32, this is 0.33.1: install" in decide().reason
    monkeypatch.setenv("HALFBYTE_KERNELS", "force")
    with pytest.raises(
        RuntimeError, match=r"HALFBYTE_KERNELS=force, but halfbyte-kernels 0\.1 knows vLLM 0\.32"
    ):
        decide()


def test_a_gpu_platform_is_left_alone(vllm: types.ModuleType) -> None:
    sys.modules["vllm.platforms"].current_platform = Platform(cpu=False)
    assert decide().reason == "the platform is cuda, not a CPU"


@pytest.mark.parametrize(("name", "value"), [("HALFBYTE_KERNELS", "yes"), ("HALFBYTE_INT4_PATH", "int8")])
def test_a_wrong_setting_is_named(
    vllm: types.ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'; it may be"):
        choice.read_settings()


def test_a_variant_that_computes_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.ops.halfbyte.int4_gemm

    def wrong(x: torch.Tensor, *rest: object) -> torch.Tensor:
        out = right(x, *rest[:-1], "scalar")
        return out if rest[-1] == "scalar" else out + 0.01

    monkeypatch.setattr(selfcheck, "cpu_variants_usable", lambda: ["avx512_vnni", "scalar"])
    selfcheck.verified_variant.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops.halfbyte, "int4_gemm", wrong)
        assert selfcheck.verified_variant("w4a8") == "scalar"
    selfcheck.verified_variant.cache_clear()


def test_this_machines_best_variant_passes_its_self_check() -> None:
    selfcheck.verified_variant.cache_clear()
    for path in ("w4a16", "w4a8"):
        assert selfcheck.verified_variant(path) == selfcheck.cpu_variants_usable()[0]
