// The int4 GEMM kernels of csrc/int4_gemm/cuda run by the emulation; called from tests/test_cuda_emulated.py.
#include <algorithm>

#include "int4_gemm/cuda/failure.h"
#include "int4_gemm/cuda/gemm_kernel.cuh"
#include "int4_gemm/cuda/request.h"

namespace halfbyte::cuda {
namespace {

template <class C, class P>
void run_grid(const Plan& plan, const Arguments& args, unsigned seed) {
  std::mt19937 random(seed);
  struct Index {
    int x, y, z;
  };
  std::vector<Index> blocks;
  for (int z = 0; z < plan.splits; ++z) {
    for (int y = 0; y < plan.row_blocks; ++y) {
      for (int x = 0; x < plan.token_tiles; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  auto* shared = static_cast<uint8_t*>(std::aligned_alloc(1024, (C::kSharedBytes + 1023) / 1024 * 1024));
  for (const Index& at : blocks) {
    std::memset(shared, 0xFF, C::kSharedBytes);  // NaN in every dtype
    emulation::Block block;
    block.x = at.x;
    block.y = at.y;
    block.z = at.z;
    block.grid_y = static_cast<int>(plan.row_blocks);
    block.shared = shared;
    block.shared_bytes = C::kSharedBytes;
    block.body = [&args] { gemm_block<C, P>(args); };
    emulation::run(block, random);
  }
  std::free(shared);
}

template <class T, int kGroups>
void run_planned(const Plan& plan, const Arguments& args, unsigned seed) {
  if (plan.warpgroup && plan.tokens == 64) {
    using C = Config<T, 64, 1, kGroups, true>;
    return run_grid<C, WgmmaProduct<C>>(plan, args, seed);
  }
  if (plan.warpgroup) {
    using C = Config<T, 128, 1, kGroups, true>;
    return run_grid<C, WgmmaProduct<C>>(plan, args, seed);
  }
  switch (plan.tokens) {
    case 8: return run_grid<Config<T, 8, 1, kGroups, false>, MmaProduct<Config<T, 8, 1, kGroups, false>>>(plan, args, seed);
    case 16: return run_grid<Config<T, 16, 1, kGroups, false>, MmaProduct<Config<T, 16, 1, kGroups, false>>>(plan, args, seed);
    case 32: return run_grid<Config<T, 32, 1, kGroups, false>, MmaProduct<Config<T, 32, 1, kGroups, false>>>(plan, args, seed);
    default: return run_grid<Config<T, 64, 2, kGroups, false>, MmaProduct<Config<T, 64, 2, kGroups, false>>>(plan, args, seed);
  }
}

template <class T>
void run(const Request& request, unsigned seed) {
  switch (request.groups_per_stage) {
    case 4: return run_planned<T, 4>(request.plan, request.arguments, seed);
    case 2: return run_planned<T, 2>(request.plan, request.arguments, seed);
    default: return run_planned<T, 1>(request.plan, request.arguments, seed);
  }
}

}  // namespace
}  // namespace halfbyte::cuda

using namespace halfbyte::cuda;

// plan_out: tokens, warpgroup, splits, token_tiles, row_blocks, workspace bytes.
extern "C" int hb_emulated_plan(const hb_cuda_int4_gemm_args* args, int processors, int has_wgmma, int64_t* plan_out,
                                char* error, size_t error_size) {
  Request request;
  if (make_request(*args, processors, has_wgmma != 0, &request, error, error_size) != 0) return -1;
  const Plan& plan = request.plan;
  const int64_t values[] = {plan.tokens,      plan.warpgroup,  plan.splits,           plan.token_tiles,
                            plan.row_blocks,  plan.stages,     plan.stages_per_split, plan.workspace_bytes()};
  std::copy(std::begin(values), std::end(values), plan_out);
  return 0;
}

extern "C" int hb_emulated_gemm(const hb_cuda_int4_gemm_args* args, int processors, int has_wgmma, unsigned seed,
                                char* error, size_t error_size) {
  Request request;
  if (make_request(*args, processors, has_wgmma != 0, &request, error, error_size) != 0) return -1;
  if (request.plan.workspace_bytes() > static_cast<int64_t>(args->workspace_bytes)) {
    return fail(error, error_size, "workspace too small");
  }
  set_workspace(*args, &request);
  emulation::weights_begin = static_cast<const uint8_t*>(args->packed);
  emulation::weights_end = emulation::weights_begin + args->experts * args->packed_bytes;
  emulation::x_begin = static_cast<const uint8_t*>(args->x);
  emulation::x_end = emulation::x_begin + ((args->rows - 1) * args->x_stride + args->k) * 2;
  if (args->dtype == HB_CUDA_BFLOAT16) {
    run<BFloat16>(request, seed);
  } else {
    run<Float16>(request, seed);
  }
  return 0;
}
