/* bound_exec.h - a compiled network with its state and exec, in a world of one. */
#ifndef MS_TESTS_BOUND_EXEC_H
#define MS_TESTS_BOUND_EXEC_H

#include "tests/c/support/networks/mlp.h"

typedef struct bound {
  ms_world *world;
  ms_plan *plan;
  ms_state *state;
  ms_exec *exec;
} bound;

/* An error of before may be on record. */
static inline bound bind_with(const mlp *m, const ms_plan_config *config) {
  bound b;
  assert_int_equal(ms_world_join(NULL, &b.world), MS_OK);
  assert_int_equal(ms_plan_compile(m->graph, config, &b.plan), MS_OK);
  assert_int_equal(ms_state_new(b.world, m->model, config, 1, &b.state), MS_OK);
  assert_int_equal(ms_exec_new(b.state, b.plan, &b.exec), MS_OK);
  return b;
}

static inline bound bind_one(const mlp *m) {
  ms_plan_config config;
  assert_int_equal(ms_config_default("ms_plan_config", &config, sizeof config), MS_OK);
  return bind_with(m, &config);
}

static inline void unbind(bound *b) {
  ms_free(b->exec);
  ms_free(b->state);
  ms_free(b->plan);
  ms_free(b->world);
}

#endif
