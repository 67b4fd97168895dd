/* conv2d_onednn.c - convolutions and their gradients by oneDNN.
 *
 * The images are divided over the team's threads, each of which runs a single-threaded primitive (matmul_onednn.c says
 * why). A primitive chooses the formats of its operands, such as blocks of 16 channels; reorders bring tensors, which
 * are row-major, to these formats and back in the workspace, and convert bf16 where the processor multiplies only f32.
 * Every thread sums the gradient of w over its own images, in f32; these sums are then added in order, so the bits
 * depend only on shapes and the number of threads.
 *
 * Primitives are shared by all calls of equal shapes (shared.h); memory objects, which point to tensors, belong to the
 * call, and all scratch is part of its workspace.
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/conv2d.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/onednn_api.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shared.h"
#include "kernels/cpu/team.h"

enum { X, W, BIAS, Y, OPERANDS };

/* Key of a shared primitive. */
typedef struct conv_key {
  int op;
  int stored[OPERANDS];            /* dtypes of the tensors, -1: the call has no such operand */
  dnnl_data_type_t type[OPERANDS]; /* that the primitive computes with */
  ms_conv conv;                    /* of one part's images */
} conv_key;

/* Read-only after creation, because threads share it. */
typedef struct shared_conv {
  dnnl_primitive_t primitive;
  dnnl_primitive_desc_t desc;
  ms_onednn_desc tensor[OPERANDS], chosen[OPERANDS];
  dnnl_primitive_t reorder[OPERANDS]; /* between both formats; NULL: they are equal, or there is no such operand */
  dnnl_primitive_desc_t reorder_desc[OPERANDS];
} shared_conv;

/* One thread's images. A memory object is NULL where the operand has none. */
typedef struct conv_part {
  shared_conv *shared;
  dnnl_stream_t stream;
  dnnl_memory_t tensor[OPERANDS], chosen[OPERANDS], reorder_scratch[OPERANDS], scratch;
  int64_t chosen_at[OPERANDS], reorder_scratch_at[OPERANDS], scratch_at; /* byte offsets in the workspace */
  int64_t first;                                                         /* image */
} conv_part;

typedef struct prepared_conv {
  ms_conv conv;
  int result; /* the operand that the call writes */
  int parts;
  int64_t sums_at;  /* of the parts' sums of the gradient of w, f32 [parts][elements]; -1: summed where it belongs */
  conv_part part[]; /* [parts] */
} prepared_conv;

static int check(dnnl_status_t status, const char *doing, int op, const ms_conv *c) {
  if (status == dnnl_success) return MS_OK;
  return MS_FAIL(status == dnnl_out_of_memory ? MS_ENOMEM : MS_EINTERNAL,
                 "%s: oneDNN status %d %s, %lld images [%lld,%lld,%lld], %lld results, window [%lld,%lld], %lld groups",
                 op == MS_OP_conv2d ? "conv2d" : "the gradient of conv2d", (int)status, doing, (long long)c->images,
                 (long long)(c->groups * c->channels), (long long)c->down.in, (long long)c->across.in,
                 (long long)(c->groups * c->features), (long long)c->down.size, (long long)c->across.size,
                 (long long)c->groups);
}

static int result_of(int op) { return op == MS_OP_conv2d ? Y : op == MS_OP_conv2d_backward_input ? X : W; }

/* ---- the primitive ----------------------------------------------------------------------------------------------- */

typedef struct tensor_shape {
  int ndims;
  dnnl_dims_t dims, strides;
} tensor_shape;

static tensor_shape shape_of(const ms_conv *c, int operand) {
  const int64_t x[] = {c->images, c->groups * c->channels, c->down.in, c->across.in};
  const int64_t y[] = {c->images, c->groups * c->features, c->down.out, c->across.out};
  const int64_t w[] = {c->groups, c->features, c->channels, c->down.size, c->across.size};
  const int64_t bias[] = {c->groups * c->features};
  const int64_t *const dims[] = {x, w + (c->groups == 1), bias, y};
  tensor_shape s = {.ndims = operand == BIAS ? 1 : operand == W && c->groups > 1 ? 5 : 4};
  memcpy(s.dims, dims[operand], (size_t)s.ndims * sizeof *s.dims);
  for (int d = s.ndims - 1; d >= 0; d--) s.strides[d] = d == s.ndims - 1 ? 1 : s.strides[d + 1] * s.dims[d + 1];
  return s;
}

static void free_shared(void *object) {
  shared_conv *made = object;
  for (int i = 0; i < OPERANDS; i++) {
    if (made->reorder[i]) dnnl_primitive_destroy(made->reorder[i]);
    if (made->reorder_desc[i]) dnnl_primitive_desc_destroy(made->reorder_desc[i]);
    ms_desc_destroy(&made->tensor[i]);
    ms_desc_destroy(&made->chosen[i]);
  }
  if (made->primitive) dnnl_primitive_destroy(made->primitive);
  if (made->desc) dnnl_primitive_desc_destroy(made->desc);
  free(made);
}

static int make_desc(shared_conv *made, const conv_key *key, dnnl_engine_t engine,
                     const_dnnl_primitive_attr_t attributes) {
  const ms_conv *c = &key->conv;
  const dnnl_dims_t stride = {c->down.stride, c->across.stride}, pad = {c->down.pad, c->across.pad};
  const dnnl_dims_t dilation = {c->down.dilation - 1, c->across.dilation - 1};
  const int bias = key->stored[BIAS] >= 0;
  ms_onednn_desc any[OPERANDS] = {0}, forward_w = {0};
  dnnl_primitive_desc_t forward = NULL;
  int rc = MS_OK;
  for (int i = 0; i < OPERANDS; i++) {
    const tensor_shape s = shape_of(c, i);
    if (i == BIAS && !bias) continue;
    MS_GOTO(check(ms_desc_create_any(&any[i], s.ndims, s.dims, key->type[i]), "describing an operand", key->op, c));
  }
  const tensor_shape w = shape_of(c, W);
  MS_GOTO(check(ms_desc_create_any(&forward_w, w.ndims, w.dims, key->type[X]), "describing w", key->op, c));
  if (key->op != MS_OP_conv2d) /* a hint */
    MS_GOTO(check(ms_conv_desc_create(&forward, engine, MS_OP_conv2d, &any[X], &forward_w, NULL, &any[Y], stride,
                                      dilation, pad, NULL, attributes),
                  "finding the forward implementation", key->op, c));
  MS_GOTO(check(ms_conv_desc_create(&made->desc, engine, key->op, &any[X], &any[W], bias ? &any[BIAS] : NULL, &any[Y],
                                    stride, dilation, pad, forward, attributes),
                "finding an implementation", key->op, c));
fail:
  if (forward) dnnl_primitive_desc_destroy(forward);
  for (int i = 0; i < OPERANDS; i++) ms_desc_destroy(&any[i]);
  ms_desc_destroy(&forward_w);
  return rc;
}

static dnnl_query_t query_of(int op, int operand) {
  static const dnnl_query_t read[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_weights_md,
                                      dnnl_query_dst_md};
  static const dnnl_query_t gradient[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md,
                                          dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
  const int backward = op != MS_OP_conv2d;
  return backward && (operand == Y || operand == result_of(op)) ? gradient[operand] : read[operand];
}

/* The tensor, the format that the primitive has chosen, and a reorder between them where they differ. */
static int make_operand(shared_conv *made, const conv_key *key, int i, dnnl_engine_t engine,
                        const_dnnl_primitive_attr_t attributes) {
  const tensor_shape s = shape_of(&key->conv, i);
  const int written = i == result_of(key->op);
  MS_TRY(check(ms_desc_create(&made->tensor[i], s.ndims, s.dims, ms_onednn_type(key->stored[i]), s.strides),
               "describing a tensor", key->op, &key->conv));
  if (i == BIAS)
    MS_TRY(check(ms_desc_create(&made->chosen[i], s.ndims, s.dims, key->type[i], s.strides), "describing the bias",
                 key->op, &key->conv));
  else
    MS_TRY(check(ms_desc_chosen(&made->chosen[i], made->desc, query_of(key->op, i)), "reading a format", key->op,
                 &key->conv));
  if (ms_desc_equal(&made->tensor[i], &made->chosen[i])) return MS_OK;
  const ms_onednn_desc *from = written ? &made->chosen[i] : &made->tensor[i],
                       *to = written ? &made->tensor[i] : &made->chosen[i];
  MS_TRY(check(ms_reorder_desc_create(&made->reorder_desc[i], engine, from, to, attributes), "finding a reorder",
               key->op, &key->conv));
  return check(dnnl_primitive_create(&made->reorder[i], made->reorder_desc[i]), "making a reorder", key->op,
               &key->conv);
}

static int make_shared(const void *data, void **object) {
  const conv_key *key = data;
  const ms_conv *c = &key->conv;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_engine_t engine;
  int rc = MS_OK, outer_threads = omp_get_max_threads();
  MS_TRY(check(ms_onednn_engine(&engine), "making an engine", key->op, c));
  shared_conv *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  omp_set_num_threads(1); /* a primitive keeps the number of threads set at its creation */
  MS_GOTO(check(dnnl_primitive_attr_create(&attributes), "making attributes", key->op, c));
  MS_GOTO(check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "asking for scratch",
                key->op, c));
  MS_GOTO(make_desc(made, key, engine, attributes));
  MS_GOTO(check(dnnl_primitive_create(&made->primitive, made->desc), "making the primitive", key->op, c));
  for (int i = 0; i < OPERANDS; i++)
    if (key->stored[i] >= 0) MS_GOTO(make_operand(made, key, i, engine, attributes));
  *object = made;
fail:
  omp_set_num_threads(outer_threads);
  if (attributes) dnnl_primitive_attr_destroy(attributes);
  if (rc) free_shared(made);
  return rc;
}

/* ---- a part ------------------------------------------------------------------------------------------------------ */

static int64_t reserve(int64_t *workspace, int64_t bytes) {
  const int64_t offset = *workspace;
  *workspace += (bytes + 63) / 64 * 64;
  return offset;
}

static dnnl_status_t make_scratch(dnnl_memory_t *memory, const_dnnl_primitive_desc_t desc, dnnl_engine_t engine,
                                  int64_t *offset, int64_t *workspace) {
  const int64_t bytes = ms_scratchpad_bytes(desc);
  if (!bytes) return dnnl_success;
  *offset = reserve(workspace, bytes);
  return ms_scratchpad_create(memory, desc, engine);
}

static dnnl_status_t make_memories(conv_part *made, const conv_key *key, dnnl_engine_t engine, int64_t *workspace) {
  shared_conv *shared = made->shared;
  dnnl_status_t status = make_scratch(&made->scratch, shared->desc, engine, &made->scratch_at, workspace);
  for (int i = 0; i < OPERANDS && !status; i++) {
    if (key->stored[i] < 0) continue;
    status = ms_memory_create(&made->tensor[i], &shared->tensor[i], engine);
    if (status || !shared->reorder[i]) continue;
    made->chosen_at[i] = reserve(workspace, ms_desc_bytes(&shared->chosen[i]));
    status = ms_memory_create(&made->chosen[i], &shared->chosen[i], engine);
    if (!status)
      status = make_scratch(&made->reorder_scratch[i], shared->reorder_desc[i], engine, &made->reorder_scratch_at[i],
                            workspace);
  }
  return status ? status : dnnl_stream_create(&made->stream, engine, dnnl_stream_default_flags);
}

static int make_part(conv_part *made, const conv_key *key, int64_t first, int64_t *workspace) {
  dnnl_engine_t engine;
  void *shared;
  MS_TRY(ms_shared_take(make_shared, free_shared, key, sizeof *key, &shared));
  made->shared = shared;
  made->first = first;
  MS_TRY(check(ms_onednn_engine(&engine), "making an engine", key->op, &key->conv));
  return check(make_memories(made, key, engine, workspace), "making memory objects", key->op, &key->conv);
}

static void free_part(conv_part *made) {
  dnnl_memory_t *const lists[] = {made->tensor, made->chosen, made->reorder_scratch};
  for (int list = 0; list < 3; list++)
    for (int i = 0; i < OPERANDS; i++)
      if (lists[list][i]) dnnl_memory_destroy(lists[list][i]);
  if (made->scratch) dnnl_memory_destroy(made->scratch);
  if (made->stream) dnnl_stream_destroy(made->stream);
  ms_shared_drop(made->shared);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Smaller parts cost more than they save. */
enum { OPERATIONS_PER_PART = 1 << 20 };

static int64_t weights_of(const ms_conv *c) {
  return c->groups * c->features * c->channels * c->down.size * c->across.size;
}

static int count_parts(const ms_conv *c, int threads) {
  const int64_t each_image = weights_of(c) * c->down.out * c->across.out;
  int64_t parts = each_image > OPERATIONS_PER_PART ? c->images : c->images * each_image / OPERATIONS_PER_PART;
  if (parts > c->images) parts = c->images;
  return parts < 1 ? 1 : parts < threads ? (int)parts : threads;
}

/* sums_f32: the gradient of w is summed in the workspace. */
static void set_dtypes(conv_key *key, const ms_kernel_call *call, int sums_f32) {
  const int op = call->op, dtype = call->in[0].dtype, narrow = dtype == MS_BF16 && ms_onednn_multiplies_bf16();
  for (int i = 0; i < OPERANDS; i++) {
    key->stored[i] = i == BIAS && (op != MS_OP_conv2d || call->inputs < 3) ? -1 : dtype;
    key->type[i] = narrow ? dnnl_bf16 : dnnl_f32;
  }
  if (op != MS_OP_conv2d_backward_weight) return;
  key->type[W] = dnnl_f32;
  key->stored[W] = sums_f32 ? MS_F32 : call->out[0].dtype;
}

int ms_conv_onednn_prepare(ms_kernel_call *call, const ms_conv *conv, void **prepared) {
  conv_key key;
  int64_t workspace = 0;
  int rc = MS_OK;
  const int parts = count_parts(conv, call->threads);
  prepared_conv *made = ms_calloc(1, (int64_t)sizeof *made + parts * (int64_t)sizeof *made->part);
  if (!made) return MS_ENOMEM;
  made->conv = *conv;
  made->result = result_of(call->op);
  made->parts = parts;
  made->sums_at =
      made->result == W && parts > 1 ? reserve(&workspace, parts * weights_of(conv) * (int64_t)sizeof(float)) : -1;
  memset(&key, 0, sizeof key);
  key.op = call->op;
  memcpy(&key.conv, conv, sizeof *conv);
  set_dtypes(&key, call, made->sums_at >= 0);
  for (int p = 0; p < parts; p++) {
    const int64_t first = conv->images * p / parts;
    key.conv.images = conv->images * (p + 1) / parts - first;
    MS_GOTO(make_part(&made->part[p], &key, first, &workspace));
  }
  call->workspace_bytes = workspace;
  *prepared = made;
fail:
  if (rc) ms_conv_onednn_release(made);
  return rc;
}

void ms_conv_onednn_release(void *prepared) {
  prepared_conv *made = prepared;
  if (!made) return;
  for (int p = 0; p < made->parts; p++) free_part(&made->part[p]);
  free(made);
}

typedef struct execution {
  const ms_kernel_call *call;
  prepared_conv *made;
  _Atomic int status; /* a dnnl_status_t: the last failure of any thread */
} execution;

/* Where the part's images of an operand are. */
static char *tensor_of(const execution *all, int part, int operand) {
  const ms_kernel_call *call = all->call;
  const ms_conv *c = &all->made->conv;
  const int op = call->op, backward = op != MS_OP_conv2d, result = all->made->result;
  const int64_t first = all->made->part[part].first, size = ms_dtype_size(call->in[0].dtype);
  const int64_t x = first * c->groups * c->channels * c->down.in * c->across.in * size;
  const int64_t y = first * c->groups * c->features * c->down.out * c->across.out * size;
  const int64_t offset = operand == X ? x : operand == Y ? y : 0;
  if (operand == result && all->made->sums_at >= 0)
    return (char *)call->workspace + all->made->sums_at + part * weights_of(c) * (int64_t)sizeof(float);
  if (operand == result) return (char *)call->out_data[0] + offset;
  const int input = operand == BIAS ? 2 : !backward ? operand : operand == Y ? result == W : result == X;
  return (char *)call->in_data[input] + offset;
}

static int argument_of(int op, int operand) {
  static const int read[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
  static const int gradient[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST};
  return op != MS_OP_conv2d && (operand == Y || operand == result_of(op)) ? gradient[operand] : read[operand];
}

static dnnl_status_t reorder(const conv_part *mine, int i, int back) {
  const dnnl_memory_t from = back ? mine->chosen[i] : mine->tensor[i], to = back ? mine->tensor[i] : mine->chosen[i];
  const dnnl_exec_arg_t arguments[] = {
      {DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, mine->reorder_scratch[i]}};
  return dnnl_primitive_execute(mine->shared->reorder[i], mine->stream, mine->reorder_scratch[i] ? 3 : 2, arguments);
}

/* Points the part's memory objects at tensors and workspace. */
static dnnl_status_t point(const execution *all, const conv_part *mine, int part) {
  char *workspace = all->call->workspace;
  dnnl_status_t status = dnnl_success;
  if (mine->scratch) status = dnnl_memory_set_data_handle(mine->scratch, workspace + mine->scratch_at);
  for (int i = 0; i < OPERANDS && !status; i++) {
    if (mine->tensor[i]) status = dnnl_memory_set_data_handle(mine->tensor[i], tensor_of(all, part, i));
    if (mine->chosen[i] && !status)
      status = dnnl_memory_set_data_handle(mine->chosen[i], workspace + mine->chosen_at[i]);
    if (mine->reorder_scratch[i] && !status)
      status = dnnl_memory_set_data_handle(mine->reorder_scratch[i], workspace + mine->reorder_scratch_at[i]);
  }
  return status;
}

static void run_part(void *context, int part) {
  execution *all = context;
  const conv_part *mine = &all->made->part[part];
  const int result = all->made->result;
  dnnl_exec_arg_t arguments[OPERANDS + 1];
  int count = 0;
  if (omp_get_max_threads() != 1) omp_set_num_threads(1); /* this thread's setting only */
  dnnl_status_t status = point(all, mine, part);
  for (int i = 0; i < OPERANDS; i++) {
    if (!mine->tensor[i]) continue;
    if (mine->chosen[i] && i != result && !status) status = reorder(mine, i, 0);
    arguments[count++] =
        (dnnl_exec_arg_t){argument_of(all->call->op, i), mine->chosen[i] ? mine->chosen[i] : mine->tensor[i]};
  }
  if (mine->scratch) arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, mine->scratch};
  if (!status) status = dnnl_primitive_execute(mine->shared->primitive, mine->stream, count, arguments);
  if (!status && mine->chosen[result]) status = reorder(mine, result, 1);
  if (!status) status = dnnl_stream_wait(mine->stream);
  if (status) all->status = (int)status;
}

/* Adds the parts' sums of the gradient of w in order. */
MS_CLONES static void add_sums(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const prepared_conv *made = call->prepared;
  const int64_t elements = weights_of(&made->conv);
  const float *sums = (const float *)((const char *)call->workspace + made->sums_at);
  MS_BLOCK_BUFFER(total);
  (void)part;
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    const int64_t n = ms_block_length(first, end);
    float *to = ms_block_out(call->out_data[0], call->out[0].dtype, first, total);
    ms_block_fill(to, 0.0f, n);
    for (int p = 0; p < made->parts; p++) {
      const float *from = sums + p * elements + first;
#pragma omp simd
      for (int64_t e = 0; e < n; e++) to[e] += from[e];
    }
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, to);
  }
}

int ms_conv_onednn_run(const ms_kernel_call *call, void *prepared) {
  prepared_conv *made = prepared;
  const int outer_threads = omp_get_max_threads(); /* the application's setting, restored below */
  execution all = {.call = call, .made = made};
  ms_team_run(made->parts, run_part, &all);
  if (outer_threads != 1) omp_set_num_threads(outer_threads);
  if (all.status) return check((dnnl_status_t)all.status, "running the primitive", call->op, &made->conv);
  return made->sums_at >= 0 ? ms_run_elements(call, weights_of(&made->conv), add_sums) : MS_OK;
}
