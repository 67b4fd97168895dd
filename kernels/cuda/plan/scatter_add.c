/* scatter_add.c - the workspace of scatter_add: sums of bf16 are f32 [elements of the result], and rounded at the end.
 */
#include "kernels/cuda/plan/plan.h"

int ms_cuda_prepare_scatter_add(ms_kernel_call *call) {
  call->workspace_bytes = call->out[0].dtype == MS_BF16 ? ms_numel(&call->out[0]) * (int64_t)sizeof(float) : 0;
  return MS_OK;
}
