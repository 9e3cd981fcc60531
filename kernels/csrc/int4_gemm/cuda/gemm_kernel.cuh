// The int4 GEMM kernel: a block computes kTokens rows of x times kRows rows of W over a range of stages.
//
//   fill(stage)   cp.async brings 128 columns: x (swizzled, shared by the block), codes, scales, zeros (each warp its own)
//   stage(shared) the product expands codes in registers and multiplies (product_mma.cuh, product_wgmma.cuh)
//   finish()      sums go through shared memory so that stores are coalesced and gate meets value; with split-K
//                 every block leaves its partial sums in the workspace and the last one to arrive adds them in
//                 the order of the splits (so the result does not depend on timing), then bias and activation once.
#pragma once

#include "int4_gemm/cuda/config.h"
#include "int4_gemm/cuda/product_mma.cuh"
#include "int4_gemm/cuda/product_wgmma.cuh"
#include "int4_gemm/cuda/ptx.cuh"

namespace halfbyte::cuda {

constexpr int kSilu = 1, kGelu = 2, kSiluMul = 3;

// The rows of x that a block works on, all of one expert.
struct TokenRange {
  int expert = 0, first = 0, count = 0;
};

// The index-th tile of rows sorted by expert, each expert's rows cut into tiles of kTokens; count 0: no such tile.
template <int kTokens>
HB_DEVICE TokenRange find_tokens(const Arguments& args, int index) {
  if (args.experts == 1) {
    const int first = index * kTokens;
    const int left = args.rows - first;
    return {0, first, left < kTokens ? left : kTokens};
  }
  const int lane = thread_index() % 32;
  int tiles_before = 0;
  int rows_before = 0;
  for (int base = 0; base < args.experts; base += 32) {
    const int expert = base + lane;
    const int rows = expert < args.experts ? static_cast<int>(args.expert_rows[expert]) : 0;
    const int tiles = (rows + kTokens - 1) / kTokens;
    int row_sum = rows;
    int tile_sum = tiles;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int more_rows = shuffle_up(row_sum, delta);
      const int more_tiles = shuffle_up(tile_sum, delta);
      if (lane >= delta) {
        row_sum += more_rows;
        tile_sum += more_tiles;
      }
    }
    const unsigned found = ballot(index < tiles_before + tile_sum);
    if (found != 0) {
      int owner = 0;
      while ((found >> owner & 1u) == 0) ++owner;
      const int owner_rows = shuffle(rows, owner);
      const int skip = (index - tiles_before - (shuffle(tile_sum, owner) - shuffle(tiles, owner))) * kTokens;
      const int first = rows_before + shuffle(row_sum, owner) - owner_rows + skip;
      const int left = owner_rows - skip;
      return {base + owner, first, left < kTokens ? left : kTokens};
    }
    tiles_before += shuffle(tile_sum, 31);
    rows_before += shuffle(row_sum, 31);
  }
  return {};
}

template <class C>
struct Block {
  const Arguments& args;
  TokenRange tokens;
  const uint8_t* packed;  // of the expert
  uint64_t policy;

  HB_DEVICE bool gated() const { return args.activation == kSiluMul; }
  HB_DEVICE int out_columns() const { return gated() ? C::kRows / 2 : C::kRows; }

  // The row tile of W that tile `tile` of this warp is: gated blocks take half of theirs from each half of W.
  HB_DEVICE int row_tile(int tile) const {
    const int own = thread_index() / 32 * C::kRowTiles + tile;
    if (!gated()) return block_y() * kWarps * C::kRowTiles + own;
    constexpr int kHalf = kWarps / 2 * C::kRowTiles;
    const int index = block_y() * kHalf + own % kHalf;
    const int half_tiles = args.width / kTileRows;
    if (index >= half_tiles) return args.row_tiles;  // past the end of the gate: nothing to compute
    return own < kHalf ? index : half_tiles + index;
  }

  HB_DEVICE void fill(uint8_t* shared, int stage) const {
    fill_x(shared, stage);
    const int lane = thread_index() % 32;
    const int warp = thread_index() / 32;
#pragma unroll
    for (int tile = 0; tile < C::kRowTiles; ++tile) {
      const int row = fresh(row_tile(tile));
      const int own = warp * C::kRowTiles + tile;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const int column = stage * kPanels + panel;
        const bool valid = row < args.row_tiles && column < args.column_tiles;
        const int64_t index = valid ? static_cast<int64_t>(row) * args.column_tiles + column : 0;
        copy16(shared + C::kCodesOffset + (own * kPanels + panel) * kTileBytes + lane * 16,
               packed + index * kTileBytes + lane * 16, valid, policy);
      }
      fill_scales(shared, stage, row, own, lane);
    }
  }

  HB_DEVICE void fill_x(uint8_t* shared, int stage) const {
    constexpr int kTokenChunks = kStageColumns / 8;
    constexpr int kStep = kThreads / kTokenChunks;  // 8 tokens: the swizzle repeats, so one offset serves all
    const int first = fresh(thread_index() / kTokenChunks);
    const int chunk = thread_index() % kTokenChunks;
    const int column = stage * kStageColumns + chunk * 8;
    const auto* x = static_cast<const uint16_t*>(args.x);
    const uint16_t* source = x + (tokens.first + first) * args.x_stride + column;
    uint8_t* target = shared + chunk / 8 * C::kPanelBytes + swizzled(first, chunk % 8);
#pragma unroll
    for (int token = 0; token < C::kTokens; token += kStep) {
      const bool valid = first + token < tokens.count && column < args.k;
      copy16(target + token * kPanelRowBytes, valid ? source + token * args.x_stride : x, valid);
    }
  }

  // Lanes 0.. bring the 16-byte halves of the scales, lanes 16.. the zeros.
  HB_DEVICE void fill_scales(uint8_t* shared, int stage, int row, int own, int lane) const {
    const int local = lane < 16 ? lane / 2 : lane - 16;
    if (local >= C::kGroups) return;
    const int group = (stage * C::kGroups + local) * args.group_step;
    const bool valid = row < args.row_tiles && group < args.groups;
    const int64_t index = valid ? static_cast<int64_t>(row) * args.groups + group : 0;
    const int slot = own * C::kGroups + local;
    if (lane < 16) {
      copy16(shared + C::kScalesOffset + slot * kScaleBytes + lane % 2 * 16,
             packed + args.scales_offset + index * kScaleBytes + lane % 2 * 16, valid);
    } else if (args.zeros) {
      copy16(shared + C::kZerosOffset + slot * kZeroBytes, packed + args.zeros_offset + index * kZeroBytes, valid);
    }
  }

  // total -> shared [token][row of W]
  template <class Product>
  HB_DEVICE void spread(float* tile, const Product& product) const {
    const int lane = thread_index() % 32;
    const int warp = thread_index() / 32;
#pragma unroll
    for (int own = 0; own < C::kRowTiles; ++own) {
#pragma unroll
      for (int eight = 0; eight < C::kTokens / 8; ++eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = eight * 8 + lane % 4 * 2 + i % 2;
          const int row = (warp * C::kRowTiles + own) * kTileRows + lane / 4 + i / 2 * 8;
          tile[token * C::kPitch + row] = product.total[own][eight][i];
        }
      }
    }
  }

  HB_DEVICE void finish(float* tile) const {
    float* partial = nullptr;
    if (args.splits > 1) {
      const int64_t index = static_cast<int64_t>(block_x()) * grid_y() + block_y();
      partial = args.partial + index * args.splits * C::kTokens * C::kRows;
      if (!leave_partial(partial, tile, args.counters + index)) return;
    }
    const int columns = out_columns();
    for (int id = thread_index(); id < tokens.count * columns; id += kThreads) {
      const int token = id / columns;
      const int column = id % columns;
      const int out_column = block_y() * columns + column;
      if (out_column < args.width) store(token, out_column, activated(tile, partial, token, column, out_column));
    }
  }

  // Returns true in the block that arrives last: all partial sums are visible to it.
  HB_DEVICE bool leave_partial(float* partial, const float* tile, unsigned* counter) const {
    float* own = partial + static_cast<int64_t>(block_z()) * C::kTokens * C::kRows;
    for (int id = thread_index(); id < tokens.count * C::kRows; id += kThreads) {
      own[id] = tile[id / C::kRows * C::kPitch + id % C::kRows];
    }
    fence_device();
    sync_block();
    auto* last = reinterpret_cast<unsigned*>(shared_memory());
    if (thread_index() == 0) {
      *last = atomic_increment(counter) == static_cast<unsigned>(args.splits - 1) ? 1u : 0u;
      if (*last != 0) *counter = 0;
    }
    sync_block();
    const bool result = *last != 0;
    fence_device();
    return result;
  }

  HB_DEVICE float sum(const float* tile, const float* partial, int token, int column) const {
    if (partial == nullptr) return tile[token * C::kPitch + column];
    float value = 0.0f;
    for (int split = 0; split < args.splits; ++split) {
      value += load_other_block(partial + (static_cast<int64_t>(split) * C::kTokens + token) * C::kRows + column);
    }
    return value;
  }

  HB_DEVICE float biased(const float* tile, const float* partial, int token, int column, int row) const {
    const float value = sum(tile, partial, token, column);
    if (args.bias == nullptr) return value;
    const auto* bias = static_cast<const uint16_t*>(args.bias) + static_cast<int64_t>(tokens.expert) * args.n;
    return value + C::T::widen(bias[row]);
  }

  HB_DEVICE float activated(const float* tile, const float* partial, int token, int column, int row) const {
    const float value = biased(tile, partial, token, column, row);
    if (args.activation == kGelu) return 0.5f * value * (1.0f + erff(value * 0.70710678f));
    if (args.activation == kSilu) return value / (1.0f + expf(-value));
    if (!gated()) return value;
    const float other = biased(tile, partial, token, C::kRows / 2 + column, args.width + row);
    return value / (1.0f + expf(-value)) * other;
  }

  HB_DEVICE void store(int token, int column, float value) const {
    auto* out = static_cast<uint16_t*>(args.out);
    out[(tokens.first + token) * args.out_stride + column] = C::T::narrow(value);
  }
};

template <class C, class Product>
HB_DEVICE void gemm_block(const Arguments& args) {
  const TokenRange tokens = find_tokens<C::kTokens>(args, block_x());
  if (tokens.count <= 0) return;
  const Block<C> block{args, tokens, args.packed + tokens.expert * args.packed_bytes, cache_policy(args.read_once)};
  uint8_t* shared = shared_memory();
  const int first = block_z() * args.stages_per_split;
  const int left = args.stages - first;
  const int count = left < args.stages_per_split ? left : args.stages_per_split;
#pragma unroll
  for (int stage = 0; stage < C::kStages - 1; ++stage) {
    if (stage < count) block.fill(shared + stage * C::kStageBytes, first + stage);
    copy_commit();
  }
  Product product;
  for (int stage = 0; stage < count; ++stage) {
    copy_wait<C::kStages - 2>();
    product.before_barrier();
    sync_block();
    const int next = stage + C::kStages - 1;
    if (next < count) block.fill(shared + next % C::kStages * C::kStageBytes, first + next);
    copy_commit();
    product.stage(shared + stage % C::kStages * C::kStageBytes, args.zeros);
  }
  sync_block();  // the finished tile takes the place of the stages
  auto* tile = reinterpret_cast<float*>(shared);
  block.spread(tile, product);
  sync_block();
  block.finish(tile);
}

}  // namespace halfbyte::cuda
