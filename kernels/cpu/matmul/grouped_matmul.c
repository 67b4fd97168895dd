/* grouped_matmul.c - a product for each group of rows, and the gradient of its weights, computed by matmul.
 *
 * How many rows a group has is known when the kernel runs, and the products of matmul have fixed sizes. So there is one
 * for every power of two, and a group's rows are cut into parts of such sizes, the largest first: its binary number.
 * The gradient of a weight sums over rows, so its parts are added, in f32, which are rounded at the end.
 *
 * Operands in 8 bits (grouped_matmul_f8) are rounded group by group, each group's rows and its weight, to what codes
 * are worth (f8_tiles.h), and these are multiplied, with results in f32: an expert's products are those of a layer.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/matmul/f8_tiles.h"

enum { BITS = 31, ALIGNMENT = 64 };

typedef struct grouped {
  int bits;                              /* products have 1 to 2^(bits - 1) rows */
  ms_kernel_call first[BITS], add[BITS]; /* of 2^bit rows; add: only of the gradient */
  ms_kernel_call cast;                   /* of the gradient's sums; without inputs if they are the result */
  int rounds, dtype;                     /* 1: to 8 bits, as f8 says; the dtype in which operands are multiplied */
  ms_f8 f8;
  /* Places in the workspace, after the gradient's sums, or a product's in f32 that is not the result. */
  int64_t scales, values[2], scratch;
} grouped;

static int is_gradient(const ms_kernel_call *call) { return call->out[0].ndim == 3; }

static int is_rounded(const ms_kernel_call *call) {
  return call->op == MS_OP_grouped_matmul_f8 || call->op == MS_OP_grouped_matmul_f8_backward_weight;
}

static int64_t groups_of(const ms_kernel_call *call) { return call->in[2].dims[0] - 1; }

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

static ms_kernel_call product_call(const grouped *g, const ms_kernel_call *call, int op, int64_t rows) {
  const int dtype = g->dtype, gradient = is_gradient(call);
  ms_kernel_call one = {.op = op, .inputs = 2, .outputs = 1, .threads = call->threads};
  one.in[0] = matrix(dtype, rows, call->in[0].dims[1]);
  if (gradient) {
    one.in[1] = matrix(dtype, rows, call->in[1].dims[1]);
    one.out[0] = matrix(MS_F32, call->out[0].dims[1], call->out[0].dims[2]);
    one.attrs.product.trans_a = 1;
    if (op == MS_OP_matmul) one.attrs.out_dtype = 1 + MS_F32;
  } else {
    one.in[1] = matrix(dtype, call->in[1].dims[1], call->in[1].dims[2]);
    one.out[0] = matrix(g->rounds ? MS_F32 : call->out[0].dtype, rows, call->out[0].dims[1]);
    if (g->rounds) one.attrs.out_dtype = 1 + MS_F32;
    one.attrs.product.trans_b = call->attrs.product.trans_b;
  }
  return one;
}

static ms_kernel_call cast_call(const ms_kernel_call *call) {
  const ms_value_info *dw = &call->out[0];
  ms_kernel_call cast = {.op = MS_OP_cast, .inputs = 1, .outputs = 1, .threads = call->threads};
  cast.in[0] = matrix(MS_F32, dw->dims[1], dw->dims[2]);
  cast.out[0] = matrix(dw->dtype, dw->dims[1], dw->dims[2]);
  cast.attrs.out_dtype = 1 + dw->dtype;
  return cast;
}

static int prepare_one(ms_kernel_call *one, int64_t *scratch) {
  const ms_kernel *kernel = ms_cpu_kernel(one->op);
  if (kernel->prepare) MS_TRY(kernel->prepare(one));
  if (one->workspace_bytes > *scratch) *scratch = one->workspace_bytes;
  return MS_OK;
}

static int prepare_all(grouped *g, const ms_kernel_call *call, int64_t *scratch) {
  const int64_t rows = call->in[0].dims[0];
  while (g->bits < BITS && INT64_C(1) << g->bits <= rows) g->bits++;
  for (int bit = 0; bit < g->bits; bit++) {
    g->first[bit] = product_call(g, call, MS_OP_matmul, INT64_C(1) << bit);
    MS_TRY(prepare_one(&g->first[bit], scratch));
    if (!is_gradient(call) || bit == g->bits - 1) continue; /* what is added is smaller than what was first */
    g->add[bit] = product_call(g, call, MS_OP_matmul_accumulate, INT64_C(1) << bit);
    MS_TRY(prepare_one(&g->add[bit], scratch));
  }
  if (!is_gradient(call) || call->out[0].dtype == MS_F32) return MS_OK;
  g->cast = cast_call(call);
  return prepare_one(&g->cast, scratch);
}

static void release_one(const ms_kernel_call *one) {
  if (one->prepared && ms_cpu_kernel(one->op)->release) ms_cpu_kernel(one->op)->release(one->prepared);
}

static void release(void *prepared) {
  grouped *g = prepared;
  for (int bit = 0; g && bit < g->bits; bit++) {
    release_one(&g->first[bit]);
    release_one(&g->add[bit]);
  }
  if (g) release_one(&g->cast);
  free(g);
}

/* The rows of an operand that a group has at most: all of its rows, or its weight's. */
static int64_t stored_rows(const ms_value_info *x) { return x->dims[x->ndim - 2]; }

static int64_t take(int64_t *total, int64_t bytes) {
  const int64_t at = *total;
  *total += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static void place(grouped *g, const ms_kernel_call *call) {
  const ms_f8_operand *operand[2] = {&g->f8.a, &g->f8.b};
  const int keeps_sums = g->rounds && !is_gradient(call) && call->out[0].dtype != MS_F32;
  int64_t total = 0, tiles = 0;
  if (g->cast.inputs || keeps_sums)
    (void)take(&total, ms_numel(keeps_sums ? &call->out[0] : &g->cast.in[0]) * (int64_t)sizeof(float));
  for (int i = 0; g->rounds && i < 2; i++) {
    const int64_t rows = stored_rows(&call->in[i]), columns = call->in[i].dims[call->in[i].ndim - 1];
    const int64_t own = ms_f8_tiles(ms_f8_tile_of(operand[i], rows, columns), rows, columns);
    tiles = own > tiles ? own : tiles;
    g->values[i] = take(&total, rows * columns * ms_dtype_size(g->dtype));
  }
  g->scales = take(&total, tiles * (int64_t)sizeof(float));
  g->scratch = total;
}

static int prepare(ms_kernel_call *call) {
  int64_t scratch = 0;
  grouped *g = ms_calloc(1, sizeof *g);
  if (!g) return MS_ENOMEM;
  g->rounds = is_rounded(call);
  g->dtype = g->rounds ? ms_f8_values_dtype((int)call->attrs.product.recipe, 1) : call->in[0].dtype;
  int rc = g->rounds ? ms_f8_grouped_of(call, &g->f8) : MS_OK;
  if (!rc) rc = prepare_all(g, call, &scratch);
  if (rc) {
    release(g);
    return rc;
  }
  place(g, call);
  call->workspace_bytes = g->scratch + scratch;
  call->prepared = g;
  return MS_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static int check_offsets(const ms_kernel_call *call) {
  const int32_t *offsets = call->in_data[2];
  const int64_t rows = call->in[0].dims[0];
  for (int64_t e = 0; e <= groups_of(call); e++)
    if (offsets[e] < (e ? offsets[e - 1] : 0) || offsets[e] > rows)
      return MS_FAIL(MS_EINVAL, "grouped_matmul: offset %lld is %d; offsets must ascend, from 0 to %lld at most",
                     (long long)e, (int)offsets[e], (long long)rows);
  return MS_OK;
}

static int run_one(const ms_kernel_call *call, const grouped *g, ms_kernel_call one, const void *a, const void *b,
                   void *c) {
  one.in_data[0] = a;
  one.in_data[1] = b;
  one.out_data[0] = c;
  one.workspace = (char *)call->workspace + g->scratch;
  return ms_cpu_kernel(one.op)->run(&one);
}

static int64_t row_bytes(const ms_value_info *x) { return x->dims[1] * ms_dtype_size(x->dtype); }

static int64_t matrix_bytes(const ms_value_info *x) { return x->dims[1] * x->dims[2] * ms_dtype_size(x->dtype); }

static void clear_rows(const ms_kernel_call *call, int64_t begin, int64_t end) {
  const int64_t bytes = row_bytes(&call->out[0]);
  memset((char *)call->out_data[0] + begin * bytes, 0, (size_t)((end - begin) * bytes));
}

/* Where an operand of a group begins, as it is multiplied: `rows` rows, from its row `first` on. */
static const char *operand_of(const ms_kernel_call *call, const grouped *g, int which, int64_t first, int64_t rows) {
  const ms_value_info *x = &call->in[which];
  const int64_t columns = x->dims[x->ndim - 1];
  const char *from = (const char *)call->in_data[which] + first * columns * ms_dtype_size(x->dtype);
  if (!g->rounds) return from;
  char *workspace = call->workspace;
  const ms_f8_operand *o = which ? &g->f8.b : &g->f8.a;
  const ms_f8_matrix m = {.x = from,
                          .x_dtype = x->dtype,
                          .dtype = o->dtype,
                          .powers = g->f8.powers,
                          .e8m0 = g->f8.e8m0,
                          .rows = rows,
                          .columns = columns,
                          .tile = ms_f8_tile_of(o, rows, columns),
                          .scales = (float *)(void *)(workspace + g->scales),
                          .values = workspace + g->values[which]};
  ms_f8_round_tiles(call, &m);
  return m.values;
}

/* Bytes of so many rows of an operand, as it is multiplied. */
static int64_t operand_bytes(const ms_kernel_call *call, const grouped *g, int which, int64_t rows) {
  return rows * call->in[which].dims[1] * ms_dtype_size(g->dtype);
}

static void narrow(const ms_kernel_call *call, const float *sums, int64_t first, int64_t n) {
  ms_narrow((ms_bf16 *)call->out_data[0] + first, sums + first, n);
}

static int multiply_group(const ms_kernel_call *call, const grouped *g, int64_t e, int64_t begin, int64_t end) {
  if (begin == end) return MS_OK;
  const int64_t first = begin, columns = call->out[0].dims[1];
  const char *x = operand_of(call, g, 0, begin, end - begin);
  const char *w = operand_of(call, g, 1, e * call->in[1].dims[1], call->in[1].dims[1]);
  const int narrows = g->rounds && call->out[0].dtype != MS_F32;
  const int64_t bytes = columns * (narrows ? (int64_t)sizeof(float) : ms_dtype_size(call->out[0].dtype));
  char *y = narrows ? call->workspace : call->out_data[0];
  for (int bit = g->bits - 1; bit >= 0; bit--) {
    if (!((end - begin) >> bit & 1)) continue;
    MS_TRY(run_one(call, g, g->first[bit], x + operand_bytes(call, g, 0, begin - first), w, y + begin * bytes));
    begin += INT64_C(1) << bit;
  }
  if (narrows) narrow(call, call->workspace, first * columns, (end - first) * columns);
  return MS_OK;
}

static int sum_group(const ms_kernel_call *call, const grouped *g, int64_t e, int64_t begin, int64_t end) {
  char *dw = (char *)call->out_data[0] + e * matrix_bytes(&call->out[0]), *sums = g->cast.inputs ? call->workspace : dw;
  const int64_t first = begin;
  int parts = 0;
  if (begin == end) {
    memset(dw, 0, (size_t)matrix_bytes(&call->out[0]));
    return MS_OK;
  }
  const char *a = operand_of(call, g, 0, begin, end - begin), *b = operand_of(call, g, 1, begin, end - begin);
  for (int bit = g->bits - 1; bit >= 0; bit--) {
    if (!((end - begin) >> bit & 1)) continue;
    MS_TRY(run_one(call, g, parts++ ? g->add[bit] : g->first[bit], a + operand_bytes(call, g, 0, begin - first),
                   b + operand_bytes(call, g, 1, begin - first), sums));
    begin += INT64_C(1) << bit;
  }
  return g->cast.inputs ? run_one(call, g, g->cast, sums, NULL, dw) : MS_OK;
}

static int run(const ms_kernel_call *call) {
  const grouped *g = call->prepared;
  const int32_t *offsets = call->in_data[2];
  const int64_t groups = groups_of(call);
  MS_TRY(check_offsets(call));
  for (int64_t e = 0; e < groups; e++)
    MS_TRY((is_gradient(call) ? sum_group : multiply_group)(call, g, e, offsets[e], offsets[e + 1]));
  if (is_gradient(call)) return MS_OK;
  clear_rows(call, 0, offsets[0]);
  clear_rows(call, offsets[groups], call->in[0].dims[0]);
  return MS_OK;
}

const ms_kernel ms_cpu_grouped_matmul = {.prepare = prepare, .run = run, .release = release};
