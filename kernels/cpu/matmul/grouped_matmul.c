/* grouped_matmul.c - a product for each group of rows, and the gradient of its weights, computed by matmul.
 *
 * How many rows a group has is known when the kernel runs, and the products of matmul have fixed sizes. So there is one
 * for every power of two, and a group's rows are cut into parts of such sizes, the largest first: its binary number.
 * The gradient of a weight sums over rows, so its parts are added, in f32, which are rounded at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/op.h"

enum { BITS = 31, ALIGNMENT = 64 };

typedef struct grouped {
  int bits;                              /* products have 1 to 2^(bits - 1) rows */
  ms_kernel_call first[BITS], add[BITS]; /* of 2^bit rows; add: only of the gradient */
  ms_kernel_call cast;                   /* of the gradient's sums; without inputs if they are the result */
  int64_t scratch;                       /* workspace of these, after the sums */
} grouped;

static int is_gradient(const ms_kernel_call *call) { return call->op != MS_OP_grouped_matmul; }

static int64_t groups_of(const ms_kernel_call *call) { return call->in[2].dims[0] - 1; }

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

static ms_kernel_call product_call(const ms_kernel_call *call, int op, int64_t rows) {
  const int dtype = call->in[0].dtype, gradient = is_gradient(call);
  ms_kernel_call one = {.op = op, .inputs = 2, .outputs = 1, .threads = call->threads};
  one.in[0] = matrix(dtype, rows, call->in[0].dims[1]);
  if (gradient) {
    one.in[1] = matrix(dtype, rows, call->in[1].dims[1]);
    one.out[0] = matrix(MS_F32, call->out[0].dims[1], call->out[0].dims[2]);
    one.attrs.product.trans_a = 1;
    if (op == MS_OP_matmul) one.attrs.out_dtype = 1 + MS_F32;
  } else {
    one.in[1] = matrix(dtype, call->in[1].dims[1], call->in[1].dims[2]);
    one.out[0] = matrix(call->out[0].dtype, rows, call->out[0].dims[1]);
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
    g->first[bit] = product_call(call, MS_OP_matmul, INT64_C(1) << bit);
    MS_TRY(prepare_one(&g->first[bit], scratch));
    if (!is_gradient(call) || bit == g->bits - 1) continue; /* what is added is smaller than what was first */
    g->add[bit] = product_call(call, MS_OP_matmul_accumulate, INT64_C(1) << bit);
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

static int prepare(ms_kernel_call *call) {
  int64_t scratch = 0;
  grouped *g = ms_calloc(1, sizeof *g);
  if (!g) return MS_ENOMEM;
  const int rc = prepare_all(g, call, &scratch);
  if (rc) {
    release(g);
    return rc;
  }
  if (g->cast.inputs)
    g->scratch = (ms_numel(&g->cast.in[0]) * (int64_t)sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
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

static int multiply_group(const ms_kernel_call *call, const grouped *g, int64_t e, int64_t begin, int64_t end) {
  const char *w = (const char *)call->in_data[1] + e * matrix_bytes(&call->in[1]);
  for (int bit = g->bits - 1; bit >= 0; bit--) {
    if (!((end - begin) >> bit & 1)) continue;
    MS_TRY(run_one(call, g, g->first[bit], (const char *)call->in_data[0] + begin * row_bytes(&call->in[0]), w,
                   (char *)call->out_data[0] + begin * row_bytes(&call->out[0])));
    begin += INT64_C(1) << bit;
  }
  return MS_OK;
}

static int sum_group(const ms_kernel_call *call, const grouped *g, int64_t e, int64_t begin, int64_t end) {
  char *dw = (char *)call->out_data[0] + e * matrix_bytes(&call->out[0]), *sums = g->cast.inputs ? call->workspace : dw;
  int parts = 0;
  if (begin == end) memset(dw, 0, (size_t)matrix_bytes(&call->out[0]));
  for (int bit = g->bits - 1; bit >= 0; bit--) {
    if (!((end - begin) >> bit & 1)) continue;
    MS_TRY(run_one(call, g, parts++ ? g->add[bit] : g->first[bit],
                   (const char *)call->in_data[0] + begin * row_bytes(&call->in[0]),
                   (const char *)call->in_data[1] + begin * row_bytes(&call->in[1]), sums));
    begin += INT64_C(1) << bit;
  }
  return parts && g->cast.inputs ? run_one(call, g, g->cast, sums, NULL, dw) : MS_OK;
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
