/* muon_orthogonalise.c - Muon's orthogonal matrix, computed by other CPU kernels. */
#include <stdlib.h>

#include "base/error.h"
#include "kernels/products/orthogonalise.h"

static int prepare(ms_kernel_call *call) {
  ms_orthogonalise *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  int rc = ms_orthogonalise_prepare(call, ms_cpu_kernel, made);
  if (rc) free(made);
  else call->prepared = made;
  return rc;
}

static int run(const ms_kernel_call *call) { return ms_orthogonalise_run(call->prepared, call); }

static void release(void *prepared) {
  if (prepared) ms_orthogonalise_release(prepared);
  free(prepared);
}

const ms_kernel ms_cpu_muon_orthogonalise = {.prepare = prepare, .run = run, .release = release};
