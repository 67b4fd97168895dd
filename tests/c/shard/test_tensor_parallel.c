/* test_tensor_parallel.c - layers divided over the tensor dimension of a mesh: the training of one rank. */
#include "base/numbers/dtype.h"
#include "tests/c/support/networks/parity.h"
#include "tests/c/support/networks/planned.h"

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

static int is_in_place(const ms_plan_coll *coll) {
  return coll->dim == MS_DIM_TENSOR && coll->kind == MS_COLL_ALL_GATHER && coll->part[0].src.buffer < 0;
}

static int opens(const ms_plan_coll *coll, int buffer) {
  for (int i = 0; i < coll->opened; i++)
    if (coll->opens[i].buffer == buffer) return 1;
  return 0;
}

/* The first instruction that writes a buffer. */
static int find_writer(const ms_plan_phase *p, int buffer) {
  for (int i = 0; i < p->n; i++)
    for (int o = 0; p->instr[i].kind == MS_INSTR_KERNEL && o < p->instr[i].call->outputs; o++)
      if (p->instr[i].out[o].buffer == buffer) return i;
  return p->n;
}

/* What kernels make and peers gather is written at its place in the result, after a collective of the same ranks has
 * handed over the bytes. */
static void T2_parts_are_gathered_where_they_are_written(void **state) {
  (void)state;
  training_config c = divided(1, 1, 2);
  c.net.sequence_parallel = 1;
  planned p = plan_with(&c.net, &c.plan);
  const ms_plan_phase *phase = &p.plan->phase[MS_PHASE_FIRST];
  int in_place = 0;
  for (int i = 0; i < phase->colls; i++) {
    if (!is_in_place(phase->coll[i])) continue;
    const int buffer = phase->coll[i]->part[0].shared.buffer, writer = find_writer(phase, buffer);
    int opened = 0;
    for (int before = 0; before < writer; before++) {
      const ms_instr *instr = &phase->instr[before];
      if (instr->kind != MS_INSTR_COLLECTIVE || instr->coll->dim != MS_DIM_TENSOR) continue;
      opened += opens(instr->coll, buffer);
    }
    assert_int_equal(opened, 1);
    in_place++;
  }
  assert_int_equal(in_place, along_tensor(p.plan, MS_PHASE_FIRST, MS_COLL_ALL_GATHER));
  drop(&p);
}

/* The kernel between a gather and the wait for it, or NULL. */
static const ms_instr *find_overlapping(const ms_plan_phase *p, int gather) {
  for (int i = gather + 1; i < p->n; i++) {
    if (p->instr[i].stream != MS_STREAM_COMPUTE) continue;
    return p->instr[i].kind == MS_INSTR_KERNEL ? &p->instr[i] : NULL;
  }
  return NULL;
}

/* The first product of what is gathered begins with this rank's rows, which wait for no other rank. */
static void T2_products_begin_with_the_rows_that_are_there(void **state) {
  (void)state;
  training_config c = divided(1, 1, 2);
  c.net.sequence_parallel = 1;
  planned p = plan_with(&c.net, &c.plan);
  const ms_plan_phase *phase = &p.plan->phase[MS_PHASE_FIRST];
  int begun = 0;
  for (int i = 0; i < phase->n; i++) {
    if (phase->instr[i].kind != MS_INSTR_COLLECTIVE || !is_in_place(phase->instr[i].coll)) continue;
    const ms_plan_part *part = &phase->instr[i].coll->part[0];
    const ms_instr *product = find_overlapping(phase, i);
    if (!product || product->call->op != MS_OP_matmul) continue;
    assert_int_equal(product->in[0].buffer, part->shared.buffer);
    assert_int_equal(product->in[0].offset, p.plan->model->dim[MS_DIM_TENSOR].place * product->bytes[0]);
    assert_int_equal(product->bytes[0], part->count * ms_dtype_size(part->shared.info.dtype));
    begun++;
  }
  assert_true(begun >= c.net.blocks - 1); /* the first block gathers nothing */
  drop(&p);
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
      TEST(T2_parts_are_gathered_where_they_are_written),
      TEST(T2_products_begin_with_the_rows_that_are_there),
      TEST(T1_sequence_parallel_ranks_train_as_one_rank),
      TEST(T1_tensor_with_shards_and_replicas_trains_as_one_rank),
      TEST(T9_tensor_with_accumulation_recompute_and_frozen_weights),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
