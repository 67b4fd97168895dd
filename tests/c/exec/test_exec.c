/* test_exec.c - runs of a plan: against a reference written by hand, and the same numbers on every mesh. */
#include "tests/c/support/networks/mlp_reference.h"
#include "tests/c/support/networks/parity.h"

#include <stdio.h>

/* ---- comparing ---- */

static void assert_equal_bits(const training_result *a, const training_result *b) {
  size_t bytes = (size_t)elements_of(a) * sizeof(float);
  assert_memory_equal(a->loss, b->loss, sizeof a->loss);
  assert_memory_equal(a->initial, b->initial, bytes);
  assert_memory_equal(a->final, b->final, bytes);
  assert_memory_equal(a->gradient, b->gradient, bytes);
}

/* Dimensions that no number of ranks above one divides, and fewer rows than ranks. */
static void take_odd_shapes(mlp_config *net) {
  net->inputs = 15;
  net->width = 16;
  net->hidden = 17;
  net->classes = 7;
}

/* ---- numbers ---- */

static void check_against_reference(const training_config *config) {
  training_result *ours = train(config);
  reference *ref = calloc(1, sizeof *ref);
  ref_start(ref, config, ours);
  for (int step = 0; step < TRAINING_STEPS; step++) {
    assert_close(ours->loss[step], ref_gradient(ref, step), 1e-5, "loss", step);
    assert_close(ours->grad_norm[step], ref_update(ref, ours->params, ours->numel, 0.02, step + 1), 1e-4, "norm", step);
  }
  for (int64_t i = 0; i < ref->n; i++) assert_close(ours->final[i], ref->w[i], 1e-3, "parameter element", (int)i);
  assert_true(ours->loss[TRAINING_STEPS - 1] < ours->loss[0]);
  free(ref);
  training_free(ours);
}

static void S1_one_rank_equals_a_reference_written_by_hand(void **state) {
  (void)state;
  training_config c = training_default(1, 1);
  check_against_reference(&c);
  c.plan.max_norm = 0.5;
  c.plan.fuse = 0;
  check_against_reference(&c);
}

static void S1_parity_of_ranks_and_layouts(void **state) {
  (void)state;
  for (int ranks = 2; ranks <= 4; ranks++)
    for (int layout = MS_LAYOUT_ROWS; layout <= MS_LAYOUT_RAGGED; layout++) {
      training_config c = training_default(1, ranks);
      take_odd_shapes(&c.net);
      c.net.root.layout = c.net.block.layout = layout;
      c.plan.max_norm = 1;
      check_parity(&c, 2e-5);
    }
}

static void S1_parity_when_ranks_own_nothing(void **state) {
  (void)state;
  for (int layout = MS_LAYOUT_ROWS; layout <= MS_LAYOUT_RAGGED; layout++) {
    training_config c = training_default(1, 4);
    c.net.width = 3;
    c.net.hidden = 1;
    c.net.root.layout = c.net.block.layout = layout;
    check_parity(&c, 2e-5);
  }
}

static void S2_parity_of_strategies(void **state) {
  (void)state;
  static const struct {
    int replicate, shard, reshard;
  } strategies[] = {{1, 4, MS_RESHARD_ALWAYS}, {1, 4, MS_RESHARD_KEEP},   {1, 3, MS_RESHARD_DEFAULT},
                    {4, 1, MS_RESHARD_KEEP},   {2, 2, MS_RESHARD_ALWAYS}, {2, 2, MS_RESHARD_KEEP}};
  for (int i = 0; i < (int)(sizeof strategies / sizeof *strategies); i++) {
    training_config c = training_default(strategies[i].replicate, strategies[i].shard);
    take_odd_shapes(&c.net);
    c.net.root.reshard = c.net.block.reshard = strategies[i].reshard;
    c.plan.max_norm = 1;
    check_parity(&c, 2e-5);
  }
}

static void S6_accumulation_equals_one_batch(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}};
  for (int i = 0; i < 4; i++) {
    training_config c = training_default(meshes[i][0], meshes[i][1]);
    c.plan.accumulate = 1;
    training_result *whole = train(&c);
    c.micro_batches = 3;
    training_result *parts = train(&c);
    assert_same_training(whole, parts, 2e-5);
    training_free(whole);
    training_free(parts);
  }
}

static void S7_half_precision_follows_full_precision(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 1}, {1, 3}, {2, 2}};
  training_config full = training_default(1, 1);
  training_result *wanted = train(&full);
  for (int i = 0; i < 3; i++)
    for (int reduce = MS_F32; reduce <= MS_BF16; reduce++) {
      training_config c = training_default(meshes[i][0], meshes[i][1]);
      c.net.root.param_dtype = c.net.block.param_dtype = MS_BF16;
      c.net.root.reduce_dtype = c.net.block.reduce_dtype = reduce;
      training_result *half = train(&c);
      for (int step = 0; step < TRAINING_STEPS; step++)
        assert_close(half->loss[step], wanted->loss[step], 0.05, "loss", step);
      training_free(half);
    }
  training_free(wanted);
}

static void S8_frozen_block_does_not_move(void **state) {
  (void)state;
  training_config c = training_default(1, 3);
  c.net.frozen_block = 1;
  training_result *r = train(&c);
  int64_t begin = 0, end;
  for (int p = 0; p < 6; p++) begin += r->numel[p];
  end = begin + r->numel[6] + r->numel[7] + r->numel[8] + r->numel[9];
  assert_memory_equal(r->initial + begin, r->final + begin, (size_t)(end - begin) * sizeof(float));
  assert_true(largest_difference(r->initial, r->final, begin) > 0);
  check_parity(&c, 2e-5);
  training_free(r);
}

/* ---- identities ---- */

static void S12_sharded_and_replicated_ranks_agree_bit_for_bit(void **state) {
  (void)state;
  for (int ranks = 2; ranks <= 4; ranks++) {
    training_config c = training_default(1, ranks);
    training_result *sharded = train(&c);
    c = training_default(ranks, 1);
    training_result *replicated = train(&c);
    assert_equal_bits(sharded, replicated);
    training_free(sharded);
    training_free(replicated);
  }
}

static void S12_layouts_and_prefetch_agree_bit_for_bit(void **state) {
  (void)state;
  training_config c = training_default(1, 3);
  training_result *wanted = train(&c);
  c.net.root.layout = c.net.block.layout = MS_LAYOUT_RAGGED;
  for (int prefetch = 0; prefetch <= 2; prefetch++) {
    c.plan.prefetch = prefetch;
    training_result *other = train(&c);
    assert_equal_bits(wanted, other);
    training_free(other);
  }
  training_free(wanted);
}

static void S15_initial_weights_are_the_same_bits_on_every_mesh(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {1, 3}, {4, 1}, {2, 2}};
  training_config c = training_default(1, 1);
  take_odd_shapes(&c.net);
  training_result *wanted = train(&c);
  for (int i = 0; i < 4; i++) {
    c = training_default(meshes[i][0], meshes[i][1]);
    take_odd_shapes(&c.net);
    c.net.block.layout = i % 2;
    training_result *other = train(&c);
    assert_memory_equal(other->initial, wanted->initial, (size_t)elements_of(wanted) * sizeof(float));
    training_free(other);
  }
  training_free(wanted);
}

static void streams_as_threads_give_the_same_bits(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 1}, {1, 2}, {2, 2}};
  const char *before = getenv("MOONSHARD_STREAMS");
  char *kept = before ? strdup(before) : NULL;
  for (int i = 0; i < 3; i++) {
    training_config c = training_default(meshes[i][0], meshes[i][1]);
    setenv("MOONSHARD_STREAMS", "inline", 1);
    training_result *one = train(&c);
    setenv("MOONSHARD_STREAMS", "threads", 1);
    training_result *many = train(&c);
    assert_equal_bits(one, many);
    training_free(one);
    training_free(many);
  }
  unsetenv("MOONSHARD_STREAMS");
  if (kept) setenv("MOONSHARD_STREAMS", kept, 1);
  free(kept);
}

/* ---- what the plan promised ---- */

static void M1_arenas_hold_what_the_plan_says_and_runs_allocate_nothing(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 1}, {1, 3}, {2, 2}};
  for (int i = 0; i < 3; i++) {
    training_config c = training_default(meshes[i][0], meshes[i][1]);
    training_result *r = train(&c);
    assert_true(r->arena_bytes == r->summary.peak_bytes);
    assert_int_equal(r->counters.allocations, 0);
    training_free(r);
  }
}

static void M7_counters_equal_the_plan(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 1}, {1, 4}, {2, 2}, {3, 1}};
  for (int i = 0; i < 4; i++) {
    training_config c = training_default(meshes[i][0], meshes[i][1]);
    training_result *r = train(&c);
    static const int once[] = {MS_PHASE_FIRST, MS_PHASE_NORM, MS_PHASE_UPDATE};
    for (int p = 0; p < 3; p++) assert_int_equal(r->counters.collectives[once[p]], r->summary.collectives[once[p]]);
    for (int d = 0; d < MS_MAX_MESH_DIMS; d++) assert_true(r->counters.comm_bytes[d] == r->summary.comm_bytes[d]);
    for (int d = 0; d < 2; d++) { /* on one node, where all of them are inside */
      assert_true(r->traffic[d].inside == r->summary.comm_bytes[d]);
      assert_true(r->traffic[d].sent == 0 && r->traffic[d].received == 0);
    }
    training_free(r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(S1_one_rank_equals_a_reference_written_by_hand),
      TEST(S1_parity_of_ranks_and_layouts),
      TEST(S1_parity_when_ranks_own_nothing),
      TEST(S2_parity_of_strategies),
      TEST(S6_accumulation_equals_one_batch),
      TEST(S7_half_precision_follows_full_precision),
      TEST(S8_frozen_block_does_not_move),
      TEST(S12_sharded_and_replicated_ranks_agree_bit_for_bit),
      TEST(S12_layouts_and_prefetch_agree_bit_for_bit),
      TEST(S15_initial_weights_are_the_same_bits_on_every_mesh),
      TEST(streams_as_threads_give_the_same_bits),
      TEST(M1_arenas_hold_what_the_plan_says_and_runs_allocate_nothing),
      TEST(M7_counters_equal_the_plan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
