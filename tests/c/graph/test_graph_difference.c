/* test_graph_difference.c - what ms_graph_difference says of two traces of a function, and the bytes of graphs and
 * execs, by the public header.
 */
#include "tests/c/support/networks/planned.h"

static ms_model *model;

/* How two traces can differ. */
typedef struct trace {
  double alpha;
  int axis, rows;
  const char *op, *scope;
  int more; /* ops */
} trace;

static const trace plain = {.alpha = 1, .axis = 0, .rows = 4, .op = "relu", .scope = "layers.3"};

static ms_graph *traced(trace t) {
  ms_graph *graph;
  int x, y;
  must(ms_graph_new(model, &graph));
  must(ms_graph_input(graph, "x", MS_F32, 2, (int64_t[]){t.rows, 3}, -1, &x));
  must(ms_graph_set_scope(graph, t.scope));
  char attrs[64];
  snprintf(attrs, sizeof attrs, "alpha=%.17g", t.alpha);
  must(ms_graph_op(graph, "scale", 1, &x, attrs, &y));
  must(ms_graph_op(graph, t.op, 1, &y, NULL, &y));
  snprintf(attrs, sizeof attrs, "axis=%d stop=2", t.axis);
  must(ms_graph_op(graph, "slice", 1, &y, attrs, &y));
  for (int i = 0; i < t.more; i++) must(ms_graph_op(graph, "relu", 1, &y, NULL, &y));
  must(ms_graph_output(graph, "y", y));
  return graph;
}

static void says(trace now, const char *facts) {
  ms_graph *before = traced(plain), *after = traced(now);
  const char *text;
  must(ms_graph_difference(after, before, &text));
  if (facts) assert_has(text, facts);
  else assert_string_equal(text, "");
  ms_free(before);
  ms_free(after);
}

static void what_first_differs_is_named(void **state) {
  (void)state;
  must(ms_model_new(0, &model));
  trace t = plain;
  says(t, NULL);
  t.alpha = 0.25;
  says(t, "scale | layers.3 | alpha | 1 | 0.25");
  t = plain;
  t.axis = 1;
  says(t, "slice | layers.3 | axis | 0 | 1");
  t = plain;
  t.op = "abs";
  says(t, "relu | layers.3 | abs");
  t.scope = ""; /* of the root */
  says(t, "scale | layers.3 | root");
  t = plain;
  t.rows = 8;
  says(t, "x | f32 [4,3] | f32 [8,3]");
  t = plain;
  t.more = 2;
  says(t, "3 ops | 5");
  ms_graph *graph = traced(plain);
  const char *text;
  assert_fails(ms_graph_difference(NULL, graph, &text), MS_EINVAL, "graph is NULL");
  assert_fails(ms_graph_difference(graph, NULL, &text), MS_EINVAL, "before is NULL");
  assert_fails(ms_graph_difference(graph, graph, NULL), MS_EINVAL, "difference is NULL");
  ms_free(graph);
  ms_free(model);
}

static void bytes_grow_with_what_is_kept(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0), longer = c;
  ms_plan_config config = planned_config();
  longer.blocks = 4 * c.blocks;
  mlp net = mlp_make(&c), more = mlp_make(&longer);
  int64_t traced_bytes, compiled_bytes, of_more;
  ms_plan *plan;
  must(ms_graph_host_bytes(net.graph, &traced_bytes));
  must(ms_graph_host_bytes(more.graph, &of_more));
  assert_true(of_more > traced_bytes && traced_bytes > 0);
  must(ms_plan_compile(net.graph, &config, &plan));
  must(ms_graph_host_bytes(net.graph, &compiled_bytes));
  assert_true(compiled_bytes > 2 * traced_bytes); /* graphs for training and for evaluation */
  assert_fails(ms_graph_host_bytes(net.graph, NULL), MS_EINVAL, "bytes is NULL");
  ms_free(plan);
  mlp_free(&net);
  mlp_free(&more);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_first_differs_is_named),
      cmocka_unit_test(bytes_grow_with_what_is_kept),
  };
  return cmocka_run_group_tests_name("graph difference", tests, NULL, NULL);
}
