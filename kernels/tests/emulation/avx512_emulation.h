// The AVX-512 and AVX-VNNI instructions of csrc/int4_gemm/cpu, run on any AVX2 machine by the letter of the manual, so
// that the variants' own source is tested where no CPU has them: layouts, tiles, chains, epilogue. It says nothing about
// speed, nor about what the compiler makes of the real intrinsics; the self-check does that on the machine itself.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "common/number.h"

namespace halfbyte::emulation {

struct Ints {
  int32_t lane[16];
};
struct Floats {
  float lane[16];
};

template <class Body>
Ints ints(const Body& body) {
  Ints out;
  for (int i = 0; i < 16; ++i) out.lane[i] = body(i);
  return out;
}

template <class Body>
Floats floats(const Body& body) {
  Floats out;
  for (int i = 0; i < 16; ++i) out.lane[i] = body(i);
  return out;
}

inline uint32_t bits(int32_t value) { return static_cast<uint32_t>(value); }

// vpdpbusd: four unsigned bytes of a times four signed bytes of b, added to a dword without saturation.
inline int32_t dot4(int32_t sum, int32_t a, int32_t b) {
  for (int byte = 0; byte < 4; ++byte) {
    sum += static_cast<int32_t>((bits(a) >> (8 * byte)) & 0xFF) * static_cast<int8_t>((bits(b) >> (8 * byte)) & 0xFF);
  }
  return sum;
}

// vpdpwssd: two signed words of a times two signed words of b, added to a dword without saturation.
inline int32_t dot2(int32_t sum, int32_t a, int32_t b) {
  for (int word = 0; word < 2; ++word) {
    sum += static_cast<int16_t>(bits(a) >> (16 * word)) * static_cast<int16_t>(bits(b) >> (16 * word));
  }
  return sum;
}

// Eight lanes of `dot`.
template <class Dot>
__m256i dots8(__m256i sum, __m256i a, __m256i b, const Dot& dot) {
  int32_t lane[3][8];
  std::memcpy(lane[0], &sum, 32);
  std::memcpy(lane[1], &a, 32);
  std::memcpy(lane[2], &b, 32);
  for (int i = 0; i < 8; ++i) lane[0][i] = dot(lane[0][i], lane[1][i], lane[2][i]);
  std::memcpy(&sum, lane[0], 32);
  return sum;
}

inline Ints set1_epi32(int32_t value) { return ints([&](int) { return value; }); }
inline Ints set1_epi8(char value) { return set1_epi32(static_cast<int32_t>(static_cast<uint8_t>(value) * 0x01010101u)); }
inline Ints setzero_si512() { return set1_epi32(0); }
inline Ints loadu_si512(const void* from) {
  Ints out;
  std::memcpy(out.lane, from, 64);
  return out;
}
inline Ints and_si512(Ints a, Ints b) { return ints([&](int i) { return a.lane[i] & b.lane[i]; }); }
inline Ints add_epi32(Ints a, Ints b) { return ints([&](int i) { return a.lane[i] + b.lane[i]; }); }
inline Ints srli_epi32(Ints a, unsigned count) {
  return ints([&](int i) { return static_cast<int32_t>(bits(a.lane[i]) >> count); });
}
inline Ints slli_epi32(Ints a, unsigned count) {
  return ints([&](int i) { return static_cast<int32_t>(bits(a.lane[i]) << count); });
}
inline Ints srli_epi16(Ints a, unsigned count) {
  return ints([&](int i) {
    const uint32_t low = (bits(a.lane[i]) & 0xFFFF) >> count, high = (bits(a.lane[i]) >> 16) >> count;
    return static_cast<int32_t>(low | (high << 16));
  });
}
inline Ints dpbusd_epi32(Ints sum, Ints a, Ints b) {
  return ints([&](int i) { return dot4(sum.lane[i], a.lane[i], b.lane[i]); });
}
inline Ints dpwssd_epi32(Ints sum, Ints a, Ints b) {
  return ints([&](int i) { return dot2(sum.lane[i], a.lane[i], b.lane[i]); });
}
inline Ints mullo_epi32(Ints a, Ints b) {
  return ints([&](int i) { return static_cast<int32_t>(bits(a.lane[i]) * bits(b.lane[i])); });
}
inline Ints cvtepu8_epi32(__m128i from) {
  uint8_t byte[16];
  std::memcpy(byte, &from, 16);
  return ints([&](int i) { return byte[i]; });
}
inline Ints cvtepu16_epi32(__m256i from) {
  uint16_t word[16];
  std::memcpy(word, &from, 32);
  return ints([&](int i) { return word[i]; });
}

inline Floats set1_ps(float value) { return floats([&](int) { return value; }); }
inline Floats loadu_ps(const void* from) {
  Floats out;
  std::memcpy(out.lane, from, 64);
  return out;
}
inline void storeu_ps(void* to, Floats from) { std::memcpy(to, from.lane, 64); }
inline Floats castsi512_ps(Ints a) {
  Floats out;
  std::memcpy(out.lane, a.lane, 64);
  return out;
}
inline Floats cvtepi32_ps(Ints a) { return floats([&](int i) { return static_cast<float>(a.lane[i]); }); }
inline Floats cvtph_ps(__m256i from) {
  uint16_t half[16];
  std::memcpy(half, &from, 32);
  return floats([&](int i) { return float_of_fp16(half[i]); });
}
inline Floats mul_ps(Floats a, Floats b) { return floats([&](int i) { return a.lane[i] * b.lane[i]; }); }
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}

inline __m256i dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return dots8(sum, a, b, dot4); }
inline __m256i dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return dots8(sum, a, b, dot2); }

}  // namespace halfbyte::emulation

#define __m512i halfbyte::emulation::Ints
#define __m512 halfbyte::emulation::Floats
#define _mm512_set1_epi32 halfbyte::emulation::set1_epi32
#define _mm512_set1_epi8 halfbyte::emulation::set1_epi8
#define _mm512_setzero_si512 halfbyte::emulation::setzero_si512
#define _mm512_loadu_si512 halfbyte::emulation::loadu_si512
#define _mm512_and_si512 halfbyte::emulation::and_si512
#define _mm512_add_epi32 halfbyte::emulation::add_epi32
#define _mm512_srli_epi32 halfbyte::emulation::srli_epi32
#define _mm512_slli_epi32 halfbyte::emulation::slli_epi32
#define _mm512_srli_epi16 halfbyte::emulation::srli_epi16
#define _mm512_dpbusd_epi32 halfbyte::emulation::dpbusd_epi32
#define _mm512_dpwssd_epi32 halfbyte::emulation::dpwssd_epi32
#define _mm512_mullo_epi32 halfbyte::emulation::mullo_epi32
#define _mm512_cvtepu8_epi32 halfbyte::emulation::cvtepu8_epi32
#define _mm512_cvtepu16_epi32 halfbyte::emulation::cvtepu16_epi32
#define _mm512_set1_ps halfbyte::emulation::set1_ps
#define _mm512_loadu_ps halfbyte::emulation::loadu_ps
#define _mm512_storeu_ps halfbyte::emulation::storeu_ps
#define _mm512_castsi512_ps halfbyte::emulation::castsi512_ps
#define _mm512_cvtepi32_ps halfbyte::emulation::cvtepi32_ps
#define _mm512_cvtph_ps halfbyte::emulation::cvtph_ps
#define _mm512_mul_ps halfbyte::emulation::mul_ps
#define _mm512_fmadd_ps halfbyte::emulation::fmadd_ps
#define _mm256_dpbusd_avx_epi32 halfbyte::emulation::dpbusd_avx_epi32
#define _mm256_dpwssd_avx_epi32 halfbyte::emulation::dpwssd_avx_epi32
