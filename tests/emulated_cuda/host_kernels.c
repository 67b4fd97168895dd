/* host_kernels.c - the CPU's kernels as those of the emulated device: enqueued on its streams, on its memory. With them the host code
** of the CUDA device is tested alone and fast, and must give the CPU's own bits.
*/
#include <stdlib.h>
#include <string.h>

#include "emulated_runtime.h"
#include "kernels/op.h"

const ms_kernel *ms_cuda_kernel(int op);

static void run(void *argument) {
  const ms_kernel_call *call = argument;
  if (ms_cpu_kernel(call->op)->run(call) && !call->fault->set) *call->fault = (ms_fault){1, call->op, -1, 1};
}

static int enqueue(const ms_kernel_call *call) {
  if (emulated_fails("cudaLaunchKernel")) return MS_EDEVICE;
  ms_kernel_call *copy = malloc(sizeof *copy);
  if (!copy) return MS_ENOMEM;
  *copy = *call;
  return emulated_submit(call->stream, run, copy, free) == cudaSuccess ? MS_OK : MS_EDEVICE;
}

const ms_kernel *ms_cuda_kernel(int op) {
  static ms_kernel kernels[MS_OP_COUNT];
  const ms_kernel *cpu = ms_cpu_kernel(op);
  if (!cpu) return NULL;
  kernels[op] = *cpu;
  kernels[op].run = enqueue;
  return &kernels[op];
}
