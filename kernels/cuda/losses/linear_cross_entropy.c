/* linear_cross_entropy.c - the loss of a linear layer, computed by other CUDA kernels for chunks of rows. */
#include "kernels/products/linear_cross_entropy.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/cuda/losses/cross_entropy.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/table.h"

static int prepare(ms_kernel_call *call) {
  ms_loss_chunks *chunks = ms_calloc(1, sizeof *chunks);
  if (!chunks) return MS_ENOMEM;
  int rc = ms_loss_chunks_prepare(call, ms_cuda_kernel, chunks);
  if (rc) {
    free(chunks);
    return rc;
  }
  if ((call->op == MS_OP_linear_cross_entropy_step || call->op == MS_OP_linear_cross_entropy_step_bias) &&
      ms_cuda_cross_entropy_fits(call->in[0].dtype, chunks->sizes.classes))
    chunks->both = ms_cuda_cross_entropy_both;
  call->prepared = chunks;
  return MS_OK;
}

static int bind(const ms_kernel_call *call) { return ms_loss_chunks_bind(call->prepared, call); }

static int run(const ms_kernel_call *call) { return ms_loss_chunks_run(call->prepared, call); }

static void release(void *prepared) {
  if (prepared) ms_loss_chunks_release(prepared);
  free(prepared);
}

const ms_kernel ms_cuda_linear_cross_entropy = {
    .prepare = prepare, .run = run, .release = release, .in_place = MS_CUDA_OVER_linear_cross_entropy, .bind = bind};
