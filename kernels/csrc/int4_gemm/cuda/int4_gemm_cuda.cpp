// The C API on the CUDA runtime: which GPU this is, how much workspace, and the launch.
#include "int4_gemm/cuda/int4_gemm_cuda.h"

#include <cuda_runtime_api.h>

#include "int4_gemm/cuda/failure.h"
#include "int4_gemm/cuda/launch.h"
#include "int4_gemm/cuda/request.h"

namespace halfbyte::cuda {
namespace {

struct Device {
  int processors = 0;
  bool has_wgmma = false;
};

int current_device(Device* device, char* error, size_t error_size) {
  int index = 0, processors = 0, major = 0, minor = 0;
  cudaError_t status = cudaGetDevice(&index);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, index);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  if (status != cudaSuccess) return fail(error, error_size, "no usable GPU: %s", cudaGetErrorString(status));
  if (major < 8) {
    return fail(error, error_size, "compute capability %d.%d is too old: 8.0 or above is needed", major, minor);
  }
  *device = Device{processors, HB_CUDA_HAS_SM90A != 0 && major == 9 && minor == 0};
  return 0;
}

template <class T>
int start(const Request& request, void* stream) {
  switch (request.groups_per_stage) {
    case 4: return launch<T, 4>(request.plan, request.arguments, stream);
    case 2: return launch<T, 2>(request.plan, request.arguments, stream);
    default: return launch<T, 1>(request.plan, request.arguments, stream);
  }
}

}  // namespace
}  // namespace halfbyte::cuda

using halfbyte::cuda::Device;
using halfbyte::cuda::Request;

extern "C" int64_t hb_cuda_int4_workspace(const hb_cuda_int4_gemm_args* args, char* error, size_t error_size) {
  Device device;
  Request request;
  if (halfbyte::cuda::current_device(&device, error, error_size) != 0) return -1;
  if (halfbyte::cuda::make_request(*args, device.processors, device.has_wgmma, &request, error, error_size) != 0) {
    return -1;
  }
  return request.plan.workspace_bytes();
}

extern "C" int hb_cuda_int4_gemm(const hb_cuda_int4_gemm_args* args, char* error, size_t error_size) {
  Device device;
  Request request;
  if (args->rows == 0) return 0;
  if (halfbyte::cuda::current_device(&device, error, error_size) != 0) return -1;
  if (halfbyte::cuda::make_request(*args, device.processors, device.has_wgmma, &request, error, error_size) != 0) {
    return -1;
  }
  const int64_t needed = request.plan.workspace_bytes();
  if (needed > static_cast<int64_t>(args->workspace_bytes)) {
    return halfbyte::cuda::fail(error, error_size, "workspace has %zu bytes, needed: %lld", args->workspace_bytes,
                                static_cast<long long>(needed));
  }
  halfbyte::cuda::set_workspace(*args, &request);
  const int status = args->dtype == HB_CUDA_BFLOAT16
                         ? halfbyte::cuda::start<halfbyte::cuda::BFloat16>(request, args->stream)
                         : halfbyte::cuda::start<halfbyte::cuda::Float16>(request, args->stream);
  if (status == cudaSuccess) return 0;
  return halfbyte::cuda::fail(error, error_size, "launch failed: %s",
                              cudaGetErrorString(static_cast<cudaError_t>(status)));
}

extern "C" const char* hb_cuda_targets(void) { return HB_CUDA_TARGETS; }
extern "C" int hb_cuda_compiler_version(void) { return CUDART_VERSION; }

extern "C" int hb_cuda_device_count(void) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

extern "C" int hb_cuda_device_capability(int device) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) return 0;
  return 10 * major + minor;
}
