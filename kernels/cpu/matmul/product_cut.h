/* product_cut.h - divides the result of a matrix product into rectangles, one per thread.
 *
 * It divides the batch first. If there are fewer products than threads, every product is divided by the grid of
 * rectangles that reads the fewest rows of a and columns of b. Bounds are multiples of a grain, so that vectors are
 * whole and no two threads write to one cache line; a rectangle can be empty.
 */
#ifndef MS_KERNELS_CPU_PRODUCT_CUT_H
#define MS_KERNELS_CPU_PRODUCT_CUT_H

#include "kernels/products/product.h"

/* Number of parts per dimension; their product is the number of threads. */
typedef struct ms_cut {
  int batch, rows, columns;
} ms_cut;

/* For each product in [batch, batch + batches): `rows` rows of c from `row` on, `columns` columns from `column` on. */
typedef struct ms_rectangle {
  int64_t batch, batches, row, rows, column, columns;
} ms_rectangle;

static inline int64_t ms_round_up(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

static inline ms_cut ms_cut_product(const ms_product *p, int threads, int64_t grain) {
  if (p->batch >= threads) return (ms_cut){threads, 1, 1};
  ms_cut best = {1, 1, 1};
  int64_t least = INT64_MAX;
  for (int rows = 1; rows <= threads; rows++) {
    if (threads % rows) continue;
    const int columns = threads / rows;
    const int64_t read =
        ms_round_up((p->m + rows - 1) / rows, grain) + ms_round_up((p->n + columns - 1) / columns, grain);
    if (read >= least) continue;
    least = read;
    best = (ms_cut){1, rows, columns};
  }
  return best;
}

/* The start of part i of [0, size). */
static inline int64_t ms_cut_bound(int64_t size, int64_t parts, int64_t i, int64_t grain) {
  const int64_t bound = (size + grain - 1) / grain * i / parts * grain;
  return bound < size ? bound : size;
}

static inline ms_rectangle ms_cut_rectangle(const ms_product *p, const ms_cut *cut, int part, int64_t grain) {
  const int column = part % cut->columns, row = part / cut->columns % cut->rows;
  const int batch = part / cut->columns / cut->rows;
  ms_rectangle r = {.batch = ms_cut_bound(p->batch, cut->batch, batch, 1),
                    .row = ms_cut_bound(p->m, cut->rows, row, grain),
                    .column = ms_cut_bound(p->n, cut->columns, column, grain)};
  r.batches = ms_cut_bound(p->batch, cut->batch, batch + 1, 1) - r.batch;
  r.rows = ms_cut_bound(p->m, cut->rows, row + 1, grain) - r.row;
  r.columns = ms_cut_bound(p->n, cut->columns, column + 1, grain) - r.column;
  return r;
}

#endif
