#include "int4_gemm/cpu/token_256.h"

#include <immintrin.h>

namespace halfbyte::int4::avx2 {
namespace {

__m256 load8(const void* values, hb_dtype dtype, int64_t index) {
  if (dtype == HB_FLOAT32) return _mm256_loadu_ps(static_cast<const float*>(values) + index);
  const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(values) + index));
  if (dtype == HB_FLOAT16) return _mm256_cvtph_ps(narrow);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
}

// Round to nearest, ties to even; a NaN keeps its top bits and gets the quiet bit.
__m128i bf16_of(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}

void store8(void* values, hb_dtype dtype, int64_t index, __m256 value) {
  if (dtype == HB_FLOAT32) {
    _mm256_storeu_ps(static_cast<float*>(values) + index, value);
    return;
  }
  const __m128i narrow = dtype == HB_BFLOAT16 ? bf16_of(value) : _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(values) + index), narrow);
}

float add_lanes(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

float max_lanes(__m256 v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// exp(x), relative error below 2e-7: 2^n * p(r), r = x - n ln 2 in two parts (the degree-5 polynomial of Cephes' expf).
__m256 exp8(__m256 x) {
  x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.3762589f)), _mm256_set1_ps(-87.3365479f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  const float rest[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  for (const float coefficient : rest) {
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(coefficient));
  }
  p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r), _mm256_set1_ps(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

__m256 silu8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f), negative = _mm256_sub_ps(_mm256_setzero_ps(), x);
  return _mm256_div_ps(x, _mm256_add_ps(one, exp8(negative)));
}

// x * Phi(x). erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
__m256 gelu8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
  const __m256 z = _mm256_mul_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(0.70710678f));
  const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_set1_ps(0.3275911f), z, one));
  __m256 p = _mm256_set1_ps(1.061405429f);
  const float rest[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  for (const float coefficient : rest) {
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(coefficient));
  }
  const __m256 tail = exp8(_mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(z, z)));
  const __m256 erf = _mm256_or_ps(_mm256_fnmadd_ps(_mm256_mul_ps(p, t), tail, one), _mm256_and_ps(sign, x));
  return _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(0.5f), x), _mm256_add_ps(one, erf));
}

__m256 activate8(__m256 value, hb_activation activation) {
  if (activation == HB_ACT_NONE) return value;
  return activation == HB_ACT_GELU ? gelu8(value) : silu8(value);
}

void copy(void* to, const void* from, int64_t elements, hb_dtype dtype) {
  __builtin_memcpy(to, from, static_cast<size_t>(elements) * (dtype == HB_FLOAT32 ? 4 : 2));
}

int32_t add_lanes(__m256i v) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1))));
}

float power_of_two(uint32_t exponent_bits) {
  const uint32_t bits = exponent_bits << 23;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// What a group with this largest |x| is divided by, and the inverse of that; see variant.h.
struct Scale {
  float scale, inverse;
};

Scale scale_of(hb_path path, float top) {
  if (top < 1e-30f) return {0.0f, 0.0f};
  if (path == HB_W4A8) return {top / 127.0f, 127.0f / top};
  uint32_t bits;
  __builtin_memcpy(&bits, &top, 4);
  const uint32_t exponent = bits >> 23;
  return {power_of_two(exponent - 14), power_of_two(2 * 127 + 14 - exponent)};
}

template <hb_path P>
void quantize_group(const void* x, hb_dtype dtype, int64_t begin, int64_t count, int32_t* q, int64_t rows, float* scale, int32_t* minus_sum) {
  const __m256 sign = _mm256_set1_ps(-0.0f), none = _mm256_setzero_ps();
  __m256 largest = none, taint = none;
  for (int64_t c = 0; c < count; c += 8) {
    const __m256 value = load8(x, dtype, begin + c);
    largest = _mm256_max_ps(_mm256_andnot_ps(sign, value), largest);
    taint = _mm256_fmadd_ps(value, none, taint);
  }
  const Scale found = scale_of(P, max_lanes(largest));
  const __m256 inverse = _mm256_set1_ps(found.inverse);
  __m256i minus_total = _mm256_setzero_si256();
  for (int64_t c = 0; c < count; c += 8, q += dwords_of_step(P) * rows) {
    __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(load8(x, dtype, begin + c), inverse));
    if constexpr (P == HB_W4A8) {
      minus_total = _mm256_sub_epi32(minus_total, code);
      const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
      const int64_t bytes = _mm_cvtsi128_si64(_mm_packs_epi16(words, words));
      q[0] = static_cast<int32_t>(bytes);
      q[rows] = static_cast<int32_t>(bytes >> 32);
    } else {
      // fp32 just below a power of two rounds to 2^15.
      code = _mm256_min_epi32(code, _mm256_set1_epi32(32767));
      minus_total = _mm256_sub_epi32(minus_total, code);
      code = _mm256_permutevar8x32_epi32(code, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
      const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
      q[0] = _mm_cvtsi128_si32(pairs);
      q[rows] = _mm_extract_epi32(pairs, 1);
      q[2 * rows] = _mm_extract_epi32(pairs, 2);
      q[3 * rows] = _mm_extract_epi32(pairs, 3);
    }
  }
  *scale = found.scale + add_lanes(taint);
  *minus_sum = add_lanes(minus_total);
}

// The last tile group of a per-channel weight whose k is no multiple of it, filled up with zeros.
struct Padded {
  alignas(32) uint8_t bytes[128 * 4] = {};
  Padded(const void* x, hb_dtype dtype, int64_t begin, int64_t valid) {
    copy(bytes, static_cast<const uint8_t*>(x) + begin * (dtype == HB_FLOAT32 ? 4 : 2), valid, dtype);
  }
};

}  // namespace

void quantize(hb_path path, const void* x, hb_dtype dtype, const Matrix& m, int32_t* q, int64_t rows, float* scale, int32_t* minus_sum) {
  const auto group = path == HB_W4A8 ? quantize_group<HB_W4A8> : quantize_group<HB_W4A16>;
  for (int64_t g = 0; g < m.groups; ++g, q += m.group / kStep * dwords_of_step(path) * rows) {
    const int64_t begin = g * m.group, valid = m.k - begin;
    if (valid >= m.group) {
      group(x, dtype, begin, m.group, q, rows, scale + g * rows, minus_sum + g * rows);
    } else {
      group(Padded(x, dtype, begin, valid).bytes, dtype, 0, m.group, q, rows, scale + g * rows, minus_sum + g * rows);
    }
  }
}

void finish(const float* sums, const float* up, const Epilogue& e, void* out) {
  // The last block of a matrix whose n is no multiple of 16 goes through buffers, to touch no byte beyond bias and out.
  alignas(32) uint8_t bias[kLanes * 4], up_bias[kLanes * 4], result[kLanes * 4];
  const bool partial = e.lanes < kLanes;
  const void* from = e.bias;
  const void* up_from = e.up_bias;
  if (partial && from != nullptr) {
    __builtin_memset(bias, 0, sizeof bias);
    copy(bias, e.bias, e.lanes, e.dtype);
    from = bias;
  }
  if (partial && up_from != nullptr) {
    __builtin_memset(up_bias, 0, sizeof up_bias);
    copy(up_bias, e.up_bias, e.lanes, e.dtype);
    up_from = up_bias;
  }
  void* to = partial ? result : out;
  for (int lane = 0; lane < kLanes; lane += 8) {
    __m256 value = _mm256_loadu_ps(sums + lane);
    if (from != nullptr) value = _mm256_add_ps(value, load8(from, e.dtype, lane));
    value = activate8(value, e.activation);
    if (up != nullptr) {
      __m256 factor = _mm256_loadu_ps(up + lane);
      if (up_from != nullptr) factor = _mm256_add_ps(factor, load8(up_from, e.dtype, lane));
      value = _mm256_mul_ps(value, factor);
    }
    store8(to, e.dtype, lane, value);
  }
  if (partial) copy(out, result, e.lanes, e.dtype);
}

}  // namespace halfbyte::int4::avx2
