/* experts.c - the workspace of expert_order, that of the sort of its choices; and which grouped products a grid has
 * places for. */
#include "kernels/cuda/plan/products/experts.h"

#include "base/error.h"
#include "kernels/cuda/plan/embedding.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"

int ms_cuda_prepare_expert_order(ms_kernel_call *call) {
  const int64_t choices = ms_numel(&call->in[0]);
  call->workspace_bytes = choices ? ms_sort_bytes(choices) : 0;
  return MS_OK;
}

/* Groups are numbered by a grid's second axis, tiles by its first: those of rows and of columns together, rounded up to
 * squares. Kernels count rows and columns in 32 bits, beyond the end by less than a tile. */
enum { MAX_GROUPS = 65535, MAX = INT32_MAX - 256 };

int ms_cuda_prepare_grouped_matmul(ms_kernel_call *call) {
  const int64_t groups = call->in[2].dims[0] - 1, columns = call->out[0].dims[call->out[0].ndim - 1];
  const int64_t rows = call->in[0].dims[0], inner = call->in[0].dims[1];
  const int64_t down = ms_cuda_ceil(rows > inner ? rows : inner, MS_GROUPED_TILE) + groups + MS_GROUPED_SQUARE;
  if (groups <= MAX_GROUPS && rows <= MAX && inner <= MAX && columns <= MAX &&
      down * ms_cuda_ceil(columns, MS_GROUPED_TILE) <= INT32_MAX)
    return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "cuda: grouped_matmul of %lld rows in %lld groups, %lld to %lld columns: there can be %d groups, and "
                 "rows and columns for %d tiles of %d x %d",
                 (long long)rows, (long long)groups, (long long)inner, (long long)columns, MAX_GROUPS, INT32_MAX,
                 MS_GROUPED_TILE, MS_GROUPED_TILE);
}
