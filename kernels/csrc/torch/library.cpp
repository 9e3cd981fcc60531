// Schemas of every operator. Device libraries add implementations; this one also holds the CPU ones.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(halfbyte, m) {
  m.def("int4_gemm_pack(Tensor weight_packed, Tensor weight_scale, Tensor? weight_zero_point, int group_size) -> Tensor");
  m.def("int4_gemm_dequantize(Tensor weight, int out_features, int in_features) -> Tensor");
  m.def(
      "int4_gemm(Tensor x, Tensor weight, Tensor? bias, int out_features, str activation=\"none\", "
      "str path=\"w4a16\", str? variant=None) -> Tensor");
  m.def(
      "int4_gemm_grouped(Tensor x, Tensor weight, Tensor? bias, Tensor rows_per_expert, int out_features, "
      "str activation=\"none\", str path=\"w4a16\", str? variant=None) -> Tensor");
}
