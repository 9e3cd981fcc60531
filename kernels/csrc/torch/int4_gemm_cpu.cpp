// CPU implementations of halfbyte::int4_gemm*: check tensors, call the torch-free core on torch's own threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "int4_gemm/int4_gemm.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

const char* name_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Half: return "float16";
    case ScalarType::Double: return "float64";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    default: return "another dtype";
  }
}

hb_dtype dtype_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return HB_FLOAT32;
    case ScalarType::BFloat16: return HB_BFLOAT16;
    case ScalarType::Half: return HB_FLOAT16;
    default: break;
  }
  require(false, name, " must be float32, bfloat16 or float16, got ", name_of(tensor.scalar_type()));
  return HB_FLOAT32;
}

void require_tensor(const Tensor& tensor, const char* name, ScalarType type, int64_t dimensions) {
  require(tensor.is_cpu(), name, " must be on the CPU, like the other tensors");
  require(tensor.scalar_type() == type, name, " must be ", name_of(type), ", got ", name_of(tensor.scalar_type()));
  require(tensor.dim() == dimensions, name, " must have ", dimensions, " dimensions, got ", tensor.dim());
  require(tensor.is_contiguous(), name, " must be contiguous");
}

hb_activation activation_of(const std::string& name) {
  if (name == "none") return HB_ACT_NONE;
  if (name == "silu") return HB_ACT_SILU;
  if (name == "gelu") return HB_ACT_GELU;
  if (name == "silu_mul") return HB_ACT_SILU_MUL;
  require(false, "activation must be none, silu, gelu or silu_mul, got ", name);
  return HB_ACT_NONE;
}

hb_path path_of(const std::string& name) {
  if (name == "w4a16") return HB_W4A16;
  if (name == "w4a8") return HB_W4A8;
  require(false, "path must be w4a16 or w4a8, got ", name);
  return HB_W4A16;
}

// torch's intra-op pool. Its parallel_for may run fewer chunks than asked for, hence the loop.
void run_on_torch_threads(void*, int64_t tasks, void (*task)(void*, int64_t), void* argument) {
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) task(argument, index);
  });
}

constexpr size_t kErrorBytes = 512;

void raise(const char* operation, const char* error) { throw std::runtime_error(std::string(operation) + ": " + error); }

Tensor pack(const Tensor& weight_packed, const Tensor& weight_scale, std::optional<Tensor> weight_zero_point, int64_t group_size) {
  const int64_t dimensions = weight_packed.dim();
  require(dimensions == 2 || dimensions == 3, "weight_packed must have 2 dimensions (3 with experts), got ", dimensions);
  require_tensor(weight_packed, "weight_packed", ScalarType::Int, dimensions);
  const hb_dtype scale_dtype = dtype_of(weight_scale, "weight_scale");
  require_tensor(weight_scale, "weight_scale", weight_scale.scalar_type(), dimensions);
  const int64_t experts = dimensions == 3 ? weight_packed.size(0) : 1;
  const int64_t n = weight_packed.size(dimensions - 2), k = weight_packed.size(dimensions - 1) * 8;
  require(group_size == -1 || group_size > 0, "group_size must be -1 (per channel) or positive, got ", group_size);
  const int64_t groups = group_size == -1 ? 1 : k / group_size;
  const bool has_zeros = weight_zero_point.has_value();
  const size_t bytes = hb_int4_packed_bytes(n, k, group_size, has_zeros, scale_dtype);
  char error[kErrorBytes] = "";
  hb_int4_weight weight{n, k, group_size, nullptr, nullptr, scale_dtype, nullptr};
  if (has_zeros) weight.zeros = reinterpret_cast<const int32_t*>(&weight);  // only its presence counts while measuring
  if (bytes == 0) {
    hb_int4_pack(&weight, nullptr, 0, error, sizeof error);
    raise("int4_gemm_pack", error);
  }
  require((dimensions == 2 || weight_scale.size(0) == experts) && weight_scale.size(dimensions - 2) == n &&
              weight_scale.size(dimensions - 1) == groups,
          "weight_scale must be [", n, ", ", groups, "] (per expert), got [", weight_scale.size(dimensions - 2), ", ",
          weight_scale.size(dimensions - 1), "]");
  if (has_zeros) {
    require_tensor(*weight_zero_point, "weight_zero_point", ScalarType::Int, dimensions);
    require((dimensions == 2 || weight_zero_point->size(0) == experts) &&
                weight_zero_point->size(dimensions - 2) == (n + 7) / 8 && weight_zero_point->size(dimensions - 1) == groups,
            "weight_zero_point must be [", (n + 7) / 8, ", ", groups, "] (per expert), got [",
            weight_zero_point->size(dimensions - 2), ", ", weight_zero_point->size(dimensions - 1), "]");
  }
  std::vector<int64_t> shape{static_cast<int64_t>(bytes)};
  if (dimensions == 3) shape.insert(shape.begin(), experts);
  Tensor packed = torch::stable::new_empty(weight_packed, shape, ScalarType::Byte);
  auto* to = static_cast<uint8_t*>(packed.mutable_data_ptr());
  const auto* codes = static_cast<const int32_t*>(weight_packed.const_data_ptr());
  const auto* scales = static_cast<const uint8_t*>(weight_scale.const_data_ptr());
  const auto* zeros = has_zeros ? static_cast<const int32_t*>(weight_zero_point->const_data_ptr()) : nullptr;
  for (int64_t expert = 0; expert < experts; ++expert) {
    weight.codes = codes + expert * n * (k / 8);
    weight.scales = scales + static_cast<size_t>(expert * n * groups) * weight_scale.element_size();
    weight.zeros = zeros == nullptr ? nullptr : zeros + expert * ((n + 7) / 8) * groups;
    if (hb_int4_pack(&weight, to + static_cast<size_t>(expert) * bytes, bytes, error, sizeof error) != 0) raise("int4_gemm_pack", error);
  }
  return packed;
}

Tensor dequantize(const Tensor& weight, int64_t out_features, int64_t in_features) {
  require_tensor(weight, "weight", ScalarType::Byte, 1);
  char error[kErrorBytes] = "";
  hb_int4_shape shape;
  const auto bytes = static_cast<size_t>(weight.numel());
  if (hb_int4_shape_of(weight.const_data_ptr(), bytes, &shape, error, sizeof error) != 0) raise("int4_gemm_dequantize", error);
  require(shape.n == out_features && shape.k == in_features, "int4_gemm_dequantize: weight is [", shape.n, ", ", shape.k,
          "], asked for [", out_features, ", ", in_features, "]");
  Tensor out = torch::stable::new_empty(weight, {out_features, in_features}, ScalarType::Float);
  if (hb_int4_dequantize(weight.const_data_ptr(), bytes, static_cast<float*>(out.mutable_data_ptr()), error, sizeof error) != 0) {
    raise("int4_gemm_dequantize", error);
  }
  return out;
}

// Rows of x as [rows, k]: any leading dimensions when contiguous, a row stride when x is a matrix.
void rows_of(const Tensor& x, int64_t* rows, int64_t* stride) {
  const int64_t dimensions = x.dim(), k = x.size(dimensions - 1);
  *stride = k;
  *rows = 1;
  for (int64_t d = 0; d + 1 < dimensions; ++d) *rows *= x.size(d);
  if (x.is_contiguous()) return;
  require(dimensions == 2 && x.stride(1) == 1 && x.stride(0) >= k,
          "x must be contiguous, or a matrix whose rows are (strides here: last ", x.stride(dimensions - 1), "); call x.contiguous()");
  *stride = x.stride(0);
}

Tensor multiply(const char* operation, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                const std::optional<Tensor>& rows_per_expert, int64_t out_features, const std::string& activation,
                const std::string& path, const std::optional<std::string>& variant) {
  hb_int4_gemm_args args{};
  args.dtype = dtype_of(x, "x");
  require(x.is_cpu(), "x must be on the CPU, like the other tensors");
  require(x.dim() >= 1, "x must have at least 1 dimension");
  rows_of(x, &args.rows, &args.x_stride);
  args.activation = activation_of(activation);
  args.path = path_of(path);
  args.experts = rows_per_expert.has_value() ? weight.size(0) : 1;
  require_tensor(weight, "weight", ScalarType::Byte, rows_per_expert.has_value() ? 2 : 1);
  require(args.experts >= 1, "weight has no expert");
  args.packed = weight.const_data_ptr();
  args.packed_bytes = static_cast<size_t>(weight.numel() / args.experts);
  if (rows_per_expert.has_value()) {
    require_tensor(*rows_per_expert, "rows_per_expert", ScalarType::Long, 1);
    require(rows_per_expert->size(0) == args.experts, "rows_per_expert must have one entry for each of ", args.experts,
            " experts, got ", rows_per_expert->size(0));
    args.expert_rows = static_cast<const int64_t*>(rows_per_expert->const_data_ptr());
  }
  char error[kErrorBytes] = "";
  hb_int4_shape shape;
  if (hb_int4_shape_of(args.packed, args.packed_bytes, &shape, error, sizeof error) != 0) raise(operation, error);
  const int64_t k = x.size(x.dim() - 1);
  require(shape.k == k, operation, ": x has ", k, " columns, the weight ", shape.k);
  require(shape.n == out_features, operation, ": out_features is ", out_features, ", the weight has ", shape.n);
  if (bias.has_value()) {
    require(bias->is_cpu(), "bias must be on the CPU, like the other tensors");
    require(bias->scalar_type() == x.scalar_type(), "bias must be ", name_of(x.scalar_type()), " like x, got ", name_of(bias->scalar_type()));
    require(bias->is_contiguous() && bias->numel() == args.experts * out_features && bias->size(bias->dim() - 1) == out_features,
            "bias must be contiguous with ", out_features, " values for each of ", args.experts, " experts, got ", bias->numel());
    args.bias = bias->const_data_ptr();
  }
  const int64_t columns = args.activation == HB_ACT_SILU_MUL ? out_features / 2 : out_features;
  std::vector<int64_t> out_shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) out_shape.push_back(x.size(d));
  out_shape.push_back(columns);
  Tensor out = torch::stable::new_empty(x, out_shape);
  args.x = x.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.out_stride = columns;
  args.isa = variant.has_value() ? variant->c_str() : nullptr;
  const hb_runner runner{nullptr, static_cast<int>(torch::stable::get_num_threads()), run_on_torch_threads};
  if (hb_int4_gemm(&args, &runner, error, sizeof error) != 0) raise(operation, error);
  return out;
}

Tensor gemm(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, int64_t out_features, std::string activation,
            std::string path, std::optional<std::string> variant) {
  return multiply("int4_gemm", x, weight, bias, std::nullopt, out_features, activation, path, variant);
}

Tensor gemm_grouped(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, const Tensor& rows_per_expert,
                    int64_t out_features, std::string activation, std::string path, std::optional<std::string> variant) {
  return multiply("int4_gemm_grouped", x, weight, bias, rows_per_expert, out_features, activation, path, variant);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(halfbyte, CPU, m) {
  m.impl("int4_gemm_pack", TORCH_BOX(&pack));
  m.impl("int4_gemm_dequantize", TORCH_BOX(&dequantize));
  m.impl("int4_gemm", TORCH_BOX(&gemm));
  m.impl("int4_gemm_grouped", TORCH_BOX(&gemm_grouped));
}
