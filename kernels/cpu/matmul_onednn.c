/* matmul_onednn.c - matrix products by oneDNN, on tensors as they lie: row-major, transposed by strides.
**
** A primitive is made in prepare for fixed shapes and shared by all plans that want the same (shared.h); what points at
** tensors is each call's own. A primitive computes with as many OpenMP threads as were set when it was made; scratch
** memory is the caller's workspace.
**
** bf16 goes to the matrix units as it is where the processor multiplies bf16 (AVX512_BF16, AMX). Elsewhere, and
** where f32 operands have a bf16 result or bias, what oneDNN does not take is widened to f32 in the workspace.
*/
#include "kernels/cpu/block.h"
#include "kernels/cpu/matmul.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/onednn_api.h"
#include "kernels/cpu/shared.h"

enum { A, B, BIAS, C, SCRATCH, OPERANDS };

static const int argument_of[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                          DNNL_ARG_SCRATCHPAD};

typedef struct primitive_key {
  ms_product product;
  dnnl_data_type_t types[SCRATCH];
  int threads;
} primitive_key;

/* Read only once it is made. */
typedef struct shared_primitive {
  dnnl_primitive_t primitive;
  dnnl_primitive_desc_t desc;
  ms_onednn_desc descs[SCRATCH];
  int64_t scratch_bytes;
} shared_primitive;

typedef struct product_primitive {
  shared_primitive *shared;
  dnnl_stream_t stream;
  dnnl_memory_t memory[OPERANDS]; /* NULL: not there */
  int64_t offset[OPERANDS];       /* in the workspace; -1: the tensor itself is the operand */
  int64_t elements[OPERANDS];     /* of what is widened or narrowed */
  dnnl_exec_arg_t arguments[OPERANDS];
  int argument_count, threads;
} product_primitive;

static dnnl_engine_t engine;
static dnnl_status_t engine_status;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void make_engine(void) { engine_status = dnnl_engine_create(&engine, dnnl_cpu, 0); }

static int check(dnnl_status_t status, const char *doing, const ms_product *p) {
  if (status == dnnl_success) return MS_OK;
  return MS_FAIL(status == dnnl_out_of_memory ? MS_ENOMEM : MS_EINTERNAL,
                 "matmul: oneDNN status %d %s, batch %lld of [%lld,%lld] x [%lld,%lld], %s to %s", (int)status, doing,
                 (long long)p->batch, (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n,
                 ms_dtype_name(p->dtype), ms_dtype_name(p->c_dtype));
}

static int multiplies_bf16(void) {
  return ((int)dnnl_get_effective_cpu_isa() & (int)dnnl_cpu_isa_avx512_core_bf16) == (int)dnnl_cpu_isa_avx512_core_bf16;
}

static dnnl_data_type_t data_type(int dtype) { return dtype == MS_BF16 ? dnnl_bf16 : dnnl_f32; }

/* ---- the primitive ----------------------------------------------------------------------------------------------- */

/* relu by two leaky ones: oneDNN's own relu turns NaN into 0, which would hide a broken step. The slopes multiply to
** 1e-60, so what is negative underflows to -0; each alone keeps clear of subnormal numbers, which are slow. They are
** equal because version 2.6 gives the first one's slope to both. */
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

/* A matrix [rows, columns] of a batch, stored transposed or not; 2-D when the batch is 1. */
static dnnl_status_t describe(ms_onednn_desc *desc, int64_t batch, int ndims, int64_t rows, int64_t columns,
                              int transposed, dnnl_data_type_t type) {
  dnnl_dims_t dims = {batch, rows, columns};
  dnnl_dims_t strides = {rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
  int skip = 3 - ndims;
  return ms_desc_create(desc, ndims, dims + skip, type, strides + skip);
}

static int describe_all(const ms_product *p, const dnnl_data_type_t *types, ms_onednn_desc *descs) {
  const int ndims = p->batch > 1 ? 3 : 2;
  MS_TRY(check(describe(&descs[A], p->batch, ndims, p->m, p->k, p->trans_a, types[A]), "describing a", p));
  MS_TRY(check(describe(&descs[B], p->shared_b ? 1 : p->batch, ndims, p->k, p->n, p->trans_b, types[B]), "describing b",
               p));
  MS_TRY(check(describe(&descs[C], p->batch, ndims, p->m, p->n, 0, types[C]), "describing c", p));
  if (p->bias_dtype >= 0)
    MS_TRY(check(describe(&descs[BIAS], 1, ndims, 1, p->n, 0, types[BIAS]), "describing the bias", p));
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
  int rc = MS_OK, outer_threads = omp_get_max_threads();
  shared_primitive *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  omp_set_num_threads(key->threads);
  MS_GOTO(describe_all(p, key->types, made->descs));
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

/* A memory object without data for each operand. */
static int make_memory(product_primitive *made, const ms_product *p) {
  const shared_primitive *shared = made->shared;
  for (int i = 0; i < SCRATCH; i++)
    if (i != BIAS || p->bias_dtype >= 0)
      MS_TRY(check(ms_memory_create(&made->memory[i], &shared->descs[i], engine), "making a memory object", p));
  if (shared->scratch_bytes)
    MS_TRY(check(ms_scratchpad_create(&made->memory[SCRATCH], shared->desc, engine), "making scratch", p));
  return check(dnnl_stream_create(&made->stream, engine, dnnl_stream_default_flags), "making a stream", p);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static int64_t reserve(int64_t *workspace, int64_t bytes) {
  int64_t offset = *workspace;
  *workspace += (bytes + 63) / 64 * 64;
  return offset;
}

/* Decides what oneDNN computes in, and reserves workspace for what is converted on the way. */
static void choose_types(product_primitive *made, const ms_product *p, dnnl_data_type_t *types, int64_t *workspace) {
  const int narrow = p->dtype == MS_BF16 && multiplies_bf16();
  const int dtypes[SCRATCH] = {p->dtype, p->dtype, p->bias_dtype, p->c_dtype};
  const int64_t elements[SCRATCH] = {p->batch * p->m * p->k, (p->shared_b ? 1 : p->batch) * p->k * p->n, p->n,
                                     p->batch * p->m * p->n};
  for (int i = 0; i < SCRATCH; i++) {
    types[i] = narrow ? data_type(dtypes[i]) : dnnl_f32;
    made->elements[i] = elements[i];
    made->offset[i] = !narrow && dtypes[i] == MS_BF16 ? reserve(workspace, elements[i] * (int64_t)sizeof(float)) : -1;
  }
}

/* A matrix of one row or one column has the same bytes transposed. oneDNN takes both descriptions for one and gives out again
** what it made of the first, so scratch would depend on what was made before. */
static void drop_idle_transposes(ms_product *p) {
  p->trans_a &= p->m > 1 && p->k > 1;
  p->trans_b &= p->k > 1 && p->n > 1;
}

int ms_onednn_prepare(ms_kernel_call *call, const ms_product *product, void **prepared) {
  primitive_key key;
  int64_t workspace = 0;
  int rc = MS_OK;
  pthread_once(&engine_once, make_engine);
  MS_TRY(check(engine_status, "making an engine", product));
  product_primitive *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  memset(&key, 0, sizeof key);
  memcpy(&key.product, product, sizeof *product); /* with its padding, which is zero */
  drop_idle_transposes(&key.product);
  key.threads = made->threads = call->threads;
  choose_types(made, product, key.types, &workspace);
  void *shared;
  MS_GOTO(ms_shared_take(make_primitive, free_primitive, &key, sizeof key, &shared));
  made->shared = shared;
  MS_GOTO(make_memory(made, product));
  made->offset[SCRATCH] = reserve(&workspace, made->shared->scratch_bytes);
  for (int i = 0; i < OPERANDS; i++)
    if (made->memory[i]) made->arguments[made->argument_count++] = (dnnl_exec_arg_t){argument_of[i], made->memory[i]};
  call->workspace_bytes = workspace;
  *prepared = made;
fail:
  if (rc) ms_onednn_release(made);
  return rc;
}

MS_CLONES static void widen(float *restrict y, const ms_bf16 *restrict x, int64_t n) { ms_widen(x, MS_BF16, 0, n, y); }

MS_CLONES static void narrow(ms_bf16 *restrict y, const float *restrict x, int64_t n) { ms_narrow(y, x, n); }

enum { CONVERTED_AT_ONCE = 1 << 15 };

static void widen_all(float *y, const ms_bf16 *x, int64_t n, int threads) {
#pragma omp parallel for num_threads(threads) if (n > CONVERTED_AT_ONCE && threads > 1)
  for (int64_t i = 0; i < n; i += CONVERTED_AT_ONCE)
    widen(y + i, x + i, n - i < CONVERTED_AT_ONCE ? n - i : CONVERTED_AT_ONCE);
}

static void narrow_all(ms_bf16 *y, const float *x, int64_t n, int threads) {
#pragma omp parallel for num_threads(threads) if (n > CONVERTED_AT_ONCE && threads > 1)
  for (int64_t i = 0; i < n; i += CONVERTED_AT_ONCE)
    narrow(y + i, x + i, n - i < CONVERTED_AT_ONCE ? n - i : CONVERTED_AT_ONCE);
}

int ms_onednn_run(const ms_kernel_call *call, void *prepared) {
  product_primitive *made = prepared;
  const void *tensor[OPERANDS] = {call->in_data[0], call->in_data[1], call->in_data[2], call->out_data[0], NULL};
  for (int i = 0; i < OPERANDS; i++) {
    if (!made->memory[i]) continue;
    void *data = made->offset[i] >= 0 ? (char *)call->workspace + made->offset[i] : (void *)tensor[i];
    if (made->offset[i] >= 0 && i < C) widen_all(data, tensor[i], made->elements[i], made->threads);
    if (dnnl_memory_set_data_handle(made->memory[i], data))
      return MS_FAIL(MS_EINTERNAL, "matmul: oneDNN refused a pointer");
  }
  if (omp_get_max_threads() != made->threads) omp_set_num_threads(made->threads);
  dnnl_status_t status =
      dnnl_primitive_execute(made->shared->primitive, made->stream, made->argument_count, made->arguments);
  if (!status) status = dnnl_stream_wait(made->stream);
  if (status) return MS_FAIL(MS_EINTERNAL, "matmul: oneDNN status %d running the primitive", (int)status);
  if (made->offset[C] >= 0)
    narrow_all(call->out_data[0], (const float *)((char *)call->workspace + made->offset[C]), made->elements[C],
               made->threads);
  return MS_OK;
}

void ms_onednn_release(void *prepared) {
  product_primitive *made = prepared;
  if (!made) return;
  for (int i = 0; i < OPERANDS; i++)
    if (made->memory[i]) dnnl_memory_destroy(made->memory[i]);
  if (made->stream) dnnl_stream_destroy(made->stream);
  ms_shared_drop(made->shared);
  free(made);
}
