/* step.c - three small kernels between gradients and optimizer. sum_squares: the sum of squares of each chunk;
 * step_totals: the totals of a rank; step_norm: from the totals of all ranks the mean loss, the gradient norm, and the
 * factor that the optimizer applies to gradients. */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

/* Squares are summed in runs of this many elements, and the runs in order, so the bits do not depend on the number of
 * threads. */
enum { RUN = 1 << 14 };

MS_INLINE double run_of_squares(const float *x, int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return sum;
}

MS_CLONES static void squares_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  int64_t n = ms_numel(&call->in[0]);
  const float *x = call->in_data[0];
  double *sums = call->workspace;
  for (int64_t r = begin; r < end; r++) sums[r] = run_of_squares(x + r * RUN, n - r * RUN < RUN ? n - r * RUN : RUN);
}

static int64_t runs_of(const ms_kernel_call *call) { return (ms_numel(&call->in[0]) + RUN - 1) / RUN; }

static int prepare_squares(ms_kernel_call *call) {
  call->workspace_bytes = runs_of(call) * (int64_t)sizeof(double);
  return MS_OK;
}

static int run_squares(const ms_kernel_call *call) {
  int64_t runs = runs_of(call);
  const double *sums = call->workspace;
  ms_run_parts(call, ms_part_count(call, runs, ms_call_bytes(call)), runs, 1, squares_part);
  double sum = 0.0;
  for (int64_t r = 0; r < runs; r++) sum += sums[r];
  *(float *)call->out_data[0] = (float)sum;
  return MS_OK;
}

static int run_totals(const ms_kernel_call *call) {
  const float *squares = call->in_data[0], *loss = call->in_data[1];
  float *totals = call->out_data[0];
  const int64_t groups = ms_step_groups(&call->attrs), n = ms_numel(&call->in[0]) / groups;
  for (int64_t g = 0; g < groups; g++) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += squares[g * n + i];
    totals[g] = (float)(sum / (double)call->attrs.step.replicas);
  }
  memcpy(totals + groups, loss, (size_t)ms_numel(&call->in[1]) * sizeof *loss);
  return MS_OK;
}

static int run_norm(const ms_kernel_call *call) {
  const float *totals = call->in_data[0];
  float *out = call->out_data[0];
  const int64_t groups = ms_step_groups(&call->attrs), group = call->attrs.step.group; /* group 0: all of them */
  const int weighted = ms_numel(&call->in[0]) == groups + 2;
  const double max_norm = call->attrs.step.max_norm;
  double squares = 0.0;
  for (int64_t g = group ? group - 1 : 0; g < (group ? group : groups); g++) squares += (double)totals[g];
  const double divisor = weighted ? totals[groups + 1] : (double)call->attrs.step.ranks * call->scalars->micro_batches;
  const double share = divisor == 0.0 ? 0.0 : 1.0 / divisor, norm = sqrt(squares) * share;
  double factor = share;
  if (max_norm > 0.0 && max_norm < norm + 1e-6) factor *= max_norm / (norm + 1e-6);
  out[0] = (float)(totals[groups] * share);
  out[1] = (float)norm;
  out[2] = (float)factor;
  out[3] = (float)divisor;
  return MS_OK;
}

const ms_kernel ms_cpu_sum_squares = {.prepare = prepare_squares, .run = run_squares};
const ms_kernel ms_cpu_step_totals = {.run = run_totals};
const ms_kernel ms_cpu_step_norm = {.run = run_norm};
