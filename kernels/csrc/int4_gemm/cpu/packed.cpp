#include "int4_gemm/cpu/packed.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "common/number.h"

namespace halfbyte::int4 {
namespace {

constexpr uint32_t kMagic = 0x34424248;  // "HBB4"
constexpr uint32_t kVersion = 1;
constexpr int64_t kLargest = int64_t{1} << 31;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Nibble i of the checkpoint's dword (column 8t + i) to nibble 2i (i < 4) or 2(i - 4) + 1.
uint32_t interleave(uint32_t codes) {
  const auto spread = [](uint32_t half) {
    half = (half | (half << 8)) & 0x00FF00FFu;
    return (half | (half << 4)) & 0x0F0F0F0Fu;
  };
  return spread(codes & 0xFFFFu) | (spread(codes >> 16) << 4);
}

// One row of tokens reads a weight once, as fast as memory gives it; with pages of 4 KiB the address translation costs
// 10 to 25 % of that (Zen 3). The advice must come before the first write, and a refusal changes nothing but speed.
void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  if (end > begin) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

float scale_at(const void* scales, hb_dtype dtype, int64_t index) {
  if (dtype == HB_FLOAT32) return static_cast<const float*>(scales)[index];
  const uint16_t half = static_cast<const uint16_t*>(scales)[index];
  return dtype == HB_BFLOAT16 ? float_of_bf16(half) : float_of_fp16(half);
}

}  // namespace

int fail(char* error, size_t error_size, const char* format, ...) {
  if (error != nullptr && error_size > 0) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
  }
  return -1;
}

const char* layout_of(int64_t n, int64_t k, int64_t group, bool has_zeros, hb_dtype scale_dtype, Matrix* matrix, size_t* bytes) {
  if (n < 1 || n > kLargest) return "n must be 1 or more";
  if (k < 8 || k > kLargest || k % 8 != 0) return "k must be a positive multiple of 8";
  if (scale_dtype != HB_FLOAT32 && scale_dtype != HB_BFLOAT16 && scale_dtype != HB_FLOAT16) {
    return "scales must be float32, bfloat16 or float16";
  }
  if (group != -1 && (group < kChunk || group % kChunk != 0 || k % group != 0)) {
    return "the group size must be -1 (per channel) or a multiple of 32 that divides k";
  }
  Matrix m{};
  m.n = n;
  m.k = k;
  m.padded_k = (k + kChunk - 1) / kChunk * kChunk;
  m.blocks = (n + kLanes - 1) / kLanes;
  const int64_t span = group == -1 ? m.padded_k : group;
  m.group = span % 128 == 0 ? 128 : span % 64 == 0 ? 64 : 32;
  m.groups = m.padded_k / m.group;
  m.scale_dtype = scale_dtype;
  *matrix = m;
  const size_t cells = static_cast<size_t>(m.blocks) * static_cast<size_t>(m.groups) * kLanes;
  *bytes = kHeaderBytes + static_cast<size_t>(m.blocks) * static_cast<size_t>(m.padded_k) * kLanes / 2 +
           aligned(cells * static_cast<size_t>(m.scale_bytes())) + (has_zeros ? aligned(cells) : 0);
  return nullptr;
}

bool view_of(const void* packed, size_t bytes, Matrix* matrix, Header* header, char* error, size_t error_size) {
  if (packed == nullptr || bytes < kHeaderBytes) {
    fail(error, error_size, "weight is no packed int4 weight: %zu bytes, the header alone has %zu", bytes, kHeaderBytes);
    return false;
  }
  std::memcpy(header, packed, sizeof *header);
  if (header->magic != kMagic || header->version != kVersion) {
    fail(error, error_size, "weight is no packed int4 weight of this version (make it with int4_gemm_pack)");
    return false;
  }
  size_t needed = 0;
  const char* problem = layout_of(header->n, header->k, header->group, header->has_zeros != 0,
                                  static_cast<hb_dtype>(header->scale_dtype), matrix, &needed);
  if (problem != nullptr || needed != bytes) {
    fail(error, error_size, "weight is damaged: %zu bytes, its header asks for %zu", bytes, needed);
    return false;
  }
  const size_t cells = static_cast<size_t>(matrix->blocks * matrix->groups) * kLanes;
  matrix->codes = static_cast<const uint8_t*>(packed) + kHeaderBytes;
  matrix->scales = matrix->codes + static_cast<size_t>(matrix->blocks * matrix->padded_k) * kLanes / 2;
  matrix->zeros =
      header->has_zeros ? matrix->scales + aligned(cells * static_cast<size_t>(matrix->scale_bytes())) : nullptr;
  return true;
}

}  // namespace halfbyte::int4

using namespace halfbyte::int4;

size_t hb_int4_packed_bytes(int64_t n, int64_t k, int64_t group, int has_zeros, hb_dtype scale_dtype) {
  Matrix matrix;
  size_t bytes = 0;
  return layout_of(n, k, group, has_zeros != 0, scale_dtype, &matrix, &bytes) == nullptr ? bytes : 0;
}

int hb_int4_pack(const hb_int4_weight* weight, void* packed, size_t bytes, char* error, size_t error_size) {
  Matrix m;
  size_t needed = 0;
  const bool has_zeros = weight->zeros != nullptr;
  const char* problem = layout_of(weight->n, weight->k, weight->group, has_zeros, weight->scale_dtype, &m, &needed);
  if (problem != nullptr) {
    return fail(error, error_size, "%s (n=%lld, k=%lld, group size %lld)", problem, static_cast<long long>(weight->n),
                static_cast<long long>(weight->k), static_cast<long long>(weight->group));
  }
  if (bytes != needed) return fail(error, error_size, "packed weight needs %zu bytes, got %zu", needed, bytes);
  advise_huge_pages(packed, bytes);
  std::memset(packed, 0, bytes);
  const Header header{kMagic, kVersion, m.n, m.k, weight->group, has_zeros, weight->scale_dtype};
  std::memcpy(packed, &header, sizeof header);
  Header seen;
  if (!view_of(packed, bytes, &m, &seen, error, error_size)) return -1;

  auto* codes = const_cast<uint8_t*>(m.codes);
  auto* scales = const_cast<uint8_t*>(m.scales);
  auto* zeros = const_cast<uint8_t*>(m.zeros);
  const int64_t steps = m.k / kStep, scale_groups = weight->group == -1 ? 1 : m.k / weight->group;
  const int64_t repeat = m.groups / scale_groups;
  const size_t scale_bytes = static_cast<size_t>(m.scale_bytes());
  for (int64_t row = 0; row < m.n; ++row) {
    const int64_t block = row / kLanes, lane = row % kLanes;
    uint8_t* to = codes + block * (m.padded_k / kStep) * kStepBytes + lane * 4;
    for (int64_t t = 0; t < steps; ++t) {
      const uint32_t dword = interleave(static_cast<uint32_t>(weight->codes[row * steps + t]));
      std::memcpy(to + t * kStepBytes, &dword, 4);
    }
    for (int64_t g = 0; g < m.groups; ++g) {
      const int64_t cell = (block * m.groups + g) * kLanes + lane, from = g / repeat;
      const auto* scale = static_cast<const uint8_t*>(weight->scales) +
                          static_cast<size_t>(row * scale_groups + from) * scale_bytes;
      std::memcpy(scales + static_cast<size_t>(cell) * scale_bytes, scale, scale_bytes);
      if (has_zeros) {
        const auto dword = static_cast<uint32_t>(weight->zeros[(row / 8) * scale_groups + from]);
        zeros[cell] = static_cast<uint8_t>((dword >> (4 * (row % 8))) & 15u);
      }
    }
  }
  return 0;
}

int hb_int4_dequantize(const void* packed, size_t bytes, float* out, char* error, size_t error_size) {
  Matrix m;
  Header header;
  if (!view_of(packed, bytes, &m, &header, error, error_size)) return -1;
  for (int64_t row = 0; row < m.n; ++row) {
    const int64_t block = row / kLanes, lane = row % kLanes;
    for (int64_t column = 0; column < m.k; ++column) {
      const int64_t g = column / m.group, within = column % kStep;
      const uint8_t byte = m.block_codes(block)[(column / kStep) * kStepBytes + lane * 4 + within % 4];
      const int code = within < 4 ? byte & 15 : byte >> 4;
      const int zero = m.zeros == nullptr ? 8 : m.group_zeros(block, g)[lane];
      const float scale = scale_at(m.scales, m.scale_dtype, (block * m.groups + g) * kLanes + lane);
      out[row * m.k + column] = static_cast<float>(code - zero) * scale;
    }
  }
  return 0;
}

int hb_int4_shape_of(const void* packed, size_t bytes, hb_int4_shape* shape, char* error, size_t error_size) {
  Matrix m;
  Header header;
  if (!view_of(packed, bytes, &m, &header, error, error_size)) return -1;
  *shape = hb_int4_shape{header.n, header.k, header.group, header.group == -1 ? 1 : header.k / header.group,
                         header.has_zeros, static_cast<hb_dtype>(header.scale_dtype)};
  return 0;
}
