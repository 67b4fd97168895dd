/* open.c - selects the GPU of a process, and describes GPUs and CUDA libraries for `moonshard doctor`.
 *
 * A process uses the GPU whose index is its local rank (LOCAL_RANK), one rank per GPU. Where it sees a single GPU it
 * uses that one: batch systems and containers show each task its own. Ranks that then find each other on the same GPU
 * are refused (exec/async/state.c), unless MOONSHARD_CUDA_SHARE=1 lets local ranks beyond the last GPU start again at
 * the first: for tests with several ranks on one GPU, which are not faster.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"
#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/cuda/attention/cudnn.h"

struct ms_cuda_totals ms_cuda_totals;

int ms_cuda_shares(void) {
  const char *text = getenv("MOONSHARD_CUDA_SHARE");
  return text && !strcmp(text, "1");
}

int ms_cuda_count(int *devices) {
  cudaError_t error = cudaGetDeviceCount(devices);
  if (error == cudaErrorInsufficientDriver) {
    ms_cuda_ignore(cudaGetLastError());
    return MS_FAIL(MS_EUNSUPPORTED, "device cuda: no NVIDIA driver, or one too old for CUDA %d.%d",
                   CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaErrorNoDevice) {
    ms_cuda_ignore(cudaGetLastError());
    *devices = 0;
    return MS_OK;
  }
  return ms_cuda_check(error, "cudaGetDeviceCount", __FILE__, __LINE__);
}

static int choose(int local_rank, int *index) {
  int devices;
  MS_TRY(ms_cuda_count(&devices));
  if (!devices)
    return MS_FAIL(MS_EUNSUPPORTED, "device cuda: this machine shows no GPU (CUDA_VISIBLE_DEVICES can hide them)");
  *index = ms_cuda_shares() || devices == 1 ? local_rank % devices : local_rank;
  if (*index < devices) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "device cuda: local rank %d needs GPU %d, but there are %d: start at most one rank per GPU "
                 "(CUDA_VISIBLE_DEVICES can hide some)",
                 local_rank, local_rank, devices);
}

/* The first use of a device in a process creates its context; notes the memory in use afterwards. */
static int note_context(void) {
  size_t free_bytes, total;
  if (atomic_load(&ms_cuda_totals.context)) return MS_OK;
  MS_TRY(MS_CUDA(cudaMemGetInfo(&free_bytes, &total)));
  atomic_store(&ms_cuda_totals.context, (int64_t)(total - free_bytes));
  return MS_OK;
}

static int check_carveout(int index, int carveout) {
  ms_device_info gpu;
  if (!carveout) return MS_OK;
  MS_TRY(ms_cuda_describe(index, &gpu));
  if (carveout > 0 && carveout < gpu.processors) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "sm_carveout %d: GPU %d (%s) has %d multiprocessors, and products need some of them: give 1 "
                 "to %d, about as many as NCCL's thread blocks (16 to 32), or 0",
                 carveout, index, gpu.name, gpu.processors, gpu.processors - 1);
}

int ms_cuda_open(int local_rank, int nccl, int carveout, ms_device **device) {
  int index = 0;
  if (nccl) MS_TRY(ms_nccl_require(nccl));
  MS_TRY(choose(local_rank, &index));
  MS_TRY(ms_cuda_check_code(index));
  MS_TRY(check_carveout(index, carveout));
  MS_TRY(MS_CUDA(cudaSetDevice(index)));
  MS_TRY(note_context());
  ms_cuda_device *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  opened->index = index;
  opened->nccl = nccl;
  opened->carveout = carveout;
  *device = &opened->base;
  return MS_OK;
}

void ms_cuda_close(ms_device *device) { free(device); }

int ms_cuda_attach(ms_device *device) { return MS_CUDA(cudaSetDevice(ms_cuda_index(device))); }

int ms_cuda_place(ms_device *device, char *text, int bytes) {
  *text = '\0';
  return ms_cuda_shares() ? MS_OK : MS_CUDA(cudaDeviceGetPCIBusId(text, bytes, ms_cuda_index(device)));
}

/* ---- information for doctor ---- */

static int count_beyond(int index, int *devices) {
  MS_TRY(ms_cuda_count(devices));
  if (index >= 0 && index < *devices) return MS_OK;
  return MS_FAIL(MS_EINVAL, "GPU %d does not exist: there are %d", index, *devices);
}

int ms_cuda_check_gpu(int index) {
  int devices;
  MS_TRY(count_beyond(index, &devices));
  return ms_cuda_check_code(index);
}

int ms_cuda_describe(int index, ms_device_info *info) {
  int devices, major, minor, processors;
  struct cudaDeviceProp properties;
  MS_TRY(count_beyond(index, &devices));
  MS_TRY(MS_CUDA(cudaGetDeviceProperties(&properties, index)));
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, index)));
  *info = (ms_device_info){.major = major, .minor = minor, .processors = processors, .available = -1, .limit = -1};
  snprintf(info->name, sizeof info->name, "%s", properties.name);
  info->memory_bytes = (int64_t)properties.totalGlobalMem;
  for (int peer = 0; peer < devices && peer < MS_MAX_LOCAL_RANKS; peer++) {
    if (peer == index) continue;
    MS_TRY(MS_CUDA(cudaDeviceCanAccessPeer(&info->peer[peer], index, peer)));
  }
  return MS_OK;
}

static void write_version(char *version, int bytes, int number) {
  snprintf(version, (size_t)bytes, "%d.%d", number / 1000, number % 1000 / 10);
}

static void write_nccl_version(char *version, int bytes, int number) {
  snprintf(version, (size_t)bytes, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

/* The version that a library reports; "" if it is not installed. */
static void ask_library(const ms_library *library, const char *symbol, char *version, int bytes) {
  size_t (*report)(void);
  void *handle, *found = ms_library_ask(library, symbol, &handle);
  *version = '\0';
  if (!found) return;
  memcpy(&report, &found, sizeof report);
  const size_t number = report(); /* 130100 is 13.1.0 */
  snprintf(version, (size_t)bytes, "%zu.%zu.%zu", number / 10000, number / 100 % 100, number % 100);
  dlclose(handle);
}

int ms_cuda_library(const char *name, char *version, int bytes) {
  static const char *const blas_names[] = {MS_CUBLASLT_NAMES, NULL};
  static const char *const dnn_names[] = {MS_CUDNN_NAMES, NULL};
  static const ms_library blas = {.variable = "MOONSHARD_CUBLASLT_LIBRARY", .names = blas_names, .user = "doctor"};
  static const ms_library dnn = {.variable = "MOONSHARD_CUDNN_LIBRARY", .names = dnn_names, .user = "doctor"};
  int number = 0;
  *version = '\0';
  if (!strcmp(name, "driver")) {
    MS_TRY(MS_CUDA(cudaDriverGetVersion(&number)));
    if (number) write_version(version, bytes, number);
  } else if (!strcmp(name, "runtime")) {
    MS_TRY(MS_CUDA(cudaRuntimeGetVersion(&number)));
    write_version(version, bytes, number);
  } else if (!strcmp(name, "cublasLt")) {
    ask_library(&blas, "cublasLtGetVersion", version, bytes);
  } else if (!strcmp(name, "cudnn")) {
    ask_library(&dnn, "cudnnGetVersion", version, bytes);
  } else if (!strcmp(name, "nccl")) {
    if (!ms_nccl_version(&number)) write_nccl_version(version, bytes, number);
  } else if (!strcmp(name, "nccl_windows") || !strcmp(name, "nccl_copy_engines")) {
    int needed = strcmp(name, "nccl_windows") ? MS_NCCL_HAS_COPY_ENGINES : MS_NCCL_HAS_WINDOWS;
    if (!ms_nccl_version(&number) && number >= needed) write_nccl_version(version, bytes, number);
  } else {
    return MS_FAIL(MS_EINVAL,
                   "library %s: it must be driver, runtime, cublasLt, cudnn, nccl, nccl_windows or nccl_copy_engines",
                   name);
  }
  return MS_OK;
}
