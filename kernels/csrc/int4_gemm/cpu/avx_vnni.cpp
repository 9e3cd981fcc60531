#include <immintrin.h>

#include "common/cpu_features.h"
#include "int4_gemm/cpu/token_256.h"
#include "int4_gemm/cpu/variant.h"
#ifdef HALFBYTE_EMULATED
#include "emulation/avx512_emulation.h"
#endif

namespace halfbyte::int4 {
namespace {

constexpr bool kHasDot = true;
inline __m256i dot_bytes(__m256i sums, __m256i codes, __m256i q) { return _mm256_dpbusd_avx_epi32(sums, codes, q); }
inline __m256i dot_words(__m256i sums, __m256i codes, __m256i q) { return _mm256_dpwssd_avx_epi32(sums, codes, q); }

#include "int4_gemm/cpu/product_256.inc"

bool usable() {
#ifdef HALFBYTE_EMULATED
  return cpu_features().avx2;
#else
  return cpu_features().avx_vnni;
#endif
}

}  // namespace

extern const Variant kAvxVnni{"avx_vnni", usable, tile_rows, avx2::quantize, product, avx2::finish};

}  // namespace halfbyte::int4
