/* sum_to.c - sums x to a shape that broadcasts to x's: the gradient of broadcasting, for example of a bias.
 *
 * Adjacent axes that are all summed, or all kept, are merged. If at most [kept][summed][kept] remain, it is a plain
 * reduction; longer alternations are rare and iterate over the runs of x on one thread.
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reductions/reduce.h"

/* The output broadcast to x: strides are 0 on summed axes. */
static ms_broadcast runs_of(const ms_kernel_call *call) { return ms_broadcast_of(&call->in[0], 1, &call->out[0]); }

/* Returns 1 and sets the view if the merged axes are at most [kept][summed][kept]. */
static int is_reduction(const ms_broadcast *runs, ms_axis_view *view) {
  int d = 0;
  *view = (ms_axis_view){1, 1, 1};
  if (d < runs->ndim && runs->strides[0][d] != 0) view->outer = runs->dims[d++];
  if (d < runs->ndim && runs->strides[0][d] == 0) view->n = runs->dims[d++];
  if (d < runs->ndim && runs->strides[0][d] != 0) view->inner = runs->dims[d++];
  if (view->n == 1) *view = (ms_axis_view){1, 1, view->outer}; /* nothing is summed: one row */
  return d == runs->ndim;
}

static int prepare(ms_kernel_call *call) {
  ms_axis_view view;
  ms_broadcast runs = runs_of(call);
  call->workspace_bytes =
      is_reduction(&runs, &view) ? ms_reduce_workspace(call, view) : ms_numel(&call->out[0]) * (int64_t)sizeof(float);
  return MS_OK;
}

MS_CLONES static void sum_runs(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast runs = runs_of(call);
  const int walks = runs.strides[0][runs.ndim - 1] == 1;
  float *sums = call->workspace;
  MS_BLOCK_BUFFER(buffer);
  int64_t to, n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&runs, 1, first, first + ms_block_length(first, end), &to);
    const float *x = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, buffer);
    float *y = sums + to, sum = 0.0f;
    if (walks) {
#pragma omp simd
      for (int64_t i = 0; i < n; i++) y[i] += x[i];
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; i++) sum += x[i];
      *y += sum;
    }
  }
}

static int run(const ms_kernel_call *call) {
  ms_axis_view view;
  ms_broadcast runs = runs_of(call);
  if (is_reduction(&runs, &view)) return ms_reduce_run(call, view, MS_REDUCE_SUM, 1.0);

  int64_t n = ms_numel(&call->out[0]);
  memset(call->workspace, 0, (size_t)n * sizeof(float));
  sum_runs(call, 0, 0, ms_numel(&call->in[0]));
  const float *sums = call->workspace;
  for (int64_t i = 0; i < n; i++) ms_simd_store(call->out_data[0], i, sums[i], call->out[0].dtype == MS_BF16);
  return MS_OK;
}

const ms_kernel ms_cpu_sum_to = {.prepare = prepare, .run = run};
