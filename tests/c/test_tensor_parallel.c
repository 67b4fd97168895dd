/* test_tensor_parallel.c - layers divided over the tensor dimension of a mesh: the training of one rank. */
#include "tests/c/support/parity.h"

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

static void T5_tensor_with_shards_and_replicas_trains_as_one_rank(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 2, 2}, {2, 1, 2}, {2, 2, 2}};
  for (int m = 0; m < 3; m++)
    for (int layout = MS_LAYOUT_ROWS; layout <= MS_LAYOUT_RAGGED; layout++) {
      training_config c = divided(meshes[m][0], meshes[m][1], meshes[m][2]);
      c.net.root.layout = c.net.block.layout = layout;
      check_parity(&c, close);
    }
}

static void T5_tensor_with_accumulation_recompute_and_frozen_weights(void **state) {
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
      TEST(T5_tensor_with_shards_and_replicas_trains_as_one_rank),
      TEST(T5_tensor_with_accumulation_recompute_and_frozen_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
