/* attention_case.h - cases of attention and of its gradient, from a shape. */
#ifndef MS_TESTS_ATTENTION_CASE_H
#define MS_TESTS_ATTENTION_CASE_H

#include "tests/c/support/kernel_case.h"

typedef struct shape_of_attention {
  int64_t b, t, s, h, g, d;
  int causal;
  double scale; /* 0: 1 / sqrt(d) */
  int64_t window;
  double softcap;
  int64_t e; /* columns of values and results; 0: d */
  int64_t prefix;
} attention_shape;

enum { Q, K, V, O, LSE, DO };

static int64_t value_columns(const attention_shape *a) { return a->e ? a->e : a->d; }

static void add_qkv(kernel_case *c, const attention_shape *a, int dtype) {
  c->call.attrs.attention.causal = a->causal;
  c->call.attrs.attention.window = a->window;
  c->call.attrs.attention.prefix = a->prefix;
  c->call.attrs.attention.scale = a->scale;
  c->call.attrs.attention.softcap = a->softcap;
  add_input(c, SHAPE(dtype, a->b, a->t, a->h, a->d));
  add_input(c, SHAPE(dtype, a->b, a->s, a->g, a->d));
  add_input(c, SHAPE(dtype, a->b, a->s, a->g, value_columns(a)));
}

static kernel_case forward_case(const attention_shape *a, int dtype) {
  kernel_case c = case_of(MS_OP_attention);
  add_qkv(&c, a, dtype);
  add_output(&c, SHAPE(dtype, a->b, a->t, a->h, value_columns(a)));
  add_output(&c, SHAPE(MS_F32, a->b, a->h, a->t));
  return c;
}

/* Forward's inputs and results, and a random gradient of o. */
static kernel_case backward_case(const attention_shape *a, int dtype) {
  kernel_case forward = forward_case(a, dtype), c = case_of(MS_OP_attention_backward);
  run_once(&forward, forward.call, 1);
  add_qkv(&c, a, dtype);
  add_input(&c, forward.call.out[0]);
  add_input(&c, forward.call.out[1]);
  add_input(&c, forward.call.out[0]);
  for (int i = Q; i <= V; i++)
    memcpy((void *)c.call.in_data[i], forward.call.in_data[i], (size_t)tensor_bytes(&c.call.in[i]));
  for (int i = 0; i < 2; i++)
    memcpy((void *)c.call.in_data[O + i], forward.call.out_data[i], (size_t)tensor_bytes(&c.call.in[O + i]));
  for (int i = 0; i < 3; i++) add_output(&c, c.call.in[i]);
  free_case(&forward);
  return c;
}

#endif
