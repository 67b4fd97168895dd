/* emulated_runtime.cpp - CUDA's runtime API on the host: one device whose memory is the process's, and whose streams do
** their work when it is given to them.
*/
#include "emulated_block.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

struct CUstream_st {
  int priority;
};

struct CUevent_st {
  std::chrono::steady_clock::time_point recorded;
};

namespace {

/* What GPUs promise of an allocation. */
enum { ALIGNMENT = 256 };
const size_t DEVICE_BYTES = size_t(4) << 30;

thread_local cudaError_t last_error;
thread_local int current_device;

std::mutex lock;
std::map<void *, size_t> allocated; /* device memory */
size_t allocated_bytes;
std::map<const void *, int> shared_limit; /* of kernels that asked for more */

cudaError_t finish(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void *aligned(size_t bytes) { return aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT); }

size_t shared_limit_of(const void *kernel) {
  std::lock_guard<std::mutex> guard(lock);
  const auto found = shared_limit.find(kernel);
  return static_cast<size_t>(found == shared_limit.end() ? static_cast<int>(emulated::SHARED_BYTES) : found->second);
}

} // namespace

cudaError_t emulated::launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t,
                             std::function<void()> thread) {
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  const bool fits = threads > 0 && threads <= MAX_THREADS && block.z <= 64 && grid.x > 0 && grid.x <= 0x7fffffffu &&
                    grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535 && shared <= shared_limit_of(kernel);
  if (!fits) {
    fprintf(stderr,
            "emulated_cuda: kernel %s cannot be launched as grid (%u,%u,%u), block (%u,%u,%u), %zu bytes shared\n",
            name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
    return finish(cudaErrorInvalidConfiguration);
  }
  return finish(run_grid(name, grid, block, shared, thread));
}

extern "C" {

/* ---- errors ------------------------------------------------------------------------------------------------------- */

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError: return "cudaErrorInitializationError";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorUnknown: return "cudaErrorUnknown";
  }
  return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotReady: return "device not ready";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* ---- the device ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device != 0) return finish(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  if (device != 0) return finish(cudaErrorInvalidDevice);
  *properties = cudaDeviceProp{};
  snprintf(properties->name, sizeof properties->name, "emulated");
  properties->totalGlobalMem = DEVICE_BYTES;
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  if (device != 0) return finish(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = emulated::MAX_THREADS; break;
    case cudaDevAttrMultiProcessorCount: *value = 2; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emulated::SHARED_BYTES_ON_REQUEST; break;
    default: return finish(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  if (device != 0) return finish(cudaErrorInvalidDevice);
  snprintf(text, static_cast<size_t>(bytes), "0000:00:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  std::lock_guard<std::mutex> guard(lock);
  *free_bytes = DEVICE_BYTES - allocated_bytes;
  *total_bytes = DEVICE_BYTES;
  return cudaSuccess;
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **data, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > DEVICE_BYTES - allocated_bytes) return finish(cudaErrorMemoryAllocation);
  void *memory = aligned(bytes);
  if (!memory) return finish(cudaErrorMemoryAllocation);
  allocated[memory] = bytes;
  allocated_bytes += bytes;
  *data = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void *data) {
  std::lock_guard<std::mutex> guard(lock);
  if (!data) return cudaSuccess;
  const auto found = allocated.find(data);
  if (found == allocated.end()) return finish(cudaErrorInvalidValue);
  allocated_bytes -= found->second;
  allocated.erase(found);
  free(data);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned int) {
  *data = aligned(bytes ? bytes : 1);
  return *data ? cudaSuccess : finish(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *data) {
  free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind) {
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *data, int value, size_t bytes) {
  if (bytes) memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(data, value, bytes);
}

/* ---- streams and events --------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int, int priority) {
  *stream = new CUstream_st{priority};
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream) return finish(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned int) {
  return event ? cudaSuccess : finish(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int) {
  *event = new CUevent_st{std::chrono::steady_clock::now()};
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  event->recorded = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return event ? cudaSuccess : finish(cudaErrorInvalidResourceHandle); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin || !end) return finish(cudaErrorInvalidResourceHandle);
  *ms = std::chrono::duration<float, std::milli>(end->recorded - begin->recorded).count();
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > emulated::SHARED_BYTES_ON_REQUEST)
    return finish(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> guard(lock);
  shared_limit[kernel] = value;
  return cudaSuccess;
}

} // extern "C"
