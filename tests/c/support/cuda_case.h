/* cuda_case.h - runs a CUDA kernel on host tensors: copies everything that the call points to to the device, including
 * the guard bytes after it, and back. Pointers that are equal on the host are equal on the device. */
#ifndef MS_TESTS_CUDA_CASE_H
#define MS_TESTS_CUDA_CASE_H

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cuda/plan/plan.h"
#include "tests/c/support/check.h"

const ms_kernel *ms_cuda_kernel(int op);

/* Whether kernels are those that were compiled with contraction. Only the emulation has any: a compiler is free to join
 * a product and a sum in one place and not in another, and a path that promises the bits of another path is computed
 * with these, and the other one without. Results are then equal only if formulas leave nothing to join. */
static int is_contracted;

#if defined(EMULATED_CUDA) && !defined(__SANITIZE_ADDRESS__)
  #include <dlfcn.h>

static inline const ms_kernel *contracted_kernel_of(int op) {
  static const ms_kernel *(*kernel)(int op);
  char path[4096] = {0};
  if (kernel) return kernel(op);
  if (readlink("/proc/self/exe", path, sizeof path - 40) <= 0) abort();
  strcpy(strrchr(path, '/'), "/libmoonshard_cuda_contracted.so");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail_msg("%s", dlerror());
  *(void **)&kernel = dlsym(library, "ms_cuda_kernel");
  if (!kernel) fail_msg("%s", dlerror());
  return kernel(op);
}

static inline int can_contract(void) {
  #ifdef __x86_64__
  return __builtin_cpu_supports("fma");
  #else
  return 1;
  #endif
}
#else
static inline const ms_kernel *contracted_kernel_of(int op) { return ms_cuda_kernel(op); }
static inline int can_contract(void) { return 0; }
#endif

static inline void contract(int on) { is_contracted = on && can_contract(); }

static inline const ms_kernel *kernel_of(int op) {
  return is_contracted ? contracted_kernel_of(op) : ms_cuda_kernel(op);
}

/* Algorithms are not timed, so nothing is stored on disk. On the emulated device, cuBLASLt and cuDNN are the emulated
 * libraries next to the test. */
static __attribute__((constructor)) void choose_libraries(void) {
  setenv("MOONSHARD_CUDA_MATMUL_TUNE", "0", 1);
#ifdef EMULATED_CUDA
  char path[4096] = {0};
  if (readlink("/proc/self/exe", path, sizeof path - 32) <= 0) abort();
  strcpy(strrchr(path, '/'), "/libcublaslt_emulated.so");
  setenv("MOONSHARD_CUBLASLT_LIBRARY", path, 0);
  strcpy(strrchr(path, '/'), "/libcudnn_emulated.so");
  setenv("MOONSHARD_CUDNN_LIBRARY", path, 0);
#endif
}

/* The offset of tensors from an allocation's start, in bytes. Scalars and fault are always aligned; the workspace is
 * aligned no better than guaranteed. */
static int device_shift;
enum { WORKSPACE_SHIFT = 64 };

typedef struct mirror {
  void *host, *device, *allocation;
  size_t bytes;
} mirror;

typedef struct mirrors {
  mirror list[MS_MAX_INPUTS + MS_MAX_OUTPUTS + 3];
  int count;
} mirrors;

static inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) fail_msg("%s", cudaGetErrorString(error));
}

/* The device's copy of the bytes at `host`, including guard bytes; NULL for NULL. */
static inline void *mirrored(mirrors *m, const void *host, int64_t bytes, int shift) {
  if (!host) return NULL;
  for (int i = 0; i < m->count; i++)
    if (m->list[i].host == host) return m->list[i].device;
  mirror *new = &m->list[m->count++];
  new->host = (void *)host;
  new->bytes = (size_t)bytes;
  check_cuda(cudaMalloc(&new->allocation, new->bytes + (size_t)shift));
  new->device = (char *)new->allocation + shift;
  check_cuda(cudaMemcpy(new->device, host, new->bytes, cudaMemcpyHostToDevice));
  return new->device;
}

/* Also compares with what a plan reads that is compiled without the kernels: refusal, workspace, in_place. */
static inline int prepare_kernel(const ms_kernel *kernel, ms_kernel_call *call) {
  const ms_kernel *planned = ms_cuda_planned_kernel(call->op);
  ms_kernel_call alike = *call;
  const int expected = planned->prepare ? planned->prepare(&alike) : MS_OK;
  const int rc = kernel->prepare ? kernel->prepare(call) : MS_OK;
  assert_int_equal(expected, rc);
  assert_int_equal(alike.workspace_bytes, call->workspace_bytes);
  assert_int_equal(planned->in_place, kernel->in_place);
  assert_null(alike.prepared);
  return rc;
}

/* A call on the device's copies of everything that `host` points to, which `m` lists. */
static inline ms_kernel_call on_device(mirrors *m, const ms_kernel_call *host) {
  ms_kernel_call call = *host;
  for (int i = 0; i < call.inputs; i++)
    call.in_data[i] = mirrored(m, host->in_data[i],
                               ms_numel(&call.in[i]) * ms_dtype_size(call.in[i].dtype) + GUARD_BYTES, device_shift);
  for (int i = 0; i < call.outputs; i++)
    call.out_data[i] = mirrored(m, host->out_data[i],
                                ms_numel(&call.out[i]) * ms_dtype_size(call.out[i].dtype) + GUARD_BYTES, device_shift);
  call.workspace = mirrored(m, host->workspace, call.workspace_bytes + GUARD_BYTES, WORKSPACE_SHIFT);
  call.scalars = mirrored(m, host->scalars, sizeof *host->scalars, 0);
  return call;
}

/* Copies everything back but scalars, and frees the device's copies. */
static inline void bring_back(const mirrors *m, const ms_kernel_call *host) {
  for (int i = 0; i < m->count; i++) {
    if (m->list[i].host != (void *)host->scalars)
      check_cuda(cudaMemcpy(m->list[i].host, m->list[i].device, m->list[i].bytes, cudaMemcpyDeviceToHost));
    check_cuda(cudaFree(m->list[i].allocation));
  }
}

/* Calls of kernels that need no preparation, in one call of run_together. */
static inline void run_together(const ms_kernel_call *host, int n) {
  mirrors m[MS_RUN_TOGETHER] = {{.count = 0}};
  ms_kernel_call call[MS_RUN_TOGETHER];
  const ms_kernel_call *calls[MS_RUN_TOGETHER];
  for (int i = 0; i < n; i++) {
    call[i] = on_device(&m[i], &host[i]);
    calls[i] = &call[i];
  }
  must(kernel_of(host->op)->run_together(calls, n));
  check_cuda(cudaDeviceSynchronize());
  for (int i = 0; i < n; i++) bring_back(&m[i], &host[i]);
}

/* Returns MS_EINVAL with the fault's numbers if the kernel recorded a fault. */
static inline int run_kernel(const ms_kernel *kernel, const ms_kernel_call *host) {
  ms_fault fault = {0};
  mirrors m = {.count = 0};
  ms_kernel_call call = on_device(&m, host);
  call.fault = mirrored(&m, &fault, sizeof fault, 0);
  int rc = kernel->bind ? kernel->bind(&call) : MS_OK;
  if (!rc) rc = kernel->run(&call);
  check_cuda(cudaDeviceSynchronize());
  bring_back(&m, host);
  if (rc || !fault.set) return rc;
  const int of_parts = call.op == MS_OP_linear_cross_entropy_step || call.op == MS_OP_linear_cross_entropy_step_bias;
  const int of_whole = call.op == MS_OP_cross_entropy_step;
  assert_int_equal(fault.op, of_parts ? MS_OP_cross_entropy_join : of_whole ? MS_OP_cross_entropy : call.op);
  return MS_FAIL(MS_EINVAL, "fault: %lld is not in [%lld,%lld)", (long long)fault.value, (long long)fault.least,
                 (long long)fault.limit);
}

#endif
