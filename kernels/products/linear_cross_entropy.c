/* linear_cross_entropy.c - divides a call into chunks of rows, and a chunk into kernels. */
#include "kernels/products/linear_cross_entropy.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/shape.h"

enum { X, W, TARGETS, ADDED = 3 };
enum { DX, DW, DB };
enum { ALIGNMENT = 64 };

#define STEP(name) (1u << MS_CHUNK_##name)

/* ---- the operands of each op ------------------------------------------------------------------------------------- */

static int is_step(const ms_kernel_call *call) {
  return call->op == MS_OP_linear_cross_entropy_step || call->op == MS_OP_linear_cross_entropy_step_bias;
}

static int is_backward(const ms_kernel_call *call) {
  return call->op == MS_OP_linear_cross_entropy_backward || call->op == MS_OP_linear_cross_entropy_backward_x ||
         call->op == MS_OP_linear_cross_entropy_backward_bias;
}

int ms_loss_bias_of(int op, int inputs) {
  int last = 6;
  if (op == MS_OP_linear_cross_entropy_part) last = 3;
  if (op == MS_OP_linear_cross_entropy_join) last = 4;
  if (op == MS_OP_linear_cross_entropy_step || op == MS_OP_linear_cross_entropy_step_bias) last = 5;
  return last < inputs ? last : -1;
}

static unsigned steps_of(int op) {
  const unsigned dlogits = STEP(LOGITS) | STEP(DLOGITS), gradients = dlogits | STEP(DW) | STEP(ADD_DW) | STEP(DX);
  const unsigned loss = STEP(PART) | STEP(LSE), bias = STEP(DB) | STEP(ADD_DB);
  switch (op) {
    case MS_OP_linear_cross_entropy_part: return STEP(LOGITS) | STEP(PART);
    case MS_OP_linear_cross_entropy_backward_x: return dlogits | STEP(DX);
    case MS_OP_linear_cross_entropy_backward: return gradients;
    case MS_OP_linear_cross_entropy_backward_bias: return gradients | bias;
    case MS_OP_linear_cross_entropy_step: return gradients | loss;
    case MS_OP_linear_cross_entropy_step_bias: return gradients | loss | bias;
    default: return 0; /* join: it has all rows' numbers */
  }
}

/* Inputs count and dloss of the ops that compute gradients. */
static int count_of(const ms_kernel_call *call) { return is_step(call) ? 3 : 4; }

/* The output loss; those after it are the log-sums and the count, which the step keeps in its workspace. */
static int loss_of(const ms_kernel_call *call) { return is_step(call) ? call->outputs - 2 : 0; }

ms_loss_sizes ms_loss_sizes_of(int op, const ms_op_attrs *attrs, const ms_value_info *in) {
  const unsigned steps = steps_of(op);
  ms_loss_sizes s = {.rows = ms_row_count(&in[X]), .dim = ms_row_length(&in[X]), .classes = in[W].dims[0]};
  s.chunk = attrs->loss.chunk && attrs->loss.chunk < s.rows ? attrs->loss.chunk : s.rows;
  s.chunks = (s.rows + s.chunk - 1) / s.chunk;
  s.logits = (steps & STEP(LOGITS)) != 0;
  s.dx = (steps & STEP(DX)) != 0;
  s.dw = (steps & STEP(DW)) != 0;
  s.db = (steps & STEP(DB)) != 0;
  s.again = s.logits && !(steps & STEP(PART));
  return s;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

static ms_value_info vector(int dtype, int64_t n) { return (ms_value_info){.dtype = dtype, .ndim = 1, .dims = {n}}; }

static ms_value_info pairs(int64_t rows) { return (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, rows, 2}}; }

static const ms_value_info number = {.dtype = MS_F32};

static void add_input(ms_kernel_call *call, ms_value_info info) { call->in[call->inputs++] = info; }

static void add_output(ms_kernel_call *call, ms_value_info info) { call->out[call->outputs++] = info; }

/* The attributes of the loss, which its kernels have, too. */
static ms_op_attrs loss_attrs(const ms_kernel_call *call) {
  ms_op_attrs attrs = call->attrs;
  attrs.loss.chunk = attrs.out_dtype = 0;
  if (attrs.loss.parts < 1) attrs.loss.parts = 1;
  return attrs;
}

static ms_kernel_call product(int op, int trans_a, int trans_b, ms_value_info a, ms_value_info b, ms_value_info c) {
  ms_kernel_call call = {.op = op, .attrs = {.product = {.trans_a = trans_a, .trans_b = trans_b}}};
  add_input(&call, a);
  add_input(&call, b);
  add_output(&call, c);
  return call;
}

static ms_kernel_call logits_call(const ms_kernel_call *call, ms_value_info x, ms_value_info logits) {
  const int b = ms_loss_bias_of(call->op, call->inputs);
  ms_kernel_call made = product(MS_OP_matmul, 0, 1, x, call->in[W], logits);
  if (b >= 0) add_input(&made, call->in[b]);
  return made;
}

/* The dtype of gradient dw or db where its chunks are summed: several in f32. */
static int sums_dtype(const ms_loss_chunks *l, const ms_kernel_call *call, int gradient) {
  return l->sizes.chunks > 1 ? MS_F32 : call->out[gradient].dtype;
}

static ms_kernel_call columns_call(const ms_loss_chunks *l, const ms_kernel_call *call, ms_value_info logits) {
  const int64_t classes = logits.dims[1];
  ms_kernel_call made = {.op = MS_OP_sum_to, .attrs = {.shape = {.d = {classes, 1, 1, 1, 1, 1}, .ndim = 1}}};
  add_input(&made, logits);
  add_output(&made, vector(sums_dtype(l, call, DB), classes));
  made.attrs.out_dtype = 1 + made.out[0].dtype;
  return made;
}

static ms_kernel_call add_columns_call(int64_t classes) {
  ms_kernel_call made = {.op = MS_OP_accumulate, .attrs = {.add = 1}};
  add_input(&made, vector(MS_F32, classes));
  add_output(&made, vector(MS_F32, classes));
  return made;
}

/* A step of a chunk of this many rows. */
static ms_kernel_call step_call(const ms_loss_chunks *l, const ms_kernel_call *call, int step, int64_t rows) {
  const int dtype = call->in[X].dtype;
  const ms_value_info w = call->in[W], x = matrix(dtype, rows, l->sizes.dim), logits = matrix(dtype, rows, w.dims[0]);
  const ms_value_info dw = matrix(MS_F32, w.dims[0], l->sizes.dim);
  ms_kernel_call made = {.op = MS_OP_cross_entropy_part, .attrs = loss_attrs(call)};
  switch (step) {
    case MS_CHUNK_LOGITS: return logits_call(call, x, logits);
    case MS_CHUNK_DX: return product(MS_OP_matmul, 0, 0, logits, w, x);
    case MS_CHUNK_DW:
      made = product(MS_OP_matmul, 1, 0, logits, x, dw);
      made.out[0].dtype = sums_dtype(l, call, DW);
      made.attrs.out_dtype = 1 + made.out[0].dtype;
      return made;
    case MS_CHUNK_ADD_DW: return product(MS_OP_matmul_accumulate, 1, 0, logits, x, dw);
    case MS_CHUNK_DB: return columns_call(l, call, logits);
    case MS_CHUNK_ADD_DB: return add_columns_call(w.dims[0]);
    case MS_CHUNK_LSE:
      made.op = MS_OP_slice;
      made.attrs = (ms_op_attrs){.cut = {.axis = 2, .start = 0, .stop = 1}};
      add_input(&made, pairs(rows));
      add_output(&made, (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, rows, 1}});
      return made;
    default: break;
  }
  add_input(&made, logits);
  add_input(&made, vector(MS_I32, rows));
  if (step == MS_CHUNK_PART) {
    add_output(&made, pairs(rows));
    return made;
  }
  made.op = MS_OP_cross_entropy_backward;
  add_input(&made, vector(MS_F32, rows));
  add_input(&made, number);
  add_input(&made, number);
  add_output(&made, logits);
  return made;
}

/* The loss of all rows from their numbers. It reads only the shape of the logits. */
static ms_kernel_call join_call(const ms_loss_chunks *l, const ms_kernel_call *call) {
  ms_kernel_call join = {.op = MS_OP_cross_entropy_join, .attrs = loss_attrs(call)};
  add_input(&join, matrix(call->in[X].dtype, l->sizes.rows, call->in[W].dims[0]));
  add_input(&join, vector(MS_I32, l->sizes.rows));
  add_input(&join, is_step(call) ? pairs(l->sizes.rows) : call->in[ADDED]);
  add_output(&join, number);
  add_output(&join, vector(MS_F32, l->sizes.rows));
  add_output(&join, number);
  return join;
}

/* 1 when the sum of chunks is rounded to gradient dw or db after the last. */
static int rounds(const ms_loss_chunks *l, const ms_kernel_call *call, int gradient) {
  const unsigned sums = gradient == DW ? STEP(ADD_DW) : STEP(ADD_DB);
  return l->steps & sums && sums_dtype(l, call, gradient) != call->out[gradient].dtype;
}

static ms_kernel_call cast_call(const ms_kernel_call *call, int gradient) {
  ms_kernel_call cast = {.op = MS_OP_cast, .attrs = {.out_dtype = 1 + call->out[gradient].dtype}};
  ms_value_info sums = call->out[gradient];
  sums.dtype = MS_F32;
  add_input(&cast, sums);
  add_output(&cast, call->out[gradient]);
  return cast;
}

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static int64_t take(ms_kernel_call *call, int64_t bytes) {
  const int64_t at = call->workspace_bytes;
  call->workspace_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static void lay_out(ms_loss_chunks *l, ms_kernel_call *call) {
  const int64_t columns = call->in[W].dims[0];
  call->workspace_bytes = 0;
  if (is_step(call)) {
    l->added = take(call, 2 * l->sizes.rows * (int64_t)sizeof(float));
    l->lse = take(call, l->sizes.rows * (int64_t)sizeof(float));
    l->count = take(call, sizeof(float));
  }
  if (l->sizes.db) l->columns = take(call, columns * (int64_t)sizeof(float));
  for (int g = DW; g <= DB; g++)
    if (rounds(l, call, g))
      l->sums[g - DW] = take(call, columns * (g == DW ? l->sizes.dim : 1) * (int64_t)sizeof(float));
  l->scratch = call->workspace_bytes;
}

static int prepare_one(const ms_loss_chunks *l, const ms_kernel_call *call, ms_kernel_call *one, int64_t *scratch) {
  const ms_kernel *kernel = l->kernel_of(one->op);
  one->threads = call->threads;
  one->spared = call->spared;
  if (kernel->prepare) MS_TRY(kernel->prepare(one));
  if (one->workspace_bytes > *scratch) *scratch = one->workspace_bytes;
  return MS_OK;
}

static int64_t last_rows(const ms_loss_chunks *l) { return l->sizes.rows - (l->sizes.chunks - 1) * l->sizes.chunk; }

/* Which of the two sets of kernels a chunk uses. */
static int set_of(const ms_loss_chunks *l, int64_t chunk) {
  return chunk == l->sizes.chunks - 1 && last_rows(l) < l->sizes.chunk;
}

/* The first chunk writes the gradients of w and b, the others add to them. */
static int takes_step(const ms_loss_chunks *l, int step, int64_t chunk) {
  if (!(l->steps >> step & 1)) return 0;
  if (l->both && (step == MS_CHUNK_PART || step == MS_CHUNK_LSE)) return 0;
  if (step == MS_CHUNK_DW) return chunk == 0;
  return step == MS_CHUNK_ADD_DW || step == MS_CHUNK_ADD_DB ? chunk > 0 : 1;
}

static int prepare_all(ms_loss_chunks *l, const ms_kernel_call *call, int64_t *scratch) {
  for (int64_t chunk = 0; chunk < l->sizes.chunks; chunk++)
    for (int step = 0; step < MS_CHUNK_STEPS; step++) {
      const int set = set_of(l, chunk);
      ms_kernel_call *one = &l->call[set][step];
      if (!takes_step(l, step, chunk) || one->inputs) continue;
      *one = step_call(l, call, step, set ? last_rows(l) : l->sizes.chunk);
      MS_TRY(prepare_one(l, call, one, scratch));
    }
  for (int g = DW; g <= DB; g++) {
    if (!rounds(l, call, g)) continue;
    l->cast[g - DW] = cast_call(call, g);
    MS_TRY(prepare_one(l, call, &l->cast[g - DW], scratch));
  }
  if (l->steps && !is_step(call)) return MS_OK;
  l->join = join_call(l, call);
  return prepare_one(l, call, &l->join, scratch);
}

int ms_loss_chunks_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_loss_chunks *l) {
  int64_t scratch = 0;
  memset(l, 0, sizeof *l);
  l->kernel_of = kernel_of;
  l->sizes = ms_loss_sizes_of(call->op, &call->attrs, call->in);
  l->steps = steps_of(call->op);
  lay_out(l, call);
  const int rc = prepare_all(l, call, &scratch);
  call->workspace_bytes += scratch;
  if (rc) ms_loss_chunks_release(l);
  return rc;
}

static void release_one(const ms_loss_chunks *l, const ms_kernel_call *one) {
  if (one->prepared && l->kernel_of(one->op)->release) l->kernel_of(one->op)->release(one->prepared);
}

void ms_loss_chunks_release(const ms_loss_chunks *l) {
  for (int set = 0; set < 2; set++)
    for (int step = 0; step < MS_CHUNK_STEPS; step++) release_one(l, &l->call[set][step]);
  release_one(l, &l->join);
  for (int g = 0; g < 2; g++) release_one(l, &l->cast[g]);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static const char *at(const void *data, int64_t bytes) { return (const char *)data + bytes; }

static void in_stream_of(ms_kernel_call *one, const ms_loss_chunks *l, const ms_kernel_call *call) {
  one->workspace = (char *)call->workspace + l->scratch;
  one->scalars = call->scalars;
  one->stream = call->stream;
  one->fault = call->fault;
}

/* Where gradient dw or db is summed. */
static void *sums_of(const ms_loss_chunks *l, const ms_kernel_call *call, int gradient) {
  return rounds(l, call, gradient) ? (char *)call->workspace + l->sums[gradient - DW] : call->out_data[gradient];
}

/* A step of a chunk with its pointers. */
static ms_kernel_call bound(const ms_loss_chunks *l, const ms_kernel_call *call, int step, int64_t chunk) {
  ms_kernel_call one = l->call[set_of(l, chunk)][step];
  const int64_t row = chunk * l->sizes.chunk, row_bytes = l->sizes.dim * ms_dtype_size(call->in[X].dtype);
  const void *x = at(call->in_data[X], row * row_bytes), *w = call->in_data[W];
  const void *targets = at(call->in_data[TARGETS], row * (int64_t)sizeof(int32_t));
  char *work = call->workspace, *logits = call->out_data[call->outputs - 1];
  char *added = (is_step(call) ? work + l->added : (char *)call->out_data[0]) + 2 * row * (int64_t)sizeof(float);
  char *lse = work + l->lse + row * (int64_t)sizeof(float);
  const int bias = ms_loss_bias_of(call->op, call->inputs);
  in_stream_of(&one, l, call);
  one.in_data[0] = logits;
  one.out_data[0] = logits;
  switch (step) {
    case MS_CHUNK_LOGITS:
      one.in_data[0] = x;
      one.in_data[1] = w;
      if (bias >= 0) one.in_data[2] = call->in_data[bias];
      break;
    case MS_CHUNK_PART: one.in_data[1] = targets, one.out_data[0] = added; break;
    case MS_CHUNK_LSE: one.in_data[0] = added, one.out_data[0] = lse; break;
    case MS_CHUNK_DLOGITS:
      one.in_data[1] = targets;
      one.in_data[2] = is_backward(call) ? at(call->in_data[3], row * (int64_t)sizeof(float)) : lse;
      one.in_data[3] = call->in_data[count_of(call)];
      one.in_data[4] = call->in_data[count_of(call) + 1];
      if (l->both) one.out_data[1] = added;
      break;
    case MS_CHUNK_DX: one.in_data[1] = w, one.out_data[0] = (char *)call->out_data[DX] + row * row_bytes; break;
    case MS_CHUNK_DB: one.out_data[0] = chunk ? work + l->columns : sums_of(l, call, DB); break;
    case MS_CHUNK_ADD_DB: one.in_data[0] = work + l->columns, one.out_data[0] = sums_of(l, call, DB); break;
    default: one.in_data[1] = x, one.out_data[0] = sums_of(l, call, DW); break;
  }
  return one;
}

static ms_kernel_call bound_join(const ms_loss_chunks *l, const ms_kernel_call *call) {
  ms_kernel_call join = l->join;
  char *work = call->workspace;
  in_stream_of(&join, l, call);
  join.in_data[1] = call->in_data[TARGETS];
  join.in_data[2] = is_step(call) ? work + l->added : call->in_data[ADDED];
  join.out_data[0] = call->out_data[loss_of(call)];
  join.out_data[1] = is_step(call) ? work + l->lse : call->out_data[1];
  join.out_data[2] = is_step(call) ? work + l->count : call->out_data[2];
  return join;
}

static ms_kernel_call bound_cast(const ms_loss_chunks *l, const ms_kernel_call *call, int gradient) {
  ms_kernel_call cast = l->cast[gradient - DW];
  in_stream_of(&cast, l, call);
  cast.in_data[0] = sums_of(l, call, gradient);
  cast.out_data[0] = call->out_data[gradient];
  return cast;
}

static int bind_one(const ms_loss_chunks *l, ms_kernel_call one) {
  const ms_kernel *kernel = l->kernel_of(one.op);
  return kernel->bind ? kernel->bind(&one) : MS_OK;
}

static int run_one(const ms_loss_chunks *l, ms_kernel_call one) {
  if (l->both && one.op == MS_OP_cross_entropy_backward) return l->both(&one);
  return l->kernel_of(one.op)->run(&one);
}

static int each(const ms_loss_chunks *l, const ms_kernel_call *call,
                int (*with)(const ms_loss_chunks *l, ms_kernel_call one)) {
  for (int64_t chunk = 0; chunk < l->sizes.chunks; chunk++)
    for (int step = 0; step < MS_CHUNK_STEPS; step++)
      if (takes_step(l, step, chunk)) MS_TRY(with(l, bound(l, call, step, chunk)));
  for (int g = DW; g <= DB; g++)
    if (l->cast[g - DW].inputs) MS_TRY(with(l, bound_cast(l, call, g)));
  return l->join.inputs ? with(l, bound_join(l, call)) : MS_OK;
}

int ms_loss_chunks_bind(const ms_loss_chunks *l, const ms_kernel_call *call) { return each(l, call, bind_one); }

int ms_loss_chunks_run(const ms_loss_chunks *l, const ms_kernel_call *call) { return each(l, call, run_one); }
