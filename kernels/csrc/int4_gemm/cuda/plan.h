// Which kernel a product runs and how it is cut, from its sizes and the GPU alone: pure, so that tests check it
// without a GPU.
#pragma once

#include <stdint.h>

namespace halfbyte::cuda {

constexpr int kCounters = 4096;  // tiles that split-K may have; the counters lie at the workspace's start

struct Plan {
  int tokens = 0;          // rows of x a block
  bool warpgroup = false;  // wgmma
  int rows = 0;            // rows of W a block
  int64_t token_tiles = 0, row_blocks = 0;
  int stages = 0, stages_per_split = 0, splits = 1;

  int64_t tiles() const { return token_tiles * row_blocks; }
  int64_t partial_floats() const { return splits > 1 ? tiles() * splits * tokens * rows : 0; }
  int64_t workspace_bytes() const { return splits > 1 ? kCounters * 4 + partial_floats() * 4 : 0; }
};

// rows_of_x tokens (all experts together), n x k weights, columns of out covered by a block = rows, or half when gated.
inline Plan make_plan(int64_t rows_of_x, int64_t n, int64_t k, int64_t experts, bool gated, int processors,
                      bool has_wgmma) {
  Plan plan;
  const int64_t per_expert = (rows_of_x + experts - 1) / experts;
  plan.warpgroup = has_wgmma && per_expert >= 64;
  plan.tokens = per_expert <= 8 ? 8 : per_expert <= 16 ? 16 : per_expert <= 32 ? 32 : 64;
  if (plan.warpgroup && per_expert >= 128) plan.tokens = 128;
  plan.rows = !plan.warpgroup && plan.tokens == 64 ? 128 : 64;

  const int64_t full = rows_of_x / plan.tokens;
  const int64_t some = full + experts < rows_of_x ? full + experts : rows_of_x;  // the most that rounding up can give
  plan.token_tiles = experts == 1 ? (rows_of_x + plan.tokens - 1) / plan.tokens : some;
  const int64_t columns = gated ? n / 2 : n;
  const int64_t block_columns = gated ? plan.rows / 2 : plan.rows;
  plan.row_blocks = (columns + block_columns - 1) / block_columns;

  // Cut K so that the last wave of blocks is not mostly empty: time is about waves x (stages + start and finish).
  plan.stages = static_cast<int>((k + 127) / 128);
  const int64_t slots = static_cast<int64_t>(processors) * (plan.tokens <= 16 ? 4 : 2);
  constexpr int kOverhead = 3;
  int64_t best = INT64_MAX;
  for (int splits = 1; splits <= 16 && splits <= (plan.stages + 1) / 2; ++splits) {
    if (splits > 1 && plan.tiles() > kCounters) break;
    const int each = (plan.stages + splits - 1) / splits;
    const int used = (plan.stages + each - 1) / each;
    const int64_t waves = (plan.tiles() * used + slots - 1) / slots;
    const int64_t time = waves * (each + kOverhead + (used > 1 ? 1 : 0));
    if (time < best) {
      best = time;
      plan.splits = used;
      plan.stages_per_split = each;
    }
  }
  return plan;
}

}  // namespace halfbyte::cuda
