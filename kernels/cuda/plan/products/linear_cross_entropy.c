/* linear_cross_entropy.c - the workspace of the loss of a linear layer: a chunk of logits, what is kept of all rows,
 * and that of the kernels which it consists of. */
#include "kernels/products/linear_cross_entropy.h"

#include "kernels/cuda/plan/plan.h"

int ms_cuda_prepare_linear_cross_entropy(ms_kernel_call *call) {
  ms_loss_chunks chunks;
  return ms_loss_chunks_prepare(call, ms_cuda_planned_kernel, &chunks);
}
