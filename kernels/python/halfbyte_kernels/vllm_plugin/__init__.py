"""Entry point ``vllm.general_plugins``: gives vLLM's CPU platform this distribution's 4-bit kernels, without
a fork.

HALFBYTE_KERNELS    auto (default): where they win (``choice.py``); off: never; force: always, and an unknown
                    vLLM version or another platform is an error.
HALFBYTE_INT4_PATH  w4a16 (default): activations keep 16 bits; w4a8: activations are rounded to int8 per
                    token and group, faster and less exact.

Every vLLM process that has 4-bit layers logs one line ``halfbyte-kernels: kernel=<class> reason=<text>``.
"""

from __future__ import annotations

from halfbyte_kernels.vllm_plugin.choice import decide, log_kernel, read_settings

__all__ = ["register"]


def register() -> None:
    """Called by vLLM in every process, more than once in some: registering again changes nothing."""
    settings = read_settings()
    decision = decide(settings)
    if not decision.register:
        log_kernel(decision.kernel, decision.reason)
        return
    from halfbyte_kernels.vllm_plugin.linear import register_linear
    from halfbyte_kernels.vllm_plugin.moe import register_moe

    register_linear(decision.reason)
    register_moe(decision.reason)
