"""AutoAWQ and GPTQ checkpoints give the very packed weight that the compressed-tensors one gives."""

from __future__ import annotations

import golden
import pytest
import torch

import halfbyte_kernels as hb
from halfbyte_kernels.layouts import from_awq, from_gptq


@pytest.mark.parametrize("name", [case.name for case in golden.CASES])
def test_all_three_layouts_pack_alike(name: str) -> None:
    case, tensors = golden.load(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in tensors.items()}
    expected = hb.pack(t["ct_weight_packed"], t["scales"], t["ct_zero_point"], case.group)
    g_idx = torch.arange(case.k) // (case.k if case.group == -1 else case.group)
    gptq = from_gptq(t["gptq_qweight"], t["scales"].t(), t["gptq_qzeros"], g_idx)
    awq = from_awq(t["awq_qweight"], t["scales"].t(), t["awq_qzeros"])
    assert torch.equal(hb.pack(*gptq, case.group), expected)
    assert torch.equal(hb.pack(*awq, case.group), expected)
