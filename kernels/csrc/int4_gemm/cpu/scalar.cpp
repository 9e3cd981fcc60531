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

void quantize(const void* x, hb_dtype dtype, const Matrix& m, int8_t* q, int64_t, float* scale, float* sum) {
  for (int64_t g = 0; g < m.groups; ++g) {
    const int64_t begin = g * m.group, end = begin + m.group, valid = end < m.k ? end : m.k;
    float largest = 0.0f, taint = 0.0f;
    for (int64_t c = begin; c < valid; ++c) {
      const float value = load(x, dtype, c);
      largest = std::fabs(value) > largest ? std::fabs(value) : largest;
      taint += value * 0.0f;
    }
    const bool tiny = largest < 1e-30f;
    const float inverse = tiny ? 0.0f : 127.0f / largest;
    int32_t total = 0;
    for (int64_t c = begin; c < end; ++c) {
      const float value = c < valid ? load(x, dtype, c) * inverse : 0.0f;
      const auto code = std::isfinite(value) ? static_cast<int8_t>(std::nearbyint(value)) : int8_t{0};
      q[c] = code;
      total += code;
    }
    scale[g] = (tiny ? 0.0f : largest / 127.0f) + taint;
    sum[g] = static_cast<float>(total);
  }
}

void widen(const void* x, hb_dtype dtype, const Matrix& m, float* wide, int64_t, float* sum) {
  for (int64_t g = 0; g < m.groups; ++g) {
    float total = 0.0f;
    for (int64_t step = g * m.group / kStep; step < (g + 1) * m.group / kStep; ++step) {
      for (int position = 0; position < kStep; ++position) {
        const int64_t column = step * kStep + column_at(position);
        const float value = column < m.k ? load(x, dtype, column) : 0.0f;
        wide[step * kStep + position] = value * power_at(position);
        total += value;
      }
    }
    sum[g] = total;
  }
}

uint32_t dword_at(const uint8_t* codes, int64_t step, int lane) {
  uint32_t dword;
  __builtin_memcpy(&dword, codes + step * kStepBytes + lane * 4, 4);
  return dword;
}

void product_w4a8(const Matrix& m, int64_t, int64_t block, int64_t first, int64_t last, const int8_t* q, const float* scale,
                  const float* sum, int64_t rows, float* sums) {
  const uint8_t* codes = m.block_codes(block);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = first; g < last; ++g) {
      const uint8_t* zeros = m.group_zeros(block, g);
      for (int lane = 0; lane < kLanes; ++lane) {
        int32_t dot = 0;
        for (int64_t step = g * m.group / kStep; step < (g + 1) * m.group / kStep; ++step) {
          const uint32_t dword = dword_at(codes, step, lane);
          for (int position = 0; position < kStep; ++position) {
            dot += static_cast<int32_t>((dword >> (4 * position)) & 15u) * q[row * m.padded_k + step * kStep + column_at(position)];
          }
        }
        const float zero = zeros == nullptr ? 8.0f : static_cast<float>(zeros[lane]);
        const float factor = load(m.group_scales(block, g), m.scale_dtype, lane) * scale[row * m.groups + g];
        const float centred = std::fma(-zero, sum[row * m.groups + g], static_cast<float>(dot));
        sums[row * kLanes + lane] = std::fma(factor, centred, sums[row * kLanes + lane]);
      }
    }
  }
}

void product_w4a16(const Matrix& m, int64_t, int64_t block, int64_t first, int64_t last, const float* wide, const float* sum,
                   int64_t rows, float* sums) {
  const uint8_t* codes = m.block_codes(block);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = first; g < last; ++g) {
      const uint8_t* zeros = m.group_zeros(block, g);
      for (int lane = 0; lane < kLanes; ++lane) {
        float dot = 0.0f;
        for (int64_t step = g * m.group / kStep; step < (g + 1) * m.group / kStep; ++step) {
          const uint32_t dword = dword_at(codes, step, lane);
          for (int position = 0; position < kStep; ++position) {
            const uint32_t masked = position < 7 ? dword & (15u << (4 * position)) : dword >> 28;
            dot = std::fma(static_cast<float>(masked), wide[row * m.padded_k + step * kStep + position], dot);
          }
        }
        const float zero = zeros == nullptr ? 8.0f : static_cast<float>(zeros[lane]);
        const float factor = load(m.group_scales(block, g), m.scale_dtype, lane);
        const float centred = std::fma(-zero, sum[row * m.groups + g], dot);
        sums[row * kLanes + lane] = std::fma(factor, centred, sums[row * kLanes + lane]);
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

int64_t tile_rows(hb_path, int64_t) { return 1; }

bool usable() { return true; }

}  // namespace

extern const Variant kScalar{"scalar", usable, tile_rows, quantize, widen, product_w4a8, product_w4a16, finish};

}  // namespace halfbyte::int4
