/* norm_backward.c - the gradients of layer_norm and rms_norm in one pass over x and dy.
**
** With h = (x - mean) rstd (mean is 0 for rms_norm) and g = dy gain:
**   dx = rstd (g - average g - h average(g h))     rms_norm: without average g;  plus the optional fifth input
**   dgain = sum over rows of dy h,  dbias = sum over rows of dy
** Each part adds up dgain and dbias of its rows in f32 in its scratch; the parts are added in order.
*/
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shape.h"

enum { X, GAIN, STATS, DY, MORE };
enum { DX, DGAIN, DBIAS };
/* Scratch rows of a part. The two sums come first. */
enum { GAIN_SUM, BIAS_SUM, GAIN_ROW, X_ROW, DY_ROW, MORE_ROW, DX_ROW, SCRATCH };

typedef struct averages {
  float g, gh;
} averages;

/* Adds this row to the sums and takes the averages that dx needs. x, dy, gain, dgain, dbias [n] */
MS_INLINE averages first_pass(const float *x, const float *dy, const float *gain, float mean, float rstd, int centred,
                              float *dgain, float *dbias, int64_t n) {
  float g_sum = 0.0f, gh_sum = 0.0f;
#pragma omp simd reduction(+ : g_sum, gh_sum)
  for (int64_t i = 0; i < n; i++) {
    float h = (x[i] - mean) * rstd, g = dy[i] * gain[i];
    dgain[i] += dy[i] * h;
    if (centred) {
      dbias[i] += dy[i];
      g_sum += g;
    }
    gh_sum += g * h;
  }
  return (averages){g_sum / (float)n, gh_sum / (float)n};
}

/* dx, x, dy, gain, more [n]; dx may be x; more NULL for none */
MS_INLINE void second_pass(const float *x, const float *dy, const float *gain, float mean, float rstd, averages average,
                           const float *more, float *dx, int64_t n) {
  if (more) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
      dx[i] = more[i] + rstd * (dy[i] * gain[i] - average.g - (x[i] - mean) * rstd * average.gh);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] * gain[i] - average.g - (x[i] - mean) * rstd * average.gh);
  }
}

MS_INLINE void backward_rows(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int centred) {
  const int64_t n = ms_row_length(&call->in[X]);
  float *row[SCRATCH];
  for (int i = 0; i < SCRATCH; i++) row[i] = ms_scratch_row(call, part, SCRATCH, i, n);
  ms_block_fill(row[GAIN_SUM], 0.0f, n);
  ms_block_fill(row[BIAS_SUM], 0.0f, n);
  const float *gain = ms_block_in(call->in_data[GAIN], call->in[GAIN].dtype, 0, n, row[GAIN_ROW]);
  const float *stats = call->in_data[STATS];

  for (int64_t r = begin; r < end; r++) {
    const float mean = centred ? stats[2 * r] : 0.0f, rstd = centred ? stats[2 * r + 1] : stats[r];
    const float *x = ms_block_in(call->in_data[X], call->in[X].dtype, r * n, n, row[X_ROW]);
    const float *dy = ms_block_in(call->in_data[DY], call->in[DY].dtype, r * n, n, row[DY_ROW]);
    const float *more =
        call->inputs > MORE ? ms_block_in(call->in_data[MORE], call->in[MORE].dtype, r * n, n, row[MORE_ROW]) : NULL;
    float *dx = ms_block_out(call->out_data[DX], call->out[DX].dtype, r * n, row[DX_ROW]);
    averages average = first_pass(x, dy, gain, mean, rstd, centred, row[GAIN_SUM], row[BIAS_SUM], n);
    second_pass(x, dy, gain, mean, rstd, average, more, dx, n);
    ms_block_done(call->out_data[DX], call->out[DX].dtype, r * n, n, row[DX_ROW]);
  }
}

MS_CLONES static void layer_norm_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  backward_rows(call, part, begin, end, 1);
}

MS_CLONES static void rms_norm_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  backward_rows(call, part, begin, end, 0);
}

/* Output = the parts' sums, in order. */
static void store_sum(const ms_kernel_call *call, int parts, int sum, int output) {
  const int64_t n = ms_row_length(&call->in[X]);
  const int bf16 = call->out[output].dtype == MS_BF16;
  for (int64_t i = 0; i < n; i++) {
    float total = 0.0f;
    for (int p = 0; p < parts; p++) total += ms_scratch_row(call, p, SCRATCH, sum, n)[i];
    ms_store(call->out_data[output], i, total, bf16);
  }
}

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[X]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), SCRATCH, ms_row_length(&call->in[X]));
  return MS_OK;
}

static int run_layer_norm(const ms_kernel_call *call) {
  int parts = parts_of(call);
  ms_run_parts(call, parts, ms_row_count(&call->in[X]), 1, layer_norm_part);
  store_sum(call, parts, GAIN_SUM, DGAIN);
  store_sum(call, parts, BIAS_SUM, DBIAS);
  return MS_OK;
}

static int run_rms_norm(const ms_kernel_call *call) {
  int parts = parts_of(call);
  ms_run_parts(call, parts, ms_row_count(&call->in[X]), 1, rms_norm_part);
  store_sum(call, parts, GAIN_SUM, DGAIN);
  return MS_OK;
}

const ms_kernel ms_cpu_layer_norm_backward = {.prepare = prepare, .run = run_layer_norm, .in_place = 1};
const ms_kernel ms_cpu_rms_norm_backward = {.prepare = prepare, .run = run_rms_norm, .in_place = 1};
