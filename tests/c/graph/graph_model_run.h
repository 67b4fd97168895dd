/* graph_model_run.h - a small model's graph with numbers in it, so that two ways to make a graph can be compared: the
 * parameters depend on their index alone.
 */
#ifndef MS_TESTS_GRAPH_MODEL_RUN_H
#define MS_TESTS_GRAPH_MODEL_RUN_H

#include "tests/c/graph/graph_interpreter.h"
#include "tests/c/graph/graph_models.h"

static const model_shape gpt = {
    .batch = 2, .seq = 12, .vocab = 17, .dim = 32, .heads = 4, .kv_heads = 4, .hidden = 64, .layers = 2};
static const model_shape llama = {
    .batch = 2, .seq = 12, .vocab = 17, .dim = 32, .heads = 4, .kv_heads = 2, .hidden = 48, .layers = 2};

typedef void (*model_fn)(fixture *, const model_shape *);

typedef struct run {
  fixture f;
  interpreter it;
} run;

/* Parameters and inputs of the finished graph r->f.graph. */
static inline void run_draw(run *r, const model_shape *shape) {
  const ms_graph *g = r->f.graph;
  assert_well_formed(g);
  interpreter_start(&r->it, g);
  for (int v = 0; v < g->n_values; v++) {
    const ms_value *value = &g->values[v];
    int vector = value->info.ndim == 1;
    if (value->kind == MS_VALUE_PARAM) interpreter_draw(&r->it, v, (uint64_t)value->param, vector ? 0.5 : 0, 0.2);
    if (value->kind == MS_VALUE_INPUT) interpreter_draw_integers(&r->it, v, value->name[1], (int)shape->vocab);
  }
}

static inline void run_end(run *r) {
  interpreter_end(&r->it);
  fixture_end(&r->f);
}

#endif
