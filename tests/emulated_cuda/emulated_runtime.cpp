/* emulated_runtime.cpp - CUDA's runtime API on the host: the device, its memory, injected failures. Streams, events and
 * graphs are in emulated_stream.cpp. */
#include "emulated_runtime.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
  #include <sanitizer/asan_interface.h>
#endif

#include "emulated_block.h"
#include "emulated_log.h"
#include "emulated_state.h"

namespace emulated {

thread_local cudaError_t last_error;
std::atomic<int> device_error{cudaSuccess};
std::atomic<long long> streams_alive, events_alive, graphs_alive;

cudaError_t finish(cudaError_t error) {
  if (error == cudaSuccess) error = static_cast<cudaError_t>(device_error.load());
  if (error != cudaSuccess) last_error = error;
  return error;
}

} // namespace emulated

using emulated::finish;

namespace {

/* The alignment that GPUs guarantee for an allocation, and the memory that a context uses. */
enum { ALIGNMENT = 256, PAGE = 4096 };
const size_t DEVICE_BYTES = size_t(4) << 30, CONTEXT_BYTES = size_t(300) << 20;

thread_local int current_device;

std::mutex lock;
std::map<void *, size_t> allocated; /* device memory */
std::map<void *, size_t> pinned;
size_t allocated_bytes;
long long taken_bytes;
std::map<const void *, int> shared_limit; /* of kernels that requested more */
std::map<std::string, int> calls;

void *aligned(size_t bytes) { return aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE); }

/* Not zeroed, and aligned to exactly ALIGNMENT, as GPUs guarantee no more. Ends at the requested size, where the
 * address sanitizer checks it. */
void *device_memory(size_t bytes) {
  void *memory = nullptr;
  if (posix_memalign(&memory, 2 * ALIGNMENT, ALIGNMENT + bytes)) return nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, ALIGNMENT);
#endif
  return memset(static_cast<char *>(memory) + ALIGNMENT, 0xff, bytes);
}

size_t shared_limit_of(const void *kernel) {
  std::lock_guard<std::mutex> guard(lock);
  const auto found = shared_limit.find(kernel);
  return static_cast<size_t>(found == shared_limit.end() ? static_cast<int>(emulated::SHARED_BYTES) : found->second);
}

int devices() {
  const char *text = getenv("MOONSHARD_EMULATE_DEVICES");
  return text ? atoi(text) : 8;
}

int processors() {
  const char *text = getenv("MOONSHARD_EMULATE_PROCESSORS");
  return text && *text ? atoi(text) : 2;
}

/* The GPU's compute capability times 10. */
int capability() {
  const char *text = getenv("MOONSHARD_EMULATE_CAPABILITY");
  return text ? atoi(text) : 90;
}

/* Whether [data, data + bytes) is inside one allocation of a table. */
bool lies_in(const std::map<void *, size_t> &table, const void *data, size_t bytes) {
  auto next = table.upper_bound(const_cast<void *>(data));
  if (next == table.begin()) return false;
  --next;
  const char *begin = static_cast<const char *>(next->first);
  return static_cast<const char *>(data) + bytes <= begin + next->second;
}

} // namespace

#define FAIL_ON_DEMAND(function, error) \
  if (emulated_fails(function)) return finish(error)

#define REFUSE_IN_CAPTURE(function)                                \
  do {                                                             \
    const cudaError_t illegal = emulated::check_capture(function); \
    if (illegal != cudaSuccess) return finish(illegal);            \
  } while (0)

cudaError_t emulated::check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                 bool asynchronous) {
  std::lock_guard<std::mutex> guard(lock);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault || bytes == 0) return cudaSuccess;
  const bool hosts = (to_device || !asynchronous || lies_in(pinned, to, bytes)) &&
                     (from_device || !asynchronous || lies_in(pinned, from, bytes));
  if (lies_in(allocated, to, bytes) == to_device && lies_in(allocated, from, bytes) == from_device && hosts)
    return cudaSuccess;
  fprintf(stderr, "emulated_cuda: a copy of %zu bytes of kind %d %s\n", bytes, static_cast<int>(kind),
          hosts ? "exceeds an allocation, or its kind is wrong" : "is asynchronous, but its host memory is not pinned");
  return cudaErrorInvalidValue;
}

cudaError_t emulated::check_set(const void *to, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  if (bytes == 0 || lies_in(allocated, to, bytes)) return cudaSuccess;
  fprintf(stderr, "emulated_cuda: a memset of %zu bytes exceeds an allocation\n", bytes);
  return cudaErrorInvalidValue;
}

cudaError_t emulated::launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared,
                             cudaStream_t stream, const Body &thread) {
  FAIL_ON_DEMAND("cudaLaunchKernel", cudaErrorLaunchFailure);
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  const bool fits = threads > 0 && threads <= MAX_THREADS && block.z <= 64 && grid.x > 0 && grid.x <= 0x7fffffffu &&
                    grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535 && shared <= shared_limit_of(kernel);
  if (!fits) {
    fprintf(stderr,
            "emulated_cuda: kernel %s cannot be launched as grid (%u,%u,%u), block (%u,%u,%u), %zu bytes shared\n",
            name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
    return finish(cudaErrorInvalidConfiguration);
  }
  emulated_log_work(stream, name, 0, nullptr);
  return give(stream, [=] { return run_grid(name, grid, block, shared, thread); });
}

extern "C" {

int emulated_fails(const char *function) {
  const char *wanted = getenv("MOONSHARD_EMULATE_FAIL");
  if (!wanted) return 0;
  std::lock_guard<std::mutex> guard(lock);
  const int call = ++calls[function];
  const std::string entry = std::string(",") + function + ":" + std::to_string(call) + ",";
  return (std::string(",") + wanted + ",").find(entry) != std::string::npos;
}

int emulated_is_device(const void *data, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  return lies_in(allocated, data, bytes);
}

void emulated_forget_calls(void) {
  std::lock_guard<std::mutex> guard(lock);
  calls.clear();
}

const char *emulated_left(void) {
  static char text[256];
  std::lock_guard<std::mutex> guard(lock);
  const long long streams = emulated::streams_alive, events = emulated::events_alive, graphs = emulated::graphs_alive;
  if (allocated.empty() && pinned.empty() && !streams && !events && !graphs) return nullptr;
  snprintf(text, sizeof text, "%zu allocations, %zu pinned, %lld streams, %lld events, %lld graphs", allocated.size(),
           pinned.size(), streams, events, graphs);
  return text;
}

void emulated_take(long long bytes) {
  std::lock_guard<std::mutex> guard(lock);
  taken_bytes += bytes;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

const char *cudaGetErrorName(cudaError_t error) {
  static const std::map<int, const char *> names = {
      {cudaSuccess, "cudaSuccess"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
      {cudaErrorInitializationError, "cudaErrorInitializationError"},
      {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
      {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
      {cudaErrorNoDevice, "cudaErrorNoDevice"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
      {cudaErrorNotReady, "cudaErrorNotReady"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
      {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
      {cudaErrorNotSupported, "cudaErrorNotSupported"},
      {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
      {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
      {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
      {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
      {cudaErrorUnknown, "cudaErrorUnknown"}};
  const auto found = names.find(error);
  return found == names.end() ? "unrecognized error code" : found->second;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorUnknown: return "unknown error";
    default: return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = emulated::last_error;
  emulated::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return emulated::last_error; }

/* ---- the device -------------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version) {
  FAIL_ON_DEMAND("cudaDriverGetVersion", cudaErrorUnknown);
  const char *text = getenv("MOONSHARD_EMULATE_DRIVER");
  *version = text ? atoi(text) : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  FAIL_ON_DEMAND("cudaGetDeviceCount", cudaErrorUnknown);
  *count = devices();
  if (*count < 0) return finish(cudaErrorInsufficientDriver);
  return *count ? cudaSuccess : finish(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  FAIL_ON_DEMAND("cudaSetDevice", cudaErrorUnknown);
  if (device < 0 || device >= devices()) return finish(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  FAIL_ON_DEMAND("cudaGetDevice", cudaErrorUnknown);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  FAIL_ON_DEMAND("cudaGetDeviceProperties", cudaErrorUnknown);
  if (device < 0 || device >= devices()) return finish(cudaErrorInvalidDevice);
  *properties = cudaDeviceProp{};
  const char *name = getenv("MOONSHARD_EMULATE_NAME");
  snprintf(properties->name, sizeof properties->name, "%s", name ? name : "emulated");
  properties->totalGlobalMem = DEVICE_BYTES;
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->multiProcessorCount = processors();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  FAIL_ON_DEMAND("cudaDeviceGetAttribute", cudaErrorUnknown);
  if (device < 0 || device >= devices()) return finish(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = emulated::MAX_THREADS; break;
    case cudaDevAttrMultiProcessorCount: *value = processors(); break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = emulated::SHARED_BYTES_ON_REQUEST; break;
    default: return finish(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  if (device < 0 || device >= devices()) return finish(cudaErrorInvalidDevice);
  FAIL_ON_DEMAND("cudaDeviceGetPCIBusId", cudaErrorUnknown);
  const char *first = getenv("MOONSHARD_EMULATE_FIRST");
  snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", device + (first ? atoi(first) : 0));
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  FAIL_ON_DEMAND("cudaDeviceCanAccessPeer", cudaErrorUnknown);
  if (device < 0 || device >= devices() || peer < 0 || peer >= devices()) return finish(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  FAIL_ON_DEMAND("cudaDeviceGetStreamPriorityRange", cudaErrorUnknown);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  FAIL_ON_DEMAND("cudaMemGetInfo", cudaErrorUnknown);
  std::lock_guard<std::mutex> guard(lock);
  *free_bytes = DEVICE_BYTES - CONTEXT_BYTES - allocated_bytes - static_cast<size_t>(taken_bytes);
  *total_bytes = DEVICE_BYTES;
  return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **data, size_t bytes) {
  *data = nullptr;
  FAIL_ON_DEMAND("cudaMalloc", cudaErrorMemoryAllocation);
  REFUSE_IN_CAPTURE("cudaMalloc");
  if (bytes == 0) return cudaSuccess;
  std::lock_guard<std::mutex> guard(lock);
  if (bytes > DEVICE_BYTES - CONTEXT_BYTES - allocated_bytes) return finish(cudaErrorMemoryAllocation);
  void *memory = device_memory(bytes);
  if (!memory) return finish(cudaErrorMemoryAllocation);
  allocated[memory] = bytes;
  allocated_bytes += bytes;
  *data = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void *data) {
  if (!data) return cudaSuccess;
  REFUSE_IN_CAPTURE("cudaFree");
  emulated::drain_all(); /* as the driver does before it frees memory */
  std::lock_guard<std::mutex> guard(lock);
  const auto found = allocated.find(data);
  if (found == allocated.end()) return finish(cudaErrorInvalidValue);
  allocated_bytes -= found->second;
  allocated.erase(found);
  free(static_cast<char *>(data) - ALIGNMENT);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned int) {
  FAIL_ON_DEMAND("cudaHostAlloc", cudaErrorMemoryAllocation);
  REFUSE_IN_CAPTURE("cudaHostAlloc");
  *data = aligned(bytes ? bytes : 1);
  if (!*data) return finish(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> guard(lock);
  pinned[*data] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *data) {
  REFUSE_IN_CAPTURE("cudaFreeHost");
  std::lock_guard<std::mutex> guard(lock);
  if (!pinned.erase(data)) return finish(cudaErrorInvalidValue);
  free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  FAIL_ON_DEMAND("cudaMemcpy", cudaErrorUnknown);
  REFUSE_IN_CAPTURE("cudaMemcpy");
  const cudaError_t error = emulated::check_copy(to, from, bytes, kind, false);
  if (error == cudaSuccess && bytes) memmove(to, from, bytes);
  return finish(error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  FAIL_ON_DEMAND("cudaMemcpyAsync", cudaErrorUnknown);
  const cudaError_t error = emulated::check_copy(to, from, bytes, kind, true);
  if (error != cudaSuccess) return finish(error);
  const emulated_range range[] = {{'r', from, bytes}, {'w', to, bytes}};
  emulated_log_work(stream, "copy", 2, range);
  return emulated::give(stream, [=] {
    if (bytes) memmove(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemset(void *data, int value, size_t bytes) {
  FAIL_ON_DEMAND("cudaMemset", cudaErrorUnknown);
  REFUSE_IN_CAPTURE("cudaMemset");
  const cudaError_t error = emulated::check_set(data, bytes);
  if (error == cudaSuccess && bytes) memset(data, value, bytes);
  return finish(error);
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream) {
  FAIL_ON_DEMAND("cudaMemsetAsync", cudaErrorUnknown);
  const cudaError_t error = emulated::check_set(data, bytes);
  if (error != cudaSuccess) return finish(error);
  const emulated_range range = {'w', data, bytes};
  emulated_log_work(stream, "memset", 1, &range);
  return emulated::give(stream, [=] {
    if (bytes) memset(data, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
  FAIL_ON_DEMAND("cudaFuncSetAttribute", cudaErrorUnknown);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > emulated::SHARED_BYTES_ON_REQUEST)
    return finish(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> guard(lock);
  shared_limit[kernel] = value;
  return cudaSuccess;
}

} // extern "C"
