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

inline __m512 load_scales(const uint8_t* scales, hb_dtype dtype) {
  if (dtype == HB_FLOAT32) return _mm512_loadu_ps(scales);
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  if (dtype == HB_FLOAT16) return _mm512_cvtph_ps(narrow);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline __m512i load_zeros(const uint8_t* zeros) {
  if (zeros == nullptr) return _mm512_set1_epi32(8);
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(zeros)));
}

// A dot product waits 4 to 5 cycles for the sum before it and two start in each, so fewer than 8 rows need several chains a lane.
constexpr int chains_of(int rows) { return rows >= 8 ? 1 : rows >= 4 ? 2 : 4; }

// Adds the products of R rows x 16 lanes over one step of 8 columns. Both paths take dwords two by two, so that chains are
// used in turn; `odd` is the step's.
template <hb_path P, int R, int C>
inline void add_step(__m512i dwords, int odd, const int32_t* q, __m512i (&dots)[R][C]) {
  if constexpr (P == HB_W4A8) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i codes[2] = {_mm512_and_si512(dwords, nibble), _mm512_and_si512(_mm512_srli_epi16(dwords, 4), nibble)};
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < 2; ++half) {
        __m512i& chain = dots[r][(2 * odd + half) % C];
        chain = _mm512_dpbusd_epi32(chain, codes[half], _mm512_set1_epi32(q[half * R + r]));
      }
    }
  } else {
    const __m512i nibble = _mm512_set1_epi32(0x000F000F);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const __m512i codes = _mm512_and_si512(_mm512_srli_epi32(dwords, static_cast<unsigned>(4 * pair)), nibble);
      for (int r = 0; r < R; ++r) {
        __m512i& chain = dots[r][pair % C];
        chain = _mm512_dpwssd_epi32(chain, codes, _mm512_set1_epi32(q[pair * R + r]));
      }
    }
  }
}

template <hb_path P, int R>
void add_tile(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const int32_t* q, const float* scale,
              const int32_t* minus_sum, float* sums) {
  constexpr int kChains = chains_of(R);
  const uint8_t* codes = m.block_codes(block) + first * (m.group / kStep) * kStepBytes;
  for (int64_t g = first; g < last; ++g, codes += m.group / kStep * kStepBytes) {
    __m512i dots[R][kChains];
    const __m512i zero = load_zeros(m.group_zeros(block, g));
    for (int r = 0; r < R; ++r) {
      dots[r][0] = _mm512_mullo_epi32(zero, _mm512_set1_epi32(minus_sum[g * R + r]));
      for (int c = 1; c < kChains; ++c) dots[r][c] = _mm512_setzero_si512();
    }
    const int32_t* group_q = q + g * (m.group / kStep) * dwords_of_step(P) * R;
    for (int64_t base = 0; base < m.group / kStep; base += 2) {
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const uint8_t* at = codes + (base + odd) * kStepBytes;
        _mm_prefetch(at + ahead, _MM_HINT_T0);
        add_step<P, R>(_mm512_loadu_si512(at), odd, group_q + (base + odd) * dwords_of_step(P) * R, dots);
      }
    }
    const __m512 factor = load_scales(m.group_scales(block, g), m.scale_dtype);
    for (int r = 0; r < R; ++r) {
      __m512i dot = dots[r][0];
      for (int c = 1; c < kChains; ++c) dot = _mm512_add_epi32(dot, dots[r][c]);
      const __m512 both = _mm512_mul_ps(factor, _mm512_set1_ps(scale[g * R + r]));
      float* to = sums + r * kLanes;
      _mm512_storeu_ps(to, _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(dot), _mm512_loadu_ps(to)));
    }
  }
}

// Tiles of 12, 8, 4, 2 and 1 rows.
int64_t tile_rows(int64_t remaining) {
  return remaining >= 12 ? 12 : remaining >= 8 ? 8 : remaining >= 4 ? 4 : remaining >= 2 ? 2 : 1;
}

template <hb_path P>
void add_tiles(const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const int32_t* q, const float* scale,
               const int32_t* minus_sum, int64_t rows, float* sums) {
  for (int64_t row = 0; row < rows;) {
    const int64_t count = tile_rows(rows - row), cell = row * m.groups;
    const int32_t* tile = q + row * (m.padded_k / kStep) * dwords_of_step(P);
    float* to = sums + row * kLanes;
    switch (count) {
      case 12: add_tile<P, 12>(m, ahead, block, first, last, tile, scale + cell, minus_sum + cell, to); break;
      case 8: add_tile<P, 8>(m, ahead, block, first, last, tile, scale + cell, minus_sum + cell, to); break;
      case 4: add_tile<P, 4>(m, ahead, block, first, last, tile, scale + cell, minus_sum + cell, to); break;
      case 2: add_tile<P, 2>(m, ahead, block, first, last, tile, scale + cell, minus_sum + cell, to); break;
      default: add_tile<P, 1>(m, ahead, block, first, last, tile, scale + cell, minus_sum + cell, to);
    }
    row += count;
  }
}

void product(hb_path path, const Matrix& m, int64_t ahead, int64_t block, int64_t first, int64_t last, const int32_t* q,
             const float* scale, const int32_t* minus_sum, int64_t rows, float* sums) {
  const auto add = path == HB_W4A8 ? add_tiles<HB_W4A8> : add_tiles<HB_W4A16>;
  add(m, ahead, block, first, last, q, scale, minus_sum, rows, sums);
}

bool usable() {
#ifdef HALFBYTE_EMULATED
  return cpu_features().avx2;
#else
  return cpu_features().avx512_vnni;
#endif
}

}  // namespace

extern const Variant kAvx512Vnni{"avx512_vnni", usable, tile_rows, avx2::quantize, product, avx2::finish};

}  // namespace halfbyte::int4
