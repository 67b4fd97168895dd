/* test_plan_muon.c - plans with Muon: who owns matrices, how the exchanges with owners follow one another, and that all
 * ranks place them alike. */
#include "plan/lower/optimizers/owners.h"
#include "tests/c/support/networks/planned.h"

static const mesh_case cases[] = {{1, 2, 1, 0, 0, 0}, {1, 3, 1, 0, 0, 0}, {2, 1, 1, 0, 0, 0}, {2, 1, 1, 1, 0, 0},
                                  {4, 1, 1, 1, 1, 0}, {2, 2, 1, 0, 0, 0}, {2, 2, 1, 1, 0, 0}, {2, 2, 1, 1, 1, 0},
                                  {1, 1, 2, 0, 0, 0}, {1, 2, 2, 0, 0, 0}, {2, 1, 2, 1, 0, 0}, {2, 2, 2, 0, 0, 0},
                                  {2, 2, 2, 1, 1, 0}, {1, 1, 4, 0, 0, 0}, {1, 4, 1, 0, 0, 1}, {2, 4, 1, 1, 0, 1}};
enum { CASES = sizeof cases / sizeof *cases, BLOCKS = 7 };

static planned plan_of(const mesh_case *k, int rank, int ragged) {
  mlp_config c = mlp_on_mesh(k, rank, ragged);
  ms_plan_config config = planned_config();
  c.blocks = BLOCKS;
  c.muon = 1;
  config.shared_masters = !k->own_copies;
  config.optimizer = MS_OPT_ADAMW;
  return plan_with(&c, &config);
}

/* Ranks have different kernels between the exchanges, but peers read at the same offsets. */
static void Q9_all_ranks_place_what_owners_exchange_alike(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++)
    for (int ragged = 0; ragged < 2; ragged++) {
      planned first = plan_of(&cases[i], 0, ragged);
      for (int rank = 1; rank < ranks_of(&cases[i]); rank++) {
        planned p = plan_of(&cases[i], rank, ragged);
        int at = 0, compared = 0;
        assert_true(p.plan->fingerprint == first.plan->fingerprint);
        for (int arena = MS_ARENA_COMM; arena < MS_ARENAS; arena++)
          assert_int_equal(p.plan->arena_bytes[arena], first.plan->arena_bytes[arena]);
        for (int b = 0; b < first.plan->buffers; b++) {
          const ms_buffer *one = &first.plan->buffer[b];
          if (one->phase != MS_PHASE_UPDATE || one->category != MS_CAT_COMMUNICATION) continue;
          while (p.plan->buffer[at].phase != MS_PHASE_UPDATE || p.plan->buffer[at].category != MS_CAT_COMMUNICATION)
            at++;
          assert_int_equal(p.plan->buffer[at].bytes, one->bytes);
          assert_int_equal(p.plan->buffer[at++].offset, one->offset);
          compared++;
        }
        assert_true(compared >= 2 * first.plan->owned_buckets);
        drop(&p);
      }
      drop(&first);
    }
}

/* A bucket is as many blocks, of two equal matrices each, as give every rank a matrix. */
static int buckets_of(int ranks) {
  const int blocks = (ranks + 1) / 2;
  return (BLOCKS + blocks - 1) / blocks;
}

/* What a replica with its own copy of the state has needs no exchange over replicate on the way to the owner. */
static void Q9_each_bucket_is_exchanged_once_in_each_direction(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], 0, 0);
    const int copies = cases[i].own_copies && !cases[i].sliced;
    int exchanges[MS_DIMS] = {0};
    for (int c = 0; c < p.plan->phase[MS_PHASE_UPDATE].colls; c++) {
      const ms_plan_coll *coll = p.plan->phase[MS_PHASE_UPDATE].coll[c];
      if (coll->kind == MS_COLL_ALL_TO_ALL) exchanges[coll->dim]++;
    }
    assert_int_equal(p.plan->owned_buckets, buckets_of(ranks_of(&cases[i])));
    for (int d = 0; d < MS_GRID_DIMS; d++) {
      const int expected = p.net.model->dim[d].size == 1 ? 0 : d == MS_DIM_REPLICATE && copies ? 1 : 2;
      assert_int_equal(exchanges[d], expected * p.plan->owned_buckets);
    }
    drop(&p);
  }
}

static int is_matrix_kernel(const ms_instr *instr) {
  return instr->kind == MS_INSTR_KERNEL && instr->call->op == MS_OP_muon_orthogonalise;
}

/* The number of matrices that are orthogonalised between an exchange and what waits for it. */
static int computed_during(const ms_plan_phase *update, int exchange) {
  int n = 0;
  for (int i = exchange + 1; i < update->n; i++) {
    const ms_instr *instr = &update->instr[i];
    n += is_matrix_kernel(instr);
    if (instr->kind == MS_INSTR_WAIT && instr->stream == MS_STREAM_COMPUTE &&
        update->instr[exchange + 1].kind == MS_INSTR_RECORD && update->instr[exchange + 1].event == instr->event)
      return n;
  }
  return n;
}

/* Each rank owns a matrix of each block. Only the first bucket has nothing before it, and the last one nothing after.
 */
static void Q9_a_matrix_is_orthogonalised_while_others_are_exchanged(void **state) {
  (void)state;
  static const mesh_case pairs[] = {{1, 2, 1, 0, 0, 0}, {2, 1, 1, 0, 0, 0}, {1, 1, 2, 0, 0, 0}};
  for (int i = 0; i < 3; i++) {
    planned p = plan_of(&pairs[i], 0, 0);
    const ms_plan_phase *update = &p.plan->phase[MS_PHASE_UPDATE];
    int seen = 0, matrices = 0;
    assert_int_equal(p.plan->owned_buckets, BLOCKS);
    for (int k = 0; k < update->n; k++) {
      matrices += is_matrix_kernel(&update->instr[k]);
      if (update->instr[k].kind != MS_INSTR_COLLECTIVE || update->instr[k].coll->kind != MS_COLL_ALL_TO_ALL) continue;
      const int end = seen == 0 || seen == 2 * BLOCKS - 1;
      assert_int_equal(computed_during(update, k) > 0, !end);
      seen++;
    }
    assert_int_equal(seen, 2 * BLOCKS);
    assert_int_equal(matrices, BLOCKS);
    drop(&p);
  }
}

/* Three buckets at a time: one comes, one is computed, one goes. */
static void Q9_the_memory_of_exchanges_is_that_of_three_buckets(void **state) {
  (void)state;
  const mesh_case pair = {1, 2, 1, 0, 0, 0};
  planned p = plan_of(&pair, 0, 0);
  int64_t end = 0, one = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    const ms_buffer *buffer = &p.plan->buffer[b];
    if (buffer->phase != MS_PHASE_UPDATE || buffer->category != MS_CAT_COMMUNICATION) continue;
    if (buffer->offset + buffer->bytes > end) end = buffer->offset + buffer->bytes;
    one = buffer->bytes;
  }
  assert_true(one > 0);
  assert_int_equal(end, 3 * 2 * one);
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q9_all_ranks_place_what_owners_exchange_alike),
      TEST(Q9_each_bucket_is_exchanged_once_in_each_direction),
      TEST(Q9_a_matrix_is_orthogonalised_while_others_are_exchanged),
      TEST(Q9_the_memory_of_exchanges_is_that_of_three_buckets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
