/* test_exec_together.c - ranks that run different things although every one has bound the plans of both: another plan,
 * another phase, or another step. Their collectives are alike, so only what these are a part of tells them apart.
 */
#include "tests/c/support/networks/mlp_training.h"

#include <stdlib.h>
#include <string.h>

#include "exec/state/compare.h"
#include "kernels/cpu/instruction_sets.h"

/* What rank 1 does in place of what rank 0 does in its second step. */
enum what { SAME, OTHER_PLAN, OTHER_PHASE, OTHER_STEP, OTHER_EVALUATION };

typedef struct apart {
  training_config config;
  int what, ranks;
  const char *facts;
} apart;

static void read_param(const rank_engine *engine, float *values, int64_t *count) {
  ms_tensor_info info;
  must(ms_state_describe(engine->state, 0, MS_TENSOR_PARAM, &info, sizeof info));
  assert_true(info.count <= TRAINING_ELEMENTS);
  *count = info.count;
  must(ms_state_read(engine->state, 0, MS_TENSOR_PARAM, info.first, info.count, values));
}

static int run_apart(ms_world *world, void *context) {
  apart *a = context;
  static float before[TRAINING_ELEMENTS], after[TRAINING_ELEMENTS];
  rank_engine engine;
  ms_step_outputs out;
  ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.1, .step = 2, .micro_batches = 1};
  ms_plan_config other_config = a->config.plan;
  ms_plan *other_plan;
  ms_exec *other;
  int64_t count;
  const int rank = ms_world_rank(world), differs = rank == a->ranks - 1;
  abort_on_failed_checks();
  engine_open(world, &a->config, &engine);
  other_config.prefetch = 0;
  must(ms_plan_compile(engine.net.graph, &other_config, &other_plan));
  must(ms_exec_new(engine.state, other_plan, &other));
  engine_step(&engine, &a->config, rank, 0, &out);
  read_param(&engine, before, &count);
  if (differs && a->what == OTHER_STEP) inputs.step = 3;
  ms_exec *mine = differs && (a->what == OTHER_PLAN || a->what == OTHER_EVALUATION) ? other : engine.exec;
  int phase = a->what == OTHER_EVALUATION ? MS_PHASE_EVALUATE : MS_PHASE_FIRST;
  if (differs && a->what == OTHER_PHASE) phase = MS_PHASE_EVALUATE;
  if (a->what == SAME) {
    must(ms_exec_run(mine, phase, &inputs, &out, sizeof(ms_step_outputs)));
  } else {
    assert_fails(ms_exec_run(mine, phase, &inputs, &out, sizeof(ms_step_outputs)), MS_EMISMATCH, a->facts);
    read_param(&engine, after, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
  }
  ms_free(other);
  ms_free(other_plan);
  engine_close(&engine);
  return MS_OK;
}

static void check_apart(int replicate, int shard, int what, const char *facts) {
  apart a = {.config = training_default(replicate, shard), .what = what, .ranks = replicate * shard, .facts = facts};
  run_ranks_as_processes(a.ranks, run_apart, &a);
}

static void U1_collectives_of_another_plan_phase_or_step_are_refused_before_anything_changes(void **state) {
  (void)state;
  check_apart(1, 2, SAME, "");
  check_apart(1, 2, OTHER_PLAN, "rank 0 | rank 1 | phase first | step 2 | plans | names | types");
  check_apart(2, 1, OTHER_PLAN, "rank 0 | rank 1 | phase first | step 2 | plans");
  check_apart(1, 2, OTHER_STEP, "rank 0 | rank 1 | step 2 | step 3 | steps");
  check_apart(1, 3, OTHER_PHASE, "rank 2 | phase first | phase evaluate");
  check_apart(1, 2, OTHER_EVALUATION, "phase evaluate | plans");
}

static int have_other_processors(ms_world *world, void *context) {
  (void)context;
  ms_group group = {0};
  const int rank = ms_world_rank(world);
  char own[128];
  abort_on_failed_checks();
  must(ms_group_open(world, 3, NULL, "a mesh", &group));
  ms_cpu_instruction_sets(own, sizeof own);
  assert_has(own, "onednn");
  must(ms_compare_instruction_sets(&group, own));
  assert_fails(ms_compare_instruction_sets(&group, rank == 2 ? "x86-64-v3" : "x86-64-v4"), MS_EMISMATCH,
               "instruction sets | rank 0 | x86-64-v4 | rank 2 | x86-64-v3 | replicas | processors");
  ms_group_close(&group);
  return MS_OK;
}

static void U1_ranks_of_processors_that_round_differently_are_named(void **state) {
  (void)state;
  run_ranks_as_processes(3, have_other_processors, NULL);
}

int main(void) {
  setenv("MOONSHARD_TIMEOUT", "60", 1);
  const struct CMUnitTest tests[] = {
      TEST(U1_collectives_of_another_plan_phase_or_step_are_refused_before_anything_changes),
      TEST(U1_ranks_of_processors_that_round_differently_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
