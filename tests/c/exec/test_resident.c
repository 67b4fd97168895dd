/* test_resident.c - weights that stay gathered for the whole run (MS_RESHARD_RUN), as a C program sees them: who may
 * write them, and when they are gathered again.
 */
#include "tests/c/support/networks/mlp_training.h"

#include <stdlib.h>

#include "plan/plan.h"

static training_config resident(int replicate, int shard, int dtype) {
  training_config c = training_default(replicate, shard);
  c.net.frozen_weights = 1;
  c.net.block.reshard = MS_RESHARD_RUN;
  c.net.block.param_dtype = c.net.root.param_dtype = dtype;
  return c;
}

static int frozen_param(const ms_model *model) {
  for (int p = 0; p < model->params; p++)
    if (model->param[p].config.frozen) return p;
  return -1;
}

static long long gathers(const rank_engine *engine) {
  ms_exec_counters counters;
  must(ms_exec_counts(engine->exec, &counters, sizeof counters));
  return (long long)counters.collectives[MS_PHASE_GATHER];
}

static int write_and_finish(ms_world *world, void *context) {
  const training_config *c = context;
  rank_engine engine;
  ms_step_outputs first, out;
  const int rank = ms_world_rank(world);
  abort_on_failed_checks();
  engine_open(world, c, &engine);
  engine_step(&engine, c, rank, 0, &first);
  const long long once = gathers(&engine);
  assert_true(once == (c->net.shard > 1 ? c->net.blocks : 0));
  engine_step(&engine, c, rank, 1, &out);
  assert_true(gathers(&engine) == once);
  /* A write of this rank's own elements has to be finished. */
  const int param = frozen_param(engine.net.model);
  ms_tensor_info kept;
  float values[TRAINING_ELEMENTS] = {0};
  must(ms_state_describe(engine.state, param, MS_TENSOR_PARAM, &kept, sizeof kept));
  must(ms_world_barrier(world));
  /* Other rules do not hide it from a plan of the earlier ones. */
  const int always[] = {MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS};
  assert_int_equal(engine.net.model->units, 4);
  must(ms_model_set_reshard(engine.net.model, always, NULL));
  must(ms_state_write(engine.state, param, MS_TENSOR_PARAM, kept.first, kept.count, values));
  engine_feed(&engine, c, rank, 2, 0);
  const ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.01, .step = 3, .micro_batches = 1};
  if (kept.count && engine.plan->phase[MS_PHASE_GATHER].present)
    assert_fails(ms_exec_run(engine.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL,
                 "fc1.weight | ms_state_finish_writes");
  must(ms_state_finish_writes(engine.state));
  engine_step(&engine, c, rank, 2, &out);
  assert_true(gathers(&engine) == 2 * once);
  engine_close(&engine);
  return MS_OK;
}

static void S4_a_write_is_finished_and_gathered_again(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {2, 2}, {1, 1}};
  for (int m = 0; m < 3; m++)
    for (int dtype = 0; dtype < 2; dtype++) {
      training_config c = resident(meshes[m][0], meshes[m][1], dtype ? MS_BF16 : MS_F32);
      run_ranks_as_processes(meshes[m][0] * meshes[m][1], write_and_finish, &c);
    }
}

/* Losses and norms of a few steps. */
static void train_some(ms_world *world, const training_config *c, double *seen) {
  rank_engine engine;
  engine_open(world, c, &engine);
  for (int step = 0; step < TRAINING_STEPS; step++) {
    ms_step_outputs out;
    engine_step(&engine, c, ms_world_rank(world), step, &out);
    *seen++ = out.loss;
    *seen++ = out.grad_norm;
  }
  engine_close(&engine);
}

static int train_both_ways(ms_world *world, void *context) {
  training_config c = *(const training_config *)context;
  double kept[2 * TRAINING_STEPS], always[2 * TRAINING_STEPS];
  abort_on_failed_checks();
  train_some(world, &c, kept);
  c.net.block.reshard = MS_RESHARD_ALWAYS;
  train_some(world, &c, always);
  assert_memory_equal(kept, always, sizeof kept);
  return MS_OK;
}

static void S4_training_has_the_same_bits(void **state) {
  (void)state;
  for (int shard = 1; shard < 4; shard++) {
    training_config c = resident(1, shard, MS_BF16);
    run_ranks_as_processes(shard, train_both_ways, &c);
  }
}

int main(void) {
  setenv("MOONSHARD_TIMEOUT", "60", 1);
  const struct CMUnitTest tests[] = {
      TEST(S4_a_write_is_finished_and_gathered_again),
      TEST(S4_training_has_the_same_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
