// Sizes of one kernel: shared by the kernel, the launcher and the host tests.
#pragma once

#include "int4_gemm/cuda/layout.h"

namespace halfbyte::cuda {

constexpr int kThreads = 128;
constexpr int kWarps = 4;
constexpr int kStageColumns = 128;  // columns of W and x in one pipeline stage: two tiles
constexpr int kPanels = kStageColumns / kTileColumns;
constexpr int kPanelRowBytes = kTileColumns * 2;  // one token's 64 columns: a row of the 128-byte swizzle

template <class Number, int tokens, int row_tiles, int groups, bool warpgroup>
struct Config {
  using T = Number;
  static constexpr int kTokens = tokens;       // rows of x in a block
  static constexpr int kRowTiles = row_tiles;  // tiles of W a warp
  static constexpr int kGroups = groups;       // scale groups a stage: 4, 2, 1 for group sizes 32, 64, 128 and more
  static constexpr bool kWarpgroup = warpgroup;  // wgmma (sm_90a) in place of mma.sync
  static constexpr int kRows = kWarps * kRowTiles * kTileRows;  // rows of W a block
  static constexpr int kStages = kTokens >= 64 ? 3 : 4;

  // Blocks that should share a processor: bounds the registers a thread (65536 / 128 / this).
  static constexpr int kBlocks = kWarpgroup ? (kTokens >= 128 ? 2 : 3) : kTokens >= 64 ? 2 : kTokens >= 32 ? 3 : 5;

  static constexpr int kPanelBytes = kTokens * kPanelRowBytes;
  static constexpr int kCodesOffset = kPanels * kPanelBytes;
  static constexpr int kScalesOffset = kCodesOffset + kWarps * kRowTiles * kPanels * kTileBytes;
  static constexpr int kZerosOffset = kScalesOffset + kWarps * kRowTiles * kGroups * kScaleBytes;
  static constexpr int kStageEnd = kZerosOffset + kWarps * kRowTiles * kGroups * kZeroBytes;
  static constexpr int kStageBytes = (kStageEnd + 1023) / 1024 * 1024;  // the swizzle wants 1024-byte panels

  static constexpr int kPitch = kRows + 4;  // floats a token in the finished tile; + 4 against bank conflicts
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kTokens * kPitch * 4 ? kStages * kStageBytes : kTokens * kPitch * 4;
};

// Where the 16-byte chunk `chunk` (of 8) of a token lies in a panel: the hardware's 128-byte swizzle.
HB_HOST_DEVICE constexpr int swizzled(int token, int chunk) {
  return token * kPanelRowBytes + ((chunk ^ (token & 7)) * 16);
}

struct Arguments {
  const void* x;
  int64_t x_stride;
  int rows, k;
  int n, width;  // rows of W; columns of out
  int experts;
  const int64_t* expert_rows;
  const uint8_t* packed;
  int64_t packed_bytes, scales_offset, zeros_offset;
  int row_tiles, column_tiles, groups;
  int group_step;  // groups to advance per group of a stage: 0 when there is one scale a row
  bool zeros;
  bool read_once;  // each weight is read by one block only
  const void* bias;
  int activation;
  void* out;
  int64_t out_stride;
  int stages, stages_per_split, splits;
  unsigned* counters;  // one a tile, zero before and after
  float* partial;      // [tiles][splits][tokens][rows of W a block]
};

}  // namespace halfbyte::cuda
