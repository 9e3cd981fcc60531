// One variant = the inner loops for one instruction set. Each lives in a file of its own, compiled with that file's
// flags only, behind this table of function pointers.
//
// Those files must not call inline functions or templates of the standard library or of shared headers that are not
// in an anonymous namespace: the linker keeps one copy of such a function, maybe the one with AVX-512 in it, for all.
#pragma once

#include <cstdint>

#include "int4_gemm/cpu/packed.h"

namespace halfbyte::int4 {

// What `finish` does with the fp32 sums of one block of 16 out features.
struct Epilogue {
  const void* bias;     // of the first lane, in `dtype`; null: none
  const void* up_bias;  // silu_mul only
  hb_dtype dtype;
  hb_activation activation;
  int lanes;  // valid lanes of this block
};

// The rows of one expert are cut into tiles, and a tile's values are interleaved so that the product reads one stream:
// [column][rows of the tile] (W4A8: [4 columns][rows][4 bytes]). A tile that begins at row r begins at value
// r * padded_k. Scales and sums stay row by row, [row][group].

struct Variant {
  const char* name;
  bool (*usable)();

  // How many of the remaining rows of a run make the next tile.
  int64_t (*tile_rows)(hb_path path, int64_t remaining);

  // One token x[0..k) for the W4A8 path. Per tile group: scale = amax / 127, codes q = rint(x / scale) and their sum.
  // A NaN or infinity anywhere in a group makes its scale NaN, so that it reaches the output. `q` points at this token's
  // first four bytes in its tile, `rows` is the tile's size.
  void (*quantize)(const void* x, hb_dtype dtype, const Matrix& matrix, int8_t* q, int64_t rows, float* scale, float* sum);

  // One token for the W4A16 path: fp32, in the order and with the powers of two that the product wants (see column_at
  // and power_at), and the sum of each tile group.
  void (*widen)(const void* x, hb_dtype dtype, const Matrix& matrix, float* wide, int64_t rows, float* sum);

  // sums[row][16] += scale * (sum_k x * code - zero * sum_k x), over tile groups [first, last) of one block. The rows
  // are whole tiles. `ahead`: bytes of codes to prefetch ahead, the next slice while this one is used by several tiles.
  void (*product_w4a8)(const Matrix& matrix, int64_t ahead, int64_t block, int64_t first, int64_t last, const int8_t* q,
                       const float* scale, const float* sum, int64_t rows, float* sums);
  void (*product_w4a16)(const Matrix& matrix, int64_t ahead, int64_t block, int64_t first, int64_t last, const float* wide,
                        const float* sum, int64_t rows, float* sums);

  // out = act(sums + bias) for one row of one block; `up` holds the sums of the paired block when silu_mul, else null.
  void (*finish)(const float* sums, const float* up, const Epilogue& epilogue, void* out);
};

// Column within a step (0..7) of the nibble at position p (bits 4p..4p+3) of a lane's dword.
constexpr int column_at(int position) { return position % 2 == 0 ? position / 2 : 4 + position / 2; }

// A nibble masked in place at position p is code * 16^p as an integer, so x is stored divided by that. The top nibble
// would be negative as an int32; it is shifted down instead.
constexpr float power_at(int position) {
  float power = 1.0f;
  for (int i = 0; i < position && position < 7; ++i) power /= 16.0f;
  return power;
}

extern const Variant kScalar;
#if defined(__x86_64__)
extern const Variant kAvx2, kAvxVnni, kAvx512Vnni;
#endif

}  // namespace halfbyte::int4
