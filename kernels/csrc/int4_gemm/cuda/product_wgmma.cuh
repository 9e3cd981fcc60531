// One warpgroup's share of a stage with wgmma (sm_90a only): 64 rows of W from registers, kTokens of x from shared
// memory. The A fragments of wgmma are those of mma.m16n8k16 warp by warp, so the packed weight is the same.
#pragma once

#include "int4_gemm/cuda/config.h"
#include "int4_gemm/cuda/product_mma.cuh"
#include "int4_gemm/cuda/wgmma.cuh"

namespace halfbyte::cuda {

// Shared-memory descriptor of 16 columns (32 bytes) of a panel [tokens][64] in the 128-byte swizzle, K-major:
// address / 16, leading offset (unused in this swizzle), stride between groups of 8 tokens (1024 bytes) / 16.
HB_DEVICE uint64_t panel_descriptor(const uint8_t* panel, int word) {
  const uint64_t address = shared_address(panel) + 32u * static_cast<uint32_t>(word);
  return ((address & 0x3FFFFu) >> 4) | (uint64_t{1} << 16) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

template <class C>
struct WgmmaProduct {
  static_assert(C::kRowTiles == 1, "one row tile a warp: two would not fit the registers beside the sums");
  static constexpr int kTokenTiles = C::kTokens / 8;
  float total[1][kTokenTiles][4] = {};
  float part[kTokenTiles][4];

  HB_DEVICE void before_barrier() const { fence_async_proxy(); }

  HB_DEVICE void stage(const uint8_t* shared, bool zeros) {
    constexpr int kWordsPerGroup = 8 / C::kGroups;  // 16 columns a word
    const int warp = thread_index() / 32;
    const int lane = thread_index() % 32;
    uint32_t minus[2];
    uint32_t a[8][4];
#pragma unroll
    for (int word = 0; word < 8; ++word) {
      const int panel = word / 4;
      const bool first = word % kWordsPerGroup == 0;
      if (first) load_minus<C>(minus, shared, warp, word / kWordsPerGroup, zeros);
      const uint8_t* codes = shared + C::kCodesOffset + (warp * kPanels + panel) * kTileBytes;
      expand<typename C::T>(a[word], reinterpret_cast<const uint32_t*>(codes)[word_index(lane, word % 4)], minus);
      warpgroup_begin();  // orders the registers just written before the tensor core's reads of them
      warpgroup_multiply<typename C::T>(part, a[word], panel_descriptor(shared + panel * C::kPanelBytes, word % 4),
                                        !first);
      if ((word + 1) % kWordsPerGroup == 0) {
        warpgroup_finish();
        add_scaled(shared, warp, word / kWordsPerGroup);
      }
    }
  }

  HB_DEVICE void add_scaled(const uint8_t* shared, int warp, int group) {
    float scale[2];
    load_scales<C>(scale, shared, warp, group);
#pragma unroll
    for (int tokens = 0; tokens < kTokenTiles; ++tokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[0][tokens][i] += scale[i / 2] * part[tokens][i];
    }
  }
};

}  // namespace halfbyte::cuda
