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

void quantize_group(const void* x, hb_dtype dtype, int64_t begin, int64_t count, int8_t* q, int64_t rows, float* scale, float* sum) {
  const __m256 sign = _mm256_set1_ps(-0.0f), none = _mm256_setzero_ps();
  __m256 largest = none, taint = none;
  for (int64_t c = 0; c < count; c += 8) {
    const __m256 value = load8(x, dtype, begin + c);
    largest = _mm256_max_ps(_mm256_andnot_ps(sign, value), largest);
    taint = _mm256_fmadd_ps(value, none, taint);
  }
  const float top = max_lanes(largest);
  const bool tiny = top < 1e-30f;
  const __m256 inverse = _mm256_set1_ps(tiny ? 0.0f : 127.0f / top);
  __m256i total = _mm256_setzero_si256();
  for (int64_t c = 0; c < count; c += 8) {
    const __m256 value = _mm256_mul_ps(load8(x, dtype, begin + c), inverse);
    const __m256i code = _mm256_cvtps_epi32(value);
    total = _mm256_add_epi32(total, code);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    const int64_t bytes = _mm_cvtsi128_si64(_mm_packs_epi16(words, words));
    const int32_t four[2] = {static_cast<int32_t>(bytes), static_cast<int32_t>(bytes >> 32)};
    __builtin_memcpy(q + c * rows, &four[0], 4);
    __builtin_memcpy(q + (c + 4) * rows, &four[1], 4);
  }
  *scale = (tiny ? 0.0f : top / 127.0f) + add_lanes(taint);
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
  int32_t all = 0;
  for (const int32_t lane : lanes) all += lane;
  *sum = static_cast<float>(all);
}

// Columns of a step in the order of nibble positions: 0 4 1 5 2 6 3 7.
__m256i position_order() { return _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); }

__m256 position_powers() {
  return _mm256_setr_ps(power_at(0), power_at(1), power_at(2), power_at(3), power_at(4), power_at(5), power_at(6), power_at(7));
}

void widen_group(const void* x, hb_dtype dtype, int64_t begin, int64_t count, float* wide, int64_t rows, float* sum) {
  const __m256i order = position_order();
  const __m256 powers = position_powers();
  __m256 total = _mm256_setzero_ps();
  for (int64_t c = 0; c < count; c += 8) {
    const __m256 value = load8(x, dtype, begin + c);
    total = _mm256_add_ps(total, value);
    const __m256 ordered = _mm256_mul_ps(_mm256_permutevar8x32_ps(value, order), powers);
    if (rows == 1) {
      _mm256_storeu_ps(wide + c, ordered);
    } else {
      alignas(32) float eight[8];
      _mm256_store_ps(eight, ordered);
      for (int position = 0; position < kStep; ++position) wide[(c + position) * rows] = eight[position];
    }
  }
  *sum = add_lanes(total);
}

// The last tile group of a per-channel weight whose k is no multiple of it, filled up with zeros.
struct Padded {
  alignas(32) uint8_t bytes[128 * 4] = {};
  Padded(const void* x, hb_dtype dtype, int64_t begin, int64_t valid) {
    copy(bytes, static_cast<const uint8_t*>(x) + begin * (dtype == HB_FLOAT32 ? 4 : 2), valid, dtype);
  }
};

}  // namespace

void quantize(const void* x, hb_dtype dtype, const Matrix& m, int8_t* q, int64_t rows, float* scale, float* sum) {
  for (int64_t g = 0; g < m.groups; ++g) {
    const int64_t begin = g * m.group, valid = m.k - begin;
    if (valid >= m.group) {
      quantize_group(x, dtype, begin, m.group, q + begin * rows, rows, scale + g, sum + g);
    } else {
      quantize_group(Padded(x, dtype, begin, valid).bytes, dtype, 0, m.group, q + begin * rows, rows, scale + g, sum + g);
    }
  }
}

void widen(const void* x, hb_dtype dtype, const Matrix& m, float* wide, int64_t rows, float* sum) {
  for (int64_t g = 0; g < m.groups; ++g) {
    const int64_t begin = g * m.group, valid = m.k - begin;
    if (valid >= m.group) {
      widen_group(x, dtype, begin, m.group, wide + begin * rows, rows, sum + g);
    } else {
      widen_group(Padded(x, dtype, begin, valid).bytes, dtype, 0, m.group, wide + begin * rows, rows, sum + g);
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
