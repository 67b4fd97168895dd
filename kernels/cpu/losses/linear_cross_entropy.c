/* linear_cross_entropy.c - the loss of a linear layer, computed by other CPU kernels for chunks of rows. */
#include "kernels/products/linear_cross_entropy.h"

#include <stdlib.h>

#include "base/error.h"

static int prepare(ms_kernel_call *call) {
  ms_loss_chunks *chunks = ms_calloc(1, sizeof *chunks);
  if (!chunks) return MS_ENOMEM;
  int rc = ms_loss_chunks_prepare(call, ms_cpu_kernel, chunks);
  if (rc) free(chunks);
  else call->prepared = chunks;
  return rc;
}

static int run(const ms_kernel_call *call) { return ms_loss_chunks_run(call->prepared, call); }

static void release(void *prepared) {
  if (prepared) ms_loss_chunks_release(prepared);
  free(prepared);
}

/* dx over x: a chunk's rows are read before they are written. */
const ms_kernel ms_cpu_linear_cross_entropy = {
    .prepare = prepare, .run = run, .release = release, .in_place = MS_OVER(0, 0)};
