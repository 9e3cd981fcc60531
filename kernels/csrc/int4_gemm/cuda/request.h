// From the C API's arguments to a plan and the kernel's arguments: all checks, no GPU.
#pragma once

#include "int4_gemm/cuda/config.h"
#include "int4_gemm/cuda/int4_gemm_cuda.h"
#include "int4_gemm/cuda/plan.h"

namespace halfbyte::cuda {

struct Request {
  Plan plan;
  Arguments arguments;
  int groups_per_stage = 1;  // the Config's kGroups
};

// processors: of the GPU; has_wgmma: it is of compute capability 9.0 and sm_90a was compiled.
int make_request(const hb_cuda_int4_gemm_args& args, int processors, bool has_wgmma, Request* request, char* error,
                 size_t error_size);

// The workspace's counters and partial sums; call after the workspace was checked to be large enough.
void set_workspace(const hb_cuda_int4_gemm_args& args, Request* request);

}  // namespace halfbyte::cuda
