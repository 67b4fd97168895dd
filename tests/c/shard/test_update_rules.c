/* test_update_rules.c - rules that change over one state, what a plan would add to it, the law of drawn values, and a
 * world of one inside of any job. */
#include "tests/c/support/networks/mlp.h"

#include <stdlib.h>

#include "comm/group/world.h"
#include "exec/state/state.h"
#include "shard/model.h"

/* ---- a world of one ---- */

static void a_world_of_one_needs_no_peer(void **state) {
  (void)state;
  ms_world *world;
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MOONSHARD_JOB_FD", "4095", 1);
  must(ms_world_join_alone(&world));
  assert_int_equal(ms_world_rank(world), 0);
  assert_int_equal(ms_world_size(world), 1);
  must(ms_world_barrier(world));
  ms_free(world);
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  unsetenv("MOONSHARD_JOB_FD");
}

static void counts_that_overflow_are_refused(void **state) {
  (void)state;
  const int64_t large = (int64_t)1 << 33, most = (int64_t)1 << 53;
  ms_model *model;
  ms_unit_config unit_config;
  ms_param_config config;
  int unit, param;
  must(ms_config_default("ms_unit_config", &unit_config, sizeof unit_config));
  unit_config.root = 1;
  must(ms_config_default("ms_param_config", &config, sizeof config));
  must(ms_model_new(0, &model));
  must(ms_model_add_unit(model, "root", &unit_config, &unit));
  assert_fails(ms_model_add_param(model, unit, "w", 2, (int64_t[]){large, large}, &config, &param), MS_ESHAPE,
               "w | 2^53");
  assert_fails(ms_model_add_param(model, unit, "w", 1, (int64_t[]){most + 1}, &config, &param), MS_ESHAPE, "2^53");
  must(ms_model_add_param(model, unit, "w", 1, (int64_t[]){most}, &config, &param));
  assert_fails(ms_model_add_param(model, unit, "b", 1, (int64_t[]){1}, &config, &param), MS_ESHAPE, "b | model | 2^53");
  ms_free(model);
}

/* y = 2 x + 1 of an input, in a model that has no parameters. */
static void a_model_without_parameters_computes(void **state) {
  (void)state;
  ms_world *world;
  ms_mesh *mesh;
  ms_model *model;
  ms_graph *graph;
  ms_plan *plan;
  ms_state *training;
  ms_exec *exec;
  ms_plan_config config;
  int x, y;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.optimizer = MS_OPT_NONE;
  config.train = 0;
  must(ms_world_join_alone(&world));
  must(ms_mesh_new(MS_DEVICE_CPU, 1, (int[]){1}, NULL, 1, 0, NULL, &mesh));
  must(ms_model_new(0, &model));
  mlp_shard(model, mesh, 0, -1, -1);
  must(ms_graph_new(model, &graph));
  must(ms_graph_input(graph, "x", MS_F32, 1, (int64_t[]){3}, -1, &x));
  must(ms_graph_op(graph, "scale", 1, &x, "alpha=2 beta=1", &y));
  must(ms_graph_output(graph, "y", y));
  must(ms_plan_compile(graph, &config, &plan));
  must(ms_state_new(world, model, &config, 1, &training));
  int64_t growth;
  growth = ms_state_growth(training, plan);
  assert_true(growth > 0);
  must(ms_exec_new(training, plan, &exec));
  growth = ms_state_growth(training, plan);
  assert_int_equal(growth, 0);
  memcpy(ms_exec_input(exec, "x"), (float[]){1, 2, 3}, 3 * sizeof(float));
  must(ms_exec_run(exec, MS_PHASE_EVALUATE, NULL, NULL, 0));
  const float *out = ms_exec_output(exec, "y");
  assert_true(out[0] == 3 && out[1] == 5 && out[2] == 7);
  ms_free(exec);
  ms_free(training);
  ms_free(plan);
  ms_free(graph);
  ms_free(model);
  ms_free(mesh);
  ms_free(world);
}

/* ---- drawing ---- */

static void any_part_is_drawn_alike(void **state) {
  (void)state;
  float whole[100], part[30];
  must(ms_initial_values(7, "w", MS_INIT_NORMAL, 1, 0.5, 0, 100, whole));
  must(ms_initial_values(7, "w", MS_INIT_NORMAL, 1, 0.5, 41, 30, part));
  assert_memory_equal(whole + 41, part, sizeof part);
  must(ms_initial_values(7, "v", MS_INIT_NORMAL, 1, 0.5, 41, 30, part));
  assert_memory_not_equal(whole + 41, part, sizeof part);
  must(ms_initial_values(7, "w", MS_INIT_UNIFORM, -2, -1, 0, 100, whole));
  for (int i = 0; i < 100; i++) assert_true(whole[i] >= -2 && whole[i] < -1);
  must(ms_initial_values(7, "w", MS_INIT_CONSTANT, 3, 0, 0, 2, whole));
  assert_true(whole[0] == 3 && whole[1] == 3);
  assert_fails(ms_initial_values(7, "w", 99, 0, 0, 0, 1, whole), MS_EINVAL, "99");
  assert_fails(ms_initial_values(7, "w", MS_INIT_ONES, 0, 0, -1, 1, whole), MS_EINVAL, "at least 0");
}

static void a_parameter_starts_from_the_law(void **state) {
  (void)state;
  mlp_config config = mlp_default(1, 1, 0);
  mlp net = mlp_make(&config);
  ms_world *world;
  ms_state *training;
  ms_plan_config plan;
  float first[16 * 12], drawn[16 * 12];
  must(ms_config_default("ms_plan_config", &plan, sizeof plan));
  must(ms_world_join_alone(&world));
  must(ms_state_new(world, net.model, &plan, 1, &training));
  must(ms_state_gather(training, 0, MS_TENSOR_PARAM, 0, -1, first));
  must(ms_initial_values(1234, "in.weight", MS_INIT_NORMAL, 0, 0.2, 0, 16 * 12, drawn));
  assert_memory_equal(first, drawn, sizeof first);
  ms_free(training);
  ms_free(world);
  mlp_free(&net);
}

/* ---- changing ---- */

static void summarize(const mlp *net, ms_plan_summary *summary) {
  ms_plan *plan;
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.shared_masters = 0;
  must(ms_plan_compile(net->graph, &config, &plan));
  must(ms_plan_summarize(plan, summary, sizeof *summary));
  ms_free(plan);
}

static void R4_resharding_changes_the_next_plan(void **state) {
  (void)state;
  mlp_config config = mlp_default(1, 4, 1);
  mlp net = mlp_make(&config);
  ms_plan_summary before, kept, always, again;
  summarize(&net, &before);
  must(ms_model_set_reshard(net.model, (int[]){MS_RESHARD_KEEP, MS_RESHARD_KEEP, MS_RESHARD_KEEP, MS_RESHARD_KEEP},
                            NULL));
  summarize(&net, &kept);
  must(ms_model_set_reshard(net.model,
                            (int[]){MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS}, NULL));
  summarize(&net, &always);
  /* Forward 4, and backward none or all; 4 reduce-scatters. */
  assert_int_equal(kept.collectives[MS_PHASE_FIRST], 8);
  assert_int_equal(always.collectives[MS_PHASE_FIRST], 12);
  assert_true(kept.fingerprint != always.fingerprint);
  assert_fails(ms_model_set_reshard(net.model, (int[]){0, 0, 0, 3}, NULL), MS_EINVAL, "layers.2 | reshard");
  must(ms_model_set_reshard(
      net.model, (int[]){MS_RESHARD_DEFAULT, MS_RESHARD_DEFAULT, MS_RESHARD_DEFAULT, MS_RESHARD_DEFAULT}, NULL));
  summarize(&net, &again);
  assert_true(again.fingerprint == before.fingerprint);
  mlp_free(&net);
}

static void R4_groups_change_where_segments_allow_it(void **state) {
  (void)state;
  enum { MAX = 32 };
  ms_param_group group[MAX];
  for (int layout = MS_LAYOUT_ROWS; layout <= MS_LAYOUT_RAGGED; layout++) {
    mlp_config config = mlp_default(1, 2, 0);
    config.block.layout = layout;
    mlp net = mlp_make(&config);
    int n = net.model->params;
    assert_true(n <= MAX);
    ms_plan_summary before, after;
    summarize(&net, &before);
    for (int p = 0; p < n; p++) group[p] = net.model->param[p].config.group;
    int weight = ms_model_find_param(net.model, "layers.1.fc1.weight");
    group[weight].lr_scale = 0.5;
    if (layout == MS_LAYOUT_ROWS) {
      must(ms_model_set_groups(net.model, group, sizeof(ms_param_group)));
      summarize(&net, &after);
      assert_true(after.fingerprint != before.fingerprint);
      assert_int_equal(after.instructions, before.instructions); /* a pass a parameter, whatever its group */
      const uint64_t fingerprint = after.fingerprint;
      group[weight].beta2 = 0.99;
      must(ms_model_set_groups(net.model, group, sizeof(ms_param_group)));
      summarize(&net, &after);
      assert_true(after.fingerprint != fingerprint);
    } else {
      assert_fails(ms_model_set_groups(net.model, group, sizeof(ms_param_group)), MS_EUNSUPPORTED,
                   "layers.1.fc1.weight | layers.1.fc2.weight | layers.1");
      summarize(&net, &after);
      assert_true(after.fingerprint == before.fingerprint);
    }
    mlp_free(&net);
  }
}

/* Next to AdamW a matrix with Muon has a momentum and no betas. */
static void R4_groups_of_muon_have_its_momentum_and_no_betas(void **state) {
  (void)state;
  enum { MAX = 64 };
  mlp_config c = mlp_default(1, 2, 0);
  c.muon = 1;
  mlp net = mlp_make(&c);
  ms_param_group group[MAX];
  ms_plan_summary before, after;
  int matrix = 0;
  assert_true(net.model->params <= MAX);
  while (!ms_param_takes_muon(&net.model->param[matrix])) matrix++;
  for (int p = 0; p < net.model->params; p++) group[p] = net.model->param[p].config.group;
  summarize(&net, &before);
  group[matrix].momentum = 0.5;
  must(ms_model_set_groups(net.model, group, sizeof(ms_param_group)));
  summarize(&net, &after);
  assert_true(after.fingerprint != before.fingerprint);
  group[matrix].beta2 = 0.5;
  must(ms_model_set_groups(net.model, group, sizeof(ms_param_group)));
  ms_plan *plan;
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "parameter | beta2 | 0.5 | muon | -1");
  mlp_free(&net);
}

static void R4_rules_of_a_model_that_is_not_sharded_are_not_changed(void **state) {
  (void)state;
  ms_model *model;
  must(ms_model_new(0, &model));
  assert_fails(ms_model_set_reshard(model, (int[]){0}, NULL), MS_EINVAL, "sharded");
  assert_fails(ms_model_set_groups(model, &(ms_param_group){.lr_scale = 1}, sizeof(ms_param_group)), MS_EINVAL,
               "sharded");
  assert_fails(ms_model_set_sequence_parallel(model, 1), MS_EINVAL, "sharded");
  ms_free(model);
}

/* Units of the all-gathers of a direction, in the order of their issue: r for the root, 0, 1, 2 for the layers;
 * '.' where a kernel that reads weights comes between. */
static const char *gather_order(const ms_plan *plan, int backward) {
  static char text[256];
  int n = 0, in_backward = 0;
  const ms_plan_phase *first = &plan->phase[MS_PHASE_FIRST];
  for (int i = 0; i < first->n; i++) {
    const ms_instr *instr = &first->instr[i];
    in_backward |= instr->kind == MS_INSTR_KERNEL && instr->backward;
    if (in_backward != backward) continue;
    if (instr->kind == MS_INSTR_COLLECTIVE && instr->coll->kind == MS_COLL_ALL_GATHER)
      text[n++] = instr->coll->unit ? (char)('0' + instr->coll->unit - 1) : 'r';
    else if (instr->kind == MS_INSTR_KERNEL && n && text[n - 1] != '.') text[n++] = '.';
  }
  text[n] = 0;
  return text;
}

static void S17_gathers_ahead_by_rule(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  c.block.reshard = c.root.reshard = MS_RESHARD_ALWAYS;
  mlp net = mlp_make(&c);
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  ms_plan *plan;
  must(ms_plan_compile(net.graph, &config, &plan));
  assert_string_equal(gather_order(plan, 0), "r0.1.2.r");
  ms_free(plan);
  for (int u = 0; u < 4; u++)
    for (int backward = 0; backward < 2; backward++)
      must(ms_model_set_prefetch(net.model, u, backward, u == 1 ? 2 : 0, NULL));
  must(ms_plan_compile(net.graph, &config, &plan));
  assert_string_equal(gather_order(plan, 0), "r.012.r");
  ms_free(plan);
  must(ms_model_set_prefetch(net.model, 0, 0, 2, (int[]){3, 1}));
  must(ms_plan_compile(net.graph, &config, &plan));
  assert_string_equal(gather_order(plan, 0), "r20.1.r");
  ms_free(plan);
  must(ms_model_set_prefetch(net.model, 0, 0, -1, NULL));
  must(ms_model_set_prefetch(net.model, 1, 0, 0, (int[]){0}));
  must(ms_plan_compile(net.graph, &config, &plan));
  assert_string_equal(gather_order(plan, 0), "r0.1.2.r");
  ms_free(plan);
  assert_fails(ms_model_set_prefetch(net.model, 0, 1, 1, (int[]){9}), MS_EINVAL, "unit | 9");
  assert_fails(ms_model_set_prefetch(net.model, 0, 0, -2, NULL), MS_EINVAL, "root | prefetch | -1");
  mlp_free(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_world_of_one_needs_no_peer),
      TEST(a_model_without_parameters_computes),
      TEST(counts_that_overflow_are_refused),
      TEST(any_part_is_drawn_alike),
      TEST(a_parameter_starts_from_the_law),
      TEST(R4_resharding_changes_the_next_plan),
      TEST(R4_groups_change_where_segments_allow_it),
      TEST(R4_groups_of_muon_have_its_momentum_and_no_betas),
      TEST(R4_rules_of_a_model_that_is_not_sharded_are_not_changed),
      TEST(S17_gathers_ahead_by_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
