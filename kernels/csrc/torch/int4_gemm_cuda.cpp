// CUDA implementations of halfbyte::int4_gemm*: check tensors, find stream and workspace, call libhalfbyte_cuda.so.
// Builds against, and loads into, a torch without CUDA too: the one CUDA function that it needs is looked up when called.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "int4_gemm/cuda/int4_gemm_cuda.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr size_t kErrorBytes = 512;

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

hb_cuda_dtype dtype_of(const Tensor& tensor, const char* name) {
  if (tensor.scalar_type() == ScalarType::BFloat16) return HB_CUDA_BFLOAT16;
  require(tensor.scalar_type() == ScalarType::Half, name, " must be bfloat16 or float16 on a GPU");
  return HB_CUDA_FLOAT16;
}

void require_tensor(const Tensor& tensor, const char* name, ScalarType type, int64_t dimensions, int32_t device) {
  require(tensor.is_cuda() && tensor.get_device_index() == device, name, " must be on cuda:", device,
          ", like the other tensors");
  require(tensor.scalar_type() == type, name, " has the wrong dtype");
  require(tensor.dim() == dimensions, name, " must have ", dimensions, " dimensions, got ", tensor.dim());
  require(tensor.is_contiguous(), name, " must be contiguous");
}

hb_cuda_activation activation_of(const std::string& name) {
  if (name == "none") return HB_CUDA_NONE;
  if (name == "silu") return HB_CUDA_SILU;
  if (name == "gelu") return HB_CUDA_GELU;
  require(name == "silu_mul", "activation must be none, silu, gelu or silu_mul, got ", name);
  return HB_CUDA_SILU_MUL;
}

// aoti_torch_get_current_cuda_stream of the stable C API. Linking to libtorch_cuda.so would ask for it at build time,
// and torch loads it without making its symbols global.
using CurrentStream = AOTITorchError (*)(int32_t device_index, void** stream);

CurrentStream find_current_stream() {
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch_cuda == nullptr) return nullptr;
  return reinterpret_cast<CurrentStream>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
}

void* stream_of(int32_t device) {
  static const CurrentStream current_stream = find_current_stream();
  require(current_stream != nullptr, "this torch has no CUDA: libtorch_cuda.so is not loaded");
  void* stream = nullptr;
  require(current_stream(device, &stream) == AOTI_TORCH_SUCCESS, "no CUDA stream for cuda:", device);
  return stream;
}

// Zeroed once and left zeroed by every call; one a stream, because calls on one stream never overlap.
Tensor workspace_of(const Tensor& like, void* stream, int64_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int32_t, void*>, Tensor> workspaces;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_pair(like.get_device_index(), stream);
  const auto found = workspaces.find(key);
  if (found != workspaces.end() && found->second.numel() >= bytes) return found->second;
  Tensor fresh = torch::stable::new_zeros(like, {bytes}, ScalarType::Byte);
  workspaces.insert_or_assign(key, fresh);
  return fresh;
}

// Weights are packed on the host, once, while a model loads.
Tensor pack(const Tensor& weight_packed, const Tensor& weight_scale, std::optional<Tensor> weight_zero_point,
            int64_t group_size) {
  const int64_t dimensions = weight_packed.dim();
  const int32_t device = weight_packed.get_device_index();
  require(dimensions == 2 || dimensions == 3, "weight_packed must have 2 dimensions (3 with experts), got ", dimensions);
  require_tensor(weight_packed, "weight_packed", ScalarType::Int, dimensions, device);
  const int64_t experts = dimensions == 3 ? weight_packed.size(0) : 1;
  const int64_t n = weight_packed.size(dimensions - 2), k = weight_packed.size(dimensions - 1) * 8;
  const int64_t groups = group_size > 0 ? k / group_size : 1;
  const hb_cuda_dtype scale_dtype = dtype_of(weight_scale, "weight_scale");
  require_tensor(weight_scale, "weight_scale", weight_scale.scalar_type(), dimensions, device);
  require(weight_scale.numel() == experts * n * groups && weight_scale.size(dimensions - 1) == groups,
          "weight_scale must be [", n, ", ", groups, "] (per expert)");
  const torch::stable::Device host(torch::headeronly::DeviceType::CPU);
  const Tensor codes = torch::stable::to(weight_packed, host);
  const Tensor scales = torch::stable::to(weight_scale, host);
  std::optional<Tensor> zeros;
  if (weight_zero_point.has_value()) {
    require_tensor(*weight_zero_point, "weight_zero_point", ScalarType::Int, dimensions, device);
    require(weight_zero_point->numel() == experts * ((n + 7) / 8) * groups &&
                weight_zero_point->size(dimensions - 1) == groups,
            "weight_zero_point must be [", (n + 7) / 8, ", ", groups, "] (per expert)");
    zeros = torch::stable::to(*weight_zero_point, host);
  }
  char error[kErrorBytes] = "";
  hb_cuda_int4_weight weight{n,           k,
                             group_size,  static_cast<const int32_t*>(codes.const_data_ptr()),
                             scales.const_data_ptr(), scale_dtype,
                             zeros ? static_cast<const int32_t*>(zeros->const_data_ptr()) : nullptr};
  const size_t bytes = hb_cuda_int4_packed_bytes(&weight, error, sizeof error);
  require(bytes != 0, "int4_gemm_pack: ", error);
  std::vector<int64_t> shape{static_cast<int64_t>(bytes)};
  if (dimensions == 3) shape.insert(shape.begin(), experts);
  Tensor packed = torch::stable::new_empty(codes, shape, ScalarType::Byte);
  for (int64_t expert = 0; expert < experts; ++expert) {
    auto* to = static_cast<uint8_t*>(packed.mutable_data_ptr()) + static_cast<size_t>(expert) * bytes;
    require(hb_cuda_int4_pack(&weight, to, bytes, error, sizeof error) == 0, "int4_gemm_pack: ", error);
    weight.codes += n * (k / 8);
    weight.scales = static_cast<const uint16_t*>(weight.scales) + n * groups;
    if (weight.zeros != nullptr) weight.zeros += (n + 7) / 8 * groups;
  }
  return torch::stable::to(packed, weight_packed.device());
}

Tensor multiply(const char* operation, Tensor x, const Tensor& weight, const std::optional<Tensor>& bias,
                const std::optional<Tensor>& rows_per_expert, int64_t out_features, const std::string& activation,
                const std::string& path, const std::optional<std::string>& variant) {
  require(x.is_cuda() && x.dim() >= 1, operation, ": x must be on a GPU and have at least 1 dimension");
  require(path == "w4a16", operation, ": the GPU has path w4a16 only, got ", path);
  require(!variant.has_value(), operation, ": variants are chosen by shape on a GPU; leave variant out");
  if (!x.is_contiguous()) x = torch::stable::contiguous(x);
  const int32_t device = x.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  hb_cuda_int4_gemm_args args{};
  args.dtype = dtype_of(x, "x");
  args.k = x.size(x.dim() - 1);
  args.x_stride = args.k;
  args.rows = args.k == 0 ? 0 : x.numel() / args.k;
  args.n = out_features;
  args.activation = activation_of(activation);
  require_tensor(weight, "weight", ScalarType::Byte, rows_per_expert.has_value() ? 2 : 1, device);
  args.experts = rows_per_expert.has_value() ? weight.size(0) : 1;
  require(args.experts >= 1, "weight has no expert");
  args.packed_bytes = static_cast<size_t>(weight.numel() / args.experts);
  args.packed = weight.const_data_ptr();
  if (rows_per_expert.has_value()) {
    require_tensor(*rows_per_expert, "rows_per_expert", ScalarType::Long, 1, device);
    require(rows_per_expert->size(0) == args.experts, "rows_per_expert must have ", args.experts, " entries");
    if (args.experts > 1) args.expert_rows = static_cast<const int64_t*>(rows_per_expert->const_data_ptr());
  }
  if (bias.has_value()) {
    require_tensor(*bias, "bias", x.scalar_type(), bias->dim(), device);
    require(bias->numel() == args.experts * out_features, "bias must have ", out_features, " values for each of ",
            args.experts, " experts, got ", bias->numel());
    args.bias = bias->const_data_ptr();
  }
  std::vector<int64_t> shape;
  for (int64_t d = 0; d + 1 < x.dim(); ++d) shape.push_back(x.size(d));
  args.out_stride = args.activation == HB_CUDA_SILU_MUL ? out_features / 2 : out_features;
  shape.push_back(args.out_stride);
  Tensor out = torch::stable::new_empty(x, shape);
  if (args.rows == 0) return out;
  args.x = x.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.stream = stream_of(device);
  char error[kErrorBytes] = "";
  const int64_t needed = hb_cuda_int4_workspace(&args, error, sizeof error);
  require(needed >= 0, operation, ": ", error);
  std::optional<Tensor> workspace;
  if (needed > 0) {
    workspace = workspace_of(x, args.stream, needed);
    args.workspace = workspace->mutable_data_ptr();
    args.workspace_bytes = static_cast<size_t>(workspace->numel());
  }
  require(hb_cuda_int4_gemm(&args, error, sizeof error) == 0, operation, ": ", error);
  return out;
}

Tensor gemm(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, int64_t out_features,
            std::string activation, std::string path, std::optional<std::string> variant) {
  return multiply("int4_gemm", x, weight, bias, std::nullopt, out_features, activation, path, variant);
}

Tensor gemm_grouped(const Tensor& x, const Tensor& weight, std::optional<Tensor> bias, const Tensor& rows_per_expert,
                    int64_t out_features, std::string activation, std::string path, std::optional<std::string> variant) {
  return multiply("int4_gemm_grouped", x, weight, bias, rows_per_expert, out_features, activation, path, variant);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(halfbyte, CUDA, m) {
  m.impl("int4_gemm_pack", TORCH_BOX(&pack));
  m.impl("int4_gemm", TORCH_BOX(&gemm));
  m.impl("int4_gemm_grouped", TORCH_BOX(&gemm_grouped));
}
