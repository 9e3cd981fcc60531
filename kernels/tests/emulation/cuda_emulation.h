// The GPU instructions of csrc/int4_gemm/cuda/ptx.cuh and wgmma.cuh, run on a CPU by the letter of the PTX manual, so
// that the kernels' own source is tested where there is no GPU: fragment layouts, swizzle, pipeline, barriers, split-K.
//
// A block is 128 fibers on one thread. They run one after another, in an order drawn from a seed, from one
// synchronisation to the next, and one warp lags behind. Each cp.async copies at once, or no earlier than wait_group
// asks for it, by chance; shared memory starts as NaN: a missing wait or barrier gives wrong numbers, and a barrier
// that not all threads reach is reported as a deadlock. It says nothing about speed, registers or memory ordering.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <type_traits>
#include <vector>

#define HB_DEVICE inline

namespace halfbyte::cuda {

struct alignas(8) Words2 {
  uint32_t first, second;
};

namespace emulation {

constexpr int kLanes = 128;

struct Copy {
  void* target;
  const void* source;
  bool valid;
};

struct Product {  // a wgmma that was issued and not waited for
  float* c;
  int tokens;
  uint32_t a[4];
  uint64_t descriptor;
  bool accumulate, bfloat16;
};

struct Lane {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(256 * 1024);
  bool done = false;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> committed;
  std::vector<Product> products;
  const void* posted = nullptr;  // what a lane brings to a meeting
};

struct Meeting {  // of a warp or of the block
  int arrived = 0;
  int generation = 0;
};

struct Block {
  int x, y, z, grid_y;
  std::vector<Lane> lanes = std::vector<Lane>(kLanes);
  Meeting block, warps[kLanes / 32];
  uint8_t* shared = nullptr;
  int shared_bytes = 0;
  ucontext_t scheduler;
  int lane = 0;
  bool progress = false;
  std::mt19937* random = nullptr;
  std::function<void()> body;
};

inline Block* block = nullptr;
inline const uint8_t* weights_begin = nullptr;  // sources of cp.async must lie in one of these two
inline const uint8_t* weights_end = nullptr;
inline const uint8_t* x_begin = nullptr;
inline const uint8_t* x_end = nullptr;

[[noreturn]] inline void stop(const char* what) {
  std::fprintf(stderr, "emulated kernel: %s (block %d %d %d, thread %d)\n", what, block->x, block->y, block->z,
               block->lane);
  std::abort();
}

inline Lane& self() { return block->lanes[block->lane]; }
inline void yield() { swapcontext(&self().context, &block->scheduler); }

// Waits until `size` lanes have come; the last runs `action` with everybody's posts in place.
template <class Action>
void meet(Meeting& meeting, int size, const Action& action) {
  const int generation = meeting.generation;
  block->progress = true;
  if (++meeting.arrived == size) {
    meeting.arrived = 0;
    action();
    ++meeting.generation;
    return;
  }
  while (meeting.generation == generation) yield();
}

inline void perform(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.target, copy.source, 16);
  } else {
    std::memset(copy.target, 0, 16);
  }
}

inline Meeting& warp() { return block->warps[block->lane / 32]; }
inline int first_lane() { return block->lane / 32 * 32; }

inline void enter() {
  block->body();
  self().done = true;
  block->progress = true;
  yield();
}

inline void run(Block& one, std::mt19937& random) {
  block = &one;
  one.random = &random;
  for (Lane& lane : one.lanes) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, enter, 0);
  }
  std::vector<int> order(kLanes);
  for (int i = 0; i < kLanes; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  const int slow = static_cast<int>(random() % (kLanes / 32));  // a warp that falls behind wherever nothing holds the others
  for (bool left = true; left;) {
    const bool all = random() % 16 == 0;
    left = one.progress = false;
    for (const int lane : order) {
      if (one.lanes[lane].done) continue;
      left = true;
      if (lane / 32 == slow && !all) continue;
      one.lane = lane;
      swapcontext(&one.scheduler, &one.lanes[lane].context);
    }
    if (left && all && !one.progress) stop("deadlock: some threads wait at a barrier that the others do not reach");
  }
}

inline float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float fraction = static_cast<float>(bits & 1023);
  float value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0f, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

inline uint16_t float_to_half(float value) {
  if (std::isnan(value)) return 0x7E00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (size == 0.0f) return sign;
  if (size >= 65520.0f) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(size, &exponent);
  if (exponent < -13) exponent = -13;  // subnormal
  const float units = std::nearbyint(std::ldexp(size, 11 - exponent));  // ties to even, by the default rounding mode
  const int whole = static_cast<int>(units);
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + whole);
}

inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7FC0;
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulation

struct Float16 {
  static constexpr uint32_t kCode = 0x64006400u;
  static constexpr uint32_t kMinus = 0xE400u;
  static float widen(uint32_t bits) { return emulation::half_to_float(static_cast<uint16_t>(bits)); }
  static uint16_t narrow(float value) { return emulation::float_to_half(value); }
  static uint32_t add(uint32_t a, uint32_t b) {
    const uint32_t low = narrow(widen(a & 0xFFFF) + widen(b & 0xFFFF));
    return low | static_cast<uint32_t>(narrow(widen(a >> 16) + widen(b >> 16))) << 16;
  }
};

struct BFloat16 {
  static constexpr uint32_t kCode = 0x43004300u;
  static constexpr uint32_t kMinus = 0xC300u;
  static float widen(uint32_t bits) { return emulation::bfloat16_to_float(static_cast<uint16_t>(bits)); }
  static uint16_t narrow(float value) { return emulation::float_to_bfloat16(value); }
  static uint32_t add(uint32_t a, uint32_t b) {
    const uint32_t low = narrow(widen(a & 0xFFFF) + widen(b & 0xFFFF));
    return low | static_cast<uint32_t>(narrow(widen(a >> 16) + widen(b >> 16))) << 16;
  }
};

inline int thread_index() { return emulation::block->lane; }
inline int block_x() { return emulation::block->x; }
inline int block_y() { return emulation::block->y; }
inline int block_z() { return emulation::block->z; }
inline int grid_y() { return emulation::block->grid_y; }
inline uint8_t* shared_memory() { return emulation::block->shared; }
inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - emulation::block->shared);
}
inline void sync_block() { emulation::meet(emulation::block->block, emulation::kLanes, [] {}); }
inline void fence_device() {}
inline unsigned atomic_increment(unsigned* counter) { return (*counter)++; }
inline float load_other_block(const float* value) { return *value; }
inline uint32_t and_or(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline int fresh(int value) { return value; }
inline uint64_t cache_policy(bool) { return 0; }

// Every lane posts a value, then reads what `choose(lane)` names.
template <class T>
T exchange(const T& value, int from) {
  using namespace emulation;
  self().posted = &value;
  T result = value;
  meet(warp(), 32, [] {});
  result = *static_cast<const T*>(block->lanes[from].posted);
  meet(warp(), 32, [] {});  // nobody leaves (and ends the life of its value) before all have read
  return result;
}

inline int shuffle_up(int value, int delta) {
  const int lane = thread_index() % 32;
  return exchange(value, emulation::first_lane() + (lane >= delta ? lane - delta : lane));
}
inline int shuffle(int value, int lane) { return exchange(value, emulation::first_lane() + lane); }
inline unsigned ballot(bool condition) {
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) result |= shuffle(condition ? 1 : 0, lane) != 0 ? 1u << lane : 0u;
  return result;
}

inline void copy16(void* shared, const void* global, bool valid, uint64_t = 0) {
  using namespace emulation;
  const auto* source = static_cast<const uint8_t*>(global);
  const uint32_t at = shared_address(shared);
  if (at % 16 != 0 || static_cast<int>(at) + 16 > block->shared_bytes) stop("cp.async writes outside of shared memory");
  if (valid) {
    if (reinterpret_cast<uintptr_t>(source) % 16 != 0) stop("cp.async reads from an unaligned address");
    const bool inside = (source >= weights_begin && source + 16 <= weights_end) || (source >= x_begin && source + 16 <= x_end);
    if (!inside) stop("cp.async reads outside of x and the weights");
  }
  const emulation::Copy copy{shared, global, valid};
  if ((*block->random)() % 2 == 0) {
    self().open.push_back(copy);
  } else {
    perform(copy);
  }
}

inline void copy_commit() {
  emulation::self().committed.push_back(std::move(emulation::self().open));
  emulation::self().open.clear();
}

template <int kPending>
void copy_wait() {
  auto& committed = emulation::self().committed;
  for (; static_cast<int>(committed.size()) > kPending; committed.pop_front()) {
    for (const emulation::Copy& copy : committed.front()) emulation::perform(copy);
  }
}

// ldmatrix.x4: lane i names row i % 8 of matrix i / 8; register j of a lane is elements 2t, 2t + 1 of row g of matrix j.
inline void load_matrix(uint32_t (&out)[4], const void* row) {
  using namespace emulation;
  if (shared_address(row) % 16 != 0) stop("ldmatrix reads an unaligned row");
  self().posted = row;
  meet(warp(), 32, [] {});
  const int lane = block->lane % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto* source = static_cast<const uint8_t*>(block->lanes[first_lane() + matrix * 8 + lane / 4].posted);
    std::memcpy(&out[matrix], source + lane % 4 * 4, 4);
  }
  meet(warp(), 32, [] {});
}

namespace emulation {

inline float widen(uint32_t pair, int half, bool bfloat16) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * half));
  return bfloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
}

struct WarpProduct {
  float (*c)[4];
  const uint32_t (*a)[4];
  uint32_t b[2];
};

// mma.m16n8k16, PTX ISA "Matrix Fragments for mma.m16n8k16": element i of A, B and C in lane (g, t).
inline void multiply_warp(int first, bool bfloat16) {
  static float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const auto& post = *static_cast<const WarpProduct*>(block->lanes[first + lane].posted);
    for (int i = 0; i < 8; ++i) {
      const int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8;
      const int column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      a[row][column] = widen((*post.a)[i / 2], i % 2, bfloat16);
    }
    for (int i = 0; i < 4; ++i) b[t * 2 + (i & 1) + (i >= 2 ? 8 : 0)][g] = widen(post.b[i / 2], i % 2, bfloat16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& post = *static_cast<const WarpProduct*>(block->lanes[first + lane].posted);
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? lane / 4 : lane / 4 + 8;
      const int column = lane % 4 * 2 + (i & 1);
      double sum = (*post.c)[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      (*post.c)[i] = static_cast<float>(sum);
    }
  }
}

// wgmma.m64nNk16 with A in registers, B K-major in the 128-byte swizzle; PTX ISA "Asynchronous warpgroup level".
inline void multiply_warpgroup(size_t index) {
  const Product& head = block->lanes[0].products[index];
  static float a[64][16];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Product& product = block->lanes[lane].products[index];
    if (product.descriptor != head.descriptor) stop("threads of a warpgroup give different descriptors");
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 32 * 16 + lane % 32 / 4 + (i / 2 % 2) * 8;
      const int column = lane % 4 * 2 + i % 2 + i / 4 * 8;
      a[row][column] = widen(product.a[i / 2], i % 2, product.bfloat16);
    }
  }
  if (head.descriptor >> 62 != 1) stop("the descriptor does not name the 128-byte swizzle");
  const uint32_t start = static_cast<uint32_t>(head.descriptor & 0x3FFF) << 4;
  const uint32_t stride = static_cast<uint32_t>(head.descriptor >> 32 & 0x3FFF) << 4;
  std::vector<float> b(static_cast<size_t>(head.tokens) * 16);
  for (int token = 0; token < head.tokens; ++token) {
    for (int k = 0; k < 16; ++k) {
      uint32_t address = start + token / 8 * stride + token % 8 * 128 + k * 2;
      address ^= (address >> 7 & 7) << 4;
      uint16_t bits;
      std::memcpy(&bits, block->shared + address, 2);
      b[token * 16 + k] = head.bfloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const Product& product = block->lanes[lane].products[index];
    for (int i = 0; i < head.tokens / 2; ++i) {
      const int row = lane / 32 * 16 + lane % 32 / 4 + (i / 2 % 2) * 8;
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = product.accumulate ? product.c[i] : 0.0;
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[token * 16 + k];
      product.c[i] = static_cast<float>(sum);
    }
  }
}

}  // namespace emulation

template <class T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  using namespace emulation;
  const WarpProduct post{&c, &a, {b0, b1}};
  self().posted = &post;
  const int first = first_lane();
  meet(warp(), 32, [first] { multiply_warp(first, std::is_same_v<T, BFloat16>); });
  meet(warp(), 32, [] {});
}

inline void fence_async_proxy() {}
inline void warpgroup_begin() {}

template <class T, size_t kTiles>
void warpgroup_multiply(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t descriptor, bool accumulate) {
  emulation::self().products.push_back({&c[0][0], static_cast<int>(kTiles) * 8, {a[0], a[1], a[2], a[3]}, descriptor,
                                        accumulate, std::is_same_v<T, BFloat16>});
}

inline void warpgroup_finish() {
  using namespace emulation;
  meet(block->block, kLanes, [] {
    const size_t count = block->lanes[0].products.size();
    for (size_t index = 0; index < count; ++index) multiply_warpgroup(index);
    for (Lane& lane : block->lanes) lane.products.clear();
  });
}

}  // namespace halfbyte::cuda
