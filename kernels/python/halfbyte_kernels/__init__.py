"""4-bit matrix products for CPUs (where built, NVIDIA GPUs too) as operators ``torch.ops.halfbyte.*``."""

from halfbyte_kernels.info import info
from halfbyte_kernels.int4_gemm import dequantize, int4_gemm, int4_gemm_grouped, pack

__all__ = ["dequantize", "info", "int4_gemm", "int4_gemm_grouped", "pack"]
__version__ = "0.1.0"
