/* norm_backward.c - the gradients of layer_norm and rms_norm in one pass over x and dy.
 *
 * With h = (x - mean) rstd (mean is 0 for rms_norm) and g = dy gain:
 *   dx = rstd (g - average g - h average(g h))     rms_norm: without average g;  plus the optional last input
 *   dgain = sum over rows of dy h,  dbias = sum over rows of dy
 *
 * x, dy, dx [rows][D]; gain, bias, dgain, dbias [D]; stats f32 [rows][2] = mean, rstd, or [rows] = rstd for rms_norm.
 * Each part sums dgain and dbias of its rows in f32 in its scratch; the parts are then added in order.
 *
 * The recompute ops also write the norm's result y = h gain + bias, with the same bits as the forward kernel, so that
 * the plan does not have to keep it from forward to backward.
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

enum { X, GAIN, STATS, DY, LATER }; /* then the bias (recompute of layer_norm only), then the gradient to add to dx */
enum { DX, DGAIN, DBIAS };
/* Scratch rows per part. */
enum { GAIN_SUM, BIAS_SUM, GAIN_ROW, BIAS_ROW, SCRATCH };

/* Numbers of the optional inputs and outputs of an op. */
typedef struct form {
  int centred;
  int bias, more; /* inputs; -1: none */
  int result;     /* output; -1: none */
} form;

static form form_of(const ms_kernel_call *call) {
  const int again = call->op == MS_OP_layer_norm_backward_recompute || call->op == MS_OP_rms_norm_backward_recompute;
  form f = {.centred = call->op == MS_OP_layer_norm_backward || call->op == MS_OP_layer_norm_backward_recompute};
  const int more = LATER + (again && f.centred);
  f.bias = again && f.centred ? LATER : -1;
  f.more = call->inputs > more ? more : -1;
  f.result = again ? call->outputs - 1 : -1;
  return f;
}

/* A row of the tensors; x, dy, more and dx have one dtype. */
typedef struct row {
  const void *x, *dy, *more; /* [columns] from element `first` on; more: gradient to add, or NULL */
  void *dx, *y;              /* can share memory with any of them; y NULL: not wanted */
  int64_t first, columns;
  float mean, rstd;
} row;

typedef struct averages {
  float g, gh;
} averages;

/* Adds the row to the sums dgain, dbias [columns], and returns the averages that dx needs. gain [columns]. */
MS_INLINE averages first_pass(const row *r, int bf16, int centred, const float *gain, float *dgain, float *dbias) {
  const int64_t n = r->columns, first = r->first;
  const float mean = r->mean, rstd = r->rstd;
  float g_sum = 0.0f, gh_sum = 0.0f;
#pragma omp simd reduction(+ : g_sum, gh_sum)
  for (int64_t i = 0; i < n; i++) {
    float dy = ms_simd_load(r->dy, first + i, bf16), h = (ms_simd_load(r->x, first + i, bf16) - mean) * rstd,
          g = dy * gain[i];
    dgain[i] += dy * h;
    if (centred) {
      dbias[i] += dy;
      g_sum += g;
    }
    gh_sum += g * h;
  }
  return (averages){g_sum / (float)n, gh_sum / (float)n};
}

/* Writes dx and optionally y. adds: r->more is set; again: r->y is set. gain, bias [columns]. */
MS_INLINE void second_pass(const row *r, int bf16, int centred, int adds, int again, const float *gain,
                           const float *bias, averages average) {
  const int64_t n = r->columns, first = r->first;
  const float mean = r->mean, rstd = r->rstd;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float dy = ms_simd_load(r->dy, first + i, bf16), h = (ms_simd_load(r->x, first + i, bf16) - mean) * rstd;
    float dx = rstd * (dy * gain[i] - average.g - h * average.gh);
    float all = adds ? dx + ms_simd_load(r->more, first + i, bf16) : dx;
    if (again) ms_simd_store(r->y, first + i, centred ? h * gain[i] + bias[i] : h * gain[i], bf16);
    ms_simd_store(r->dx, first + i, all, bf16);
  }
}

/* A channel vector [D] as f32: the tensor itself, or a scratch row of the part after widening. */
MS_INLINE const float *channels(const ms_kernel_call *call, int input, int part, int scratch) {
  const int64_t n = ms_row_length(&call->in[X]);
  return ms_block_in(call->in_data[input], call->in[input].dtype, 0, n,
                     ms_scratch_row(call, part, SCRATCH, scratch, n));
}

MS_INLINE void backward_rows(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int bf16, int centred) {
  const int64_t n = ms_row_length(&call->in[X]);
  const form f = form_of(call);
  float *dgain = ms_scratch_row(call, part, SCRATCH, GAIN_SUM, n),
        *dbias = ms_scratch_row(call, part, SCRATCH, BIAS_SUM, n);
  const float *gain = channels(call, GAIN, part, GAIN_ROW);
  const float *bias = f.bias < 0 ? NULL : channels(call, f.bias, part, BIAS_ROW);
  const float *stats = call->in_data[STATS];
  row r = {call->in_data[X],
           call->in_data[DY],
           f.more < 0 ? NULL : call->in_data[f.more],
           call->out_data[DX],
           f.result < 0 ? NULL : call->out_data[f.result],
           0,
           n,
           0.0f,
           0.0f};
  ms_block_fill(dgain, 0.0f, n);
  ms_block_fill(dbias, 0.0f, n);
  for (int64_t at = begin; at < end; at++) {
    r.first = at * n;
    r.mean = centred ? stats[2 * at] : 0.0f;
    r.rstd = centred ? stats[2 * at + 1] : stats[at];
    averages average = first_pass(&r, bf16, centred, gain, dgain, dbias);
    if (r.y && r.more) second_pass(&r, bf16, centred, 1, 1, gain, bias, average);
    else if (r.y) second_pass(&r, bf16, centred, 0, 1, gain, bias, average);
    else if (r.more) second_pass(&r, bf16, centred, 1, 0, gain, bias, average);
    else second_pass(&r, bf16, centred, 0, 0, gain, bias, average);
  }
}

#define BACKWARD(name, bf16, centred)                                                            \
  MS_CLONES static void name(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    backward_rows(call, part, begin, end, bf16, centred);                                        \
  }
BACKWARD(layer_norm_f32, 0, 1)
BACKWARD(layer_norm_bf16, 1, 1)
BACKWARD(rms_norm_f32, 0, 0)
BACKWARD(rms_norm_bf16, 1, 0)

/* Writes the parts' sums, added in order, to an output [D]. */
static void store_sum(const ms_kernel_call *call, int parts, int sum, int output) {
  const int64_t n = ms_row_length(&call->in[X]);
  const int bf16 = call->out[output].dtype == MS_BF16;
  for (int64_t i = 0; i < n; i++) {
    float total = 0.0f;
    for (int p = 0; p < parts; p++) total += ms_scratch_row(call, p, SCRATCH, sum, n)[i];
    ms_simd_store(call->out_data[output], i, total, bf16);
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
  ms_run_parts(call, parts, ms_row_count(&call->in[X]), 1,
               call->in[X].dtype == MS_BF16 ? layer_norm_bf16 : layer_norm_f32);
  store_sum(call, parts, GAIN_SUM, DGAIN);
  store_sum(call, parts, BIAS_SUM, DBIAS);
  return MS_OK;
}

static int run_rms_norm(const ms_kernel_call *call) {
  int parts = parts_of(call);
  ms_run_parts(call, parts, ms_row_count(&call->in[X]), 1, call->in[X].dtype == MS_BF16 ? rms_norm_bf16 : rms_norm_f32);
  store_sum(call, parts, GAIN_SUM, DGAIN);
  return MS_OK;
}

/* dx and the recomputed result can overwrite x, dy or the gradient to add, but not gain and bias, which every row
 * reads. */
#define DX_OVER (MS_OVER(0, X) | MS_OVER(0, DY))

const ms_kernel ms_cpu_layer_norm_backward = {
    .prepare = prepare, .run = run_layer_norm, .in_place = DX_OVER | MS_OVER(0, LATER)};
const ms_kernel ms_cpu_rms_norm_backward = {
    .prepare = prepare, .run = run_rms_norm, .in_place = DX_OVER | MS_OVER(0, LATER)};
const ms_kernel ms_cpu_layer_norm_backward_recompute = {.prepare = prepare,
                                                        .run = run_layer_norm,
                                                        .in_place = DX_OVER | MS_OVER(0, LATER + 1) | MS_OVER(3, X) |
                                                                    MS_OVER(3, DY) | MS_OVER(3, LATER + 1)};
const ms_kernel ms_cpu_rms_norm_backward_recompute = {.prepare = prepare,
                                                      .run = run_rms_norm,
                                                      .in_place = DX_OVER | MS_OVER(0, LATER) | MS_OVER(2, X) |
                                                                  MS_OVER(2, DY) | MS_OVER(2, LATER)};
