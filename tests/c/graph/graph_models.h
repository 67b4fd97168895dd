/* graph_models.h - GPT-2-like and Llama-like language models, written op by op as the recipes' layers do: linear layers
 * as x w' + b, additions and activations apart, so that every rewrite has something to find.
 */
#ifndef MS_TESTS_GRAPH_MODELS_H
#define MS_TESTS_GRAPH_MODELS_H

#include "tests/c/graph/graph_fixture.h"

typedef struct model_shape {
  int64_t batch, seq, vocab, dim, heads, kv_heads, hidden;
  int layers, dtype;
  double dropout;
} model_shape;

static inline int weights(fixture *f, const model_shape *m, int64_t rows, int64_t columns) {
  return param(f, m->dtype, SHAPE(rows, columns));
}

static inline int channels(fixture *f, const model_shape *m, int64_t n) { return param(f, m->dtype, SHAPE(n)); }

static inline int layer_norm(fixture *f, const model_shape *m, int x) {
  int gain = channels(f, m, m->dim), bias = channels(f, m, m->dim);
  return op3(f, MS_OP_layer_norm, x, gain, bias, NULL);
}

static inline int rms_norm(fixture *f, const model_shape *m, int x) {
  return op2(f, MS_OP_rms_norm, x, channels(f, m, m->dim), NULL);
}

static inline int dense(fixture *f, const model_shape *m, int x, int64_t from, int64_t to, int biased) {
  int w = weights(f, m, to, from);
  return linear(f, x, w, biased ? channels(f, m, to) : -1);
}

static inline int drop(fixture *f, const model_shape *m, int x) {
  int out;
  ms_op_attrs attrs = {.mask = {.p = m->dropout}};
  if (m->dropout == 0) return x;
  must(typed_op(f->graph, "dropout", 1, &x, &attrs, &out));
  return out;
}

static inline int heads_of(fixture *f, const model_shape *m, int x, int64_t heads) {
  return reshape_to(f, x, SHAPE(m->batch, m->seq, heads, -1));
}

/* One projection to 3 dim, cut in q, k and v. */
static inline int gpt_attention(fixture *f, const model_shape *m, int x) {
  int qkv = dense(f, m, x, m->dim, 3 * m->dim, 1), part[3], out[MS_MAX_OUTPUTS];
  for (int i = 0; i < 3; i++) {
    ms_op_attrs cut = {.cut = {.axis = 2, .start = i * m->dim, .stop = (i + 1) * m->dim}};
    part[i] = heads_of(f, m, op1(f, MS_OP_slice, qkv, &cut), m->heads);
  }
  apply(f, MS_OP_attention, 3, part, NULL, out);
  return dense(f, m, reshape_to(f, out[0], SHAPE(m->batch, m->seq, -1)), m->dim, m->dim, 1);
}

static inline int gpt_block(fixture *f, const model_shape *m, int x) {
  x = op2(f, MS_OP_add, x, drop(f, m, gpt_attention(f, m, layer_norm(f, m, x))), NULL);
  int h = dense(f, m, layer_norm(f, m, x), m->dim, m->hidden, 1);
  h = dense(f, m, op1(f, MS_OP_gelu, h, NULL), m->hidden, m->dim, 1);
  return op2(f, MS_OP_add, x, drop(f, m, h), NULL);
}

static inline int llama_block(fixture *f, const model_shape *m, int x) {
  int h = rms_norm(f, m, x), out[MS_MAX_OUTPUTS];
  int64_t kv = m->dim / m->heads * m->kv_heads;
  int q = op1(f, MS_OP_rope, heads_of(f, m, dense(f, m, h, m->dim, m->dim, 0), m->heads), NULL);
  int k = op1(f, MS_OP_rope, heads_of(f, m, dense(f, m, h, m->dim, kv, 0), m->kv_heads), NULL);
  int v = heads_of(f, m, dense(f, m, h, m->dim, kv, 0), m->kv_heads);
  apply(f, MS_OP_attention, 3, (int[]){q, k, v}, NULL, out);
  h = dense(f, m, reshape_to(f, out[0], SHAPE(m->batch, m->seq, -1)), m->dim, m->dim, 0);
  x = op2(f, MS_OP_add, x, h, NULL);
  h = rms_norm(f, m, x);
  int gate = op1(f, MS_OP_silu, dense(f, m, h, m->dim, m->hidden, 0), NULL), up = dense(f, m, h, m->dim, m->hidden, 0);
  return op2(f, MS_OP_add, x, dense(f, m, op2(f, MS_OP_mul, gate, up, NULL), m->hidden, m->dim, 0), NULL);
}

static inline void language_model_loss(fixture *f, const model_shape *m, int x, int head) {
  int out[MS_MAX_OUTPUTS], logits = linear(f, x, head, -1);
  int targets = input(f, "targets", MS_I32, SHAPE(m->batch, m->seq));
  apply(f, MS_OP_cross_entropy, 2, (int[]){logits, targets}, NULL, out);
  must(ms_graph_output(f->graph, "logits", logits));
  must(ms_graph_set_loss(f->graph, out[0], -1));
}

/* The head is the embedding's transpose. */
static inline void gpt_model(fixture *f, const model_shape *m) {
  int tokens = input(f, "tokens", MS_I32, SHAPE(m->batch, m->seq)), embed = weights(f, m, m->vocab, m->dim);
  int x = op2(f, MS_OP_embedding, embed, tokens, NULL);
  x = drop(f, m, op2(f, MS_OP_add, x, weights(f, m, m->seq, m->dim), NULL));
  for (int i = 0; i < m->layers; i++) {
    char scope[32];
    snprintf(scope, sizeof scope, "layers.%d", i);
    must(ms_graph_set_scope(f->graph, scope));
    x = gpt_block(f, m, x);
  }
  must(ms_graph_set_scope(f->graph, ""));
  language_model_loss(f, m, layer_norm(f, m, x), embed);
}

static inline void llama_model(fixture *f, const model_shape *m) {
  int tokens = input(f, "tokens", MS_I32, SHAPE(m->batch, m->seq));
  int x = op2(f, MS_OP_embedding, weights(f, m, m->vocab, m->dim), tokens, NULL);
  for (int i = 0; i < m->layers; i++) x = llama_block(f, m, x);
  language_model_loss(f, m, rms_norm(f, m, x), weights(f, m, m->vocab, m->dim));
}

#endif
