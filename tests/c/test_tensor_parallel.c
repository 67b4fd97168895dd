/* test_tensor_parallel.c - layers divided over the tensor dimension of a mesh: the training of one rank. */
#include "tests/c/support/parity.h"
#include "tests/c/support/planned.h"

static const double close = 2e-5;

static training_config divided(int replicate, int shard, int tensor) {
  training_config c = training_divided(replicate, shard, tensor);
  c.plan.max_norm = 1;
  return c;
}

static void T1_tensor_ranks_train_as_one_rank(void **state) {
  (void)state;
  for (int tensor = 2; tensor <= 4; tensor += 2) {
    training_config c = divided(1, 1, tensor);
    check_parity(&c, close);
  }
}

static void T1_tensor_with_shards_and_replicas_trains_as_one_rank(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 2, 2}, {2, 1, 2}, {2, 2, 2}};
  for (int m = 0; m < 3; m++)
    for (int layout = MS_LAYOUT_ROWS; layout <= MS_LAYOUT_RAGGED; layout++) {
      training_config c = divided(meshes[m][0], meshes[m][1], meshes[m][2]);
      c.net.root.layout = c.net.block.layout = layout;
      check_parity(&c, close);
    }
}

static int along_tensor(const ms_plan *plan, int phase, int kind) {
  int n = 0;
  for (int i = 0; i < plan->phase[phase].colls; i++)
    n += plan->phase[phase].coll[i]->dim == MS_DIM_TENSOR && plan->phase[phase].coll[i]->kind == kind;
  return n;
}

/* Beside them, each block sums the gradient of its last bias, of which each rank has a summand. */
static void check_collectives(int sequence, int reduce, int scatter, int gather) {
  training_config c = divided(1, 1, 2);
  c.net.sequence_parallel = sequence;
  planned p = plan_with(&c.net, &c.plan);
  assert_int_equal(along_tensor(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_REDUCE), reduce + c.net.blocks);
  assert_int_equal(along_tensor(p.plan, MS_PHASE_FIRST, MS_COLL_REDUCE_SCATTER), scatter);
  assert_int_equal(along_tensor(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER), gather);
  assert_int_equal(along_tensor(p.plan, MS_PHASE_NORM, MS_COLL_ALL_REDUCE), 1);
  drop(&p);
}

/* Each block sums once in forward and once in backward. With sequence parallel, a block scatters its sum, all but the
 * first gather in front, and backward does the reverse; logits are gathered since they are an output. What is summed
 * are gradients of what meets a part of the rows, the number of targets, and the loss. */
static void T2_the_collectives_of_a_step(void **state) {
  (void)state;
  const int blocks = mlp_default(1, 1, 0).blocks;
  check_collectives(0, 2 * blocks, 0, 0);
  check_collectives(1, 4, 2 * blocks - 1, 2 * blocks);
}

/* With the first axis divided between the layers. */
static void T1_sequence_parallel_ranks_train_as_one_rank(void **state) {
  (void)state;
  for (int shard = 1; shard <= 2; shard++) {
    training_config c = divided(1, shard, 2);
    c.net.sequence_parallel = 1;
    check_parity(&c, close);
  }
}

static void T9_tensor_with_accumulation_recompute_and_frozen_weights(void **state) {
  (void)state;
  training_config c = divided(1, 2, 2);
  c.net.recompute = 1;
  c.net.frozen_block = 1;
  c.micro_batches = 3;
  c.plan.accumulate = 1;
  for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++) {
    c.plan.sync = sync;
    check_parity(&c, close);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(T1_tensor_ranks_train_as_one_rank),
      TEST(T2_the_collectives_of_a_step),
      TEST(T1_sequence_parallel_ranks_train_as_one_rank),
      TEST(T1_tensor_with_shards_and_replicas_trains_as_one_rank),
      TEST(T9_tensor_with_accumulation_recompute_and_frozen_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
