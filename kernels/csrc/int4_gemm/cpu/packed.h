// The packed weight: one flat block of bytes that describes itself, the same for every CPU variant.
//
//   header   64 bytes
//   codes    [blocks][padded_k / 8][16 lanes][4 bytes]   lane = out feature; byte i holds code 8t+i (low nibble) and
//                                                        8t+4+i (high nibble) of step t
//   scales   [blocks][groups][16]                        in the checkpoint's dtype
//   zeros    [blocks][groups][16] u8                     only when the weight has zeros
//
// So 32 loaded bytes, shifted and masked, are 8 lanes x 4 columns of bytes (twice), and at the same time 8 lanes x 2
// columns of words (four times): one layout for both paths. n is padded to 16 lanes with scale 0; k (per channel only) to
// 32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "int4_gemm/int4_gemm.h"

namespace halfbyte::int4 {

constexpr int kLanes = 16;
constexpr int kStep = 8;                       // columns in one dword of a lane
constexpr int kStepBytes = kLanes * kStep / 2;  // 64
constexpr int kChunk = 32;                     // columns that 16-bit partial sums may run over
constexpr size_t kHeaderBytes = 64;

struct Header {
  uint32_t magic, version;
  int64_t n, k;
  int64_t group;  // as in the checkpoint: -1 or columns
  int32_t has_zeros, scale_dtype;
};

// A view of a packed weight. Kernels work in tile groups of 32, 64 or 128 columns that divide the checkpoint's group;
// a larger group repeats its scale.
struct Matrix {
  int64_t n, k, padded_k, blocks;
  int64_t group;   // tile group
  int64_t groups;  // padded_k / group
  hb_dtype scale_dtype;
  const uint8_t* codes;
  const uint8_t* scales;
  const uint8_t* zeros;  // null: 8

  const uint8_t* block_codes(int64_t block) const { return codes + block * (padded_k / kStep) * kStepBytes; }
  int scale_bytes() const { return scale_dtype == HB_FLOAT32 ? 4 : 2; }
  const uint8_t* group_scales(int64_t block, int64_t g) const {
    return scales + (block * groups + g) * kLanes * scale_bytes();
  }
  const uint8_t* group_zeros(int64_t block, int64_t g) const {
    return zeros == nullptr ? nullptr : zeros + (block * groups + g) * kLanes;
  }
};

// The shape of a packed weight, or a message why there is none. `matrix` has no pointers yet.
const char* layout_of(int64_t n, int64_t k, int64_t group, bool has_zeros, hb_dtype scale_dtype, Matrix* matrix, size_t* bytes);

// Checks the header against `bytes` and points into `packed`; false with a message when it is no packed weight.
bool view_of(const void* packed, size_t bytes, Matrix* matrix, Header* header, char* error, size_t error_size);

int fail(char* error, size_t error_size, const char* format, ...) __attribute__((format(printf, 3, 4)));

}  // namespace halfbyte::int4
