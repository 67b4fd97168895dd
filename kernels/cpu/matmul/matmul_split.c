/* matmul_split.c - f32 products on the bf16 matrix unit (split_panel.h): blocks, threads, bias and activation.
 *
 * The loops are blocked as usual. For each stretch of k, columns of b are packed once for all rows; then BLOCK_ROWS
 * rows of a at a time are packed into L2 and multiplied with one panel of b after the other. Each thread computes a
 * rectangle of c and packs its own operands. The order of a sum over k depends only on k, not on blocks or threads.
 */
#include "base/min.h"
#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/product_cut.h"
#include "kernels/cpu/matmul/split_panel.h"
#include "kernels/cpu/team.h"

enum { BLOCK_ROWS = 128, BLOCK_COLUMNS = 768, BLOCK_K = 512, GRAIN = MS_SPLIT_GRAIN, LINE = 64 };

/* Divides [0, size) into equal stretches of at most `most`, each a multiple of GRAIN; returns their length. */
static int64_t stretch_of(int64_t size, int64_t most) {
  const int64_t stretches = (size + most - 1) / most;
  return ms_round_up((size + stretches - 1) / stretches, GRAIN);
}

/* ---- workspace --------------------------------------------------------------------------------------------------- */

static int64_t largest_part(int64_t size, int64_t parts) {
  const int64_t grains = (size + GRAIN - 1) / GRAIN;
  return (grains + parts - 1) / parts * GRAIN;
}

/* A thread's workspace: panels of b, panels of a, and the bias padded to whole panels. */
typedef struct layout {
  int64_t b_bytes, a_bytes, bytes;
} layout;

static layout layout_of(const ms_product *p, const ms_cut *parts) {
  const int64_t columns = stretch_of(largest_part(p->n, parts->columns), BLOCK_COLUMNS);
  const int64_t rows = ms_min(largest_part(p->m, parts->rows), BLOCK_ROWS);
  const int64_t panel = ms_split_panel_bytes(stretch_of(p->k, BLOCK_K));
  layout l = {.b_bytes = columns / GRAIN * panel, .a_bytes = rows / GRAIN * panel};
  l.bytes = ms_round_up(l.b_bytes + l.a_bytes + columns * (int64_t)sizeof(float), LINE);
  return l;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

MS_CLONES static void activate(float *c, int64_t stride, int64_t rows, int64_t columns, int activation) {
  for (int64_t r = 0; r < rows; r++) ms_activate_row(c + r * stride, columns, activation);
}

MS_CLONES static void add_block(float *restrict c, int64_t stride, const float *restrict x, int64_t rows,
                                int64_t columns) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < columns; i++) c[r * stride + i] += x[r * GRAIN + i];
}

static void copy_block(float *c, int64_t stride, const float *x, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) memcpy(c + r * stride, x + r * GRAIN, (size_t)columns * sizeof *c);
}

/* How a block of c starts and ends for one stretch of k. */
typedef struct stage {
  int64_t steps;
  int first;         /* 1: first stretch, and c has no values yet */
  const float *bias; /* from the block's first column on; NULL: none, or already added */
  int activation;    /* set for the last stretch of k, otherwise MS_ACT_NONE */
} stage;

/* Multiplies two panels into rows x columns of c, at most 32 each. Stretches of k are summed separately and then added,
 * which keeps long sums accurate. */
static void block_product(float *c, int64_t stride, int64_t rows, int64_t columns, const char *a, const char *b,
                          const stage *s) {
  float block[GRAIN * GRAIN] __attribute__((aligned(64)));
  if (s->first && rows == GRAIN && columns == GRAIN) {
    ms_split_product(c, stride, a, b, s->steps, s->bias, 0);
  } else {
    ms_split_product(block, GRAIN, a, b, s->steps, s->bias, 0);
    if (s->first) copy_block(c, stride, block, rows, columns);
    else add_block(c, stride, block, rows, columns);
  }
  activate(c, stride, rows, columns, s->activation);
}

/* ---- the nest ---------------------------------------------------------------------------------------------------- */

/* A thread's rectangle of one product, with its operands: c [m][n], op(a) [m][k], op(b) [k][n]. */
typedef struct block {
  ms_split_operand a, b;
  float *c;
  int64_t row, rows, column, columns; /* of c */
  const void *bias;
  char *b_panels, *a_panels;
  float *padded_bias;
} block;

static void pad_bias(const block *r, const ms_product *p, int64_t column, int64_t columns) {
  for (int64_t i = 0; i < ms_round_up(columns, GRAIN); i++)
    r->padded_bias[i] = i < columns ? ms_scalar_at(r->bias, p->bias_dtype, column + i) : 0.0f;
}

/* Computes rows [row, row + rows) and columns [column, column + columns) of c; the panels of b are already packed. */
static void multiply_rows(const ms_product *p, const block *r, int64_t row, int64_t rows, int64_t column,
                          int64_t columns, int64_t k_first, int64_t k) {
  const int64_t panel = ms_split_panel_bytes(k);
  stage s = {.steps = ms_split_steps(k), .first = k_first == 0 && !p->accumulate};
  if (k_first + k == p->k) s.activation = p->activation;
  ms_split_pack_a(r->a_panels, &r->a, row, rows, k_first, k);
  for (int64_t j = 0; j < columns; j += GRAIN) {
    if (r->bias && s.first) s.bias = r->padded_bias + j;
    for (int64_t i = 0; i < rows; i += GRAIN)
      block_product(r->c + (row + i) * p->n + column + j, p->n, ms_min(rows - i, GRAIN), ms_min(columns - j, GRAIN),
                    r->a_panels + i / GRAIN * panel, r->b_panels + j / GRAIN * panel, &s);
  }
}

static void multiply_rectangle(const ms_product *p, const block *r) {
  const int64_t block_columns = stretch_of(r->columns, BLOCK_COLUMNS), block_k = stretch_of(p->k, BLOCK_K);
  const int64_t column_end = r->column + r->columns, row_end = r->row + r->rows;
  for (int64_t column = r->column; column < column_end; column += block_columns) {
    const int64_t columns = ms_min(block_columns, column_end - column);
    if (r->bias) pad_bias(r, p, column, columns);
    for (int64_t k_first = 0; k_first < p->k; k_first += block_k) {
      const int64_t k = ms_min(block_k, p->k - k_first);
      ms_split_pack_b(r->b_panels, &r->b, column, columns, k_first, k);
      for (int64_t row = r->row; row < row_end; row += BLOCK_ROWS)
        multiply_rows(p, r, row, ms_min(BLOCK_ROWS, row_end - row), column, columns, k_first, k);
    }
  }
}

typedef struct split_product {
  const ms_kernel_call *call;
  const ms_product *product;
  ms_cut parts;
} split_product;

static void run_part(void *context, int part) {
  const split_product *all = context;
  const ms_kernel_call *call = all->call;
  const ms_product *p = all->product;
  const layout l = layout_of(p, &all->parts);
  const ms_rectangle mine = ms_cut_rectangle(p, &all->parts, part, GRAIN);
  char *memory = (char *)call->workspace + part * l.bytes;
  block r = {.a = {.stride = p->trans_a ? p->m : p->k, .k_inside = !p->trans_a},
             .b = {.stride = p->trans_b ? p->k : p->n, .k_inside = p->trans_b},
             .row = mine.row,
             .rows = mine.rows,
             .column = mine.column,
             .columns = mine.columns,
             .bias = p->bias_dtype >= 0 ? call->in_data[2] : NULL,
             .b_panels = memory,
             .a_panels = memory + l.b_bytes,
             .padded_bias = (float *)(memory + l.b_bytes + l.a_bytes)};
  if (!r.rows || !r.columns) return;
  ms_split_begin();
  for (int64_t i = mine.batch; i < mine.batch + mine.batches; i++) {
    r.a.data = (const float *)call->in_data[0] + i * p->m * p->k;
    r.b.data = (const float *)call->in_data[1] + (p->shared_b ? 0 : i * p->k * p->n);
    r.c = (float *)call->out_data[0] + i * p->m * p->n;
    multiply_rectangle(p, &r);
  }
  ms_split_end();
}

int64_t ms_split_workspace(const ms_product *product, int threads) {
  const ms_cut parts = ms_cut_product(product, threads, GRAIN);
  return threads * layout_of(product, &parts).bytes;
}

void ms_split_run(const ms_kernel_call *call, const ms_product *p) {
  split_product all = {call, p, ms_cut_product(p, call->threads, GRAIN)};
  ms_team_run(call->threads, run_part, &all);
}

int ms_split_takes(const ms_product *p) { return p->dtype == MS_F32 && p->c_dtype == MS_F32 && ms_split_available(); }

/* Compares estimated nanoseconds on a Sapphire Rapids with all data in L2: 150 multiply-adds per ns on whole panels
 * plus 1/4 ns per packed element, against 60 multiply-adds per ns in f32 arithmetic. */
int ms_split_suits(const ms_product *p) {
  const double m = (double)ms_round_up(p->m, GRAIN), n = (double)ms_round_up(p->n, GRAIN),
               k = (double)ms_round_up(p->k, GRAIN);
  const double split = 500 + 1.1 * (m * n * k / 150 + (m + n) * k / 4),
               direct = (double)p->m * (double)p->n * (double)p->k / 60;
  return split < direct && ms_split_takes(p);
}
