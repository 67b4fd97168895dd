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

#include "kernels/cpu/windows/conv2d_onednn.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/shared.h"
#include "kernels/cpu/team.h"

/* One thread's images. A memory object is NULL where the operand has none. */
typedef struct conv_part {
  ms_conv_primitive *shared;
  dnnl_stream_t stream;
  dnnl_memory_t tensor[MS_CONV_OPERANDS], chosen[MS_CONV_OPERANDS], reorder_scratch[MS_CONV_OPERANDS], scratch;
  int64_t chosen_at[MS_CONV_OPERANDS], reorder_scratch_at[MS_CONV_OPERANDS]; /* byte offsets in the workspace */
  int64_t scratch_at, first;                                                 /* first: image */
} conv_part;

typedef struct prepared_conv {
  ms_conv conv;
  int result; /* the operand that the call writes */
  int parts;
  int64_t sums_at;  /* of the parts' sums of the gradient of w, f32 [parts][elements]; -1: summed where it belongs */
  conv_part part[]; /* [parts] */
} prepared_conv;

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

static dnnl_status_t make_memories(conv_part *made, const ms_conv_key *key, dnnl_engine_t engine, int64_t *workspace) {
  ms_conv_primitive *shared = made->shared;
  dnnl_status_t status = make_scratch(&made->scratch, shared->desc, engine, &made->scratch_at, workspace);
  for (int i = 0; i < MS_CONV_OPERANDS && !status; i++) {
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

static int make_part(conv_part *made, const ms_conv_key *key, int64_t first, int64_t *workspace) {
  dnnl_engine_t engine;
  MS_TRY(ms_conv_primitive_take(key, &made->shared));
  made->first = first;
  MS_TRY(ms_conv_check(ms_onednn_engine(&engine), "making an engine", key->op, &key->conv));
  return ms_conv_check(make_memories(made, key, engine, workspace), "making memory objects", key->op, &key->conv);
}

static void free_part(conv_part *made) {
  dnnl_memory_t *const lists[] = {made->tensor, made->chosen, made->reorder_scratch};
  for (int list = 0; list < 3; list++)
    for (int i = 0; i < MS_CONV_OPERANDS; i++)
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
static void set_dtypes(ms_conv_key *key, const ms_kernel_call *call, int sums_f32) {
  const int op = call->op, dtype = call->in[0].dtype, narrow = dtype == MS_BF16 && ms_onednn_multiplies_bf16();
  for (int i = 0; i < MS_CONV_OPERANDS; i++) {
    key->stored[i] = i == MS_CONV_BIAS && (op != MS_OP_conv2d || call->inputs < 3) ? -1 : dtype;
    key->type[i] = narrow ? dnnl_bf16 : dnnl_f32;
  }
  if (op != MS_OP_conv2d_backward_weight) return;
  key->type[MS_CONV_W] = dnnl_f32;
  key->stored[MS_CONV_W] = sums_f32 ? MS_F32 : call->out[0].dtype;
}

int ms_conv_onednn_prepare(ms_kernel_call *call, const ms_conv *conv, void **prepared) {
  ms_conv_key key;
  int64_t workspace = 0;
  int rc = MS_OK;
  const int parts = count_parts(conv, call->threads);
  prepared_conv *made = ms_calloc(1, (int64_t)sizeof *made + parts * (int64_t)sizeof *made->part);
  if (!made) return MS_ENOMEM;
  made->conv = *conv;
  made->result = ms_conv_result_of(call->op);
  made->parts = parts;
  made->sums_at = made->result == MS_CONV_W && parts > 1
                      ? reserve(&workspace, parts * weights_of(conv) * (int64_t)sizeof(float))
                      : -1;
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
  const int64_t offset = operand == MS_CONV_X ? x : operand == MS_CONV_Y ? y : 0;
  if (operand == result && all->made->sums_at >= 0)
    return (char *)call->workspace + all->made->sums_at + part * weights_of(c) * (int64_t)sizeof(float);
  if (operand == result) return (char *)call->out_data[0] + offset;
  const int input = operand == MS_CONV_BIAS ? 2
                    : !backward             ? operand
                    : operand == MS_CONV_Y  ? result == MS_CONV_W
                                            : result == MS_CONV_X;
  return (char *)call->in_data[input] + offset;
}

static int argument_of(int op, int operand) {
  static const int read[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST};
  static const int gradient[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST};
  return op != MS_OP_conv2d && (operand == MS_CONV_Y || operand == ms_conv_result_of(op)) ? gradient[operand]
                                                                                          : read[operand];
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
  for (int i = 0; i < MS_CONV_OPERANDS && !status; i++) {
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
  dnnl_exec_arg_t arguments[MS_CONV_OPERANDS + 1];
  int count = 0;
  if (omp_get_max_threads() != 1) omp_set_num_threads(1); /* this thread's setting only */
  dnnl_status_t status = point(all, mine, part);
  for (int i = 0; i < MS_CONV_OPERANDS; i++) {
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

/* 1 when no output of an axis sees an input by a tap: it only ever meets padding. */
static int meets_padding(const ms_window *w, int64_t tap) {
  int64_t first, end;
  ms_window_outputs_of(w, tap, &first, &end);
  return first == end;
}

/* The gradients of such taps, which primitives for bf16 leave as they were. */
static void clear_taps(const ms_kernel_call *call, const ms_conv *c) {
  const int64_t rows = c->down.size, columns = c->across.size, size = ms_dtype_size(call->out[0].dtype);
  for (int64_t tap = 0; tap < rows * columns; tap++) {
    char *to = (char *)call->out_data[0] + tap * size;
    if (!meets_padding(&c->down, tap / columns) && !meets_padding(&c->across, tap % columns)) continue;
    for (int64_t w = weights_of(c); w > 0; w -= rows * columns, to += rows * columns * size)
      memset(to, 0, (size_t)size);
  }
}

int ms_conv_onednn_run(const ms_kernel_call *call, void *prepared) {
  prepared_conv *made = prepared;
  const int outer_threads = omp_get_max_threads(); /* the application's setting, restored below */
  execution all = {.call = call, .made = made};
  ms_team_run(made->parts, run_part, &all);
  if (outer_threads != 1) omp_set_num_threads(outer_threads);
  if (all.status) return ms_conv_check((dnnl_status_t)all.status, "running the primitive", call->op, &made->conv);
  if (made->sums_at >= 0) MS_TRY(ms_run_elements(call, weights_of(&made->conv), add_sums));
  if (made->result == MS_CONV_W) clear_taps(call, &made->conv);
  return MS_OK;
}
