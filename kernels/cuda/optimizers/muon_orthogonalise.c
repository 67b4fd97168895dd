/* muon_orthogonalise.c - Muon's orthogonal matrix, computed by other CUDA kernels, products by cuBLASLt. */
#include <stdlib.h>

#include "base/error.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/table.h"
#include "kernels/products/orthogonalise.h"

static int prepare(ms_kernel_call *call) {
  ms_orthogonalise *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  int rc = ms_orthogonalise_prepare(call, ms_cuda_kernel, made);
  if (rc) free(made);
  else call->prepared = made;
  return rc;
}

static int bind(const ms_kernel_call *call) { return ms_orthogonalise_bind(call->prepared, call); }

static int run(const ms_kernel_call *call) { return ms_orthogonalise_run(call->prepared, call); }

static void release(void *prepared) {
  if (prepared) ms_orthogonalise_release(prepared);
  free(prepared);
}

const ms_kernel ms_cuda_muon_orthogonalise = {
    .prepare = prepare, .run = run, .release = release, .in_place = MS_CUDA_OVER_muon_orthogonalise, .bind = bind};
