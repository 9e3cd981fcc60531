// The readable twin of every variant: same packed weight, same order of operations, one lane at a time.
#include <cmath>

#include "common/number.h"
#include "int4_gemm/cpu/variant.h"

namespace halfbyte::int4 {
namespace {

float load(const void* values, hb_dtype dtype, int64_t index) {
  if (dtype == HB_FLOAT32) return static_cast<const float*>(values)[index];
  const uint16_t half = static_cast<const uint16_t*>(values)[index];
  return dtype == HB_BFLOAT16 ? float_of_bf16(half) : float_of_fp16(half);
}

void store(void* values, hb_dtype dtype, int64_t index, float value) {
  if (dtype == HB_FLOAT32) {
    static_cast<float*>(values)[index] = value;
  } else {
    static_cast<uint16_t*>(values)[index] = dtype == HB_BFLOAT16 ? bf16_of_float(value) : fp16_of_float(value);
  }
}

// Column within a step of integer `i` (W4A8: 0..3, W4A16: 0..1) of its dword `dword`.
int column_of(hb_path path, int dword, int i) { return path == HB_W4A8 ? 4 * dword + i : column_at(dword + 4 * i); }

float scale_of(hb_path path, float largest) {
  if (largest < 1e-30f) return 0.0f;
  if (path == HB_W4A8) return largest / 127.0f;
  return std::ldexp(1.0f, std::isfinite(largest) ? std::ilogb(largest) - 14 : 0);
}

void quantize(hb_path path, const void* x, hb_dtype dtype, const Matrix& m, int32_t* q, int64_t, float* scale, int32_t* minus_sum) {
  const int bits = path == HB_W4A8 ? 8 : 16, most = path == HB_W4A8 ? 127 : 32767;
  for (int64_t g = 0; g < m.groups; ++g) {
    const int64_t begin = g * m.group, end = begin + m.group, valid = end < m.k ? end : m.k;
    float largest = 0.0f, taint = 0.0f;
    for (int64_t c = begin; c < valid; ++c) {
      const float value = load(x, dtype, c);
      largest = std::fabs(value) > largest ? std::fabs(value) : largest;
      taint += value * 0.0f;
    }
    scale[g] = scale_of(path, largest);
    const float inverse = scale[g] == 0.0f ? 0.0f : path == HB_W4A8 ? 127.0f / largest : 1.0f / scale[g];
    minus_sum[g] = 0;
    for (int64_t c = begin; c < end; c += kStep) {
      for (int dword = 0; dword < dwords_of_step(path); ++dword) {
        uint32_t integers = 0;
        for (int i = 0; i < 32 / bits; ++i) {
          const int64_t column = c + column_of(path, dword, i);
          const float value = column < valid ? std::nearbyint(load(x, dtype, column) * inverse) : 0.0f;
          const int code = !std::isfinite(value) ? 0 : value > static_cast<float>(most) ? most : static_cast<int>(value);
          integers |= (static_cast<uint32_t>(code) & ((1u << bits) - 1)) << (bits * i);
          minus_sum[g] -= code;
        }
        *q++ = static_cast<int32_t>(integers);
      }
    }
    scale[g] += taint;
  }
}

uint32_t dword_at(const uint8_t* codes, int64_t step, int lane) {
  uint32_t dword;
  __builtin_memcpy(&dword, codes + step * kStepBytes + lane * 4, 4);
  return dword;
}

int integer_at(hb_path path, int32_t dword, int i) {
  const auto bits = static_cast<uint32_t>(dword);
  return path == HB_W4A8 ? static_cast<int8_t>(bits >> (8 * i)) : static_cast<int16_t>(bits >> (16 * i));
}

// Sum of q * code over one step of a lane.
int32_t dot_step(hb_path path, uint32_t codes, const int32_t* q) {
  int32_t dot = 0;
  for (int dword = 0; dword < dwords_of_step(path); ++dword) {
    for (int i = 0; i < (path == HB_W4A8 ? 4 : 2); ++i) {
      const int column = column_of(path, dword, i), position = column < 4 ? 2 * column : 2 * column - 7;
      dot += static_cast<int32_t>((codes >> (4 * position)) & 15u) * integer_at(path, q[dword], i);
    }
  }
  return dot;
}

void product(hb_path path, const Matrix& m, int64_t, int64_t block, int64_t first, int64_t last, const int32_t* q,
             const float* scale, const int32_t* minus_sum, int64_t rows, float* sums) {
  const uint8_t* codes = m.block_codes(block);
  const int64_t steps = m.padded_k / kStep;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = first; g < last; ++g) {
      const uint8_t* zeros = m.group_zeros(block, g);
      for (int lane = 0; lane < kLanes; ++lane) {
        int32_t dot = (zeros == nullptr ? 8 : zeros[lane]) * minus_sum[row * m.groups + g];
        for (int64_t step = g * m.group / kStep; step < (g + 1) * m.group / kStep; ++step) {
          dot += dot_step(path, dword_at(codes, step, lane), q + (row * steps + step) * dwords_of_step(path));
        }
        const float factor = load(m.group_scales(block, g), m.scale_dtype, lane) * scale[row * m.groups + g];
        sums[row * kLanes + lane] = std::fma(factor, static_cast<float>(dot), sums[row * kLanes + lane]);
      }
    }
  }
}

float silu(float value) { return value / (1.0f + std::exp(-value)); }

float activate(float value, hb_activation activation) {
  if (activation == HB_ACT_NONE) return value;
  if (activation == HB_ACT_GELU) return 0.5f * value * (1.0f + std::erf(value * 0.70710678f));
  return silu(value);
}

void finish(const float* sums, const float* up, const Epilogue& e, void* out) {
  for (int lane = 0; lane < e.lanes; ++lane) {
    float value = sums[lane] + (e.bias == nullptr ? 0.0f : load(e.bias, e.dtype, lane));
    value = activate(value, e.activation);
    if (up != nullptr) value *= up[lane] + (e.up_bias == nullptr ? 0.0f : load(e.up_bias, e.dtype, lane));
    store(out, e.dtype, lane, value);
  }
}

int64_t tile_rows(int64_t) { return 1; }

bool usable() { return true; }

}  // namespace

extern const Variant kScalar{"scalar", usable, tile_rows, quantize, product, finish};

}  // namespace halfbyte::int4
