/* matmul_gelu.c - a product followed by gelu or its gradient, computed by two CPU kernels in sequence. */
#include "kernels/products/matmul_gelu.h"

#include <stdlib.h>

#include "base/error.h"

static int prepare(ms_kernel_call *call) {
  ms_gelu_steps *steps = ms_calloc(1, sizeof *steps);
  if (!steps) return MS_ENOMEM;
  int rc = ms_gelu_steps_prepare(call, ms_cpu_kernel, steps);
  if (rc) free(steps);
  else call->prepared = steps;
  return rc;
}

static int run(const ms_kernel_call *call) { return ms_gelu_steps_run(call->prepared, call); }

static void release(void *prepared) {
  if (prepared) ms_gelu_steps_release(prepared);
  free(prepared);
}

const ms_kernel ms_cpu_matmul_gelu = {.prepare = prepare, .run = run, .release = release};
