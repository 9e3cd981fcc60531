#include <immintrin.h>

#include "common/cpu_features.h"
#include "int4_gemm/cpu/token_256.h"
#include "int4_gemm/cpu/variant.h"

namespace halfbyte::int4 {
namespace {

constexpr bool kHasDot = false;
inline __m256i dot_bytes(__m256i sums, __m256i, __m256i) { return sums; }
inline __m256i dot_words(__m256i sums, __m256i, __m256i) { return sums; }

#include "int4_gemm/cpu/product_256.inc"

bool usable() { return cpu_features().avx2; }

}  // namespace

extern const Variant kAvx2{"avx2", usable, tile_rows, avx2::quantize, product, avx2::finish};

}  // namespace halfbyte::int4
