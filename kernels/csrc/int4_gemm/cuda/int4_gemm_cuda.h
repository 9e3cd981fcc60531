// INT4 GEMM with epilogue on NVIDIA GPUs (compute capability 8.0 and above): C API, no torch.
//
//   out = act(x @ dequant(W)^T + bias)      w = (code - zero) * scale
//
// Codes are expanded in registers to exact bf16 / fp16 integers (code - zero), multiplied with x on tensor cores
// in fp32, and each group's sum is scaled in fp32: weights are never rounded. Bias and activation are applied
// once, in fp32, after the last partial sum, and the result is rounded once:
//   |error| <= (k + groups) * 2^-23 * sum_k |x| |w| + half an ulp of out.
// Every function returns 0, or -1 with a message in `error`. Packing runs on the host and needs no GPU.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HB_CUDA_API __attribute__((visibility("default")))

typedef enum { HB_CUDA_BFLOAT16 = 1, HB_CUDA_FLOAT16 = 2 } hb_cuda_dtype;  // the numbers of hb_dtype
typedef enum { HB_CUDA_NONE = 0, HB_CUDA_SILU = 1, HB_CUDA_GELU = 2, HB_CUDA_SILU_MUL = 3 } hb_cuda_activation;

typedef struct {
  int64_t n, k;              // k: a multiple of 32 and of the group
  int64_t group;             // 32, 64, 128; -1: one scale per row
  const int32_t* codes;      // host, [n, k / 8], 8 codes along k in an int32, lowest bits first
  const void* scales;        // host, [n, groups]
  hb_cuda_dtype scale_dtype;
  const int32_t* zeros;      // host, [ceil(n / 8), groups], 8 zeros along n in an int32; null: 8 everywhere
} hb_cuda_int4_weight;

// Bytes of the packed weight; 0 with a message when the shape is not supported.
HB_CUDA_API size_t hb_cuda_int4_packed_bytes(const hb_cuda_int4_weight* weight, char* error, size_t error_size);

// Writes the packed weight to host memory; copy it to the device as it is.
HB_CUDA_API int hb_cuda_int4_pack(const hb_cuda_int4_weight* weight, void* packed, size_t bytes, char* error,
                                  size_t error_size);

typedef struct {
  const void* x;  // device, [rows, k], row i at x + i * x_stride elements; 16-byte aligned rows
  int64_t rows, x_stride;
  hb_cuda_dtype dtype;  // of x, bias and out; must be the dtype of the scales
  int64_t n, k;
  int64_t experts;             // 1: a plain product
  const void* packed;          // device, one packed weight an expert, packed_bytes apart, 16-byte aligned
  size_t packed_bytes;
  const int64_t* expert_rows;  // device, [experts]: x is sorted by expert; null when experts is 1
  const void* bias;            // device, [experts, n] or null
  hb_cuda_activation activation;  // silu_mul: out[:, i] = silu(v[:, i]) * v[:, n / 2 + i], n / 2 a multiple of 16
  void* out;                      // device, [rows, n] (silu_mul: n / 2), row i at out + i * out_stride elements
  int64_t out_stride;
  void* workspace;  // device, zeroed once by the caller; every call leaves it zeroed where it must be
  size_t workspace_bytes;  // at least hb_cuda_int4_workspace; one workspace per stream
  void* stream;            // cudaStream_t
} hb_cuda_int4_gemm_args;

// Bytes of workspace that this call needs on the current device (0 is possible); -1 with a message on an error.
HB_CUDA_API int64_t hb_cuda_int4_workspace(const hb_cuda_int4_gemm_args* args, char* error, size_t error_size);

// Enqueues one kernel on the stream; allocates nothing and waits for nothing, so it can be captured in a graph.
HB_CUDA_API int hb_cuda_int4_gemm(const hb_cuda_int4_gemm_args* args, char* error, size_t error_size);

// Targets that were compiled ("sm_80 sm_89 sm_90a ... compute_80") and the CUDA version of the compiler.
HB_CUDA_API const char* hb_cuda_targets(void);
HB_CUDA_API int hb_cuda_compiler_version(void);

// Number of GPUs (0 without a driver), and the compute capability of one as 10 * major + minor.
HB_CUDA_API int hb_cuda_device_count(void);
HB_CUDA_API int hb_cuda_device_capability(int device);

#ifdef __cplusplus
}
#endif
