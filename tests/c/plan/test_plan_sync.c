/* test_plan_sync.c - plans whose gradients wait for the last micro-batch, or whose weights stay from one to the next or
 * are kept for smaller groups: what each phase communicates, and what it costs.
 */
#include "tests/c/support/networks/planned.h"

static planned with_sync(const mlp_config *c, int sync) {
  ms_plan_config config = planned_config();
  config.sync = sync;
  return plan_with(c, &config);
}

static void expect_reductions(const ms_plan *plan, int phase, int scatters, int reduces) {
  assert_int_equal(count(plan, phase, MS_COLL_REDUCE_SCATTER, 0), scatters);
  assert_int_equal(count(plan, phase, MS_COLL_ALL_REDUCE, 0), reduces);
}

static void S5_reductions_by_phase(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 0);
  int units = c.blocks + 1;
  planned p = with_sync(&c, MS_SYNC_EVERY);
  expect_reductions(p.plan, MS_PHASE_FIRST, units, units);
  expect_reductions(p.plan, MS_PHASE_NEXT, units, units);
  assert_int_equal(p.plan->phase[MS_PHASE_LAST].present, 0);
  drop(&p);
  p = with_sync(&c, MS_SYNC_SHARD);
  expect_reductions(p.plan, MS_PHASE_FIRST, units, 0);
  expect_reductions(p.plan, MS_PHASE_NEXT, units, 0);
  expect_reductions(p.plan, MS_PHASE_LAST, units, units);
  drop(&p);
  p = with_sync(&c, MS_SYNC_LAST);
  expect_reductions(p.plan, MS_PHASE_FIRST, 0, 0);
  expect_reductions(p.plan, MS_PHASE_NEXT, 0, 0);
  expect_reductions(p.plan, MS_PHASE_LAST, units, units);
  drop(&p);
}

/* A mesh with one dimension has one kind of sum; alone there is none. */
static void S5_reductions_on_meshes_of_one_dimension(void **state) {
  (void)state;
  mlp_config fsdp = mlp_default(1, 2, 0), ddp = mlp_default(2, 1, 0), alone = mlp_default(1, 1, 0);
  int units = fsdp.blocks + 1;
  planned p = with_sync(&fsdp, MS_SYNC_SHARD);
  expect_reductions(p.plan, MS_PHASE_FIRST, units, 0);
  expect_reductions(p.plan, MS_PHASE_LAST, units, 0);
  drop(&p);
  p = with_sync(&ddp, MS_SYNC_SHARD);
  expect_reductions(p.plan, MS_PHASE_FIRST, 0, 0);
  expect_reductions(p.plan, MS_PHASE_LAST, 0, units);
  drop(&p);
  p = with_sync(&alone, MS_SYNC_LAST);
  for (int phase = 0; phase < MS_PHASES; phase++) assert_int_equal(p.plan->phase[phase].colls, 0);
  assert_int_equal(p.plan->category_bytes[MS_CAT_COMMUNICATION], 64); /* the step's totals, on a cache line */
  drop(&p);
}

/* Waiting costs the unsharded gradients, or one chunk of them, in f32. */
static void S5_what_waits_is_in_the_peak(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 0);
  int64_t whole = 0, chunks = 0, bytes[3];
  for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++) {
    planned p = with_sync(&c, sync);
    bytes[sync] = p.plan->category_bytes[MS_CAT_COMMUNICATION];
    whole = chunks = 0;
    for (int u = 0; u < p.net.model->units; u++) {
      whole += p.net.model->unit[u].reduce_bytes;
      chunks += 4 * p.net.model->unit[u].trainable_count;
    }
    drop(&p);
  }
  assert_true(bytes[MS_SYNC_SHARD] >= chunks && bytes[MS_SYNC_SHARD] <= bytes[MS_SYNC_EVERY] + chunks);
  assert_true(bytes[MS_SYNC_LAST] >= whole && bytes[MS_SYNC_LAST] <= bytes[MS_SYNC_EVERY] + whole);
}

static void S5_weights_that_stay_are_gathered_once(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  c.block.reshard = c.root.reshard = MS_RESHARD_ALWAYS;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    c.block.param_dtype = c.root.param_dtype = dtype;
    ms_plan_config config = planned_config();
    config.sync = MS_SYNC_LAST;
    config.reshard_after_backward = 0;
    planned p = plan_with(&c, &config);
    assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), c.blocks + 1);
    assert_int_equal(count(p.plan, MS_PHASE_NEXT, MS_COLL_ALL_GATHER, 0), 0);
    assert_int_equal(count(p.plan, MS_PHASE_LAST, MS_COLL_ALL_GATHER, 0), 0);
    assert_int_equal(count(p.plan, MS_PHASE_EVALUATE, MS_COLL_ALL_GATHER, 0), c.blocks + 1);
    int64_t gathered = 0;
    for (int u = 0; u < p.net.model->units; u++) gathered += p.net.model->unit[u].gathered_bytes;
    if (dtype == MS_BF16) assert_true(p.plan->arena_bytes[MS_ARENA_GATHERED] >= gathered);
    drop(&p);
  }
}

static double gathered_bytes(const ms_plan *plan) {
  double bytes = 0;
  for (int i = 0; i < plan->phase[MS_PHASE_FIRST].colls; i++)
    if (plan->phase[MS_PHASE_FIRST].coll[i]->kind == MS_COLL_ALL_GATHER)
      bytes += plan->phase[MS_PHASE_FIRST].coll[i]->bytes;
  return bytes;
}

/* With groups of 2 of 4 ranks, backward moves half of the unit to each instead of three quarters. */
static void S4_smaller_groups_move_less_and_hold_more(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 4, 3);
  ms_plan_config config = planned_config();
  c.block.param_dtype = c.root.param_dtype = MS_BF16;
  c.block.reshard = c.root.reshard = MS_RESHARD_ALWAYS;
  planned all = plan_with(&c, &config);
  c.block.reshard_size = 2;
  planned two = plan_with(&c, &config);
  double blocks = 0;
  for (int u = 1; u < all.net.model->units; u++)
    for (int s = 0; s < all.net.model->unit[u].segments; s++)
      blocks += 4.0 * 2 * (double)all.net.model->unit[u].segment[s].chunk;
  assert_true(gathered_bytes(all.plan) - gathered_bytes(two.plan) == 0.25 * blocks);
  assert_int_equal(count(two.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), 2 * (c.blocks + 1));
  assert_true(two.plan->category_bytes[MS_CAT_GATHERED] > all.plan->category_bytes[MS_CAT_GATHERED]);
  assert_true(two.plan->arena_bytes[MS_ARENA_GROUPED] >= (int64_t)blocks / 2);
  drop(&all);
  drop(&two);
}

static void S4_groups_must_divide_the_shards(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 4, 0);
  ms_model *model;
  int unit, param;
  ms_param_config param_config;
  ms_model_dims dims;
  ms_mesh *mesh;
  must(ms_config_default("ms_param_config", &param_config, sizeof param_config));
  must(ms_mesh_new(MS_DEVICE_CPU, 1, (int[]){4}, NULL, 4, 0, NULL, &mesh));
  must(ms_model_new(1, &model));
  c.block.reshard = MS_RESHARD_ALWAYS;
  c.block.reshard_size = 3;
  must(ms_model_add_unit(model, "block", &c.block, &unit));
  must(ms_model_add_param(model, unit, "w", 1, (int64_t[]){8}, &param_config, &param));
  /* Nothing of a failed attempt is left for the next one, on another rank. */
  must(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.shard = 0;
  assert_fails(ms_model_shard(model, mesh, 3, &dims), MS_EINVAL, "block | groups of 3 ranks");
  assert_fails(ms_model_shard(model, mesh, 0, &dims), MS_EINVAL, "block | groups of 3 ranks");
  assert_int_equal(model->member, 0);
  ms_free(model);
  must(ms_model_new(1, &model));
  c.block.reshard_size = 2;
  must(ms_model_add_unit(model, "block", &c.block, &unit));
  must(ms_model_add_param(model, unit, "w", 1, (int64_t[]){8}, &param_config, &param));
  must(ms_model_shard(model, mesh, 0, &dims));
  assert_fails(ms_model_set_reshard(model, (int[]){MS_RESHARD_KEEP}, (int[]){2}), MS_EINVAL, "reshard = always");
  must(ms_model_set_reshard(model, (int[]){MS_RESHARD_ALWAYS}, (int[]){1}));
  assert_int_equal(ms_unit_backward_ranks(model, 0), 1);
  ms_free(model);
  ms_free(mesh);
}

static void what_cannot_wait_is_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  mlp net = mlp_make(&c);
  ms_plan *plan;
  ms_plan_config config = planned_config();
  config.sync = MS_SYNC_LAST;
  config.accumulate = 0;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "sync last | accumulate");
  config.sync = 7;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "sync | every (0) | shard (1) | last (2)");
  config.sync = MS_SYNC_EVERY;
  config.device = 7;
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EINVAL, "device 7 | cpu (0) | cuda (1)");
  mlp_free(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(S5_reductions_by_phase),
      TEST(S5_reductions_on_meshes_of_one_dimension),
      TEST(S5_what_waits_is_in_the_peak),
      TEST(S5_weights_that_stay_are_gathered_once),
      TEST(S4_smaller_groups_move_less_and_hold_more),
      TEST(S4_groups_must_divide_the_shards),
      TEST(what_cannot_wait_is_refused),
  };
  return cmocka_run_group_tests_name("plan sync", tests, NULL, NULL);
}
