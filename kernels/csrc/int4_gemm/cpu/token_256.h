// Preparing tokens and finishing outputs with AVX2; the AVX-VNNI and AVX512 variants use them too.
#pragma once

#include <cstdint>

#include "int4_gemm/cpu/variant.h"

namespace halfbyte::int4::avx2 {

void quantize(const void* x, hb_dtype dtype, const Matrix& matrix, int8_t* q, int64_t rows, float* scale, float* sum);
void widen(const void* x, hb_dtype dtype, const Matrix& matrix, float* wide, int64_t rows, float* sum);
void finish(const float* sums, const float* up, const Epilogue& epilogue, void* out);

}  // namespace halfbyte::int4::avx2
