// Random shapes, groups, dtypes, strides and values through the C API, every usable variant, against an fp64 reference
// within the bounds that int4_gemm.h states. Buffers have their exact sizes on the heap, so that a sanitizer sees one byte
// too many. Also: damaged packed weights and wrong arguments must be refused, never crash.
//
//   fuzz_int4_gemm [rounds] [seed]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/number.h"
#include "int4_gemm/int4_gemm.h"

namespace {

using halfbyte::bf16_of_float;
using halfbyte::float_of_bf16;
using halfbyte::float_of_fp16;
using halfbyte::fp16_of_float;

std::mt19937_64 random_bits;

int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_bits); }
bool coin() { return pick(0, 1) == 1; }

// Exactly sized heap memory of numbers in one dtype.
struct Numbers {
  hb_dtype dtype;
  std::vector<uint8_t> bytes;
  Numbers(hb_dtype type, int64_t count) : dtype(type), bytes(static_cast<size_t>(count) * (type == HB_FLOAT32 ? 4 : 2)) {}
  void set(int64_t index, float value) {
    if (dtype == HB_FLOAT32) {
      std::memcpy(bytes.data() + index * 4, &value, 4);
    } else {
      const uint16_t half = dtype == HB_BFLOAT16 ? bf16_of_float(value) : fp16_of_float(value);
      std::memcpy(bytes.data() + index * 2, &half, 2);
    }
  }
  double get(int64_t index) const {
    if (dtype == HB_FLOAT32) {
      float value;
      std::memcpy(&value, bytes.data() + index * 4, 4);
      return static_cast<double>(value);
    }
    uint16_t half;
    std::memcpy(&half, bytes.data() + index * 2, 2);
    return static_cast<double>(dtype == HB_BFLOAT16 ? float_of_bf16(half) : float_of_fp16(half));
  }
};

double roundoff(hb_dtype dtype) { return dtype == HB_FLOAT32 ? 0x1p-24 : dtype == HB_BFLOAT16 ? 0x1p-8 : 0x1p-10; }

void run_serial_pieces(void*, int64_t tasks, void (*task)(void*, int64_t), void* argument) {
  for (int64_t i = tasks - 1; i >= 0; --i) task(argument, i);  // order must not matter
}

struct Problem {
  int64_t experts, n, k, group, groups;
  bool zeros;
  hb_dtype scale_dtype;
  std::vector<std::vector<double>> weights, steps;  // [experts][n * k]: values; scale of each
  std::vector<uint8_t> packed;
  size_t packed_bytes;
};

Problem make_problem() {
  Problem p;
  p.experts = pick(0, 3) == 0 ? pick(2, 4) : 1;
  const int64_t groups[] = {32, 64, 96, 128, 256, -1};
  p.group = groups[pick(0, 5)];
  p.k = p.group == -1 ? 8 * pick(1, 40) : p.group * pick(1, 4);
  p.n = pick(1, 70);
  if (pick(0, 2) == 0) p.n = 32 * pick(1, 3);
  p.groups = p.group == -1 ? 1 : p.k / p.group;
  p.zeros = coin();
  p.scale_dtype = static_cast<hb_dtype>(pick(0, 2));
  p.packed_bytes = hb_int4_packed_bytes(p.n, p.k, p.group, p.zeros, p.scale_dtype);
  p.packed.resize(p.packed_bytes * static_cast<size_t>(p.experts));
  const int64_t span = p.k / p.groups;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    std::vector<int32_t> codes(static_cast<size_t>(p.n * p.k / 8)), zeros(static_cast<size_t>((p.n + 7) / 8 * p.groups));
    for (auto& word : codes) word = static_cast<int32_t>(random_bits());
    for (auto& word : zeros) word = static_cast<int32_t>(random_bits());
    Numbers scales(p.scale_dtype, p.n * p.groups);
    for (int64_t i = 0; i < p.n * p.groups; ++i) scales.set(i, static_cast<float>(pick(1, 1000)) * 1e-4f);
    char error[256] = "";
    const hb_int4_weight weight{p.n, p.k, p.group, codes.data(), scales.bytes.data(), p.scale_dtype, p.zeros ? zeros.data() : nullptr};
    if (hb_int4_pack(&weight, p.packed.data() + static_cast<size_t>(expert) * p.packed_bytes, p.packed_bytes, error, sizeof error) != 0) {
      std::printf("pack failed: %s\n", error);
      std::exit(1);
    }
    std::vector<double> values(static_cast<size_t>(p.n * p.k)), steps(values.size());
    for (int64_t row = 0; row < p.n; ++row) {
      for (int64_t column = 0; column < p.k; ++column) {
        const auto word = static_cast<uint32_t>(codes[static_cast<size_t>(row * (p.k / 8) + column / 8)]);
        const auto zero_word = static_cast<uint32_t>(zeros[static_cast<size_t>(row / 8 * p.groups + column / span)]);
        const int zero = p.zeros ? static_cast<int>((zero_word >> (4 * (row % 8))) & 15u) : 8;
        const auto at = static_cast<size_t>(row * p.k + column);
        steps[at] = scales.get(row * p.groups + column / span);
        values[at] = (static_cast<int>((word >> (4 * (column % 8))) & 15u) - zero) * steps[at];
      }
    }
    p.weights.push_back(values);
    p.steps.push_back(steps);
    std::vector<float> back(values.size());
    if (hb_int4_dequantize(p.packed.data() + static_cast<size_t>(expert) * p.packed_bytes, p.packed_bytes, back.data(), error, sizeof error) != 0) std::exit(1);
    for (size_t i = 0; i < back.size(); ++i) {
      if (std::fabs(static_cast<double>(back[i]) - values[i]) > 1e-6 * std::fabs(values[i])) {
        std::printf("dequantize differs at %zu: %g, want %g\n", i, static_cast<double>(back[i]), values[i]);
        std::exit(1);
      }
    }
  }
  return p;
}

double silu(double v) { return v / (1.0 + std::exp(-v)); }

// One product; returns false with a message when a value is beyond its bound.
bool check_product(const Problem& p, const char* variant) {
  const auto dtype = static_cast<hb_dtype>(pick(0, 2));
  const int64_t rows = pick(0, 40) == 0 ? pick(1100, 1300) : pick(0, 1) ? pick(0, 6) : pick(7, 140), x_stride = p.k + (coin() ? pick(0, 9) : 0);
  const bool gated = p.n % 32 == 0 && coin(), biased = coin();
  const auto activation = gated ? HB_ACT_SILU_MUL : static_cast<hb_activation>(pick(0, 2));
  const auto path = static_cast<hb_path>(pick(0, 1));
  const int64_t columns = gated ? p.n / 2 : p.n, out_stride = columns + (coin() ? pick(0, 9) : 0);
  Numbers x(dtype, rows == 0 ? 0 : (rows - 1) * x_stride + p.k), bias(dtype, p.experts * p.n);
  Numbers out(dtype, rows == 0 ? 0 : (rows - 1) * out_stride + columns);
  const double size = coin() ? 1.0 : 1e-3;
  for (int64_t i = 0; i < static_cast<int64_t>(x.bytes.size()) / (dtype == HB_FLOAT32 ? 4 : 2); ++i) {
    x.set(i, static_cast<float>(size * std::normal_distribution<double>()(random_bits)));
  }
  for (int64_t i = 0; i < p.experts * p.n; ++i) bias.set(i, static_cast<float>(std::normal_distribution<double>()(random_bits)));
  std::vector<int64_t> expert_rows(static_cast<size_t>(p.experts), 0);
  for (int64_t i = 0; i < rows; ++i) ++expert_rows[static_cast<size_t>(pick(0, p.experts - 1))];

  hb_int4_gemm_args args{};
  args.x = x.bytes.data();
  args.rows = rows;
  args.x_stride = x_stride;
  args.dtype = dtype;
  args.experts = p.experts;
  args.packed = p.packed.data();
  args.packed_bytes = p.packed_bytes;
  args.expert_rows = p.experts > 1 ? expert_rows.data() : nullptr;
  args.bias = biased ? bias.bytes.data() : nullptr;
  args.activation = activation;
  args.path = path;
  args.out = out.bytes.data();
  args.out_stride = out_stride;
  args.isa = variant;
  const hb_runner runner{nullptr, static_cast<int>(pick(1, 5)), run_serial_pieces};
  char error[256] = "";
  if (hb_int4_gemm(&args, &runner, error, sizeof error) != 0) {
    std::printf("gemm failed: %s\n", error);
    return false;
  }
  int64_t row = 0;
  const int64_t tile_span = p.group == -1 ? (p.k + 31) / 32 * 32 : p.group;
  const int64_t tile = tile_span % 128 == 0 ? 128 : tile_span % 64 == 0 ? 64 : 32;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const auto& w = p.weights[static_cast<size_t>(expert)];
    const auto& step = p.steps[static_cast<size_t>(expert)];
    for (int64_t i = 0; i < expert_rows[static_cast<size_t>(expert)]; ++i, ++row) {
      const auto sum_of = [&](int64_t feature, double* bound) {
        double total = biased ? bias.get(expert * p.n + feature) : 0.0, float_error = std::fabs(total), integer_error = 0.0;
        for (int64_t begin = 0; begin < p.k; begin += tile) {
          double largest = 0.0, weight_sum = 0.0;
          for (int64_t c = begin; c < std::min(begin + tile, p.k); ++c) {
            const double value = x.get(row * x_stride + c), weight = w[static_cast<size_t>(feature * p.k + c)];
            total += value * weight;
            float_error += std::fabs(value) * 15.0 * step[static_cast<size_t>(feature * p.k + c)];
            largest = std::max(largest, std::fabs(value));
            weight_sum += std::fabs(weight);
          }
          integer_error += largest * (path == HB_W4A8 ? 1.0 / 254.0 : 0x1p-15) * weight_sum;
        }
        *bound = static_cast<double>(p.k + 8) * 0x1p-23 * float_error + integer_error * 1.0001;
        return total;
      };
      for (int64_t column = 0; column < columns; ++column) {
        double bound = 0.0, want = sum_of(column, &bound);
        if (gated) {
          double up_bound = 0.0;
          const double up = sum_of(p.n / 2 + column, &up_bound), gate = silu(want);
          bound = 1.1 * bound * (std::fabs(up) + up_bound) + std::fabs(gate) * up_bound;
          want = gate * up;
        } else if (activation == HB_ACT_SILU) {
          want = silu(want);
          bound *= 1.1;
        } else if (activation == HB_ACT_GELU) {
          bound = 1.13 * bound + 2e-7 * std::fabs(want);
          want = 0.5 * want * (1.0 + std::erf(want / std::sqrt(2.0)));
        }
        bound += (roundoff(dtype) + 1e-6) * std::fabs(want) + 1e-7;
        const double got = out.get(row * out_stride + column);
        const bool overflows = dtype == HB_FLOAT16 && std::fabs(want) + bound > 65504.0;
        if (!(std::fabs(got - want) <= bound) && !overflows) {
          std::printf("%s path %d dtype %d act %d rows %lld n %lld k %lld group %lld zeros %d: [%lld, %lld] is %.9g, want %.9g within %.3g\n",
                      variant, path, dtype, activation, static_cast<long long>(rows), static_cast<long long>(p.n),
                      static_cast<long long>(p.k), static_cast<long long>(p.group), p.zeros, static_cast<long long>(row),
                      static_cast<long long>(column), got, want, bound);
          return false;
        }
      }
    }
  }
  return true;
}

// Arguments that must be refused with a message, whatever they are.
bool check_refusals(Problem p) {
  char error[256] = "";
  Numbers x(HB_FLOAT32, p.k), out(HB_FLOAT32, p.n);
  std::vector<int64_t> expert_rows(static_cast<size_t>(p.experts), 0);
  expert_rows[0] = 1;
  hb_int4_gemm_args args{};
  args.x = x.bytes.data();
  args.rows = 1;
  args.x_stride = p.k;
  args.experts = p.experts;
  args.expert_rows = expert_rows.data();
  args.packed = p.packed.data();
  args.packed_bytes = p.packed_bytes;
  args.out = out.bytes.data();
  args.out_stride = p.n;
  const auto refused = [&](const char* what, const hb_int4_gemm_args& wrong) {
    error[0] = 0;
    if (hb_int4_gemm(&wrong, nullptr, error, sizeof error) == -1 && error[0] != 0) return true;
    std::printf("not refused: %s\n", what);
    return false;
  };
  auto wrong = args;
  wrong.packed_bytes -= 1;
  bool fine = refused("short weight", wrong);
  wrong = args;
  wrong.rows = -1;
  fine &= refused("negative rows", wrong);
  wrong = args;
  wrong.rows = 2;
  fine &= refused("more rows than the experts have", wrong);
  wrong = args;
  wrong.isa = "none";
  fine &= refused("unknown variant", wrong);
  wrong = args;
  wrong.activation = static_cast<hb_activation>(9);
  fine &= refused("unknown activation", wrong);
  // A bit flipped in the header either leaves it describing the same bytes, or is refused; it must not crash.
  p.packed[static_cast<size_t>(pick(0, 39))] ^= static_cast<uint8_t>(1u << pick(0, 7));
  hb_int4_shape shape;
  if (hb_int4_shape_of(p.packed.data(), p.packed_bytes, &shape, error, sizeof error) == 0) {
    std::vector<float> back(static_cast<size_t>(shape.n * shape.k));
    fine &= hb_int4_dequantize(p.packed.data(), p.packed_bytes, back.data(), error, sizeof error) == 0;
  }
  return fine;
}

}  // namespace

int main(int count, char** words) {
  const long rounds = count > 1 ? std::atol(words[1]) : 200;
  const unsigned long seed = count > 2 ? std::strtoul(words[2], nullptr, 10) : 1;
  random_bits.seed(seed);
  long products = 0;
  for (long round = 0; round < rounds; ++round) {
    const Problem problem = make_problem();
    for (const char* const* variant = hb_int4_isas_usable(); *variant != nullptr; ++variant, ++products) {
      if (!check_product(problem, *variant)) {
        std::printf("seed %lu round %ld\n", seed, round);
        return 1;
      }
    }
    if (!check_refusals(problem)) return 1;
  }
  std::printf("%ld products within bounds\n", products);
  return 0;
}
