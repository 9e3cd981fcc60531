// The driver: checks, prepares the tokens, cuts the work into (expert, block of 16 out features) and hands it to threads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/cpu_features.h"
#include "int4_gemm/cpu/packed.h"
#include "int4_gemm/cpu/variant.h"

namespace halfbyte::int4 {
namespace {

constexpr int64_t kTilesOfRows = 12;            // whole tiles of every variant
constexpr int64_t kMostRowsAtOnce = 72;         // tokens whose sums stay in the first-level cache
constexpr int64_t kTokenBytes = 320 * 1024;     // of them prepared, in the second-level cache while all codes pass by
constexpr int64_t kWorkPerThread = 48 * 1024;   // dwords of codes x rows below which a thread is not worth waking
constexpr int64_t kRowsAPass = 16 * kMostRowsAtOnce;  // bounds the room for prepared tokens, whatever the prompt
constexpr int64_t kStreamedRows = 4;            // up to here every code is used once or by one tile: no slices
constexpr int64_t kStreamAhead = 2048;          // bytes of codes prefetched ahead then
constexpr int64_t kSliceColumns = 1024;         // 8 KiB of codes, kept in the first-level cache for all tiles of rows
constexpr int kAlignment = 64;

const Variant* const kBuilt[] = {
#if defined(__x86_64__)
    &kAvx512Vnni, &kAvxVnni, &kAvx2,
#endif
    &kScalar};

const Variant* variant_named(const char* name) {
  for (const Variant* variant : kBuilt) {
    if (variant->usable() && (name == nullptr || std::strcmp(name, variant->name) == 0)) return variant;
  }
  return nullptr;
}

int64_t element_bytes(hb_dtype dtype) { return dtype == HB_FLOAT32 ? 4 : 2; }

const uint8_t* advance(const void* base, int64_t elements, hb_dtype dtype) {
  return static_cast<const uint8_t*>(base) + elements * element_bytes(dtype);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Room for the prepared tokens, kept from call to call by each calling thread: an allocation of this size would be
// mapped and unmapped, and so zeroed by the kernel, every time.
class Room {
 public:
  uint8_t* get(size_t bytes) {
    if (bytes > size_) {
      memory_.reset(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
      size_ = memory_ == nullptr ? 0 : bytes;
    }
    return static_cast<uint8_t*>(memory_.get());
  }

 private:
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

// Prepared tokens of one call.
struct Tokens {
  int32_t* q = nullptr;
  float* scale = nullptr;
  int32_t* minus_sum = nullptr;
};

struct Job {
  const hb_int4_gemm_args* args;
  const Variant* variant;
  Matrix matrix;  // of expert 0; the others lie packed_bytes apart
  Tokens tokens;
  bool gated;
  int64_t rows_at_once;
};

Matrix expert_matrix(const Job& job, int64_t expert) {
  Matrix m = job.matrix;
  const size_t offset = static_cast<size_t>(expert) * job.args->packed_bytes;
  m.codes += offset;
  m.scales += offset;
  if (m.zeros != nullptr) m.zeros += offset;
  return m;
}

int64_t row_dwords(const Job& job) { return job.matrix.padded_k / kStep * dwords_of_step(job.args->path); }

void add_product(const Job& job, const Matrix& m, int64_t block, int64_t row, int64_t rows, float* sums) {
  const Tokens& t = job.tokens;
  const bool streamed = rows <= kStreamedRows;
  const int64_t slice = streamed ? m.groups : kSliceColumns / m.group;
  const int64_t ahead = streamed ? kStreamAhead : kSliceColumns * kLanes / 2;
  for (int64_t first = 0; first < m.groups; first += slice) {
    const int64_t last = std::min(first + slice, m.groups);
    job.variant->product(job.args->path, m, ahead, block, first, last, t.q + row * row_dwords(job), t.scale + row * m.groups,
                         t.minus_sum + row * m.groups, rows, sums);
  }
}

// One block of 16 out features (and its partner, when gated) for rows of one expert, rows_at_once at most.
void run_block(const Job& job, int64_t expert, int64_t block, int64_t row, int64_t rows) {
  const hb_int4_gemm_args& a = *job.args;
  const Matrix m = expert_matrix(job, expert);
  const int64_t out_features = job.gated ? m.n / 2 : m.n, feature = block * kLanes;
  Epilogue epilogue{};
  epilogue.dtype = a.dtype;
  epilogue.activation = a.activation;
  epilogue.lanes = static_cast<int>(std::min<int64_t>(kLanes, out_features - feature));
  if (a.bias != nullptr) {
    epilogue.bias = advance(a.bias, expert * m.n + feature, a.dtype);
    if (job.gated) epilogue.up_bias = advance(a.bias, expert * m.n + m.n / 2 + feature, a.dtype);
  }
  alignas(kAlignment) float sums[2][kMostRowsAtOnce * kLanes];
  std::memset(sums[0], 0, static_cast<size_t>(rows) * kLanes * sizeof(float));
  add_product(job, m, block, row, rows, sums[0]);
  if (job.gated) {
    std::memset(sums[1], 0, static_cast<size_t>(rows) * kLanes * sizeof(float));
    add_product(job, m, block + m.n / 2 / kLanes, row, rows, sums[1]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    auto* out = const_cast<uint8_t*>(advance(a.out, (row + i) * a.out_stride + feature, a.dtype));
    job.variant->finish(sums[0] + i * kLanes, job.gated ? sums[1] + i * kLanes : nullptr, epilogue, out);
  }
}

// Tokens [begin, begin + rows) of one expert, cut into tiles.
void prepare_run(const Job& job, const hb_runner* runner, int64_t begin, int64_t rows) {
  const hb_int4_gemm_args& a = *job.args;
  const Matrix& m = job.matrix;
  const Tokens& t = job.tokens;
  const auto one_tile = [&](int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t tile = begin + first, cell = tile * m.groups + i;
      job.variant->quantize(a.path, advance(a.x, (tile + i) * a.x_stride, a.dtype), a.dtype, m, t.q + tile * row_dwords(job) + i,
                            count, t.scale + cell, t.minus_sum + cell);
    }
  };
  const int64_t pieces = rows * m.padded_k < kWorkPerThread ? 1 : std::min<int64_t>(threads_of(runner), rows);
  parallel(runner, pieces, [&](int64_t piece) {
    const int64_t from = rows * piece / pieces, to = rows * (piece + 1) / pieces;
    for (int64_t first = 0; first < to;) {
      // No tile reaches over the rows that run_block takes at once.
      const int64_t count = job.variant->tile_rows(std::min(rows - first, job.rows_at_once - first % job.rows_at_once));
      // A tile belongs to the piece in which it starts.
      if (first >= from) one_tile(first, count);
      first += count;
    }
  });
}

bool prepare_tokens(Job& job, const hb_runner* runner) {
  static thread_local Room room;
  const hb_int4_gemm_args& a = *job.args;
  const Matrix& m = job.matrix;
  const auto dwords = static_cast<size_t>(a.rows * row_dwords(job)), cells = static_cast<size_t>(a.rows * m.groups);
  auto* memory = reinterpret_cast<int32_t*>(room.get((dwords + 2 * cells) * sizeof(int32_t)));
  if (memory == nullptr) return false;
  Tokens& t = job.tokens;
  t.q = memory;
  t.scale = reinterpret_cast<float*>(memory + dwords);
  t.minus_sum = memory + dwords + cells;
  int64_t row = 0;
  for (int64_t expert = 0; expert < a.experts; ++expert) {
    const int64_t rows = a.expert_rows == nullptr ? a.rows : a.expert_rows[expert];
    prepare_run(job, runner, row, rows);
    row += rows;
  }
  return true;
}

// Cuts [0, experts x blocks) into one contiguous piece a thread, weighted by rows: an expert without rows costs nothing.
void run_all(const Job& job, const hb_runner* runner) {
  const hb_int4_gemm_args& a = *job.args;
  const int64_t blocks = (job.gated ? job.matrix.n / 2 / kLanes : job.matrix.blocks);
  const auto rows_of = [&](int64_t expert) { return a.expert_rows == nullptr ? a.rows : a.expert_rows[expert]; };
  // Up to 8 rows a block costs its bytes, above that its arithmetic.
  const auto cost_of = [&](int64_t expert) { return rows_of(expert) == 0 ? 0 : std::max<int64_t>(rows_of(expert), 4); };
  int64_t total = 0;
  for (int64_t expert = 0; expert < a.experts; ++expert) total += cost_of(expert) * blocks;
  const int64_t work = total * job.matrix.padded_k * (job.gated ? 4 : 2);
  const int64_t pieces = std::clamp<int64_t>(work / kWorkPerThread, 1, std::min<int64_t>(threads_of(runner), std::max<int64_t>(total, 1)));
  parallel(runner, pieces, [&](int64_t piece) {
    const int64_t from = total * piece / pieces, to = total * (piece + 1) / pieces;
    int64_t position = 0, row = 0;
    for (int64_t expert = 0; expert < a.experts && position < to; ++expert) {
      const int64_t rows = rows_of(expert), cost = cost_of(expert);
      // A block belongs to the piece in which it starts.
      const auto block_at = [&](int64_t at) { return cost == 0 ? 0 : std::clamp<int64_t>((at - position + cost - 1) / cost, 0, blocks); };
      const int64_t first = block_at(from), last = block_at(to);
      for (int64_t begin = 0; begin < rows; begin += job.rows_at_once) {
        for (int64_t block = first; block < last; ++block) {
          run_block(job, expert, block, row + begin, std::min(job.rows_at_once, rows - begin));
        }
      }
      position += cost * blocks;
      row += rows;
    }
  });
}

int check(const hb_int4_gemm_args& a, const Header& header, const Matrix& m, char* error, size_t error_size) {
  if (a.rows < 0) return fail(error, error_size, "rows is %lld", static_cast<long long>(a.rows));
  if (a.dtype != HB_FLOAT32 && a.dtype != HB_BFLOAT16 && a.dtype != HB_FLOAT16) {
    return fail(error, error_size, "x must be float32, bfloat16 or float16");
  }
  if (a.path != HB_W4A16 && a.path != HB_W4A8) return fail(error, error_size, "unknown path %d", static_cast<int>(a.path));
  if (a.activation < HB_ACT_NONE || a.activation > HB_ACT_SILU_MUL) {
    return fail(error, error_size, "unknown activation %d", static_cast<int>(a.activation));
  }
  const bool gated = a.activation == HB_ACT_SILU_MUL;
  if (gated && header.n % (2 * kLanes) != 0) {
    return fail(error, error_size, "silu_mul needs out features (gate and up together) in multiples of 32, got %lld",
                static_cast<long long>(header.n));
  }
  const int64_t out_features = gated ? m.n / 2 : m.n;
  if (a.rows > 1 && (a.x_stride < m.k || a.out_stride < out_features)) {
    return fail(error, error_size, "row stride of x is %lld (k is %lld), of out %lld (it has %lld columns)",
                static_cast<long long>(a.x_stride), static_cast<long long>(m.k), static_cast<long long>(a.out_stride),
                static_cast<long long>(out_features));
  }
  if (a.rows > 0 && (a.x == nullptr || a.out == nullptr)) return fail(error, error_size, "x or out is null");
  if (a.experts < 1 || (a.experts > 1 && a.expert_rows == nullptr)) {
    return fail(error, error_size, "%lld experts need a count of rows for each", static_cast<long long>(a.experts));
  }
  if (a.expert_rows != nullptr) {
    int64_t rows = 0;
    for (int64_t expert = 0; expert < a.experts; ++expert) {
      if (a.expert_rows[expert] < 0) {
        return fail(error, error_size, "expert %lld has %lld rows", static_cast<long long>(expert),
                    static_cast<long long>(a.expert_rows[expert]));
      }
      if (a.expert_rows[expert] > a.rows - rows) {
        return fail(error, error_size, "x has %lld rows, the experts need more", static_cast<long long>(a.rows));
      }
      rows += a.expert_rows[expert];
    }
    if (rows != a.rows) {
      return fail(error, error_size, "x has %lld rows, the experts need %lld", static_cast<long long>(a.rows),
                  static_cast<long long>(rows));
    }
  }
  return 0;
}

int run_pass(Job& job, const hb_runner* runner, char* error, size_t error_size) {
  if (job.args->rows == 0) return 0;
  if (!prepare_tokens(job, runner)) {
    return fail(error, error_size, "no memory for %lld prepared tokens", static_cast<long long>(job.args->rows));
  }
  run_all(job, runner);
  return 0;
}

const char* const* names(bool usable_only) {
  static const char* lists[2][std::size(kBuilt) + 1] = {};
  static const bool filled = [] {
    for (int only = 0; only < 2; ++only) {
      int count = 0;
      for (const Variant* variant : kBuilt) {
        if (!only || variant->usable()) lists[only][count++] = variant->name;
      }
    }
    return true;
  }();
  return filled ? lists[usable_only ? 1 : 0] : nullptr;
}

}  // namespace
}  // namespace halfbyte::int4

using namespace halfbyte::int4;

int hb_int4_gemm(const hb_int4_gemm_args* args, const hb_runner* runner, char* error, size_t error_size) {
  Job job{};
  job.args = args;
  Header header, other;
  if (!view_of(args->packed, args->packed_bytes, &job.matrix, &header, error, error_size)) return -1;
  if (check(*args, header, job.matrix, error, error_size) != 0) return -1;
  for (int64_t expert = 1; expert < args->experts; ++expert) {
    Matrix matrix;
    const auto* packed = static_cast<const uint8_t*>(args->packed) + static_cast<size_t>(expert) * args->packed_bytes;
    if (!view_of(packed, args->packed_bytes, &matrix, &other, error, error_size)) return -1;
    if (std::memcmp(&other, &header, sizeof header) != 0) {
      return fail(error, error_size, "the weights of expert 0 and expert %lld differ in shape, group size or dtype",
                  static_cast<long long>(expert));
    }
  }
  job.variant = variant_named(args->isa);
  if (job.variant == nullptr) return fail(error, error_size, "variant %s is not built or this CPU lacks it", args->isa);
  job.gated = args->activation == HB_ACT_SILU_MUL;
  const int64_t fitting = kTokenBytes / (row_dwords(job) * static_cast<int64_t>(sizeof(int32_t)));
  job.rows_at_once = std::clamp(fitting / kTilesOfRows * kTilesOfRows, kTilesOfRows, kMostRowsAtOnce);
  if (args->experts > 1) return run_pass(job, runner, error, error_size);
  hb_int4_gemm_args pass = *args;
  job.args = &pass;
  pass.expert_rows = nullptr;
  for (int64_t row = 0; row < args->rows; row += kRowsAPass) {
    pass.rows = std::min(kRowsAPass, args->rows - row);
    pass.x = advance(args->x, row * args->x_stride, args->dtype);
    pass.out = const_cast<uint8_t*>(advance(args->out, row * args->out_stride, args->dtype));
    if (run_pass(job, runner, error, error_size) != 0) return -1;
  }
  return 0;
}

const char* const* hb_int4_isas_built(void) { return names(false); }
const char* const* hb_int4_isas_usable(void) { return names(true); }
