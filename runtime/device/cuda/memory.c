/* memory.c - arenas, pinned host memory, and the use of device memory. */
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"

static void count(_Atomic int64_t *total, int64_t bytes) {
  atomic_fetch_add(total, bytes);
  atomic_fetch_add(&ms_cuda_totals.allocations, bytes > 0);
}

static int refuse(int64_t bytes, const char *label) {
  size_t free_bytes = 0, total = 0;
  ms_cuda_ignore(cudaMemGetInfo(&free_bytes, &total));
  return MS_FAIL(MS_ENOMEM, "cannot allocate %lld bytes of GPU memory for %s: %lld of %lld are free", (long long)bytes,
                 label, (long long)free_bytes, (long long)total);
}

static void release(const ms_device *device, void *data, int communicated) {
  const ms_nccl *nccl;
  if (communicated && ms_cuda_nccl(device) && !ms_nccl_load(&nccl)) nccl->mem_free(data);
  else ms_cuda_ignore(cudaFree(data));
}

/* Memory that is registered with NCCL must be allocated by NCCL. */
static int take(const ms_device *device, int64_t bytes, int communicated, const char *label, void **data) {
  const ms_nccl *nccl;
  cudaError_t error;
  if (communicated && ms_cuda_nccl(device)) {
    MS_TRY(ms_nccl_load(&nccl));
    return nccl->mem_alloc(data, (size_t)bytes) ? refuse(bytes, label) : MS_OK;
  }
  error = cudaMalloc(data, (size_t)bytes);
  if (error != cudaErrorMemoryAllocation) return ms_cuda_check(error, "cudaMalloc", __FILE__, __LINE__);
  ms_cuda_ignore(cudaGetLastError());
  return refuse(bytes, label);
}

int ms_cuda_allocate(ms_device *device, int64_t bytes, int communicated, const char *label, void **base) {
  void *data = NULL;
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(take(device, bytes, communicated, label, &data));
  int rc = MS_CUDA(cudaMemset(data, 0, (size_t)bytes));
  if (!rc)
    rc = MS_CUDA(cudaDeviceSynchronize()); /* cudaMemset can be asynchronous, and other streams would not wait for it */
  if (rc) {
    release(device, data, communicated);
    return rc;
  }
  count(&ms_cuda_totals.arenas, bytes);
  *base = data;
  return MS_OK;
}

void ms_cuda_release(ms_device *device, void *base, int64_t bytes, int communicated) {
  ms_cuda_ignore(cudaSetDevice(ms_cuda_index(device)));
  release(device, base, communicated);
  count(&ms_cuda_totals.arenas, -bytes);
}

int ms_cuda_read(ms_device *device, void *host, const void *at, int64_t bytes) {
  MS_TRY(ms_cuda_attach(device));
  return MS_CUDA(cudaMemcpy(host, at, (size_t)bytes, cudaMemcpyDeviceToHost));
}

int ms_cuda_write(ms_device *device, void *at, const void *host, int64_t bytes) {
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(MS_CUDA(cudaMemcpy(at, host, (size_t)bytes, cudaMemcpyHostToDevice)));
  return MS_CUDA(cudaDeviceSynchronize()); /* a copy from pageable memory can return before it has arrived */
}

int ms_cuda_pin(ms_device *device, int64_t bytes, void **host) {
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(MS_CUDA(cudaHostAlloc(host, (size_t)bytes, cudaHostAllocDefault)));
  memset(*host, 0, (size_t)bytes);
  count(&ms_cuda_totals.pinned, bytes);
  return MS_OK;
}

void ms_cuda_unpin(ms_device *device, void *host, int64_t bytes) {
  ms_cuda_ignore(cudaSetDevice(ms_cuda_index(device)));
  ms_cuda_ignore(cudaFreeHost(host));
  count(&ms_cuda_totals.pinned, -bytes);
}

int ms_cuda_usage(ms_device *device, ms_device_usage *usage) {
  size_t free_bytes, total;
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(MS_CUDA(cudaMemGetInfo(&free_bytes, &total)));
  *usage = (ms_device_usage){.total = (int64_t)total,
                             .free = (int64_t)free_bytes,
                             .arenas = atomic_load(&ms_cuda_totals.arenas),
                             .context = atomic_load(&ms_cuda_totals.context),
                             .communicators = atomic_load(&ms_cuda_totals.communicators),
                             .pinned = atomic_load(&ms_cuda_totals.pinned)};
  return MS_OK;
}

int64_t ms_cuda_allocations(void) { return atomic_load(&ms_cuda_totals.allocations); }
