/* test_plan_outer.c - plans with local SGD: which parts of an outer step they have, that sums which may be late delay
 * no kernel, what the state keeps, and which settings and orders of phases are refused.
 */
#include "comm/group/world.h"
#include "plan/layout/state_layout.h"
#include "tests/c/api/bound_exec.h"
#include "tests/c/support/networks/mlp_training.h"
#include "tests/c/support/networks/planned.h"

enum { BOTH = MS_OUTER_SEND | MS_OUTER_APPLY };

static mlp_config network(int replicate, int shard) {
  mlp_config c = mlp_default(replicate, shard, 0);
  c.block.fragment = c.root.fragment = 1;
  return c;
}

static ms_plan_config settings(int delay, int parts) {
  ms_plan_config config = planned_config();
  config.outer_momentum = 0.9;
  config.outer_nesterov = 1;
  config.outer_delay = delay;
  config.outer_fragment = parts ? 1 : 0;
  config.outer_parts = parts;
  return config;
}

static int sums_of(const ms_plan *plan, int phase) {
  int n = 0;
  for (int i = 0; i < plan->phase[phase].colls; i++) n += plan->phase[phase].coll[i]->dim == MS_DIM_REPLICATE;
  return n;
}

static void H12_plans_sum_over_replicas_where_they_sync(void **state) {
  (void)state;
  static const struct {
    int delay, parts, in_first, in_outer, outer;
  } of[] = {{0, 0, 0, 0, 0},
            {0, BOTH, 0, 1, 1},
            {1, MS_OUTER_SEND, 1, 0, 0},
            {1, MS_OUTER_APPLY, 0, 0, 1},
            {1, BOTH, 1, 0, 1}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    mlp_config c = network(2, 2);
    ms_plan_config config = settings(of[i].delay, of[i].parts);
    planned p = plan_with(&c, &config);
    const int units = c.blocks + 1;
    assert_int_equal(sums_of(p.plan, MS_PHASE_FIRST), of[i].in_first * units);
    assert_int_equal(sums_of(p.plan, MS_PHASE_OUTER), of[i].in_outer * units);
    for (int phase = MS_PHASE_NEXT; phase <= MS_PHASE_UPDATE; phase++) assert_int_equal(sums_of(p.plan, phase), 0);
    assert_int_equal(p.plan->phase[MS_PHASE_OUTER].present, of[i].outer);
    assert_int_equal(p.plan->layout->replicas, 1);
    drop(&p);
  }
}

/* While they run, other kernels may always go on. */
static void H12_no_kernel_waits_for_sums_with_a_delay(void **state) {
  (void)state;
  for (int shard = 1; shard < 3; shard++) {
    mlp_config c = network(2, shard);
    ms_plan_config config = settings(1, BOTH);
    planned p = plan_with(&c, &config);
    enum { MAX = 1024 };
    static ms_price_event event[MAX];
    int n;
    must(ms_plan_timeline(p.plan, NULL, MS_PHASE_FIRST, event, sizeof *event, MAX, &n));
    assert_true(n <= MAX);
    for (int i = 0; i < n; i++)
      if (event[i].exposed) assert_string_not_equal(event[i].name, "all_reduce");
    drop(&p);
  }
}

/* All chunks: weights and AdamW's moments; the synced weights, the outer momentum, and with a delay the sums. */
static void H12_the_state_keeps_synced_weights_and_momentum(void **state) {
  (void)state;
  mlp_config c = network(2, 2);
  int64_t optimizer[3];
  for (int i = 0; i < 3; i++) {
    c.block.fragment = c.root.fragment = i > 0;
    ms_plan_config config = settings(i > 1, i > 0 ? BOTH : 0);
    config.shared_masters = 0;
    planned p = plan_with(&c, &config);
    optimizer[i] = p.plan->category_bytes[MS_CAT_OPTIMIZER];
    ms_unit_cost cost;
    must(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, 1, &cost, sizeof cost));
    assert_true(cost.optimizer_bytes == (2 + (i > 0 ? 1 + i : 0)) * cost.gradient_bytes);
    drop(&p);
  }
  assert_true(optimizer[1] == 2 * optimizer[0] && 2 * optimizer[2] == 5 * optimizer[0]);
}

static void H12_parts_that_do_not_fit_are_refused(void **state) {
  (void)state;
  static const struct {
    int delay, fragment, parts, optimizer;
    const char *facts;
  } wrong[] = {
      {0, 1, MS_OUTER_SEND, MS_OPT_SGD, "outer_parts | 3 | outer_delay | 1"},
      {0, 1, 0, MS_OPT_SGD, "outer_parts | 0 | 1"},
      {0, 0, BOTH, MS_OPT_SGD, "outer_parts | outer_fragment | 3 | 0"},
      {0, 1, 4, MS_OPT_SGD, "outer_parts | 4"},
      {0, 2, BOTH, MS_OPT_SGD, "outer_fragment 2 | no unit"},
      {0, 1, BOTH, MS_OPT_NONE, "outer_fragment 1 | optimizer"},
  };
  mlp_config c = network(2, 1);
  mlp m = mlp_make(&c);
  ms_plan *plan;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ms_plan_config config = settings(wrong[i].delay, wrong[i].parts);
    config.outer_fragment = wrong[i].fragment;
    config.optimizer = wrong[i].optimizer;
    assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, wrong[i].facts);
  }
  ms_plan_config config = settings(0, BOTH);
  config.outer_momentum = 0;
  assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, "outer_nesterov | outer_momentum");
  mlp_free(&m);
  ms_model *model;
  ms_unit_config unit;
  int number;
  must(ms_model_new(1, &model));
  must(ms_config_default("ms_unit_config", &unit, sizeof unit));
  unit.fragment = -1;
  assert_fails(ms_model_add_unit(model, "block", &unit, &number), MS_EINVAL, "block | fragment | -1");
  ms_free(model);
}

static void H12_outer_follows_update_and_states_restart(void **state) {
  (void)state;
  mlp_config c = network(1, 1);
  mlp m = mlp_make(&c);
  ms_plan_config config = settings(0, BOTH);
  bound b = bind_with(&m, &config);
  const ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.1, .step = 1, .micro_batches = 1};
  float before[16], after[16];
  must(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0));
  must(ms_exec_run(b.exec, MS_PHASE_NORM, &inputs, NULL, 0));
  assert_fails(ms_exec_run(b.exec, MS_PHASE_OUTER, &inputs, NULL, 0), MS_EINVAL, "outer | right after update");
  must(ms_exec_run(b.exec, MS_PHASE_UPDATE, &inputs, NULL, 0));
  must(ms_exec_run(b.exec, MS_PHASE_OUTER, &inputs, NULL, 0));
  assert_fails(ms_exec_run(b.exec, MS_PHASE_OUTER, &inputs, NULL, 0), MS_EINVAL, "outer | right after update");
  must(ms_state_read(b.state, 0, MS_TENSOR_SYNCED, 0, 16, before));
  must(ms_state_read(b.state, 0, MS_TENSOR_PARAM, 0, 16, after));
  assert_memory_equal(before, after, sizeof before);
  memset(before, 0, sizeof before);
  must(ms_state_write(b.state, 0, MS_TENSOR_PARAM, 0, 16, before));
  must(ms_state_restart(b.state, MS_TENSOR_SYNCED));
  must(ms_state_read(b.state, 0, MS_TENSOR_SYNCED, 0, 16, after));
  assert_memory_equal(before, after, sizeof before);
  must(ms_state_read(b.state, 0, MS_TENSOR_OUTER_MOMENTUM, 0, 16, after));
  assert_memory_equal(before, after, sizeof before);
  assert_fails(ms_state_read(b.state, 0, MS_TENSOR_OUTER_SUM, 0, 16, after), MS_EINVAL, "outer sum");
  unbind(&b);
  mlp_free(&m);
}

/* Rank 1 gives up before the sync. Rank 0, which is in it, can have applied a part: it trains again when all replicas
 * have one state. */
static int fail_in_a_sync(ms_world *world, void *context) {
  (void)context;
  abort_on_failed_checks();
  const int rank = ms_world_rank(world);
  training_config config = training_default(2, 1);
  config.net.block.fragment = config.net.root.fragment = 1;
  config.plan.outer_momentum = 0.9;
  config.plan.outer_fragment = 1;
  config.plan.outer_parts = BOTH;
  rank_engine engine;
  ms_step_outputs out;
  engine_open(world, &config, &engine);
  const ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.1, .step = 1, .micro_batches = 1};
  engine_step(&engine, &config, rank, 0, &out);
  if (rank == 1) ms_world_abort(world, "a mistake in a line");
  else EXPECT_FAILS(ms_exec_run(engine.exec, MS_PHASE_OUTER, &inputs, NULL, 0), MS_EPEER, "a mistake in a line");
  MS_TRY(ms_world_recover(world));
  if (rank == 0)
    EXPECT_FAILS(ms_exec_run(engine.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "sync | checkpoint");
  MS_TRY(ms_state_restart(engine.state, MS_TENSOR_SYNCED));
  engine_step(&engine, &config, rank, 1, &out);
  MS_TRY(ms_exec_run(engine.exec, MS_PHASE_OUTER, &inputs, NULL, 0));
  engine_close(&engine);
  return MS_OK;
}

static void H12_a_sync_that_failed_is_not_trained_on(void **state) {
  (void)state;
  run_ranks_as_processes(2, fail_in_a_sync, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H12_plans_sum_over_replicas_where_they_sync),     TEST(H12_no_kernel_waits_for_sums_with_a_delay),
      TEST(H12_the_state_keeps_synced_weights_and_momentum), TEST(H12_parts_that_do_not_fit_are_refused),
      TEST(H12_outer_follows_update_and_states_restart),     TEST(H12_a_sync_that_failed_is_not_trained_on),
  };
  return cmocka_run_group_tests_name("plan outer", tests, NULL, NULL);
}
