// What this CPU and its operating system can run. Read once by CPUID; never by the flags that this file was compiled with.
#pragma once

namespace halfbyte {

struct CpuFeatures {
  bool avx2 = false;  // with FMA and F16C, which every AVX2 kernel here uses too
  bool avx_vnni = false;
  bool avx512_vnni = false;  // with F, BW, VL and DQ
};

const CpuFeatures& cpu_features();

}  // namespace halfbyte
