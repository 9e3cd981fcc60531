// Host side of the packing: compressed-tensors layout in, fragment order out. No GPU needed.
#include <cstring>

#include "int4_gemm/cuda/failure.h"
#include "int4_gemm/cuda/int4_gemm_cuda.h"
#include "int4_gemm/cuda/layout.h"

namespace halfbyte::cuda {
namespace {

int check(const hb_cuda_int4_weight* weight, Format* format, char* error, size_t error_size) {
  const hb_cuda_int4_weight& w = *weight;
  if (w.n <= 0 || w.k <= 0 || w.k % 32 != 0) {
    return fail(error, error_size, "weight is %lld x %lld: rows must be positive and columns a multiple of 32",
                static_cast<long long>(w.n), static_cast<long long>(w.k));
  }
  if (w.group != -1 && w.group != 32 && w.group != 64 && w.group != 128) {
    return fail(error, error_size, "group size %lld is not supported on a GPU; supported: 32, 64, 128, -1 (per channel)",
                static_cast<long long>(w.group));
  }
  if (w.group != -1 && w.k % w.group != 0) {
    return fail(error, error_size, "%lld columns are not a multiple of the group size %lld",
                static_cast<long long>(w.k), static_cast<long long>(w.group));
  }
  if (w.scale_dtype != HB_CUDA_BFLOAT16 && w.scale_dtype != HB_CUDA_FLOAT16) {
    return fail(error, error_size, "scales must be bfloat16 or float16 on a GPU, got dtype number %d", w.scale_dtype);
  }
  *format = Format{w.n, w.k, w.group, w.zeros != nullptr, w.scale_dtype == HB_CUDA_BFLOAT16};
  return 0;
}

// The word that a lane reads for 16 columns: nibble i comes from the row and column that place() names.
uint32_t word_of(const hb_cuda_int4_weight& w, int64_t first_row, int64_t first_column, int lane, int word) {
  uint32_t result = 0;
  for (int nibble = 0; nibble < 8; ++nibble) {
    const Place at = place(lane, word, nibble);
    const int64_t row = first_row + at.row;
    const int64_t column = first_column + at.column;
    if (row >= w.n || column >= w.k) continue;
    const uint32_t packed = static_cast<uint32_t>(w.codes[row * (w.k / 8) + column / 8]);
    result |= ((packed >> (column % 8 * 4)) & 15u) << (4 * nibble);
  }
  return result;
}

void pack_codes(const hb_cuda_int4_weight& w, const Format& format, uint32_t* out) {
  for (int64_t row = 0; row < format.row_tiles(); ++row) {
    for (int64_t column = 0; column < format.column_tiles(); ++column) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int word = 0; word < 4; ++word) {
          out[word_index(lane, word)] = word_of(w, row * kTileRows, column * kTileColumns, lane, word);
        }
      }
      out += kTileBytes / 4;
    }
  }
}

void pack_scales(const hb_cuda_int4_weight& w, const Format& format, uint16_t* scales, uint8_t* zeros) {
  const int64_t groups = format.groups();
  const auto* source = static_cast<const uint16_t*>(w.scales);
  for (int64_t tile = 0; tile < format.row_tiles(); ++tile) {
    for (int64_t group = 0; group < groups; ++group) {
      for (int slot = 0; slot < kTileRows; ++slot) {
        const int64_t row = tile * kTileRows + slot / 2 + 8 * (slot % 2);
        *scales++ = row < w.n ? source[row * groups + group] : uint16_t{0};
        if (zeros == nullptr) continue;
        const uint32_t packed = row < w.n ? static_cast<uint32_t>(w.zeros[row / 8 * groups + group]) : 0u;
        *zeros++ = static_cast<uint8_t>((packed >> (row % 8 * 4)) & 15u);
      }
    }
  }
}

}  // namespace
}  // namespace halfbyte::cuda

using halfbyte::cuda::Format;

extern "C" size_t hb_cuda_int4_packed_bytes(const hb_cuda_int4_weight* weight, char* error, size_t error_size) {
  Format format;
  if (halfbyte::cuda::check(weight, &format, error, error_size) != 0) return 0;
  return static_cast<size_t>(format.bytes());
}

extern "C" int hb_cuda_int4_pack(const hb_cuda_int4_weight* weight, void* packed, size_t bytes, char* error,
                                 size_t error_size) {
  Format format;
  if (halfbyte::cuda::check(weight, &format, error, error_size) != 0) return -1;
  if (bytes != static_cast<size_t>(format.bytes())) {
    return halfbyte::cuda::fail(error, error_size, "packed weight needs %lld bytes, got room for %zu",
                                static_cast<long long>(format.bytes()), bytes);
  }
  auto* base = static_cast<uint8_t*>(packed);
  std::memset(base, 0, bytes);
  halfbyte::cuda::pack_codes(*weight, format, reinterpret_cast<uint32_t*>(base));
  halfbyte::cuda::pack_scales(*weight, format, reinterpret_cast<uint16_t*>(base + format.scales_offset()),
                              format.zeros ? base + format.zeros_offset() : nullptr);
  return 0;
}
