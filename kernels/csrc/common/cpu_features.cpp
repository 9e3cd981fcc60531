#include "common/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace halfbyte {
namespace {

#if defined(__x86_64__)
// Register state that the operating system saves: a CPU bit without it means an illegal instruction.
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

CpuFeatures read_features() {
  CpuFeatures features;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  const bool fma = c & (1u << 12), osxsave = c & (1u << 27), f16c = c & (1u << 29);
  if (!osxsave) return features;
  const uint64_t state = enabled_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xE6) == 0xE6;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  const unsigned leaves = a;
  features.avx2 = ymm && fma && f16c && (b & (1u << 5));
  const unsigned avx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
  features.avx512_vnni = features.avx2 && zmm && (b & avx512) == avx512 && (c & (1u << 11));
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) features.avx_vnni = features.avx2 && (a & (1u << 4));
  return features;
}
#else
CpuFeatures read_features() { return {}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = read_features();
  return features;
}

}  // namespace halfbyte
