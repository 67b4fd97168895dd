/* adafactor.c - Adafactor on the elements of a parameter that a rank has (kernels/adafactor.h), in four ops. Between
 * them the ranks add up what they have computed.
 *
 *   adafactor_sums     sums of g^2 along rows and down columns, of this rank's elements; 0 where it has none
 *   adafactor_average  row and column averages of mean squares, from the sums of all ranks
 *   adafactor_norm     the sum of squares of the updates of its elements; what a matrix' variances are divided by, and
 *                      the size of the step
 *   adafactor          p = p (1 - lr wd) - step / max(1, rms(updates) / d) update
 *
 * g = clipped(gradient * factor), factor: element 2 of step_norm's output. Sums are double, each in a fixed order of
 * its own, so the bits do not depend on the number of threads.
 */
#include "kernels/cpu/block.h"

#include "kernels/adafactor.h"
#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"

enum { COLUMNS = 256, RUN = 1 << 14 };

static int64_t elements(const ms_kernel_call *call) { return ms_numel(&call->in[0]); }

/* Elements [*begin, *end) of a rank's are those that it has of columns [column, column + n) of a row of its part. */
MS_INLINE void find_in_row(const ms_factored *f, int64_t count, int64_t t, int64_t column, int64_t n, int64_t *begin,
                           int64_t *end) {
  const int64_t from = t * f->part_columns + column - f->first, to = from + n;
  *begin = from < 0 ? 0 : from;
  *end = to > count ? count : to;
}

/* ---- sums ---- */

MS_CLONES static void rows_part(const ms_kernel_call *call, int part, int64_t first, int64_t last) {
  (void)part;
  const ms_factored f = ms_factored_of(&call->attrs);
  const float factor = ((const float *)call->in_data[1])[2], most = ms_clip_of(call->attrs.factored.clip);
  const float *restrict gradient = call->in_data[0];
  float *restrict sums = call->out_data[0];
  const int64_t count = elements(call);
  for (int64_t row = first; row < last; row++) {
    const int64_t t = ms_factored_part_row(&f, row);
    int64_t begin = 0, end = 0;
    double sum = 0.0;
    if (t >= 0) find_in_row(&f, count, t, 0, f.part_columns, &begin, &end);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++) {
      const double g = ms_clipped(gradient[i] * factor, most);
      sum += g * g;
    }
    sums[row] = (float)sum;
  }
}

/* Columns [column, column + n) of the part, of a matrix of it, down its rows. */
MS_CLONES static void sum_columns(const ms_kernel_call *call, const ms_factored *f, int64_t matrix, int64_t column,
                                  int64_t n, double *sums) {
  const float factor = ((const float *)call->in_data[1])[2], most = ms_clip_of(call->attrs.factored.clip);
  const float *gradient = call->in_data[0];
  const int64_t count = elements(call);
  int64_t t = f->first / f->part_columns, last = (f->first + count + f->part_columns - 1) / f->part_columns;
  if (t < matrix * f->part_rows) t = matrix * f->part_rows;
  if (last > (matrix + 1) * f->part_rows) last = (matrix + 1) * f->part_rows;
  for (int64_t k = 0; k < n; k++) sums[k] = 0.0;
  for (; t < last && count; t++) {
    int64_t begin, end;
    find_in_row(f, count, t, column, n, &begin, &end);
    double *restrict to = sums + (begin - (t * f->part_columns + column - f->first));
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
      const double g = ms_clipped(gradient[i] * factor, most);
      to[i - begin] += g * g;
    }
  }
}

/* The range is of columns of the whole, through all matrices. */
static void columns_part(const ms_kernel_call *call, int part, int64_t first, int64_t last) {
  (void)part;
  const ms_factored f = ms_factored_of(&call->attrs);
  const int64_t skipped = ms_factored_first_column(&f);
  float *out = call->out_data[1];
  double sums[COLUMNS];
  for (int64_t at = first, n; at < last; at += n) {
    const int64_t matrix = ms_factored_part_matrix(&f, at / f.columns), column = at % f.columns;
    n = f.columns - column < COLUMNS ? f.columns - column : COLUMNS;
    n = last - at < n ? last - at : n;
    int64_t begin = column - skipped, end = begin + n; /* of the part */
    if (begin < 0) begin = 0;
    if (end > f.part_columns) end = f.part_columns;
    for (int64_t k = 0; k < n; k++) out[at + k] = 0.0f;
    if (matrix < 0 || end <= begin) continue;
    sum_columns(call, &f, matrix, begin, end - begin, sums);
    float *to = out + at + (begin + skipped - column);
    for (int64_t k = 0; k < end - begin; k++) to[k] = (float)sums[k];
  }
}

static int run_sums(const ms_kernel_call *call) {
  const int64_t rows = ms_numel(&call->out[0]), columns = ms_numel(&call->out[1]), bytes = ms_call_bytes(call);
  ms_run_parts(call, ms_part_count(call, rows, bytes), rows, 16, rows_part);
  if (columns) ms_run_parts(call, ms_part_count(call, columns, bytes), columns, 16, columns_part);
  return MS_OK;
}

/* ---- averages ---- */

MS_CLONES static void average(const float *restrict sums, float *restrict averages, int64_t n, double of, float rest) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) averages[i] = ms_factor_average(averages[i], (float)(sums[i] / of), rest);
}

static int run_average(const ms_kernel_call *call) {
  const ms_factored f = ms_factored_of(&call->attrs);
  const float rest = ms_factor_rest(*(const float *)call->in_data[2], call->attrs.factored.beta2_decay);
  average(call->in_data[0], call->out_data[0], ms_numel(&call->out[0]), (double)f.columns, rest);
  average(call->in_data[1], call->out_data[1], ms_numel(&call->out[1]), (double)f.rows, rest);
  return MS_OK;
}

/* ---- updates ---- */

/* What a row's elements have in common. */
typedef struct row {
  float average, mean;
  const float *columns; /* NULL: its average is an element's variance */
} row;

MS_INLINE row row_of(const ms_factored *f, const float *rows, const float *columns, const float *means, int64_t t) {
  row r = {rows[ms_factored_row(f, t)], 1.0f, NULL};
  if (!f->matrices) return r;
  const int64_t matrix = ms_factored_matrix(f, t);
  r.mean = means[matrix];
  r.columns = columns + matrix * f->columns + ms_factored_first_column(f);
  return r;
}

MS_INLINE float variance_of(const row *r, int64_t column) {
  return r->columns ? r->average * r->columns[column] / r->mean : r->average;
}

/* The last input of adafactor_norm is the count of updates, of adafactor the sum of squares of updates. */
enum { GRADIENT, NORM, ROW_AVERAGES, COLUMN_AVERAGES, SQUARES, UPDATES, MEANS = SQUARES, UPDATE_SQUARES = UPDATES };

static void find_means(const ms_kernel_call *call) {
  const ms_factored f = ms_factored_of(&call->attrs);
  const float *rows = call->in_data[ROW_AVERAGES];
  const float squares = *(const float *)call->in_data[SQUARES], updates = *(const float *)call->in_data[UPDATES];
  float *means = call->out_data[1];
  for (int64_t m = 0; m < f.matrices; m++) {
    double sum = 0.0;
    for (int64_t i = 0; i < f.rows; i++) sum += (double)rows[m * f.rows + i];
    means[m] = (float)ms_factor_at_least(sum / (double)f.rows, call->attrs.factored.eps1);
  }
  means[f.matrices] = (float)ms_factor_step(squares, (double)ms_factored_elements(&f), call->attrs.factored.eps2,
                                            call->scalars->lr * call->attrs.factored.lr_scale, updates);
}

/* Runs [first, last) of RUN elements each. */
MS_CLONES static void norm_part(const ms_kernel_call *call, int part, int64_t first, int64_t last) {
  (void)part;
  const ms_factored f = ms_factored_of(&call->attrs);
  const float factor = ((const float *)call->in_data[NORM])[2], most = ms_clip_of(call->attrs.factored.clip);
  const float eps1 = (float)call->attrs.factored.eps1;
  const float *gradient = call->in_data[GRADIENT], *means = call->out_data[1];
  const int64_t count = elements(call);
  for (int64_t r = first; r < last; r++) {
    const int64_t stop = (r + 1) * RUN < count ? (r + 1) * RUN : count;
    double sum = 0.0;
    for (int64_t i = r * RUN, end; i < stop; i = end) {
      const int64_t t = (f.first + i) / f.part_columns, column = (f.first + i) % f.part_columns, begin = i;
      const row of = row_of(&f, call->in_data[ROW_AVERAGES], call->in_data[COLUMN_AVERAGES], means, t);
      end = i + f.part_columns - column < stop ? i + f.part_columns - column : stop;
#pragma omp simd reduction(+ : sum)
      for (int64_t e = begin; e < end; e++) {
        const float g = ms_clipped(gradient[e] * factor, most);
        const double u = ms_factor_update(g, variance_of(&of, column + e - begin), eps1);
        sum += u * u;
      }
    }
    ((double *)call->workspace)[r] = sum;
  }
}

static int64_t runs_of(const ms_kernel_call *call) { return (elements(call) + RUN - 1) / RUN; }

static int run_norm(const ms_kernel_call *call) {
  const int64_t runs = runs_of(call);
  double sum = 0.0;
  find_means(call);
  ms_run_parts(call, ms_part_count(call, runs, ms_call_bytes(call)), runs, 1, norm_part);
  for (int64_t r = 0; r < runs; r++) sum += ((const double *)call->workspace)[r];
  *(float *)call->out_data[0] = (float)sum;
  return MS_OK;
}

MS_CLONES static void step_part(const ms_kernel_call *call, int part, int64_t first, int64_t last) {
  (void)part;
  const ms_factored f = ms_factored_of(&call->attrs);
  const double rate = call->scalars->lr * call->attrs.factored.lr_scale;
  const float factor = ((const float *)call->in_data[NORM])[2], most = ms_clip_of(call->attrs.factored.clip);
  const float eps1 = (float)call->attrs.factored.eps1;
  const float kept = (float)(1.0 - rate * call->attrs.factored.weight_decay);
  const float *gradient = call->in_data[GRADIENT], *means = call->in_data[MEANS];
  const double squares = *(const float *)call->in_data[UPDATE_SQUARES];
  const double rms = sqrt(squares / (double)ms_factored_elements(&f));
  const float by = (float)(means[f.matrices] / ms_factor_at_least(rms / call->attrs.factored.d, 1.0));
  float *p = call->out_data[0];
  for (int64_t i = first, end; i < last; i = end) {
    const int64_t t = (f.first + i) / f.part_columns, column = (f.first + i) % f.part_columns, begin = i;
    const row of = row_of(&f, call->in_data[ROW_AVERAGES], call->in_data[COLUMN_AVERAGES], means, t);
    end = i + f.part_columns - column < last ? i + f.part_columns - column : last;
#pragma omp simd
    for (int64_t e = begin; e < end; e++) {
      const float g = ms_clipped(gradient[e] * factor, most);
      p[e] = p[e] * kept - by * ms_factor_update(g, variance_of(&of, column + e - begin), eps1);
    }
  }
}

static int prepare(ms_kernel_call *call) {
  if (call->op == MS_OP_adafactor_norm) call->workspace_bytes = runs_of(call) * (int64_t)sizeof(double);
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  switch (call->op) {
    case MS_OP_adafactor_sums: return run_sums(call);
    case MS_OP_adafactor_average: return run_average(call);
    case MS_OP_adafactor_norm: return run_norm(call);
    default: return ms_run_elements(call, elements(call), step_part);
  }
}

const ms_kernel ms_cpu_adafactor = {.prepare = prepare, .run = run};
