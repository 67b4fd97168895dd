/* matmul_onednn.c - matrix products by oneDNN on tensors as stored: row-major, with transposes expressed as strides.
 *
 * The team (team.h) computes a product: each thread runs a single-threaded primitive for one rectangle of the result,
 * so oneDNN's own OpenMP threads are never started. They spin while they wait, which cannot be turned off from here and
 * slows two jobs that share cores down by a factor of hundreds. prepare creates a primitive for fixed shapes, and all
 * plans with the same shapes share it (shared.h); memory objects, which point to tensors, belong to the call. Scratch
 * memory is part of the call's workspace.
 *
 * On processors that multiply bf16 (AVX512_BF16, AMX), oneDNN gets bf16 tensors directly. On others, and if f32
 * operands have a bf16 result or bias, bf16 tensors are converted to and from f32 in the workspace.
 */
#include "kernels/cpu/block.h"
#include "kernels/cpu/matmul/matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/matmul/onednn_api.h"
#include "kernels/cpu/matmul/product_cut.h"
#include "kernels/cpu/shared.h"
#include "kernels/cpu/team.h"

enum { A, B, BIAS, C, SCRATCH, OPERANDS };

static const int argument_of[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                          DNNL_ARG_SCRATCHPAD};

/* Key of a shared primitive: rectangles of equal size of equal products share one, wherever they are in the result. */
typedef struct primitive_key {
  ms_product product; /* its sizes determine the strides */
  int64_t batches, rows, columns;
  dnnl_data_type_t types[SCRATCH];
} primitive_key;

/* Read-only after creation, because threads share it. */
typedef struct shared_primitive {
  dnnl_primitive_t primitive;
  dnnl_primitive_desc_t desc;
  ms_onednn_desc descs[SCRATCH];
  int64_t scratch_bytes;
} shared_primitive;

/* One thread's rectangle. */
typedef struct piece {
  shared_primitive *shared; /* NULL: the rectangle is empty */
  dnnl_stream_t stream;
  dnnl_memory_t memory[OPERANDS]; /* NULL: the product has no such operand */
  int64_t first[SCRATCH];         /* where the rectangle's part of the operand begins, in elements */
  int64_t scratch;                /* byte offset in the workspace */
  dnnl_exec_arg_t arguments[OPERANDS];
  int argument_count;
} piece;

typedef struct product_primitive {
  int64_t offset[SCRATCH];   /* of the converted operand, in bytes of the workspace; -1: no conversion needed */
  int64_t elements[SCRATCH]; /* number of elements of the operand */
  int64_t element_bytes[SCRATCH];
  int bias, reads_result; /* 1: the product has a bias; it is added to the result */
  int parts;
  piece piece[]; /* [parts] */
} product_primitive;

static int check(dnnl_status_t status, const char *doing, const ms_product *p) {
  if (status == dnnl_success) return MS_OK;
  return MS_FAIL(status == dnnl_out_of_memory ? MS_ENOMEM : MS_EINTERNAL,
                 "matmul: oneDNN status %d %s, batch %lld of [%lld,%lld] x [%lld,%lld], %s to %s", (int)status, doing,
                 (long long)p->batch, (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n,
                 ms_dtype_name(p->dtype), ms_dtype_name(p->c_dtype));
}

/* ---- the primitive ----------------------------------------------------------------------------------------------- */

/* Two leaky relus, because oneDNN's relu turns NaN into 0, which would hide a broken step. The slopes multiply to
 * 1e-60, so negative numbers underflow to -0, while each slope alone gives no subnormal numbers, which are slow. The
 * slopes are equal because oneDNN 2.6 applies the first one's slope twice. */
static dnnl_status_t append_relu(dnnl_post_ops_t ops) {
  dnnl_status_t status = ms_append_eltwise(ops, dnnl_eltwise_relu, 1e-30f);
  return status ? status : ms_append_eltwise(ops, dnnl_eltwise_relu, 1e-30f);
}

static dnnl_status_t append_activation(dnnl_post_ops_t ops, int activation) {
  switch (activation) {
    case MS_ACT_RELU: return append_relu(ops);
    case MS_ACT_GELU: return ms_append_eltwise(ops, dnnl_eltwise_gelu_erf, 0.0f);
    case MS_ACT_GELU_TANH: return ms_append_eltwise(ops, dnnl_eltwise_gelu_tanh, 0.0f);
    case MS_ACT_SILU: return ms_append_eltwise(ops, dnnl_eltwise_swish, 1.0f);
    default: return dnnl_success;
  }
}

static int make_attributes(const ms_product *p, dnnl_primitive_attr_t *attributes) {
  dnnl_post_ops_t ops = NULL;
  int rc = MS_OK;
  MS_TRY(check(dnnl_primitive_attr_create(attributes), "making attributes", p));
  MS_GOTO(
      check(dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user), "asking for scratch", p));
  MS_GOTO(check(dnnl_post_ops_create(&ops), "making post-ops", p));
  if (p->accumulate) MS_GOTO(check(ms_append_sum(ops), "adding to the result", p));
  MS_GOTO(check(append_activation(ops, p->activation), "adding the activation", p));
  MS_GOTO(check(dnnl_primitive_attr_set_post_ops(*attributes, ops), "setting post-ops", p));
fail:
  if (ops) dnnl_post_ops_destroy(ops);
  if (!rc) return rc;
  dnnl_primitive_attr_destroy(*attributes);
  *attributes = NULL;
  return rc;
}

/* The sizes of a rectangle's matrix and of the matrix that contains it, per batch entry; 2-D if the product has no
 * batch. */
typedef struct matrix {
  int64_t batches, rows, columns, whole_rows, whole_columns;
  int transposed;
} matrix;

static dnnl_status_t describe(ms_onednn_desc *desc, int ndims, const matrix *m, dnnl_data_type_t type) {
  dnnl_dims_t dims = {m->batches, m->rows, m->columns};
  dnnl_dims_t strides = {m->whole_rows * m->whole_columns, m->transposed ? 1 : m->whole_columns,
                         m->transposed ? m->whole_rows : 1};
  int skip = 3 - ndims;
  return ms_desc_create(desc, ndims, dims + skip, type, strides + skip);
}

static int describe_all(const primitive_key *key, ms_onednn_desc *descs) {
  const ms_product *p = &key->product;
  const int ndims = p->batch > 1 ? 3 : 2;
  const matrix a = {key->batches, key->rows, p->k, p->m, p->k, p->trans_a};
  const matrix b = {p->shared_b ? 1 : key->batches, p->k, key->columns, p->k, p->n, p->trans_b};
  const matrix bias = {1, 1, key->columns, 1, p->n, 0}, c = {key->batches, key->rows, key->columns, p->m, p->n, 0};
  MS_TRY(check(describe(&descs[A], ndims, &a, key->types[A]), "describing a", p));
  MS_TRY(check(describe(&descs[B], ndims, &b, key->types[B]), "describing b", p));
  MS_TRY(check(describe(&descs[C], ndims, &c, key->types[C]), "describing c", p));
  if (p->bias_dtype >= 0)
    MS_TRY(check(describe(&descs[BIAS], ndims, &bias, key->types[BIAS]), "describing the bias", p));
  return MS_OK;
}

static void free_primitive(void *object) {
  shared_primitive *made = object;
  if (made->primitive) dnnl_primitive_destroy(made->primitive);
  if (made->desc) dnnl_primitive_desc_destroy(made->desc);
  for (int i = 0; i < SCRATCH; i++) ms_desc_destroy(&made->descs[i]);
  free(made);
}

static int make_primitive(const void *data, void **object) {
  const primitive_key *key = data;
  const ms_product *p = &key->product;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_engine_t engine;
  int rc = MS_OK, outer_threads = omp_get_max_threads();
  MS_TRY(check(ms_onednn_engine(&engine), "making an engine", p));
  shared_primitive *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  omp_set_num_threads(1); /* a primitive keeps the number of threads set at its creation */
  MS_GOTO(describe_all(key, made->descs));
  MS_GOTO(make_attributes(p, &attributes));
  MS_GOTO(check(ms_matmul_desc_create(&made->desc, engine, &made->descs[A], &made->descs[B],
                                      p->bias_dtype >= 0 ? &made->descs[BIAS] : NULL, &made->descs[C], attributes),
                "finding an implementation", p));
  MS_GOTO(check(dnnl_primitive_create(&made->primitive, made->desc), "making the primitive", p));
  made->scratch_bytes = ms_scratchpad_bytes(made->desc);
  *object = made;
fail:
  omp_set_num_threads(outer_threads);
  if (attributes) dnnl_primitive_attr_destroy(attributes);
  if (rc) free_primitive(made);
  return rc;
}

/* Creates a memory object without data for each operand. */
static int make_memory(piece *made, const ms_product *p) {
  const shared_primitive *shared = made->shared;
  dnnl_engine_t engine;
  MS_TRY(check(ms_onednn_engine(&engine), "making an engine", p));
  for (int i = 0; i < SCRATCH; i++)
    if (i != BIAS || p->bias_dtype >= 0)
      MS_TRY(check(ms_memory_create(&made->memory[i], &shared->descs[i], engine), "making a memory object", p));
  if (shared->scratch_bytes)
    MS_TRY(check(ms_scratchpad_create(&made->memory[SCRATCH], shared->desc, engine), "making scratch", p));
  for (int i = 0; i < OPERANDS; i++)
    if (made->memory[i]) made->arguments[made->argument_count++] = (dnnl_exec_arg_t){argument_of[i], made->memory[i]};
  return check(dnnl_stream_create(&made->stream, engine, dnnl_stream_default_flags), "making a stream", p);
}

static void free_piece(piece *made) {
  for (int i = 0; i < OPERANDS; i++)
    if (made->memory[i]) dnnl_memory_destroy(made->memory[i]);
  if (made->stream) dnnl_stream_destroy(made->stream);
  ms_shared_drop(made->shared);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static int64_t reserve(int64_t *workspace, int64_t bytes) {
  int64_t offset = *workspace;
  *workspace += (bytes + 63) / 64 * 64;
  return offset;
}

/* Chooses the dtypes for oneDNN, and reserves workspace for operands that need conversion. */
static void choose_types(product_primitive *made, const ms_product *p, dnnl_data_type_t *types, int64_t *workspace) {
  const int narrow = p->dtype == MS_BF16 && ms_onednn_multiplies_bf16();
  const int dtypes[SCRATCH] = {p->dtype, p->dtype, p->bias_dtype, p->c_dtype};
  const int64_t elements[SCRATCH] = {p->batch * p->m * p->k, (p->shared_b ? 1 : p->batch) * p->k * p->n, p->n,
                                     p->batch * p->m * p->n};
  for (int i = 0; i < SCRATCH; i++) {
    types[i] = narrow ? ms_onednn_type(dtypes[i]) : dnnl_f32;
    made->elements[i] = elements[i];
    made->element_bytes[i] = types[i] == dnnl_bf16 ? 2 : 4;
    made->offset[i] = !narrow && dtypes[i] == MS_BF16 ? reserve(workspace, elements[i] * (int64_t)sizeof(float)) : -1;
  }
}

/* Drops the transposes of matrices with one row or one column, whose bytes are the same either way. oneDNN treats both
 * descriptions as equal and returns from its cache the primitive that it created first, whose scratch size may differ:
 * the workspace would depend on earlier products. */
static void drop_idle_transposes(ms_product *p) {
  p->trans_a &= p->m > 1 && p->k > 1;
  p->trans_b &= p->k > 1 && p->n > 1;
}

/* Smaller parts cost more than they save: about 10 us of multiplications or of reading. */
enum { OPERATIONS_PER_PART = 1 << 20, BYTES_PER_PART = 1 << 17, GRAIN = 32 };

static int count_parts(const product_primitive *made, const ms_product *p, int threads) {
  int64_t bytes = 0, parts = p->batch * p->m * p->n * p->k / OPERATIONS_PER_PART;
  for (int i = 0; i < SCRATCH; i++) bytes += i == BIAS ? 0 : made->elements[i] * made->element_bytes[i];
  if (parts < bytes / BYTES_PER_PART) parts = bytes / BYTES_PER_PART;
  return parts < 1 ? 1 : parts < threads ? (int)parts : threads;
}

static int make_piece(piece *made, const primitive_key *product, const ms_rectangle *r, int64_t *workspace) {
  const ms_product *p = &product->product;
  primitive_key key;
  void *shared;
  if (!r->batches || !r->rows || !r->columns) return MS_OK;
  memcpy(&key, product, sizeof key); /* including its padding, which is zero */
  key.batches = r->batches;
  key.rows = r->rows;
  key.columns = r->columns;
  MS_TRY(ms_shared_take(make_primitive, free_primitive, &key, sizeof key, &shared));
  made->shared = shared;
  made->first[A] = r->batch * p->m * p->k + r->row * (p->trans_a ? 1 : p->k);
  made->first[B] = (p->shared_b ? 0 : r->batch * p->k * p->n) + r->column * (p->trans_b ? p->k : 1);
  made->first[BIAS] = r->column;
  made->first[C] = r->batch * p->m * p->n + r->row * p->n + r->column;
  made->scratch = reserve(workspace, made->shared->scratch_bytes);
  return make_memory(made, p);
}

int ms_onednn_prepare(ms_kernel_call *call, const ms_product *product, void **prepared) {
  primitive_key key;
  int64_t workspace = 0;
  int rc = MS_OK;
  product_primitive *made = ms_calloc(1, (int64_t)sizeof *made + call->threads * (int64_t)sizeof *made->piece);
  if (!made) return MS_ENOMEM;
  memset(&key, 0, sizeof key);
  memcpy(&key.product, product, sizeof *product);
  drop_idle_transposes(&key.product);
  choose_types(made, product, key.types, &workspace);
  made->bias = product->bias_dtype >= 0;
  made->reads_result = product->accumulate;
  made->parts = count_parts(made, product, call->threads);
  const ms_cut cut = ms_cut_product(product, made->parts, GRAIN);
  for (int i = 0; i < made->parts; i++) {
    const ms_rectangle rectangle = ms_cut_rectangle(product, &cut, i, GRAIN);
    MS_GOTO(make_piece(&made->piece[i], &key, &rectangle, &workspace));
  }
  call->workspace_bytes = workspace;
  *prepared = made;
fail:
  if (rc) ms_onednn_release(made);
  return rc;
}

MS_CLONES static void widen(float *restrict y, const ms_bf16 *restrict x, int64_t n) { ms_widen(x, MS_BF16, 0, n, y); }

MS_CLONES static void narrow(ms_bf16 *restrict y, const float *restrict x, int64_t n) { ms_narrow(y, x, n); }

enum { CONVERTED_AT_ONCE = 1 << 15 };

/* Conversion of [n] elements from bf16 to f32 or back, in pieces of CONVERTED_AT_ONCE. */
typedef struct conversion {
  void *to;
  const void *from;
  int64_t n;
  int widens, parts;
} conversion;

static void convert_part(void *context, int part) {
  const conversion *c = context;
  const int64_t stretches = (c->n + CONVERTED_AT_ONCE - 1) / CONVERTED_AT_ONCE;
  for (int64_t s = stretches * part / c->parts; s < stretches * (part + 1) / c->parts; s++) {
    const int64_t i = s * CONVERTED_AT_ONCE, n = c->n - i < CONVERTED_AT_ONCE ? c->n - i : CONVERTED_AT_ONCE;
    if (c->widens) widen((float *)c->to + i, (const ms_bf16 *)c->from + i, n);
    else narrow((ms_bf16 *)c->to + i, (const float *)c->from + i, n);
  }
}

static void convert(void *to, const void *from, int64_t n, int widens, int threads) {
  conversion all = {to, from, n, widens, n > CONVERTED_AT_ONCE ? threads : 1};
  ms_team_run(all.parts, convert_part, &all);
}

typedef struct execution {
  const ms_kernel_call *call;
  product_primitive *made;
  char *operand[SCRATCH];
  _Atomic int status; /* a dnnl_status_t: the last failure of any thread */
} execution;

static void run_piece(void *context, int part) {
  execution *all = context;
  piece *mine = &all->made->piece[part];
  dnnl_status_t status = dnnl_success;
  if (!mine->shared) return;
  for (int i = 0; i < OPERANDS && !status; i++) {
    if (!mine->memory[i]) continue;
    void *data = i == SCRATCH ? (char *)all->call->workspace + mine->scratch
                              : all->operand[i] + mine->first[i] * all->made->element_bytes[i];
    status = dnnl_memory_set_data_handle(mine->memory[i], data);
  }
  if (omp_get_max_threads() != 1) omp_set_num_threads(1); /* this thread's setting only */
  if (!status)
    status = dnnl_primitive_execute(mine->shared->primitive, mine->stream, mine->argument_count, mine->arguments);
  if (!status) status = dnnl_stream_wait(mine->stream);
  if (status) all->status = (int)status;
}

int ms_onednn_run(const ms_kernel_call *call, void *prepared) {
  product_primitive *made = prepared;
  const void *tensor[SCRATCH] = {call->in_data[0], call->in_data[1], made->bias ? call->in_data[2] : NULL,
                                 call->out_data[0]};
  const int outer_threads = omp_get_max_threads(); /* the application's setting, restored below */
  execution all = {.call = call, .made = made};
  for (int i = 0; i < SCRATCH; i++) {
    const int converted = made->offset[i] >= 0;
    all.operand[i] = converted ? (char *)call->workspace + made->offset[i] : (char *)tensor[i];
    const int read = i == C ? made->reads_result : tensor[i] != NULL;
    if (converted && read) convert(all.operand[i], tensor[i], made->elements[i], 1, call->threads);
  }
  ms_team_run(made->parts, run_piece, &all);
  if (outer_threads != 1) omp_set_num_threads(outer_threads);
  if (all.status) return MS_FAIL(MS_EINTERNAL, "matmul: oneDNN status %d running the primitive", all.status);
  if (made->offset[C] >= 0) convert(call->out_data[0], all.operand[C], made->elements[C], 0, call->threads);
  return MS_OK;
}

void ms_onednn_release(void *prepared) {
  product_primitive *made = prepared;
  if (!made) return;
  for (int i = 0; i < made->parts; i++) free_piece(&made->piece[i]);
  free(made);
}
