// One 512-bit register holds the 64 bytes of a step: 16 lanes x 8 columns. Same sums as the scalar twin.
#include <immintrin.h>

#include "common/cpu_features.h"
#include "int4_gemm/cpu/token_256.h"
#include "int4_gemm/cpu/variant.h"
#ifdef HALFBYTE_EMULATED
#include "emulation/avx512_emulation.h"
#endif

namespace halfbyte::int4 {
namespace {

inline __m512i broadcast4(const int8_t* four_bytes) {
  int32_t dword;
  __builtin_memcpy(&dword, four_bytes, 4);
  return _mm512_set1_epi32(dword);
}

inline __m512 load_scales(const uint8_t* scales, hb_dtype dtype) {
  if (dtype == HB_FLOAT32) return _mm512_loadu_ps(scales);
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  if (dtype == HB_FLOAT16) return _mm512_cvtph_ps(narrow);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline __m512 load_zeros(const uint8_t* zeros) {
  if (zeros == nullptr) return _mm512_set1_ps(8.0f);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros))));
}

// vpdpbusd and FMA take 4 to 5 cycles and two start in each, so fewer than 8 rows need several chains a lane.
constexpr int chains_of(int rows) { return rows >= 8 ? 1 : rows >= 4 ? 2 : 4; }

template <int R>
void rows_w4a8(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const int8_t* q, const float* scale,
               const float* sum, float* sums) {
  constexpr int kChains = chains_of(R);
  const __m512i nibble = _mm512_set1_epi8(15);
  const uint8_t* codes = m.block_codes(block) + first * (m.group / kStep) * kStepBytes;
  for (int64_t g = first; g < last; ++g, codes += m.group / kStep * kStepBytes) {
    __m512i dots[R][kChains];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kChains; ++c) dots[r][c] = _mm512_setzero_si512();
    }
    const int8_t* group_q = q + g * m.group * R;
    for (int64_t base = 0; base < m.group / kStep; base += 2) {
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const int64_t step = base + odd;
        _mm_prefetch(codes + step * kStepBytes + ahead, _MM_HINT_T0);
        const __m512i bytes = _mm512_loadu_si512(codes + step * kStepBytes);
        const __m512i low = _mm512_and_si512(bytes, nibble), high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
        for (int r = 0; r < R; ++r) {
          const int8_t* four = group_q + step * kStep * R + 4 * r;
          __m512i& one = dots[r][(2 * odd) % kChains];
          one = _mm512_dpbusd_epi32(one, low, broadcast4(four));
          __m512i& two = dots[r][(2 * odd + 1) % kChains];
          two = _mm512_dpbusd_epi32(two, high, broadcast4(four + 4 * R));
        }
      }
    }
    const __m512 factor = load_scales(m.group_scales(block, g), m.scale_dtype), zero = load_zeros(m.group_zeros(block, g));
    for (int r = 0; r < R; ++r) {
      __m512i dot = dots[r][0];
      for (int c = 1; c < kChains; ++c) dot = _mm512_add_epi32(dot, dots[r][c]);
      const __m512 centred = _mm512_fnmadd_ps(zero, _mm512_set1_ps(sum[r * m.groups + g]), _mm512_cvtepi32_ps(dot));
      const __m512 both = _mm512_mul_ps(factor, _mm512_set1_ps(scale[r * m.groups + g]));
      float* to = sums + r * kLanes;
      _mm512_storeu_ps(to, _mm512_fmadd_ps(both, centred, _mm512_loadu_ps(to)));
    }
  }
}

template <int R>
void rows_w4a16(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const float* wide, const float* sum,
                float* sums) {
  constexpr int kChains = chains_of(R);
  const uint8_t* codes = m.block_codes(block) + first * (m.group / kStep) * kStepBytes;
  for (int64_t g = first; g < last; ++g, codes += m.group / kStep * kStepBytes) {
    __m512 dots[R][kChains];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kChains; ++c) dots[r][c] = _mm512_setzero_ps();
    }
    const float* group_x = wide + g * m.group * R;
    for (int64_t step = 0; step < m.group / kStep; ++step) {
      _mm_prefetch(codes + step * kStepBytes + ahead, _MM_HINT_T0);
      const __m512i dwords = _mm512_loadu_si512(codes + step * kStepBytes);
#pragma GCC unroll 8
      for (int position = 0; position < kStep; ++position) {
        const __m512i masked = position < 7 ? _mm512_and_si512(dwords, _mm512_set1_epi32(static_cast<int>(15u << (4 * position))))
                                            : _mm512_srli_epi32(dwords, 28);
        const __m512 code = _mm512_cvtepi32_ps(masked);
        for (int r = 0; r < R; ++r) {
          __m512& chain = dots[r][position % kChains];
          chain = _mm512_fmadd_ps(code, _mm512_set1_ps(group_x[(step * kStep + position) * R + r]), chain);
        }
      }
    }
    const __m512 factor = load_scales(m.group_scales(block, g), m.scale_dtype), zero = load_zeros(m.group_zeros(block, g));
    for (int r = 0; r < R; ++r) {
      __m512 dot = dots[r][0];
      for (int c = 1; c < kChains; ++c) dot = _mm512_add_ps(dot, dots[r][c]);
      const __m512 centred = _mm512_fnmadd_ps(zero, _mm512_set1_ps(sum[r * m.groups + g]), dot);
      float* to = sums + r * kLanes;
      _mm512_storeu_ps(to, _mm512_fmadd_ps(factor, centred, _mm512_loadu_ps(to)));
    }
  }
}

// Tiles of 12, 8, 4, 2 and 1 rows.
int64_t tile_rows(hb_path, int64_t remaining) {
  return remaining >= 12 ? 12 : remaining >= 8 ? 8 : remaining >= 4 ? 4 : remaining >= 2 ? 2 : 1;
}

void product_w4a8(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const int8_t* q, const float* scale,
                  const float* sum, int64_t rows, float* sums) {
  for (int64_t row = 0; row < rows;) {
    const int64_t count = tile_rows(HB_W4A8, rows - row), cell = row * m.groups;
    const int8_t* tile = q + row * m.padded_k;
    float* to = sums + row * kLanes;
    switch (count) {
      case 12: rows_w4a8<12>(m, ahead, block, first, last, tile, scale + cell, sum + cell, to); break;
      case 8: rows_w4a8<8>(m, ahead, block, first, last, tile, scale + cell, sum + cell, to); break;
      case 4: rows_w4a8<4>(m, ahead, block, first, last, tile, scale + cell, sum + cell, to); break;
      case 2: rows_w4a8<2>(m, ahead, block, first, last, tile, scale + cell, sum + cell, to); break;
      default: rows_w4a8<1>(m, ahead, block, first, last, tile, scale + cell, sum + cell, to);
    }
    row += count;
  }
}

void product_w4a16(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const float* wide, const float* sum,
                   int64_t rows, float* sums) {
  for (int64_t row = 0; row < rows;) {
    const int64_t count = tile_rows(HB_W4A16, rows - row), cell = row * m.groups;
    const float* tile = wide + row * m.padded_k;
    float* to = sums + row * kLanes;
    switch (count) {
      case 12: rows_w4a16<12>(m, ahead, block, first, last, tile, sum + cell, to); break;
      case 8: rows_w4a16<8>(m, ahead, block, first, last, tile, sum + cell, to); break;
      case 4: rows_w4a16<4>(m, ahead, block, first, last, tile, sum + cell, to); break;
      case 2: rows_w4a16<2>(m, ahead, block, first, last, tile, sum + cell, to); break;
      default: rows_w4a16<1>(m, ahead, block, first, last, tile, sum + cell, to);
    }
    row += count;
  }
}

bool usable() {
#ifdef HALFBYTE_EMULATED
  return cpu_features().avx2;
#else
  return cpu_features().avx512_vnni;
#endif
}

}  // namespace

extern const Variant kAvx512Vnni{"avx512_vnni", usable, tile_rows, avx2::quantize, avx2::widen, product_w4a8, product_w4a16, avx2::finish};

}  // namespace halfbyte::int4
