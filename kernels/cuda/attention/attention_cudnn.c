/* attention_cudnn.c - attention by a plan of cuDNN (cudnn_graph.h), in the workspace that a call has requested
 * (plan/products/attention.c). */
#include "kernels/cuda/attention/attention_cudnn.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/workspace.h"

enum { WRONG_KEYS = 128, WRONG_UNTIL = 91500 };

struct ms_attention_cudnn {
  ms_dnn_attention attention;
  ms_dnn_handle handle;
  ms_dnn_graph graph;
  float scale, hidden, one;
  int32_t keys, queries;
};

/* Rejects backward calls that cuDNN up to 9.15.0 computes wrongly. */
static int is_right(const ms_cudnn *dnn, const ms_dnn_attention *a, char why[MS_LIBRARY_WHY_BYTES]) {
  const size_t version = dnn->get_version();
  if (!a->backward || a->s % WRONG_KEYS == 0 || version > WRONG_UNTIL) return 1;
  snprintf(why, MS_LIBRARY_WHY_BYTES,
           "%.512s is cuDNN %zu.%zu, whose attention gradient needs a multiple of %d keys; there are %lld",
           ms_library_path(&ms_cudnn_library), version / 10000, version / 100 % 100, (int)WRONG_KEYS, (long long)a->s);
  return 0;
}

/* Writes that the library's preferred plan was skipped because it needs more workspace than `reserved` bytes. */
static void explain_skipped(const ms_attention_cudnn *m, int64_t reserved, char why[MS_LIBRARY_WHY_BYTES]) {
  const ms_dnn_attention *a = &m->attention;
  snprintf(why, MS_LIBRARY_WHY_BYTES,
           "%.512s: its plan for the %s of attention of %lld heads of %lld over %lld positions needs %lld bytes of "
           "workspace, and %lld are reserved (MOONSHARD_CUDNN_WORKSPACE=%lld reserves them)",
           ms_library_path(&ms_cudnn_library), a->backward ? "gradient" : "result", (long long)a->heads,
           (long long)a->d, (long long)a->s, (long long)m->graph.preferred_bytes, (long long)reserved,
           (long long)m->graph.preferred_bytes);
}

int ms_attention_cudnn_new(const ms_dnn_attention *attention, float scale, ms_attention_cudnn **out,
                           char why[MS_LIBRARY_WHY_BYTES]) {
  int found = 0;
  *out = NULL;
  const ms_cudnn *dnn = ms_handles_load(&ms_cudnn_handles, why);
  if (!dnn || !is_right(dnn, attention, why)) return MS_OK;
  ms_attention_cudnn *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->attention = *attention;
  made->scale = scale;
  made->hidden = -FLT_MAX;
  made->one = 1.0f;
  made->keys = (int32_t)attention->s;
  made->queries = (int32_t)attention->t;
  int64_t reserved = 0;
  int rc = ms_attention_cudnn_library(attention, &reserved);
  if (!rc) rc = ms_handles_take(&ms_cudnn_handles, &made->handle);
  if (!rc) rc = ms_dnn_open(dnn, made->handle, attention, reserved, &made->graph, &found);
  const int skipped = made->graph.preferred_bytes > reserved;
  if (skipped) explain_skipped(made, reserved, why);
  if (!rc && found) {
    if (skipped) ms_note("%s; another of its plans is used", why);
    *out = made;
    return MS_OK;
  }
  if (!skipped)
    snprintf(why, MS_LIBRARY_WHY_BYTES, "%.512s has no plan for attention of %lld heads of %lld over %lld positions",
             ms_library_path(&ms_cudnn_library), (long long)attention->heads, (long long)attention->d,
             (long long)attention->s);
  ms_attention_cudnn_free(made);
  return rc;
}

void ms_attention_cudnn_free(ms_attention_cudnn *attention) {
  if (!attention) return;
  if (attention->graph.plan) ms_dnn_close(&attention->graph);
  ms_handles_drop(&ms_cudnn_handles, attention->handle);
  free(attention);
}

typedef struct operands {
  int64_t id[MS_DNN_IDS];
  const void *data[MS_DNN_IDS];
  int count;
} operands;

static void give(operands *o, int64_t id, const void *data) {
  o->id[o->count] = id;
  o->data[o->count++] = data;
}

static operands operands_of(const ms_attention_cudnn *m, const ms_kernel_call *call) {
  operands o = {.count = 0};
  const int forward[] = {MS_DNN_Q, MS_DNN_K, MS_DNN_V},
            backward[] = {MS_DNN_Q, MS_DNN_K, MS_DNN_V, MS_DNN_O, MS_DNN_LSE, MS_DNN_DO};
  const int made_forward[] = {MS_DNN_O, MS_DNN_LSE}, made_backward[] = {MS_DNN_DQ, MS_DNN_DK, MS_DNN_DV};
  const int *in = m->attention.backward ? backward : forward, inputs = m->attention.backward ? 6 : 3;
  const int *out = m->attention.backward ? made_backward : made_forward, outputs = m->attention.backward ? 3 : 2;
  for (int i = 0; i < inputs; i++) give(&o, in[i], call->in_data[i]);
  for (int i = 0; i < outputs; i++) give(&o, out[i], call->out_data[i]);
  give(&o, MS_DNN_SCALE, &m->scale);
  if (m->attention.causal) give(&o, MS_DNN_HIDDEN, &m->hidden);
  if (m->attention.causal && m->attention.t != m->attention.s) {
    give(&o, MS_DNN_KEYS, &m->keys);
    give(&o, MS_DNN_QUERIES, &m->queries);
  }
  if (!m->attention.backward) return o;
  give(&o, MS_DNN_ONE, &m->one);
  give(&o, MS_DNN_DELTA, ms_library_workspace(call->workspace));
  give(&o, MS_DNN_SUMS, ms_library_workspace(call->workspace) + ms_attention_cudnn_delta(&m->attention));
  return o;
}

int ms_attention_cudnn_run(const ms_attention_cudnn *m, const ms_kernel_call *call) {
  const ms_cudnn *dnn = m->graph.dnn;
  const operands o = operands_of(m, call);
  void *rest = ms_library_workspace(call->workspace) + ms_attention_cudnn_delta(&m->attention) +
               ms_attention_cudnn_sums(&m->attention);
  ms_dnn_descriptor pack;
  MS_TRY(MS_CUDNN(dnn, descriptor_create, MS_DNN_VARIANT_PACK, &pack));
  int rc = MS_CUDNN(dnn, descriptor_set, pack, MS_DNN_PACK_IDS, MS_DNN_OF_INT64, o.count, o.id);
  if (!rc) rc = MS_CUDNN(dnn, descriptor_set, pack, MS_DNN_PACK_POINTERS, MS_DNN_OF_POINTER, o.count, o.data);
  if (!rc) rc = MS_CUDNN(dnn, descriptor_set, pack, MS_DNN_PACK_WORKSPACE, MS_DNN_OF_POINTER, 1, &rest);
  if (!rc) rc = MS_CUDNN(dnn, descriptor_finalize, pack);
  if (!rc) rc = ms_cudnn_execute(m->handle, call->stream, m->graph.plan, pack);
  (void)dnn->descriptor_destroy(pack);
  return rc;
}
