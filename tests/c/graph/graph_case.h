/* graph_case.h - tests on one small graph that is made anew for each of them: f, and what is asked of it. */
#ifndef MS_TESTS_GRAPH_CASE_H
#define MS_TESTS_GRAPH_CASE_H

#include "tests/c/graph/graph_fixture.h"

static fixture f;

static inline int start_graph(void **state) {
  start_without_error(state);
  fixture_start(&f);
  return 0;
}

static inline int end_graph(void **state) {
  (void)state;
  fixture_end(&f);
  return 0;
}

/* A test that finds f empty. */
#define CASE(name) cmocka_unit_test_setup_teardown(name, start_graph, end_graph)

/* The node that computes a value. */
static inline const ms_node *maker(int value) {
  assert_true(value >= 0 && f.graph->values[value].node >= 0);
  return &f.graph->nodes[f.graph->values[value].node];
}

#endif
