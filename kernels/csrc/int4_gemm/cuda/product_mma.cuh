// One warp's share of a stage with mma.m16n8k16 (sm_80 and later). W is the A operand (16 out features), x the B
// operand (8 tokens), so the result is out^T: a batch of 8 fills the tensor core, where x as A would need 16.
#pragma once

#include "int4_gemm/cuda/config.h"
#include "int4_gemm/cuda/ptx.cuh"

namespace halfbyte::cuda {

// Expands the 8 codes of a word to the A operand: exact (code - zero) in T. minus[r]: -(offset + zero) of rows r, r + 8.
template <class T>
HB_DEVICE void expand(uint32_t (&a)[4], uint32_t word, const uint32_t (&minus)[2]) {
#pragma unroll
  for (int reg = 0; reg < 4; ++reg) a[reg] = T::add(and_or(word >> (4 * reg), 0x000F000Fu, T::kCode), minus[reg % 2]);
}

// Scales, and minus-offsets for expand(), of a lane's two rows (r and r + 8) of one row tile and group.
template <class C>
HB_DEVICE void load_scales(float (&scale)[2], const uint8_t* stage, int tile, int group) {
  const int at = (tile * C::kGroups + group) * kScaleBytes + thread_index() % 32 / 4 * 4;
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(stage + C::kScalesOffset + at);
  scale[0] = C::T::widen(pair & 0xFFFFu);
  scale[1] = C::T::widen(pair >> 16);
}

template <class C>
HB_DEVICE void load_minus(uint32_t (&minus)[2], const uint8_t* stage, int tile, int group, bool zeros) {
  uint32_t zero = 0x0808u;
  if (zeros) {
    const int at = (tile * C::kGroups + group) * kZeroBytes + thread_index() % 32 / 4 * 2;
    zero = *reinterpret_cast<const uint16_t*>(stage + C::kZerosOffset + at);
  }
  minus[0] = (C::T::kMinus | (zero & 0xFFu)) * 0x00010001u;
  minus[1] = (C::T::kMinus | (zero >> 8)) * 0x00010001u;
}

template <class C>
struct MmaProduct {
  static constexpr int kTokenTiles = C::kTokens / 8;
  float total[C::kRowTiles][kTokenTiles][4] = {};
  float part[C::kRowTiles][kTokenTiles][4];

  HB_DEVICE void before_barrier() const {}

  HB_DEVICE void stage(const uint8_t* shared, bool zeros) {
    const int warp = fresh(thread_index() / 32);
    uint32_t minus[C::kRowTiles][2];
    // Unrolled over both panels, the widest kernel would spill.
#pragma unroll(C::kTokens >= 64 ? 1 : kPanels)
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int step = panel * 2 + half;  // 32 columns each
        if (step % (4 / C::kGroups) == 0) begin_group(minus, shared, warp, step * C::kGroups / 4, zeros);
        multiply_columns(shared, warp, panel, half, minus);
        if ((step + 1) % (4 / C::kGroups) == 0) end_group(shared, warp, step * C::kGroups / 4);
      }
    }
  }

  // 32 columns: one half of every row tile's words, four chunks of the panel of x.
  HB_DEVICE void multiply_columns(const uint8_t* shared, int warp, int panel, int half,
                                  const uint32_t (&minus)[C::kRowTiles][2]) {
    const int lane = fresh(thread_index() % 32);
    uint32_t a[2][C::kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < C::kRowTiles; ++tile) {
      const int at = ((warp * C::kRowTiles + tile) * kPanels + panel) * kTileBytes + word_index(lane, 2 * half) * 4;
      const Words2 words = *reinterpret_cast<const Words2*>(shared + C::kCodesOffset + at);
      expand<typename C::T>(a[0][tile], words.first, minus[tile]);
      expand<typename C::T>(a[1][tile], words.second, minus[tile]);
    }
    const uint8_t* x = shared + panel * C::kPanelBytes;
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
      uint32_t b[4];
      load_matrix(b, x + swizzled(tokens * 8 + lane % 8, half * 4 + lane / 8));
#pragma unroll
      for (int tile = 0; tile < C::kRowTiles; ++tile) {
        multiply<typename C::T>(part[tile][tokens], a[0][tile], b[0], b[1]);
        multiply<typename C::T>(part[tile][tokens], a[1][tile], b[2], b[3]);
      }
    }
  }

  HB_DEVICE void begin_group(uint32_t (&minus)[C::kRowTiles][2], const uint8_t* shared, int warp, int group,
                             bool zeros) {
#pragma unroll
    for (int tile = 0; tile < C::kRowTiles; ++tile) {
      load_minus<C>(minus[tile], shared, warp * C::kRowTiles + tile, group, zeros);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
        for (float& value : part[tile][tokens]) value = 0.0f;
      }
    }
  }

  HB_DEVICE void end_group(const uint8_t* shared, int warp, int group) {
#pragma unroll
    for (int tile = 0; tile < C::kRowTiles; ++tile) {
      float scale[2];
      load_scales<C>(scale, shared, warp * C::kRowTiles + tile, group);
#pragma unroll
      for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[tile][tokens][i] += scale[i / 2] * part[tile][tokens][i];
      }
    }
  }
};

}  // namespace halfbyte::cuda
