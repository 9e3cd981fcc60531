// The GPU instructions that the kernels use, one function each. Without nvcc, the same names come from the
// emulation of kernels/tests/emulation, so that the kernels' source itself runs on a CPU in tests.
#pragma once

#include <stdint.h>

#ifndef __CUDACC__
#include "cuda_emulation.h"
#else

#define HB_DEVICE __device__ __forceinline__

namespace halfbyte::cuda {

struct alignas(8) Words2 {
  uint32_t first, second;
};

struct Float16 {
  static constexpr uint32_t kCode = 0x64006400u;      // 1024.0: or-ing a code into the lowest bits adds it
  static constexpr uint32_t kMinus = 0xE400u;         // -1024.0: or-ing a zero into it subtracts it
  HB_DEVICE static float widen(uint32_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<uint16_t>(bits)));
    return value;
  }
  HB_DEVICE static uint16_t narrow(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
  HB_DEVICE static uint32_t add(uint32_t a, uint32_t b) {
    uint32_t sum;
    asm("add.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
  }
};

struct BFloat16 {
  static constexpr uint32_t kCode = 0x43004300u;  // 128.0
  static constexpr uint32_t kMinus = 0xC300u;     // -128.0
  HB_DEVICE static float widen(uint32_t bits) { return __uint_as_float(bits << 16); }
  HB_DEVICE static uint16_t narrow(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
  HB_DEVICE static uint32_t add(uint32_t a, uint32_t b) {  // add.bf16x2 needs sm_90; a * 1 + b is as exact
    uint32_t sum;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3F803F80u), "r"(b));
    return sum;
  }
};

HB_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
HB_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
HB_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
HB_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
HB_DEVICE int grid_y() { return static_cast<int>(gridDim.y); }
HB_DEVICE void sync_block() { __syncthreads(); }
HB_DEVICE void fence_device() { __threadfence(); }
HB_DEVICE unsigned atomic_increment(unsigned* counter) { return atomicAdd(counter, 1u); }
HB_DEVICE float load_other_block(const float* value) { return __ldcg(value); }
HB_DEVICE int shuffle_up(int value, int delta) { return __shfl_up_sync(0xFFFFFFFFu, value, delta); }
HB_DEVICE int shuffle(int value, int lane) { return __shfl_sync(0xFFFFFFFFu, value, lane); }
HB_DEVICE unsigned ballot(bool condition) { return __ballot_sync(0xFFFFFFFFu, condition); }

// The same value, but nothing computed from it leaves the loop it is in: addresses kept across the pipeline loop
// made the widest kernels spill.
HB_DEVICE int fresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

HB_DEVICE uint8_t* shared_memory() {
  extern __shared__ __align__(1024) uint8_t shared[];
  return shared;
}

HB_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// (word & mask) | bits in one instruction.
HB_DEVICE uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(bits));
  return result;
}

// Weights are read once: let them leave L2 first. With several row tiles they are read again: then do not.
HB_DEVICE uint64_t cache_policy(bool read_once) {
  uint64_t policy;
  if (read_once) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// 16 bytes, global to shared, asynchronously; writes zeros (and reads nothing) where not valid.
HB_DEVICE void copy16(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0));
}

HB_DEVICE void copy16(void* shared, const void* global, bool valid, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy));
}

HB_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
HB_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers; lane i gives the address of row i % 8 of matrix i / 8.
HB_DEVICE void load_matrix(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

#define HB_MMA(TYPE)                                                                                              \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                                             \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// c[16 x 8] += a[16 x 16] b[16 x 8], fp32 sums.
template <class T>
HB_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
HB_DEVICE void multiply<Float16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  HB_MMA("f16");
}

template <>
HB_DEVICE void multiply<BFloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  HB_MMA("bf16");
}

#undef HB_MMA

}  // namespace halfbyte::cuda

#endif  // __CUDACC__
