// Preparing tokens and finishing outputs with AVX2; the AVX-VNNI and AVX512 variants use them too.
#pragma once

#include <cstdint>

#include "int4_gemm/cpu/variant.h"

namespace halfbyte::int4::avx2 {

void quantize(hb_path path, const void* x, hb_dtype dtype, const Matrix& matrix, int32_t* q, int64_t rows, float* scale,
              int32_t* minus_sum);
void finish(const float* sums, const float* up, const Epilogue& epilogue, void* out);

}  // namespace halfbyte::int4::avx2
