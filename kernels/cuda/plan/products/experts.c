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

int ms_grouped_rounds(const ms_kernel_call *call) {
  return call->op == MS_OP_grouped_matmul_f8 || call->op == MS_OP_grouped_matmul_f8_backward_weight;
}

int ms_grouped_f8_of(const ms_kernel_call *call, ms_grouped_f8 *f8) {
  MS_TRY(ms_f8_grouped_of(call, &f8->f8));
  f8->dtype = ms_f8_values_dtype((int)call->attrs.product.recipe, 1);
  f8->total = 0;
  for (int i = 0; i < 2; i++) {
    f8->values[i] = f8->total;
    f8->total += ms_cuda_align(ms_numel(&call->in[i]) * ms_dtype_size(f8->dtype));
  }
  return MS_OK;
}

/* Requests the workspace of the values. Blocks round them: at most one for each row, and each 128 columns. */
static int plan_rounding(ms_kernel_call *call) {
  ms_grouped_f8 f8;
  MS_TRY(ms_grouped_f8_of(call, &f8));
  call->workspace_bytes = f8.total;
  for (int i = 0; i < 2; i++) {
    const int64_t columns = call->in[i].dims[call->in[i].ndim - 1],
                  rows = columns ? ms_numel(&call->in[i]) / columns : 0;
    if ((rows + call->in[2].dims[0]) * ms_cuda_ceil(columns, MS_GROUPED_ROUND_COLUMNS) > INT32_MAX)
      return MS_FAIL(MS_EUNSUPPORTED, "cuda: grouped_matmul_f8 of %lld rows and %lld columns: there can be %d blocks",
                     (long long)rows, (long long)columns, INT32_MAX);
  }
  return MS_OK;
}

int ms_cuda_prepare_grouped_matmul(ms_kernel_call *call) {
  const int64_t groups = call->in[2].dims[0] - 1, columns = call->out[0].dims[call->out[0].ndim - 1];
  const int64_t rows = call->in[0].dims[0], inner = call->in[0].dims[1];
  const int64_t down = ms_cuda_ceil(rows > inner ? rows : inner, MS_GROUPED_TILE) + groups + MS_GROUPED_SQUARE;
  if (groups <= MAX_GROUPS && rows <= MAX && inner <= MAX && columns <= MAX &&
      down * ms_cuda_ceil(columns, MS_GROUPED_TILE) <= INT32_MAX)
    return ms_grouped_rounds(call) ? plan_rounding(call) : MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "cuda: grouped_matmul of %lld rows in %lld groups, %lld to %lld columns: there can be %d groups, and "
                 "rows and columns for %d tiles of %d x %d",
                 (long long)rows, (long long)groups, (long long)inner, (long long)columns, MAX_GROUPS, INT32_MAX,
                 MS_GROUPED_TILE, MS_GROUPED_TILE);
}
