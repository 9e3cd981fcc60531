#include "int4_gemm/cuda/request.h"

#include <climits>

#include "int4_gemm/cuda/failure.h"

namespace halfbyte::cuda {
namespace {

using ll = long long;

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

int check(const hb_cuda_int4_gemm_args& a, const Format& format, char* error, size_t error_size) {
  if (a.dtype != HB_CUDA_BFLOAT16 && a.dtype != HB_CUDA_FLOAT16) {
    return fail(error, error_size, "x must be bfloat16 or float16 on a GPU, got dtype number %d", a.dtype);
  }
  if (format.bfloat16 != (a.dtype == HB_CUDA_BFLOAT16)) {
    return fail(error, error_size, "x is %s but the weight was packed with %s scales; pack it with scales of x's dtype",
                a.dtype == HB_CUDA_BFLOAT16 ? "bfloat16" : "float16", format.bfloat16 ? "bfloat16" : "float16");
  }
  if (a.activation < HB_CUDA_NONE || a.activation > HB_CUDA_SILU_MUL) {
    return fail(error, error_size, "activation number %d is unknown", a.activation);
  }
  if (a.activation == HB_CUDA_SILU_MUL && a.n % (2 * kTileRows) != 0) {
    return fail(error, error_size, "silu_mul needs out features in multiples of 32, got %lld", static_cast<ll>(a.n));
  }
  if (a.rows < 0 || a.rows > INT_MAX / 2 || a.n > INT_MAX / 2 || a.k > INT_MAX / 2) {
    return fail(error, error_size, "rows %lld, n %lld, k %lld: each must be below 2^30", static_cast<ll>(a.rows),
                static_cast<ll>(a.n), static_cast<ll>(a.k));
  }
  if (a.experts < 1 || (a.experts > 1) != (a.expert_rows != nullptr)) {
    return fail(error, error_size, "expert_rows must be given for more than one expert and only then; experts is %lld",
                static_cast<ll>(a.experts));
  }
  if (!aligned(a.x) || a.x_stride % 8 != 0 || a.x_stride < a.k) {
    return fail(error, error_size, "rows of x must start at multiples of 16 bytes: stride %lld elements, columns %lld",
                static_cast<ll>(a.x_stride), static_cast<ll>(a.k));
  }
  if (!aligned(a.packed)) return fail(error, error_size, "the packed weight must start at a multiple of 16 bytes");
  return 0;
}

}  // namespace

int make_request(const hb_cuda_int4_gemm_args& a, int processors, bool has_wgmma, Request* request, char* error,
                 size_t error_size) {
  Format format;
  if (!format_of(a.n, a.k, static_cast<int64_t>(a.packed_bytes), &format)) {
    return fail(error, error_size, "%zu bytes are no packed weight of %lld x %lld; pack it with hb_cuda_int4_pack",
                a.packed_bytes, static_cast<ll>(a.n), static_cast<ll>(a.k));
  }
  if (check(a, format, error, error_size) != 0) return -1;
  const bool gated = a.activation == HB_CUDA_SILU_MUL;
  request->plan = make_plan(a.rows, a.n, a.k, a.experts, gated, processors, has_wgmma);
  request->groups_per_stage = format.group == 32 ? 4 : format.group == 64 ? 2 : 1;
  const Plan& plan = request->plan;
  if (plan.row_blocks > 65535) {
    return fail(error, error_size, "%lld out features are too many for one launch", static_cast<ll>(a.n));
  }
  request->arguments = Arguments{
      a.x, a.x_stride, static_cast<int>(a.rows), static_cast<int>(a.k),
      static_cast<int>(a.n), static_cast<int>(gated ? a.n / 2 : a.n),
      static_cast<int>(a.experts), a.expert_rows,
      static_cast<const uint8_t*>(a.packed), static_cast<int64_t>(a.packed_bytes), format.scales_offset(),
      format.zeros_offset(),
      static_cast<int>(format.row_tiles()), static_cast<int>(format.column_tiles()),
      static_cast<int>(format.groups()), format.group == -1 ? 0 : 1, format.zeros,
      a.experts == 1 && plan.token_tiles == 1, a.bias, a.activation, a.out, a.out_stride,
      plan.stages, plan.stages_per_split, plan.splits, nullptr, nullptr};
  return 0;
}

void set_workspace(const hb_cuda_int4_gemm_args& args, Request* request) {
  if (request->plan.splits == 1) return;
  request->arguments.counters = static_cast<unsigned*>(args.workspace);
  request->arguments.partial = static_cast<float*>(args.workspace) + kCounters;
}

}  // namespace halfbyte::cuda
