/* graph_fixture.h - a small model for graph tests: parameters named p0, p1, ... whose shapes and dtypes the test
 * declares, and short ways to make nodes that fail the test when the engine refuses them.
 */
#ifndef MS_TESTS_GRAPH_FIXTURE_H
#define MS_TESTS_GRAPH_FIXTURE_H

#include "graph/graph.h"

#include <stdarg.h>
#include <stdio.h>

#include "tests/c/support/check.h"
#include "tests/c/support/typed_op.h"

enum { FIXTURE_PARAMS = 64 };

typedef struct fixture {
  ms_param_info param[FIXTURE_PARAMS];
  char name[FIXTURE_PARAMS][16];
  int params;
  ms_graph *graph;
} fixture;

#define SHAPE(...) \
  (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define SCALAR 0, NULL
#define ATTRS(...) \
  &(ms_op_attrs) { __VA_ARGS__ }

static inline int fixture_lookup(const void *model, int param, ms_param_info *info) {
  const fixture *f = model;
  *info = f->param[param];
  info->name = f->name[param];
  return MS_OK;
}

static inline void fixture_start(fixture *f) {
  *f = (fixture){0};
  for (int p = 0; p < FIXTURE_PARAMS; p++) snprintf(f->name[p], sizeof f->name[p], "p%d", p);
  must(ms_graph_create(f, fixture_lookup, FIXTURE_PARAMS, &f->graph));
}

static inline void fixture_end(fixture *f) { ms_free(f->graph); }

static inline ms_value_info info_of(int dtype, int ndim, const int64_t *dims) {
  ms_value_info info = {.dtype = dtype, .ndim = ndim};
  for (int d = 0; d < ndim; d++) info.dims[d] = dims[d];
  return info;
}

/* A new parameter of the model and its value. */
static inline int param(fixture *f, int dtype, int ndim, const int64_t *dims) {
  int value;
  f->param[f->params] = (ms_param_info){.info = info_of(dtype, ndim, dims), .grad_dtype = MS_F32};
  must(ms_graph_param(f->graph, f->params++, &value));
  return value;
}

static inline int input(fixture *f, const char *name, int dtype, int ndim, const int64_t *dims) {
  int value;
  must(ms_graph_input(f->graph, name, dtype, ndim, dims, -1, &value));
  return value;
}

static inline void apply(fixture *f, int op, int inputs, const int *in, const ms_op_attrs *attrs, int *out) {
  must(ms_graph_emit(f->graph, op, inputs, in, attrs, out));
}

/* Nodes of one, two and three inputs; the first output. */
static inline int op1(fixture *f, int op, int x, const ms_op_attrs *attrs) {
  int out[MS_MAX_OUTPUTS];
  apply(f, op, 1, &x, attrs, out);
  return out[0];
}

static inline int op2(fixture *f, int op, int a, int b, const ms_op_attrs *attrs) {
  int out[MS_MAX_OUTPUTS], in[] = {a, b};
  apply(f, op, 2, in, attrs, out);
  return out[0];
}

static inline int op3(fixture *f, int op, int a, int b, int c, const ms_op_attrs *attrs) {
  int out[MS_MAX_OUTPUTS], in[] = {a, b, c};
  apply(f, op, 3, in, attrs, out);
  return out[0];
}

static inline int reshape_to(fixture *f, int x, int ndim, const int64_t *dims) {
  ms_op_attrs attrs = {.shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = ndim}};
  for (int d = 0; d < ndim; d++) attrs.shape.d[d] = dims[d];
  return op1(f, MS_OP_reshape, x, &attrs);
}

/* y = x w' (+ bias unless -1), the linear layer of the models */
static inline int linear(fixture *f, int x, int w, int bias) {
  int product = op2(f, MS_OP_matmul, x, w, ATTRS(.product = {.trans_b = 1}));
  return bias < 0 ? product : op2(f, MS_OP_add, product, bias, NULL);
}

/* The sum of all elements: a loss for any value. */
static inline int sum_all(fixture *f, int x) {
  return op1(f, MS_OP_sum, x, ATTRS(.out_dtype = 1 + MS_F32, .reduce = {.all = 1}));
}

static inline const char *shape_of(const fixture *f, int value) {
  static char text[128];
  return ms_shape_text(&f->graph->values[value].info, text);
}

static inline int dtype_of(const fixture *f, int value) { return f->graph->values[value].info.dtype; }

static inline int count_op(const fixture *f, int op) {
  int n = 0;
  for (int i = 0; i < f->graph->n_nodes; i++) n += f->graph->nodes[i].op == op;
  return n;
}

/* Program order and the bookkeeping of makers hold. */
static inline void assert_well_formed(const ms_graph *graph) {
  for (int n = 0; n < graph->n_nodes; n++) {
    const ms_node *node = &graph->nodes[n];
    for (int o = 0; o < node->outputs; o++) {
      assert_int_equal(graph->values[node->out[o]].node, n);
      assert_int_equal(graph->values[node->out[o]].output, o);
    }
    for (int i = 0; i < node->inputs; i++) {
      const ms_value *value = &graph->values[node->in[i]];
      assert_true(value->node < n);
      assert_true(value->node >= 0 || value->kind != MS_VALUE_NODE);
    }
  }
  if (graph->loss >= 0)
    assert_true(graph->values[graph->loss].node >= 0 || graph->values[graph->loss].kind != MS_VALUE_NODE);
  for (int o = 0; o < graph->n_outputs; o++) {
    const ms_value *value = &graph->values[graph->outputs[o].value];
    assert_true(value->node >= 0 || value->kind != MS_VALUE_NODE);
  }
}

#endif
