// The wgmma instructions of sm_90a. On any other target the functions do nothing: the launcher never starts a kernel
// that uses them there (wgmma assembles for sm_90a alone, and its code does not run on sm_100).
#pragma once

#include "int4_gemm/cuda/ptx.cuh"

#ifdef __CUDACC__

namespace halfbyte::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HB_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define HB_SM90A(...)
#endif

// Writes of cp.async are invisible to the tensor cores' own path to shared memory until each writer fences.
HB_DEVICE void fence_async_proxy() { HB_SM90A("fence.proxy.async.shared::cta;" ::: "memory"); }

HB_DEVICE void warpgroup_begin() { HB_SM90A("wgmma.fence.sync.aligned;" ::: "memory"); }

HB_DEVICE void warpgroup_finish() {
  HB_SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
  HB_SM90A("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// clang-format off
#define HB_WGMMA_64(TYPE) \
  HB_SM90A( \
      "{.reg .pred p; setp.ne.b32 p, %37, 0; " \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, " \
      "%8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31" \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;}" \
      : \
      "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), \
      "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
      "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), \
      "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
      "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), \
      "+f"(c[7][2]), "+f"(c[7][3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(accumulate ? 1 : 0))

#define HB_WGMMA_128(TYPE) \
  HB_SM90A( \
      "{.reg .pred p; setp.ne.b32 p, %69, 0; " \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, " \
      "%8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, " \
      "%24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, " \
      "%56, %57, %58, %59, %60, %61, %62, %63" \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;}" \
      : \
      "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), \
      "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
      "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), \
      "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
      "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), \
      "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), \
      "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), \
      "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), \
      "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), \
      "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), \
      "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(accumulate ? 1 : 0))
// clang-format on

// c[64 x tokens] = (accumulate ? c : 0) + a[64 x 16] b[16 x tokens]; each warp holds 16 rows.
template <class T>
HB_DEVICE void warpgroup_multiply(float (&c)[8][4], const uint32_t (&a)[4], uint64_t descriptor, bool accumulate);
template <class T>
HB_DEVICE void warpgroup_multiply(float (&c)[16][4], const uint32_t (&a)[4], uint64_t descriptor, bool accumulate);

template <>
HB_DEVICE void warpgroup_multiply<Float16>(float (&c)[8][4], const uint32_t (&a)[4], uint64_t descriptor,
                                           bool accumulate) {
  HB_WGMMA_64("f16");
}

template <>
HB_DEVICE void warpgroup_multiply<BFloat16>(float (&c)[8][4], const uint32_t (&a)[4], uint64_t descriptor,
                                            bool accumulate) {
  HB_WGMMA_64("bf16");
}

template <>
HB_DEVICE void warpgroup_multiply<Float16>(float (&c)[16][4], const uint32_t (&a)[4], uint64_t descriptor,
                                           bool accumulate) {
  HB_WGMMA_128("f16");
}

template <>
HB_DEVICE void warpgroup_multiply<BFloat16>(float (&c)[16][4], const uint32_t (&a)[4], uint64_t descriptor,
                                            bool accumulate) {
  HB_WGMMA_128("bf16");
}

#undef HB_WGMMA_64
#undef HB_WGMMA_128
#undef HB_SM90A

}  // namespace halfbyte::cuda

#endif  // __CUDACC__
