/* test_plan_slices.c - plans of sliced units: how copies of the state on several nodes divide gradients, optimizer
 * state and updates, for replicas that share a copy per node and for those that have one each. */
#include "moonshard.h"
#include "plan/layout/state_layout.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/ranks/ranks.h"

/* A mesh, so many ranks per node, or 0: each replica has its own copy. */
typedef struct layout_case {
  int replicate, shard, per_node, copies;
} layout_case;

static const layout_case cases[] = {{2, 1, 0, 2}, {2, 2, 0, 2}, {4, 1, 2, 2}, {4, 2, 4, 2},
                                    {4, 2, 2, 4}, {6, 1, 2, 3}, {8, 1, 2, 4}, {3, 2, 0, 3}};
enum { CASES = sizeof cases / sizeof *cases, MAX_RANKS = 8 };

static planned plan_of(const layout_case *k, int rank, int dtype, int sliced, int sync) {
  mlp_config c = mlp_default(k->replicate, k->shard, rank);
  ms_plan_config config = planned_config();
  int node_of[MAX_RANKS];
  for (int i = 0; i < k->replicate * k->shard && k->per_node; i++) node_of[i] = i / k->per_node;
  config.nodes = k->per_node ? k->replicate * k->shard / k->per_node : 0;
  config.node_of = k->per_node ? node_of : NULL;
  config.shared_masters = k->per_node > 0;
  config.optimizer = MS_OPT_ADAMW;
  config.sync = sync;
  c.block.param_dtype = c.root.param_dtype = dtype;
  c.block.shard_over_replicate = c.root.shard_over_replicate = sliced;
  return plan_with(&c, &config);
}

static int count_of(const ms_plan *plan, int phase, int kind, int dim) {
  int n = 0;
  for (int i = 0; i < plan->phase[phase].colls; i++) {
    const ms_plan_coll *coll = plan->phase[phase].coll[i];
    n += coll->kind == kind && coll->dim == dim && coll->unit >= 0;
  }
  return n;
}

static void H11_slices_of_all_replicas_cover_the_chunks_once(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    const layout_case *k = &cases[i];
    for (int u = 0; u < 2; u++) {
      int64_t covered = 0, whole = 0;
      for (int replica = 0; replica < k->replicate; replica++) {
        planned p = plan_of(k, replica * k->shard, MS_BF16, 1, MS_SYNC_EVERY);
        const ms_unit *unit = &p.net.model->unit[u];
        int64_t first, node_first;
        const int64_t n = ms_unit_slice(p.net.model, unit, p.plan->layout->replicas, &first);
        const int64_t node_n = ms_unit_node_slice(p.net.model, unit, p.plan->layout->replicas, &node_first);
        assert_int_equal(ms_replica_copies(p.net.model, p.plan->layout->replicas), k->copies);
        assert_true(n <= ms_unit_slice_capacity(p.net.model, unit, p.plan->layout->replicas));
        assert_true(!n || (first >= node_first && first + n <= node_first + node_n));
        covered += n;
        whole = unit->trainable_count;
        drop(&p);
      }
      assert_int_equal(covered, whole);
    }
  }
}

/* FIRST begins with the ends of UPDATE's gathers, in their order, where no replicas share a copy of the chunks. */
static void H11_the_next_step_joins_the_gathers_that_an_update_left_in_flight(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], 0, MS_BF16, 1, MS_SYNC_EVERY);
    const ms_plan_phase *first = &p.plan->phase[MS_PHASE_FIRST], *update = &p.plan->phase[MS_PHASE_UPDATE];
    const ms_plan_coll *joined[8] = {NULL};
    int joins = 0, left = 0, began = 0;
    for (int k = 0; k < first->n; k++) {
      const ms_instr *instr = &first->instr[k];
      began |= instr->kind == MS_INSTR_KERNEL || instr->kind == MS_INSTR_COLLECTIVE;
      if (instr->kind != MS_INSTR_JOIN) continue;
      assert_true(joins < 8 && !began);
      joined[joins++] = instr->coll;
    }
    for (int k = 0; k < update->colls; k++)
      if (update->coll[k]->in_flight) assert_ptr_equal(update->coll[k], joined[left++]);
    assert_int_equal(left, joins);
    assert_int_equal(joins, p.plan->layout->replicas == 1 ? p.net.model->units : 0);
    drop(&p);
  }
}

/* Compiling verifies the plan, too. */
static void H11_all_ranks_agree_and_each_unit_is_scattered_and_gathered(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++)
    for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++)
      for (int dtype = 0; dtype < 2; dtype++) {
        const layout_case *k = &cases[i];
        uint64_t fingerprint = 0;
        for (int rank = 0; rank < k->replicate * k->shard; rank++) {
          planned p = plan_of(k, rank, dtype ? MS_BF16 : MS_F32, 1, sync);
          const int units = p.net.model->units;
          if (!rank) fingerprint = p.plan->fingerprint;
          assert_true(p.plan->fingerprint == fingerprint);
          const int phase = sync == MS_SYNC_EVERY ? MS_PHASE_FIRST : MS_PHASE_LAST;
          assert_int_equal(count_of(p.plan, phase, MS_COLL_REDUCE_SCATTER, MS_DIM_REPLICATE), units);
          assert_int_equal(count_of(p.plan, MS_PHASE_UPDATE, MS_COLL_ALL_GATHER, MS_DIM_REPLICATE), units);
          drop(&p);
        }
      }
}

/* A unit's gradients cross between copies as slices: (copies - 1) of them up, and as many weights back. */
static void H11_bytes_between_copies_are_those_of_slices(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], 0, MS_BF16, 1, MS_SYNC_EVERY);
    const ms_plan *plan = p.plan;
    for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_UPDATE; phase += MS_PHASE_UPDATE)
      for (int c = 0; c < plan->phase[phase].colls; c++) {
        const ms_plan_coll *coll = plan->phase[phase].coll[c];
        const int gathers = coll->kind == MS_COLL_ALL_GATHER;
        if (coll->unit < 0 || coll->dim != MS_DIM_REPLICATE || coll->kind == MS_COLL_ALL_REDUCE) continue;
        const ms_unit *unit = &p.net.model->unit[coll->unit];
        const int64_t room = ms_unit_slice_capacity(p.net.model, unit, plan->layout->replicas);
        assert_int_equal(coll->ranks, cases[i].copies);
        assert_int_equal(ms_plan_coll_is_between_nodes(coll), plan->layout->replicas > 1);
        assert_true(coll->bytes == (double)((coll->ranks - 1) * room * (gathers ? 2 : 4)));
      }
    drop(&p);
  }
}

/* The state of a rank: its slice of moments, masters and gradients in f32, and its part of the bf16 chunks. */
static void H11_memory_is_a_slice_of_the_state_and_the_chunks(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], 0, MS_BF16, 1, MS_SYNC_EVERY),
            whole = plan_of(&cases[i], 0, MS_BF16, 0, MS_SYNC_EVERY);
    int64_t slices = 0, chunks = 0;
    for (int u = 0; u < p.net.model->units; u++) {
      const ms_unit *unit = &p.net.model->unit[u];
      const int64_t bytes = ms_unit_weights_bytes(p.net.model, unit, p.plan->layout->replicas);
      slices += (4 * ms_unit_slice_capacity(p.net.model, unit, p.plan->layout->replicas) + 63) / 64 * 64;
      chunks += (bytes + p.plan->layout->replicas_here - 1) / p.plan->layout->replicas_here;
    }
    assert_int_equal(p.plan->category_bytes[MS_CAT_OPTIMIZER], 2 * slices);
    assert_int_equal(p.plan->category_bytes[MS_CAT_GRADIENTS], slices);
    assert_int_equal(p.plan->category_bytes[MS_CAT_PARAMETERS], slices + chunks);
    assert_true(p.plan->category_bytes[MS_CAT_OPTIMIZER] < whole.plan->category_bytes[MS_CAT_OPTIMIZER]);
    drop(&p);
    drop(&whole);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(H11_slices_of_all_replicas_cover_the_chunks_once),
      cmocka_unit_test(H11_the_next_step_joins_the_gathers_that_an_update_left_in_flight),
      cmocka_unit_test(H11_all_ranks_agree_and_each_unit_is_scattered_and_gathered),
      cmocka_unit_test(H11_bytes_between_copies_are_those_of_slices),
      cmocka_unit_test(H11_memory_is_a_slice_of_the_state_and_the_chunks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
