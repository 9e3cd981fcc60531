// One function for each compiled group of kernels; kernels.cu defines the one that HB_NUMBER and HB_GROUPS name.
#pragma once

#include "int4_gemm/cuda/config.h"
#include "int4_gemm/cuda/plan.h"

namespace halfbyte::cuda {

struct Float16;
struct BFloat16;

// Starts the planned kernel; returns a cudaError_t as int.
template <class T, int kGroups>
int launch(const Plan& plan, const Arguments& args, void* stream);

}  // namespace halfbyte::cuda
