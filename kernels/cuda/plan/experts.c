/* experts.c - the workspace of expert_order, that of the sort of its choices; and which grouped products a grid has
 * places for. */
#include "base/error.h"
#include "kernels/cuda/plan/embedding.h"
#include "kernels/cuda/plan/plan.h"

int ms_cuda_prepare_expert_order(ms_kernel_call *call) {
  const int64_t choices = ms_numel(&call->in[0]);
  call->workspace_bytes = choices ? ms_sort_bytes(choices) : 0;
  return MS_OK;
}

/* Groups, and tiles of columns, are numbered by a grid's second and third axis. */
enum { MOST_BLOCKS = 65535, LEAST_TILE = 64 };

int ms_cuda_prepare_grouped_matmul(ms_kernel_call *call) {
  const int64_t groups = call->in[2].dims[0] - 1, columns = call->out[0].dims[call->out[0].ndim - 1];
  const int64_t inner = call->in[0].dims[1], most = (int64_t)MOST_BLOCKS * LEAST_TILE;
  if (groups <= MOST_BLOCKS && columns <= most && inner <= most) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "cuda: grouped_matmul of %lld groups, %lld to %lld columns; there can be %d and %lld",
                 (long long)groups, (long long)inner, (long long)columns, MOST_BLOCKS, (long long)most);
}
