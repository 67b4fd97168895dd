/* orthogonalise.c - the kernels of Muon's Newton-Schulz iteration, and where in its workspace they read and write. */
#include "kernels/products/orthogonalise.h"

#include <math.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"

enum { ALIGNMENT = 64 };

/* torch.optim.Muon's ns_coefficients and eps. */
static const double a = 3.4445, b = -4.7750, c = 2.0315, min_norm = 1e-7;

/* ---- the kernels ------------------------------------------------------------------------------------------------- */

static int64_t steps_of(const ms_kernel_call *call) { return call->attrs.orthogonalise.steps; }
static int rounds(const ms_kernel_call *call) { return call->attrs.orthogonalise.dtype == MS_ORTHOGONALISE_BF16; }
static int is_tall(const ms_kernel_call *call) {
  return ms_orthogonalise_rows(&call->in[0]) > ms_orthogonalise_columns(&call->in[0]);
}

static ms_value_info square(const ms_kernel_call *call, int dtype) {
  const int64_t m = ms_orthogonalise_inner(&call->in[0]);
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {m, m}};
}

static ms_value_info matrix(const ms_kernel_call *call, int dtype) {
  const ms_value_info *u = &call->in[0];
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {ms_orthogonalise_rows(u), ms_orthogonalise_columns(u)}};
}

static ms_kernel_call unary(int op, double alpha, ms_value_info in, ms_value_info out) {
  return (ms_kernel_call){
      .op = op, .attrs = {.scale = {.alpha = alpha}}, .inputs = 1, .outputs = 1, .in = {in}, .out = {out}};
}

static ms_kernel_call product(int op, int trans_a, int trans_b, ms_value_info x, ms_value_info y, ms_value_info out) {
  return (ms_kernel_call){.op = op,
                          .attrs = {.product = {.trans_a = trans_a, .trans_b = trans_b}},
                          .inputs = 2,
                          .outputs = 1,
                          .in = {x, y},
                          .out = {out}};
}

static ms_kernel_call conversion(ms_value_info from, ms_value_info to) {
  ms_kernel_call call = unary(MS_OP_cast, 0, from, to);
  call.attrs.out_dtype = 1 + to.dtype;
  return call;
}

static void make(ms_orthogonalise *o, const ms_kernel_call *call) {
  const int dtype = rounds(call) ? MS_BF16 : MS_F32, tall = is_tall(call);
  const ms_value_info number = {.dtype = MS_F32}, u = matrix(call, MS_F32);
  const ms_value_info x = matrix(call, MS_F32), read_x = matrix(call, dtype);
  const ms_value_info g = square(call, MS_F32), read_g = square(call, dtype);
  const ms_value_info flat = {.dtype = MS_F32, .ndim = 1, .dims = {ms_numel(&u)}};
  ms_kernel_call *k = o->call;
  k[MS_NS_SQUARES] = unary(MS_OP_sum_squares, 0, flat, number);
  k[MS_NS_ROOT] = unary(MS_OP_sqrt, 0, number, number);
  k[MS_NS_MIN] = unary(MS_OP_clamp, 0, number, number);
  k[MS_NS_MIN].attrs.clamp.min = min_norm;
  k[MS_NS_MIN].attrs.clamp.max = HUGE_VAL;
  k[MS_NS_NORMALISE] = product(MS_OP_div, 0, 0, u, number, x);
  k[MS_NS_GRAM] = product(MS_OP_matmul, tall, !tall, read_x, read_x, g);
  k[MS_NS_GRAM].attrs.out_dtype = 1 + MS_F32;
  k[MS_NS_TIMES_BC] = unary(MS_OP_scale, b / c, g, g);
  k[MS_NS_ADD_GG] = product(MS_OP_matmul_accumulate, 0, 0, read_g, read_g, g);
  k[MS_NS_TIMES_C] = unary(MS_OP_scale, c, g, g);
  k[MS_NS_TIMES_A] = unary(MS_OP_scale, a, x, x);
  k[MS_NS_ADD_GX] = product(MS_OP_matmul_accumulate, 0, 0, tall ? read_x : read_g, tall ? read_g : read_x, x);
  if (!rounds(call)) return;
  k[MS_NS_ROUND_X] = conversion(x, read_x);
  k[MS_NS_ROUND_G] = conversion(g, read_g);
  k[MS_NS_WIDEN_X] = conversion(read_x, x);
}

/* ---- preparation ------------------------------------------------------------------------------------------------- */

static int64_t take(ms_kernel_call *call, int64_t bytes) {
  const int64_t at = call->workspace_bytes;
  call->workspace_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static int64_t bytes_of(ms_value_info info) { return ms_numel(&info) * ms_dtype_size(info.dtype); }

static void lay_out(ms_orthogonalise *o, ms_kernel_call *call) {
  const int dtype = rounds(call) ? MS_BF16 : MS_F32;
  call->workspace_bytes = 0;
  o->norm = take(call, sizeof(float));
  o->x = take(call, bytes_of(matrix(call, MS_F32)));
  o->gram = take(call, bytes_of(square(call, MS_F32)));
  o->polynomial = take(call, bytes_of(square(call, MS_F32)));
  if (rounds(call)) {
    o->rounded_x = take(call, bytes_of(matrix(call, dtype)));
    o->rounded_g = take(call, bytes_of(square(call, dtype)));
  }
  o->scratch = call->workspace_bytes;
}

static int prepare_one(const ms_orthogonalise *o, const ms_kernel_call *call, ms_kernel_call *one, int64_t *scratch) {
  const ms_kernel *kernel = o->kernel_of(one->op);
  one->threads = call->threads;
  one->spared = call->spared;
  if (kernel->prepare) MS_TRY(kernel->prepare(one));
  if (one->workspace_bytes > *scratch) *scratch = one->workspace_bytes;
  return MS_OK;
}

int ms_orthogonalise_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_orthogonalise *made) {
  int64_t scratch = 0;
  int rc = MS_OK;
  memset(made, 0, sizeof *made);
  made->kernel_of = kernel_of;
  make(made, call);
  lay_out(made, call);
  for (int i = 0; i < MS_NS_KERNELS && !rc; i++)
    if (made->call[i].inputs) rc = prepare_one(made, call, &made->call[i], &scratch);
  call->workspace_bytes += scratch;
  if (rc) ms_orthogonalise_release(made);
  return rc;
}

void ms_orthogonalise_release(const ms_orthogonalise *o) {
  for (int i = 0; i < MS_NS_KERNELS; i++) {
    const ms_kernel_call *one = &o->call[i];
    if (one->prepared && o->kernel_of(one->op)->release) o->kernel_of(one->op)->release(one->prepared);
  }
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* A call of the sequence: its kernel is bound or run. */
typedef int use(const ms_orthogonalise *o, ms_kernel_call one);

typedef struct sequence {
  const ms_orthogonalise *o;
  const ms_kernel_call *call;
  use *with;
} sequence;

static int step(const sequence *s, int kernel, const void *first, const void *second, void *out) {
  ms_kernel_call one = s->o->call[kernel];
  one.in_data[0] = first;
  one.in_data[1] = second;
  one.out_data[0] = out;
  one.workspace = (char *)s->call->workspace + s->o->scratch;
  one.scalars = s->call->scalars;
  one.stream = s->call->stream;
  one.fault = s->call->fault;
  return s->with(s->o, one);
}

/* Where products read what is in f32 there. */
static int rounded(const sequence *s, int kernel, void *from, int64_t to, void **read) {
  *read = rounds(s->call) ? (char *)s->call->workspace + to : from;
  return rounds(s->call) ? step(s, kernel, from, NULL, *read) : MS_OK;
}

/* x -> next; both f32. */
static int iterate(const sequence *s, void *x, void *next) {
  char *work = s->call->workspace;
  void *gram = work + s->o->gram, *polynomial = work + s->o->polynomial;
  void *read_x, *read_g;
  MS_TRY(rounded(s, MS_NS_ROUND_X, x, s->o->rounded_x, &read_x));
  MS_TRY(step(s, MS_NS_GRAM, read_x, read_x, gram));
  MS_TRY(rounded(s, MS_NS_ROUND_G, gram, s->o->rounded_g, &read_g));
  MS_TRY(step(s, MS_NS_TIMES_BC, gram, NULL, polynomial));
  MS_TRY(step(s, MS_NS_ADD_GG, read_g, read_g, polynomial));
  MS_TRY(step(s, MS_NS_TIMES_C, polynomial, NULL, polynomial));
  MS_TRY(rounded(s, MS_NS_ROUND_G, polynomial, s->o->rounded_g, &read_g));
  if (rounds(s->call)) MS_TRY(step(s, MS_NS_WIDEN_X, read_x, NULL, next));
  MS_TRY(step(s, MS_NS_TIMES_A, rounds(s->call) ? next : x, NULL, next));
  const int tall = is_tall(s->call);
  return step(s, MS_NS_ADD_GX, tall ? read_x : read_g, tall ? read_g : read_x, next);
}

/* The matrix at u becomes that at out. */
static int one_matrix(const sequence *s, const float *u, float *out) {
  char *work = s->call->workspace;
  void *norm = work + s->o->norm, *place[2] = {out, work + s->o->x};
  int64_t left = steps_of(s->call);
  MS_TRY(step(s, MS_NS_SQUARES, u, NULL, norm));
  MS_TRY(step(s, MS_NS_ROOT, norm, NULL, norm));
  MS_TRY(step(s, MS_NS_MIN, norm, NULL, norm));
  /* Steps alternate between two places, so that the last one writes the output. */
  MS_TRY(step(s, MS_NS_NORMALISE, u, norm, place[left % 2]));
  for (; left > 0; left--) MS_TRY(iterate(s, place[left % 2], place[(left - 1) % 2]));
  return MS_OK;
}

static int each(const sequence *s) {
  const ms_value_info one = matrix(s->call, MS_F32);
  const int64_t numel = ms_numel(&one), all = ms_orthogonalise_matrices(&s->call->in[0]);
  for (int64_t i = 0; i < all; i++)
    MS_TRY(one_matrix(s, (const float *)s->call->in_data[0] + i * numel, (float *)s->call->out_data[0] + i * numel));
  return MS_OK;
}

static int bind_one(const ms_orthogonalise *o, ms_kernel_call one) {
  const ms_kernel *kernel = o->kernel_of(one.op);
  return kernel->bind ? kernel->bind(&one) : MS_OK;
}

static int run_one(const ms_orthogonalise *o, ms_kernel_call one) { return o->kernel_of(one.op)->run(&one); }

int ms_orthogonalise_bind(const ms_orthogonalise *o, const ms_kernel_call *call) {
  return each(&(sequence){o, call, bind_one});
}

int ms_orthogonalise_run(const ms_orthogonalise *o, const ms_kernel_call *call) {
  return each(&(sequence){o, call, run_one});
}
