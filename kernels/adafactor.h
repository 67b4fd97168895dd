/* adafactor.h - what the kernels of Adafactor (Shazeer & Stern 2018) on all devices agree on: the parameter that a rank
 * has some elements of, where these are in it, and the arithmetic of a step, which is torch.optim.Adafactor's.
 *
 * A parameter is [matrices][rows][columns]; leading axes of one with more than two are flattened into `matrices`. For
 * each row, and for each column, a moving average of the mean square of its gradients is kept: whole on every rank,
 * since ranks own elements without regard to rows. A parameter with one axis, or none, has a variance per element
 * instead, as if each element were a row; `matrices` is 0 then, and there is nothing for columns.
 *
 * A rank's elements lie one after the other in its part of the parameter, which is all of it, unless a tensor dimension
 * divides one axis: any of them, so that the part has runs of the whole, [blocks][run] of [blocks][stride]. It has
 * whole rows of whole matrices, [..][part_rows][part_columns], or fewer rows, or columns, of each.
 */
#ifndef MS_KERNELS_ADAFACTOR_H
#define MS_KERNELS_ADAFACTOR_H

#include <math.h>

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_FACTOR_FUNCTION static inline __host__ __device__
#else
  #define MS_FACTOR_FUNCTION static inline __attribute__((always_inline))
#endif

typedef struct ms_factored {
  int64_t first;                   /* index of the rank's first element in its part */
  int64_t run, stride, origin;     /* the part in the whole, as ms_division */
  int64_t rows, columns, matrices; /* of the whole parameter; matrices 0: it has a variance per row of one column */
  int64_t part_rows, part_columns; /* follow from these: ms_factored_shape */
} ms_factored;

/* An axis divides columns if a run is shorter than a row, rows if it is shorter than a matrix, else matrices. */
static inline ms_factored ms_factored_shape(ms_factored f) {
  f.part_columns = f.run < f.columns ? f.run : f.columns;
  f.part_rows = f.part_columns == f.columns && f.run / f.columns < f.rows ? f.run / f.columns : f.rows;
  return f;
}

/* The attributes of adafactor_sums, adafactor_norm and adafactor. */
static inline void ms_factored_set(ms_op_attrs *attrs, const ms_factored *f) {
  attrs->factored.first = f->first;
  attrs->factored.run = f->run;
  attrs->factored.stride = f->stride;
  attrs->factored.rows = f->rows;
  attrs->factored.columns = f->columns;
  attrs->factored.matrices = f->matrices;
  attrs->factored.origin = f->origin;
}

static inline ms_factored ms_factored_of(const ms_op_attrs *attrs) {
  return ms_factored_shape((ms_factored){attrs->factored.first, attrs->factored.run, attrs->factored.stride,
                                         attrs->factored.origin, attrs->factored.rows, attrs->factored.columns,
                                         attrs->factored.matrices, 0, 0});
}

/* The averages kept for rows, or elements; those kept for columns; the parameter's elements. */
static inline int64_t ms_factored_row_count(const ms_factored *f) {
  return f->matrices ? f->matrices * f->rows : f->rows;
}
static inline int64_t ms_factored_column_count(const ms_factored *f) { return f->matrices * f->columns; }
static inline int64_t ms_factored_elements(const ms_factored *f) { return ms_factored_row_count(f) * f->columns; }

/* Row `t` of the part, counted through all matrices, as a row of the whole, and back: -1 if the part does not have it.
 */
MS_FACTOR_FUNCTION int64_t ms_factored_row(const ms_factored *f, int64_t t) {
  const int64_t element = t * f->part_columns;
  return (element / f->run * f->stride + f->origin + element % f->run) / f->columns;
}
MS_FACTOR_FUNCTION int64_t ms_factored_part_row(const ms_factored *f, int64_t row) {
  const int64_t index = (row - f->origin / f->columns) * f->columns, within = index % f->stride;
  return index < 0 || within >= f->run ? -1 : (index / f->stride * f->run + within) / f->part_columns;
}
/* The matrix of the whole in which such a row is; a matrix of the whole as one of the part, or -1. */
MS_FACTOR_FUNCTION int64_t ms_factored_matrix(const ms_factored *f, int64_t t) {
  return ms_factored_row(f, t) / f->rows;
}
MS_FACTOR_FUNCTION int64_t ms_factored_part_matrix(const ms_factored *f, int64_t matrix) {
  const int64_t t = ms_factored_part_row(f, matrix * f->rows + f->origin / f->columns % f->rows);
  return t < 0 ? -1 : t / f->part_rows;
}
/* The first column of the whole that the part has. */
MS_FACTOR_FUNCTION int64_t ms_factored_first_column(const ms_factored *f) { return f->origin % f->columns; }

/* The average of squares after a step, as torch.lerp. rest: 1 - beta2 of the step. */
MS_FACTOR_FUNCTION float ms_factor_average(float average, float square, float rest) {
  const float by = square - average;
  return rest < 0.5f ? average + rest * by : square - by * (1.0f - rest);
}

/* 1 - beta2 in the update with this number, from 1. */
MS_FACTOR_FUNCTION float ms_factor_rest(float updates, double beta2_decay) {
  return (float)pow((double)updates, beta2_decay);
}

/* The larger one; not a number if x is not. */
MS_FACTOR_FUNCTION double ms_factor_at_least(double x, double least) { return x < least ? least : x; }

/* The size of a step before it is clipped: squares, the sum of those of the weights before it. */
MS_FACTOR_FUNCTION double ms_factor_step(double squares, double elements, double eps2, double rate, float updates) {
  const double relative = 1.0 / sqrt((double)updates);
  return ms_factor_at_least(sqrt(squares / elements), eps2) * (rate < relative ? rate : relative);
}

/* An element's update from its gradient and variance, the root of which is at least eps1: its square can be below what
 * f32 has, and an element without gradients would then be 0 / 0. */
MS_FACTOR_FUNCTION float ms_factor_update(float g, float variance, float eps1) {
  const float root = sqrtf(variance);
  return g / (root < eps1 ? eps1 : root);
}

#endif
