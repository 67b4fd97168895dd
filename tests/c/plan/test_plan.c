/* test_plan.c - what a plan promises without running it: how many collectives, how many bytes, which waits, one
 * fingerprint. */
#include "tests/c/support/networks/planned.h"

#include <math.h>
#include <stdlib.h>

#include "plan/layout/state_layout.h"
#include "plan/optimizer.h"
#include "shard/param_group.h"

static planned make_with(const mlp_config *c, int prefetch, int train, int fuse) {
  ms_plan_config config = planned_config();
  config.prefetch = prefetch;
  config.train = train;
  config.fuse = fuse;
  return plan_with(c, &config);
}

static planned make(const mlp_config *c, int prefetch) { return make_with(c, prefetch, 1, 1); }

static void expect_gathers(int block, int root, int forward, int all) {
  mlp_config c = mlp_default(1, 4, 2);
  c.block.reshard = block;
  c.root.reshard = root;
  planned p = make(&c, 1);
  assert_int_equal(count(p.plan, MS_PHASE_EVALUATE, MS_COLL_ALL_GATHER, 0), forward);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), all);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER, 0), c.blocks + 1);
  assert_int_equal(count(p.plan, MS_PHASE_NEXT, MS_COLL_REDUCE_SCATTER, 0), c.blocks + 1);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_REDUCE, 0), 0);
  drop(&p);
}

static void S3_gathers_by_reshard(void **state) {
  (void)state;
  int n = 3;
  expect_gathers(MS_RESHARD_ALWAYS, MS_RESHARD_ALWAYS, n + 1, 2 * (n + 1));
  expect_gathers(MS_RESHARD_ALWAYS, MS_RESHARD_KEEP, n + 1, n + 1 + n);
  expect_gathers(MS_RESHARD_KEEP, MS_RESHARD_KEEP, n + 1, n + 1);
  expect_gathers(MS_RESHARD_DEFAULT, MS_RESHARD_DEFAULT, n + 1, n + 1 + n - 1);
}

/* The root unit is the one that says so, whatever its name: as any other it is gathered again. */
static void S4_the_default_depends_on_the_role_of_a_unit_not_its_name(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 4, 2);
  c.root.root = 0;
  planned p = make(&c, 1);
  const int n = c.blocks, again = count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0) - (n + 1);
  assert_int_equal(again, n); /* of n + 1 units the one that runs last, here the root, is kept */
  drop(&p);
}

static void expect_gathers_in_stage(int reshard, int pipeline_stage, int forward, int all) {
  mlp_config c = mlp_default(1, 4, 2);
  ms_plan_config config = planned_config();
  c.block.reshard = c.root.reshard = reshard;
  config.pipeline_stage = pipeline_stage;
  planned p = plan_with(&c, &config);
  assert_int_equal(count(p.plan, MS_PHASE_EVALUATE, MS_COLL_ALL_GATHER, 0), forward);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), all);
  drop(&p);
}

static void S4_default_keeps_all_in_a_stage_of_a_pipeline(void **state) {
  (void)state;
  int n = 3;
  expect_gathers_in_stage(MS_RESHARD_DEFAULT, 1, n + 1, n + 1);
  expect_gathers_in_stage(MS_RESHARD_DEFAULT, 0, n + 1, n + 1 + n - 1);
  expect_gathers_in_stage(MS_RESHARD_ALWAYS, 1, n + 1, 2 * (n + 1));
  expect_gathers_in_stage(MS_RESHARD_KEEP, 1, n + 1, n + 1);
}

static void S3_hybrid_adds_one_all_reduce_a_unit(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 3);
  planned p = make(&c, 1);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER, 0), c.blocks + 1);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_REDUCE, 0), c.blocks + 1);
  drop(&p);
}

static void S12_dimension_of_one_makes_no_collective(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  planned p = make(&c, 1);
  for (int phase = 0; phase < MS_PHASES; phase++) assert_int_equal(p.plan->phase[phase].colls, 0);
  assert_int_equal(p.plan->arena_bytes[MS_ARENA_GATHERED], 0);
  drop(&p);
  c = mlp_default(4, 1, 1);
  p = make(&c, 1);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), 0);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER, 0), 0);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_REDUCE, 0), c.blocks + 1);
  drop(&p);
}

static void S8_frozen_unit_costs_no_gradient(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  planned all = make(&c, 1);
  c.frozen_block = 1;
  planned p = make(&c, 1);
  assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER, 0), c.blocks);
  assert_true(p.plan->category_bytes[MS_CAT_GRADIENTS] < all.plan->category_bytes[MS_CAT_GRADIENTS]);
  assert_true(p.plan->category_bytes[MS_CAT_OPTIMIZER] < all.plan->category_bytes[MS_CAT_OPTIMIZER]);
  drop(&all);
  drop(&p);
}

static void M6_every_rank_has_the_same_fingerprint_and_bytes(void **state) {
  (void)state;
  uint64_t fingerprint = 0;
  int64_t bytes[MS_ARENAS];
  for (int rank = 0; rank < 6; rank++) {
    mlp_config c = mlp_default(2, 3, rank);
    planned p = make(&c, 1);
    if (rank == 0) {
      fingerprint = p.plan->fingerprint;
      memcpy(bytes, p.plan->arena_bytes, sizeof bytes);
    }
    assert_true(p.plan->fingerprint == fingerprint);
    assert_memory_equal(p.plan->arena_bytes, bytes, sizeof bytes);
    drop(&p);
  }
  mlp_config c = mlp_default(2, 3, 0);
  c.block.reshard = MS_RESHARD_KEEP;
  planned p = make(&c, 1);
  assert_true(p.plan->fingerprint != fingerprint);
  drop(&p);
}

/* Bytes of f32 of a model with rows padded to whole shards. */
static double padded_bytes(const ms_model *model, int shards) {
  double bytes = 0;
  for (int i = 0; i < model->params; i++) {
    const double rows = (double)model->param[i].dims[0];
    bytes += 4 * ceil(rows / shards) * shards * (double)model->param[i].numel / rows;
  }
  return bytes;
}

static double coll_bytes(const ms_plan *plan, int phase, int kind) {
  double bytes = 0;
  for (int i = 0; i < plan->phase[phase].colls; i++)
    if (plan->phase[phase].coll[i]->kind == kind) bytes += plan->phase[phase].coll[i]->bytes;
  return bytes;
}

/* A gather, and a reduce-scatter, move (N-1)/N of a unit for FSDP over N ranks, (S-1)/S for HSDP with S shards. */
static void M7_bytes_follow_the_closed_form(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 4}, {1, 3}, {2, 2}, {2, 4}, {4, 1}};
  for (int m = 0; m < 5; m++) {
    const int shards = meshes[m][1];
    mlp_config c = mlp_default(meshes[m][0], shards, 1);
    c.block.reshard = c.root.reshard = MS_RESHARD_ALWAYS;
    planned p = make(&c, 1);
    const double moved = padded_bytes(p.net.model, shards) * (shards - 1) / shards;
    for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_NEXT; phase++) {
      assert_true(fabs(coll_bytes(p.plan, phase, MS_COLL_ALL_GATHER) - 2 * moved) < 1e-6);
      assert_true(fabs(coll_bytes(p.plan, phase, MS_COLL_REDUCE_SCATTER) - moved) < 1e-6);
    }
    assert_true(fabs(coll_bytes(p.plan, MS_PHASE_EVALUATE, MS_COLL_ALL_GATHER) - moved) < 1e-6);
    drop(&p);
  }
}

static void M1_categories_add_up_to_the_arenas(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 0);
  planned p = make(&c, 1);
  int64_t arenas = 0, categories = 0;
  for (int a = 0; a < MS_ARENAS; a++) arenas += p.plan->arena_bytes[a] - p.plan->peers_bytes[a];
  for (int k = 0; k < MS_CATEGORIES; k++) categories += p.plan->category_bytes[k];
  assert_true(arenas == categories);
  assert_true(arenas == ms_plan_peak(p.plan));
  int64_t optimizer = 0;
  for (int u = 0; u < p.net.model->units; u++) {
    ms_unit_cost cost;
    assert_int_equal(ms_plan_unit_cost(p.plan, MS_PHASE_FIRST, u, &cost, sizeof cost), MS_OK);
    optimizer += cost.optimizer_bytes;
  }
  assert_true(optimizer > 0 && llabs(optimizer - p.plan->category_bytes[MS_CAT_OPTIMIZER]) < 64);
  drop(&p);
}

/* Every all-gather of the plan: is its source a chunk to be copied, or in place? */
static void expect_gathers_in_place(const ms_plan *plan, int in_place) {
  const ms_plan_phase *ph = &plan->phase[MS_PHASE_FIRST];
  for (int i = 0; i < ph->colls; i++) {
    if (ph->coll[i]->kind != MS_COLL_ALL_GATHER) continue;
    const ms_plan_part *part = &ph->coll[i]->part[0];
    assert_int_equal(part->src.buffer < 0, in_place);
    assert_int_equal(plan->buffer[part->shared.buffer].arena, in_place ? MS_ARENA_MASTERS : MS_ARENA_GATHERED);
  }
}

static void units_read_in_f32_are_read_where_their_owners_keep_them(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  planned p = make(&c, 1);
  expect_gathers_in_place(p.plan, 1);
  assert_int_equal(p.plan->arena_bytes[MS_ARENA_GATHERED], 0);
  const int64_t masters = p.plan->arena_bytes[MS_ARENA_MASTERS],
                owned = masters - p.plan->peers_bytes[MS_ARENA_MASTERS];
  assert_true(owned == p.plan->category_bytes[MS_CAT_PARAMETERS]);
  int64_t beyond = masters - 2 * owned; /* units begin on cache lines */
  assert_true(beyond >= -8 * p.net.model->units && beyond < 64 * p.net.model->units);
  drop(&p);
  c.block.param_dtype = c.root.param_dtype = MS_BF16;
  p = make(&c, 1);
  expect_gathers_in_place(p.plan, 0);
  assert_true(p.plan->arena_bytes[MS_ARENA_GATHERED] > 0);
  assert_int_equal(p.plan->arena_bytes[MS_ARENA_MASTERS], 0);
  drop(&p);
}

static int is_last_of_its_kind(const ms_plan_phase *phase, int instruction) {
  int kind = phase->instr[instruction].coll->kind;
  for (int i = instruction + 1; i < phase->n; i++)
    if (phase->instr[i].kind == MS_INSTR_COLLECTIVE && phase->instr[i].coll->kind == kind) return 0;
  return 1;
}

/* What a phase may wait for with nothing to compute: [0] gathers of forward, [1] of backward, [2] reduce-scatters, [3]
 * all-reduces. Returns how many are neither the first gather of their direction nor the last reduction of their kind.
 */
static int tell_exposed(const ms_plan *plan, int phase, int *by_kind) {
  static ms_price_event event[4096];
  int n, other = 0;
  must(ms_plan_timeline(plan, NULL, phase, event, sizeof *event, 4096, &n));
  assert_true(n <= 4096);
  memset(by_kind, 0, 4 * sizeof *by_kind);
  for (int i = 0; i < n; i++) {
    int gather = !strcmp(event[i].name, "all_gather"), scatter = !strcmp(event[i].name, "reduce_scatter");
    int first_gather = gather && !by_kind[event[i].backward];
    if (!event[i].exposed) continue;
    int last = !gather && is_last_of_its_kind(&plan->phase[phase], event[i].instruction);
    by_kind[gather ? event[i].backward : scatter ? 2 : 3]++;
    other += !first_gather && !last;
  }
  return other;
}

/* From the order of the plan's events: with depth 1 only the first gather of each direction and the last reduction have
 * no kernel that could run in parallel to them. */
static void M5_only_first_gathers_and_the_last_reduction_are_exposed(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {1, 4}, {2, 2}, {2, 1}};
  static const int policies[] = {MS_RESHARD_DEFAULT, MS_RESHARD_KEEP, MS_RESHARD_ALWAYS};
  for (int m = 0; m < 4; m++)
    for (int r = 0; r < 3; r++)
      for (int variant = 0; variant < 8; variant++) {
        int shards = meshes[m][1] > 1, replicas = meshes[m][0] > 1, by_kind[4];
        mlp_config c = mlp_default(meshes[m][0], meshes[m][1], 0);
        c.block.reshard = c.root.reshard = policies[r];
        c.block.param_dtype = c.root.param_dtype = variant & 1 ? MS_BF16 : MS_F32;
        c.recompute = variant >> 1 & 1;
        c.frozen_weights = variant >> 2 & 1;
        planned p = make(&c, 1);
        assert_int_equal(tell_exposed(p.plan, MS_PHASE_FIRST, by_kind), 0);
        assert_int_equal(by_kind[0], shards);
        assert_true(by_kind[1] <= shards);
        assert_int_equal(by_kind[2], shards);
        assert_int_equal(by_kind[3], replicas && !shards); /* with both, one collective sums over both */
        drop(&p);
      }
}

static void S17_prefetch_depth_costs_gathered_memory(void **state) {
  (void)state;
  int64_t bytes[3], peak[3];
  for (int depth = 0; depth < 3; depth++) {
    mlp_config c = mlp_default(1, 2, 0);
    c.blocks = 5;
    c.block.reshard = c.root.reshard = MS_RESHARD_ALWAYS;
    c.block.param_dtype = c.root.param_dtype = MS_BF16;
    planned p = make(&c, depth);
    bytes[depth] = p.plan->arena_bytes[MS_ARENA_GATHERED];
    peak[depth] = ms_plan_peak(p.plan);
    assert_int_equal(count(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER, 0), 12);
    drop(&p);
  }
  assert_true(bytes[0] < bytes[1] && bytes[1] < bytes[2]);
  assert_true(peak[0] < peak[1] && peak[1] < peak[2]);
}

static int count_kernels(const ms_plan *plan, int phase, int op) {
  int n = 0;
  for (int i = 0; i < plan->phase[phase].n; i++) {
    const ms_instr *instr = &plan->phase[phase].instr[i];
    n += instr->kind == MS_INSTR_KERNEL && (op < 0 || instr->call->op == op);
  }
  return n;
}

static void S16_evaluation_holds_nothing_of_backward(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  planned all = make(&c, 1), p = make_with(&c, 1, 0, 1);
  const ms_plan_phase *ph = &p.plan->phase[MS_PHASE_EVALUATE];
  for (int i = 0; i < ph->n; i++) assert_false(ph->instr[i].backward);
  assert_int_equal(p.plan->phase[MS_PHASE_FIRST].n, 0);
  assert_int_equal(p.plan->category_bytes[MS_CAT_GRADIENTS], 0);
  assert_int_equal(p.plan->category_bytes[MS_CAT_OPTIMIZER], 0);
  assert_int_equal(p.plan->category_bytes[MS_CAT_COMMUNICATION], 64); /* the loss's sum */
  assert_true(p.plan->category_bytes[MS_CAT_ACTIVATIONS] < all.plan->category_bytes[MS_CAT_ACTIVATIONS]);
  drop(&all);
  drop(&p);
}

static void unfused_plans_fuse_nothing_in_any_phase(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  planned fused = make(&c, 1), p = make_with(&c, 1, 1, 0);
  for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_EVALUATE; phase += MS_PHASE_EVALUATE - MS_PHASE_FIRST) {
    assert_int_equal(count_kernels(fused.plan, phase, MS_OP_relu), 0);
    assert_int_equal(count_kernels(p.plan, phase, MS_OP_relu), c.blocks);
    assert_true(count_kernels(p.plan, phase, -1) > count_kernels(fused.plan, phase, -1));
  }
  drop(&fused);
  drop(&p);
}

static void dumps_are_text_and_json(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 0);
  planned p = make(&c, 1);
  const char *text;
  must(ms_plan_dump(p.plan, 0, &text));
  assert_has(text, "rank 0 of 4 | mesh 2x2 (replicate, shard) | fingerprint");
  assert_has(text, "all_gather over shard");
  assert_has(text, "phase update");
  must(ms_plan_dump(p.plan, 1, &text));
  assert_has(text, "{\"rank\":0,\"world\":4,\"mesh\":\"2x2 (replicate, shard)\"");
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(S3_gathers_by_reshard),
      TEST(S4_the_default_depends_on_the_role_of_a_unit_not_its_name),
      TEST(S4_default_keeps_all_in_a_stage_of_a_pipeline),
      TEST(S3_hybrid_adds_one_all_reduce_a_unit),
      TEST(S12_dimension_of_one_makes_no_collective),
      TEST(S8_frozen_unit_costs_no_gradient),
      TEST(M6_every_rank_has_the_same_fingerprint_and_bytes),
      TEST(M7_bytes_follow_the_closed_form),
      TEST(M1_categories_add_up_to_the_arenas),
      TEST(units_read_in_f32_are_read_where_their_owners_keep_them),
      TEST(M5_only_first_gathers_and_the_last_reduction_are_exposed),
      TEST(S17_prefetch_depth_costs_gathered_memory),
      TEST(S16_evaluation_holds_nothing_of_backward),
      TEST(unfused_plans_fuse_nothing_in_any_phase),
      TEST(dumps_are_text_and_json),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
