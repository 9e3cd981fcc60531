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

// Both paths multiply codes with integers: x of a row and tile group becomes q * scale, in dwords of 4 bytes (W4A8) or 2
// words (W4A16). The rows of one expert are cut into tiles, and a tile's values are interleaved so that the product reads
// one stream: dwords [step][dword of the step][rows of the tile], scales and sums [group][rows of the tile].
//
//   W4A8    scale = amax / 127
//   W4A16   scale = the power of two with amax / scale in [2^14, 2^15), a shared exponent: what is not below amax / 128 is
//           exact in bf16, and below amax / 16 in fp16
constexpr int64_t dwords_of_step(hb_path path) { return path == HB_W4A8 ? 2 : 4; }

struct Variant {
  const char* name;
  bool (*usable)();

  // How many of the remaining rows of a run make the next tile.
  int64_t (*tile_rows)(int64_t remaining);

  // One token x[0..k): q = rint(x / scale) and, per tile group, the scale and minus the sum of q. A NaN or infinity anywhere in a
  // group makes its scale NaN, so that it reaches the output. The pointers are to this token's first values in its tile,
  // `rows` is the tile's size.
  void (*quantize)(hb_path path, const void* x, hb_dtype dtype, const Matrix& matrix, int32_t* q, int64_t rows, float* scale,
                   int32_t* minus_sum);

  // sums[row][16] += scales * (sum_k q * code - zero * sum_k q), over tile groups [first, last) of one block; all but the
  // scaling is exact. The rows are whole tiles. `ahead`: bytes of codes to prefetch ahead, the next slice while this one is
  // used by several tiles.
  void (*product)(hb_path path, const Matrix& matrix, int64_t ahead, int64_t block, int64_t first, int64_t last,
                  const int32_t* q, const float* scale, const int32_t* minus_sum, int64_t rows, float* sums);

  // out = act(sums + bias) for one row of one block; `up` holds the sums of the paired block when silu_mul, else null.
  void (*finish)(const float* sums, const float* up, const Epilogue& epilogue, void* out);
};

// Column within a step (0..7) of the nibble at position p (bits 4p..4p+3) of a lane's dword. A dword shifted right by 4p
// and masked to the low nibble of each word is so the pair column_at(p), column_at(p + 4): dword p of a W4A16 step.
constexpr int column_at(int position) { return position % 2 == 0 ? position / 2 : 4 + position / 2; }

extern const Variant kScalar;
#if defined(__x86_64__)
extern const Variant kAvx2, kAvxVnni, kAvx512Vnni;
#endif

}  // namespace halfbyte::int4
