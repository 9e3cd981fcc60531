// How a packed int4 weight lies in device memory: the one place that knows the fragment order.
//
// The weight is cut into tiles of 16 rows (out features) x 64 columns (in features), 512 bytes each. A tile is
// read by one warp; each lane has four words, and word w is its part of the A operand of mma.m16n8k16 for columns
// 16w..16w+15, and of wgmma m64 for the 16 rows of that warp (the two layouts are the same). Nibbles i and i + 4
// of a word become register i of the operand, low and high half, so one shift and one lop3 expand two weights.
//
//   codes  u32 [row tiles][column tiles][2 halves][32 lanes][2 words]    word w is in half w / 2
//   scales u16 [row tiles][groups][8][2]    rows r and r + 8 side by side: one 32-bit load a lane
//   zeros  u8  [row tiles][groups][8][2]    absent when symmetric (8 everywhere)
//
// Rows are padded to 16 with scale 0, columns to 64 with code 0 (the kernel multiplies those by x = 0).
// The size of the blob also names its format, because a header would have to be read back from the device:
// bytes = payload rounded up to 256, + 16 * tag.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HB_HOST_DEVICE __host__ __device__
#else
#define HB_HOST_DEVICE
#endif

namespace halfbyte::cuda {

constexpr int kTileRows = 16;
constexpr int kTileColumns = 64;
constexpr int kTileBytes = kTileRows * kTileColumns / 2;
constexpr int kScaleBytes = kTileRows * 2;  // of one row tile and group
constexpr int kZeroBytes = kTileRows;

struct Place {
  int row, column;  // inside a tile
};

HB_HOST_DEVICE constexpr Place place(int lane, int word, int nibble) {
  const int reg = nibble % 4;
  return {lane / 4 + 8 * (reg % 2), 16 * word + 2 * (lane % 4) + 8 * (reg / 2) + nibble / 4};
}

// Index of a lane's word among the 128 of a tile.
HB_HOST_DEVICE constexpr int word_index(int lane, int word) { return word / 2 * 64 + lane * 2 + word % 2; }

struct Format {
  int64_t n = 0, k = 0;
  int64_t group = 0;  // 32, 64, 128; -1: one scale a row
  bool zeros = false;
  bool bfloat16 = false;  // dtype of the scales, else float16

  int64_t row_tiles() const { return (n + kTileRows - 1) / kTileRows; }
  int64_t column_tiles() const { return (k + kTileColumns - 1) / kTileColumns; }
  int64_t groups() const { return group == -1 ? 1 : k / group; }
  int64_t scales_offset() const { return row_tiles() * column_tiles() * kTileBytes; }
  int64_t zeros_offset() const { return scales_offset() + row_tiles() * groups() * kScaleBytes; }
  int64_t payload() const { return zeros_offset() + (zeros ? row_tiles() * groups() * kZeroBytes : 0); }
  int tag() const {
    const int width = group == 32 ? 0 : group == 64 ? 1 : group == 128 ? 2 : 3;
    return width * 4 + (zeros ? 2 : 0) + (bfloat16 ? 1 : 0);
  }
  int64_t bytes() const { return (payload() + 255) / 256 * 256 + 16 * tag(); }
};

// What a blob of `bytes` bytes is, for the n and k that the caller knows; false when it is no such blob.
inline bool format_of(int64_t n, int64_t k, int64_t bytes, Format* format) {
  constexpr int64_t kGroups[] = {32, 64, 128, -1};
  const int tag = static_cast<int>(bytes % 256 / 16);
  *format = Format{n, k, kGroups[tag / 4], (tag & 2) != 0, (tag & 1) != 0};
  if (n <= 0 || k <= 0 || k % 32 != 0 || (format->group > 0 && k % format->group != 0)) return false;
  return format->bytes() == bytes;
}

}  // namespace halfbyte::cuda
