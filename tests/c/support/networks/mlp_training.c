/* mlp_training.c - see the header. Data is drawn by Philox, so a row is the same wherever it is computed. */
#include "tests/c/support/networks/mlp_training.h"

#include <stdlib.h>

#include "base/numbers/bf16.h"
#include "base/numbers/philox.h"
#include "comm/group/world.h"

training_config training_default(int replicate, int shard) {
  training_config c = {.net = mlp_default(replicate, shard, 0), .global_batch = 24, .micro_batches = 1};
  must(ms_config_default("ms_plan_config", &c.plan, sizeof c.plan));
  c.plan.threads = 1;
  return c;
}

training_config training_divided(int replicate, int shard, int tensor) {
  training_config c = training_default(replicate, shard);
  c.net.tensor = tensor;
  c.net.world *= tensor;
  return c;
}

int training_row(const mlp_config *net, int step, int row, float *x) {
  ms_philox_normal(99, (uint64_t)step, (int64_t)row * 64, net->inputs, x);
  float sum = 0;
  for (int i = 0; i < net->inputs; i++) sum += x[i] * (float)(i % 3 - 1);
  return (int)(((int64_t)(sum * 4) % net->classes + net->classes) % net->classes);
}

void abort_on_failed_checks(void) { setenv("CMOCKA_TEST_ABORT", "1", 1); }

static int rows_of(const training_config *c) {
  return c->global_batch / (c->net.replicate * c->net.shard * c->micro_batches);
}

void engine_open(ms_world *world, const training_config *config, rank_engine *engine) {
  mlp_config net = config->net;
  net.rank = ms_world_rank(world);
  net.batch = rows_of(config);
  engine->net = mlp_make(&net);
  must(ms_plan_compile(engine->net.graph, &config->plan, &engine->plan));
  must(ms_state_new(world, engine->net.model, &config->plan, 1, &engine->state));
  must(ms_exec_new(engine->state, engine->plan, &engine->exec));
  if (config->graphs) must(ms_exec_set_graph(engine->exec, 1));
}

void engine_close(rank_engine *engine) {
  ms_free(engine->state);
  mlp_free(&engine->net);
  ms_free(engine->plan);
  ms_free(engine->exec);
}

void engine_feed(rank_engine *engine, const training_config *config, int rank, int step, int micro_batch) {
  const mlp_config *net = &config->net;
  int rows = rows_of(config), first = (rank / net->tensor * config->micro_batches + micro_batch) * rows;
  void *x = ms_exec_input(engine->exec, "x");
  int32_t *y = ms_exec_input(engine->exec, "y");
  for (int r = 0; r < rows; r++) {
    float row[64];
    y[r] = training_row(net, step, first + r, row);
    for (int i = 0; i < net->inputs; i++) {
      if (net->root.param_dtype == MS_F32) ((float *)x)[r * net->inputs + i] = row[i];
      else ((ms_bf16 *)x)[r * net->inputs + i] = ms_f32_to_bf16(row[i]);
    }
  }
}

static int phase_of(const training_config *config, int micro_batch) {
  if (!micro_batch) return MS_PHASE_FIRST;
  int waits = config->plan.sync != MS_SYNC_EVERY && micro_batch == config->micro_batches - 1;
  return waits ? MS_PHASE_LAST : MS_PHASE_NEXT;
}

void engine_step(rank_engine *engine, const training_config *config, int rank, int step, ms_step_outputs *outputs) {
  ms_step_inputs inputs = {
      .struct_size = sizeof(ms_step_inputs), .lr = 0.02, .step = step + 1, .micro_batches = config->micro_batches};
  for (int m = 0; m < config->micro_batches; m++) {
    engine_feed(engine, config, rank, step, m);
    inputs.seed = (uint64_t)(step * config->micro_batches + m);
    must(ms_exec_run(engine->exec, phase_of(config, m), &inputs, NULL, 0));
  }
  must(ms_exec_run(engine->exec, MS_PHASE_NORM, &inputs, outputs, sizeof(ms_step_outputs)));
  must(ms_exec_run(engine->exec, MS_PHASE_UPDATE, &inputs, NULL, 0));
}

/* Every rank gathers, rank 0 keeps. */
static void gather_all(const rank_engine *engine, int rank, int what, training_result *result, float *to) {
  int64_t at = 0;
  float *full = malloc(TRAINING_ELEMENTS * sizeof *full);
  result->params = engine->net.model->params;
  for (int p = 0; p < engine->net.model->params; p++) {
    ms_value_info info;
    int value;
    must(ms_graph_param(engine->net.graph, p, &value));
    must(ms_graph_describe(engine->net.graph, value, &info, sizeof info));
    int64_t n = 1;
    for (int d = 0; d < info.ndim; d++) n *= info.dims[d];
    assert_true(at + n <= TRAINING_ELEMENTS);
    must(ms_state_gather(engine->state, p, what, 0, -1, full));
    if (rank == 0) {
      memcpy(to + at, full, (size_t)n * sizeof *full);
      result->numel[p] = n;
    }
    at += n;
  }
  free(full);
}

typedef struct job {
  const training_config *config;
  training_result *result;
} job;

static int train_rank(ms_world *world, void *context) {
  const job *j = context;
  abort_on_failed_checks();
  const training_config *config = j->config;
  training_result *result = j->result;
  int rank = ms_world_rank(world);
  rank_engine engine;
  ms_step_outputs out;
  engine_open(world, config, &engine);
  gather_all(&engine, rank, MS_TENSOR_PARAM, result, result->initial);
  for (int step = 0; step < TRAINING_STEPS; step++) {
    engine_step(&engine, config, rank, step, &out);
    if (rank == 0) {
      result->loss[step] = out.loss;
      result->grad_norm[step] = out.grad_norm;
    }
    if (step == 0 && rank == 0) {
      must(ms_exec_counts(engine.exec, &result->counters, sizeof result->counters));
      for (int d = 0; d < 2; d++) result->traffic[d] = result->counters.traffic[d];
    }
  }
  if (config->net.frozen_block < 0) gather_all(&engine, rank, MS_TENSOR_GRAD, result, result->gradient);
  gather_all(&engine, rank, MS_TENSOR_PARAM, result, result->final);
  double evaluated = 0;
  for (int m = 0; m < config->micro_batches; m++) {
    engine_feed(&engine, config, rank, TRAINING_STEPS, m);
    must(ms_exec_run(engine.exec, MS_PHASE_EVALUATE, NULL, &out, sizeof(ms_step_outputs)));
    evaluated += out.loss / config->micro_batches;
  }
  if (rank == 0) {
    ms_exec_counters counters;
    result->evaluated = evaluated;
    must(ms_exec_counts(engine.exec, &counters, sizeof counters));
    result->counters.allocations = counters.allocations;
    must(ms_plan_summarize(engine.plan, &result->summary, sizeof result->summary));
    result->arena_bytes = ms_state_arena_bytes(engine.state);
  }
  engine_close(&engine);
  return MS_OK;
}

training_result *train(const training_config *config) {
  job j = {config, share_memory(sizeof *j.result)};
  run_ranks_as_processes(config->net.world, train_rank, &j);
  return j.result;
}

void training_free(training_result *result) { unshare_memory(result, sizeof *result); }
