// INT4 GEMM with epilogue, CPU: out = act(x @ dequant(W)^T + bias). C API, no torch.
//
// W is [n, k]; w = (code - zero) * scale, code and zero in 0..15, one scale (and zero) per `group` columns.
// Input of the packing is the compressed-tensors layout: 8 codes along k in an int32, lowest bits first.
// Every function returns 0, or -1 with a message in `error`. Nothing is written to `out` then.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HB_API __attribute__((visibility("default")))

// A fixed type makes every int a value that can be checked, not undefined behaviour.
#ifdef __cplusplus
#define HB_ENUM(name) enum name : int
#else
#define HB_ENUM(name) enum name
#endif

typedef HB_ENUM(hb_dtype) { HB_FLOAT32 = 0, HB_BFLOAT16 = 1, HB_FLOAT16 = 2 } hb_dtype;
typedef HB_ENUM(hb_activation) { HB_ACT_NONE = 0, HB_ACT_SILU = 1, HB_ACT_GELU = 2, HB_ACT_SILU_MUL = 3 } hb_activation;

// Both paths round x per row and group of columns (at most 128) to integers; their products with the codes are exact, sums
// over groups in fp32.
// W4A16: 16 bits with a shared power of two. What is at least 1/128 of the group's largest is exact in bf16, 1/16 in fp16.
//   |error| <= sum over groups of amax_group * 2^-15 * sum_k |w|, plus the fp32 sum over groups, then the rounding of out.
// W4A8: int8, amax / 127.
//   |error| <= sum over groups of amax_group / 254 * sum_k |w|, plus the fp32 sum over groups, then the rounding of out.
typedef HB_ENUM(hb_path) { HB_W4A16 = 0, HB_W4A8 = 1 } hb_path;

// Bytes of the packed weight; 0 when the shape is not supported (hb_int4_pack then says why).
HB_API size_t hb_int4_packed_bytes(int64_t n, int64_t k, int64_t group, int has_zeros, hb_dtype scale_dtype);

typedef struct {
  int64_t n, k;
  int64_t group;            // 32, 64, 128 or a multiple of 128 that divides k; -1: one scale per row
  const int32_t* codes;     // [n, k / 8]
  const void* scales;       // [n, groups]
  hb_dtype scale_dtype;
  const int32_t* zeros;     // [ceil(n / 8), groups], 8 zeros along n in an int32; null: 8 everywhere
} hb_int4_weight;

// Asks for huge pages under `packed` where the system has them: best in memory that was not written before.
HB_API int hb_int4_pack(const hb_int4_weight* weight, void* packed, size_t bytes, char* error, size_t error_size);

// Writes the fp32 matrix [n, k] that `packed` stands for: what tests and references multiply with.
HB_API int hb_int4_dequantize(const void* packed, size_t bytes, float* out, char* error, size_t error_size);

typedef struct {
  int64_t n, k, group, groups;
  int has_zeros;
  hb_dtype scale_dtype;
} hb_int4_shape;

HB_API int hb_int4_shape_of(const void* packed, size_t bytes, hb_int4_shape* shape, char* error, size_t error_size);

typedef struct {
  const void* x;  // [rows, k], row i at x + i * x_stride elements
  int64_t rows, x_stride;
  hb_dtype dtype;  // of x, bias and out
  int64_t experts;               // 1: a plain product
  const void* packed;            // one packed weight an expert, `packed_bytes` apart; all of one shape
  size_t packed_bytes;
  const int64_t* expert_rows;    // [experts]: x is sorted by expert; null when experts is 1
  const void* bias;              // [experts, n] or null
  hb_activation activation;      // silu_mul: out[:, i] = silu(v[:, i]) * v[:, n / 2 + i]
  hb_path path;
  void* out;  // [rows, n] (silu_mul: n / 2), row i at out + i * out_stride elements
  int64_t out_stride;
  const char* isa;  // null: the best that this CPU has; else "scalar", "avx2", "avx_vnni", "avx512_vnni"
} hb_int4_gemm_args;

HB_API int hb_int4_gemm(const hb_int4_gemm_args* args, const hb_runner* runner, char* error, size_t error_size);

// Names of the variants, best first, null-terminated: all that were compiled, and those that this CPU runs.
HB_API const char* const* hb_int4_isas_built(void);
HB_API const char* const* hb_int4_isas_usable(void);

#ifdef __cplusplus
}
#endif
