// The kernels of one dtype (HB_NUMBER) and one number of groups a stage (HB_GROUPS); compiled once for each.
#include <cuda_runtime.h>

#include <atomic>

#include "int4_gemm/cuda/gemm_kernel.cuh"
#include "int4_gemm/cuda/launch.h"

namespace halfbyte::cuda {
namespace {

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks) int4_gemm_mma(const __grid_constant__ Arguments args) {
  gemm_block<C, MmaProduct<C>>(args);
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocks) int4_gemm_wgmma(const __grid_constant__ Arguments args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  gemm_block<C, WgmmaProduct<C>>(args);
#endif
}

// More than 48 KB of shared memory must be allowed once a device; asking at every launch would cost as much as the launch.
template <void (*kKernel)(Arguments)>
int allow_shared(int bytes) {
  static std::atomic<uint64_t> allowed{0};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((allowed.load() & bit) != 0) return cudaSuccess;
  const cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) allowed |= bit;
  return status;
}

template <void (*kKernel)(Arguments)>
int start(int shared, const Plan& plan, const Arguments& args, void* stream) {
  if (const int status = allow_shared<kKernel>(shared); status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(plan.token_tiles), static_cast<unsigned>(plan.row_blocks),
                  static_cast<unsigned>(plan.splits));
  kKernel<<<grid, kThreads, static_cast<size_t>(shared), static_cast<cudaStream_t>(stream)>>>(args);
  return cudaGetLastError();
}

template <int kTokens, int kRowTiles>
int start_mma(const Plan& plan, const Arguments& args, void* stream) {
  using C = Config<HB_NUMBER, kTokens, kRowTiles, HB_GROUPS, false>;
  return start<int4_gemm_mma<C>>(C::kSharedBytes, plan, args, stream);
}

template <int kTokens>
int start_wgmma(const Plan& plan, const Arguments& args, void* stream) {
  using C = Config<HB_NUMBER, kTokens, 1, HB_GROUPS, true>;
  return start<int4_gemm_wgmma<C>>(C::kSharedBytes, plan, args, stream);
}

}  // namespace

template <>
int launch<HB_NUMBER, HB_GROUPS>(const Plan& plan, const Arguments& args, void* stream) {
  if (plan.warpgroup) {
    return plan.tokens == 64 ? start_wgmma<64>(plan, args, stream) : start_wgmma<128>(plan, args, stream);
  }
  switch (plan.tokens) {
    case 8: return start_mma<8, 1>(plan, args, stream);
    case 16: return start_mma<16, 1>(plan, args, stream);
    case 32: return start_mma<32, 1>(plan, args, stream);
    default: return start_mma<64, 2>(plan, args, stream);
  }
}

}  // namespace halfbyte::cuda
