/* test_plan_adafactor.c - plans with Adafactor: what ranks sum and when, that all of them place it alike, what their
 * state has, and what is refused. */
#include "plan/layout/factors.h"
#include "plan/lower/lower.h"
#include "plan/optimizer.h"
#include "tests/c/support/networks/planned.h"

static const mesh_case cases[] = {{1, 1, 1, 0, 0, 0}, {1, 2, 1, 0, 0, 0}, {1, 3, 1, 0, 0, 0}, {2, 1, 1, 0, 0, 0},
                                  {2, 1, 1, 1, 0, 0}, {4, 1, 1, 1, 1, 0}, {2, 2, 1, 0, 0, 0}, {2, 2, 1, 1, 0, 0},
                                  {2, 2, 1, 1, 1, 0}, {1, 1, 2, 0, 0, 0}, {2, 2, 2, 0, 0, 0}, {2, 2, 2, 1, 1, 0},
                                  {1, 4, 1, 0, 0, 1}, {2, 4, 1, 1, 0, 1}};
enum { CASES = sizeof cases / sizeof *cases };

static ms_plan_config adafactor(void) {
  ms_plan_config config = planned_config();
  config.optimizer = MS_OPT_ADAFACTOR;
  return config;
}

static planned plan_of(const mesh_case *k, int rank, int ragged) {
  const mlp_config c = mlp_on_mesh(k, rank, ragged);
  ms_plan_config config = adafactor();
  config.shared_masters = !k->own_copies;
  return plan_with(&c, &config);
}

static int is_exchanged(const ms_buffer *b) {
  return b->phase == MS_PHASE_UPDATE && b->category == MS_CAT_COMMUNICATION;
}

/* Ranks own other elements, but peers read at the same offsets. */
static void Q9_all_ranks_place_sums_alike(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++)
    for (int ragged = 0; ragged < 2; ragged++) {
      planned first = plan_of(&cases[i], 0, ragged);
      for (int rank = 1; rank < ranks_of(&cases[i]); rank++) {
        planned p = plan_of(&cases[i], rank, ragged);
        int at = 0, compared = 0;
        assert_true(p.plan->fingerprint == first.plan->fingerprint);
        for (int arena = 0; arena < MS_ARENAS; arena++)
          assert_int_equal(p.plan->arena_bytes[arena], first.plan->arena_bytes[arena]);
        for (int b = 0; b < first.plan->buffers; b++) {
          const ms_buffer *one = &first.plan->buffer[b];
          if (!is_exchanged(one)) continue;
          while (!is_exchanged(&p.plan->buffer[at])) at++;
          assert_int_equal(p.plan->buffer[at].bytes, one->bytes);
          assert_int_equal(p.plan->buffer[at++].offset, one->offset);
          compared++;
        }
        assert_true(compared >= 2);
        drop(&p);
      }
      drop(&first);
    }
}

/* Bytes of averages, of what is summed, and the parameters: [m,n] has m + n and one more, a vector n and one more. */
static int64_t averages_of(const ms_model *model, int64_t *sums, int *params) {
  int64_t all = 0;
  *params = 0;
  *sums = 0;
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    const int64_t averages = p->ndim == 2 ? p->whole[0] + p->whole[1] : p->whole[0];
    all += averages;
    *sums += averages + 1;
    ++*params;
  }
  return all;
}

/* What all ranks sum over a dimension in UPDATE: squares of gradients, then a number for each parameter. */
static void Q9_two_sums_over_each_dimension(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], 0, 0);
    int64_t sums;
    int params, seen[MS_DIMS] = {0};
    averages_of(p.net.model, &sums, &params);
    const ms_plan_phase *update = &p.plan->phase[MS_PHASE_UPDATE];
    for (int c = 0; c < update->colls; c++) {
      const ms_plan_coll *coll = update->coll[c];
      if (coll->kind != MS_COLL_ALL_REDUCE || !coll->parts) continue; /* without parts: within that over the shards */
      assert_int_equal(coll->part[0].count, seen[coll->dim]++ ? params : sums);
    }
    assert_int_equal(seen[MS_DIM_SHARD], cases[i].shard > 1 ? 2 : 0);
    assert_int_equal(seen[MS_DIM_TENSOR], cases[i].tensor > 1 ? 2 : 0);
    drop(&p);
  }
}

/* Averages are whole on every rank: no mesh divides their bytes. */
static void M7_averages_take_the_bytes_of_rows_and_columns(void **state) {
  (void)state;
  for (int i = 0; i < CASES; i++) {
    planned p = plan_of(&cases[i], ranks_of(&cases[i]) - 1, 1);
    int64_t sums, bytes = 0;
    int params;
    const int64_t averages = averages_of(p.net.model, &sums, &params);
    for (int u = 0; u < p.net.model->units; u++) bytes += p.plan->buffer[ms_state_buffer(u, MS_SLOT_FACTORS)].bytes;
    assert_int_equal(bytes, 4 * averages);
    assert_in_range(p.plan->category_bytes[MS_CAT_OPTIMIZER], bytes, bytes + 63 * p.net.model->units);
    drop(&p);
  }
}

static void S1_local_steps_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 1, 0);
  ms_plan_config config = adafactor();
  ms_plan *plan;
  config.shared_masters = 0;
  c.block.fragment = 1;
  mlp net = mlp_make(&c);
  assert_fails(ms_plan_compile(net.graph, &config, &plan), MS_EUNSUPPORTED, "layers.0 | local steps | adafactor");
  mlp_free(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q9_all_ranks_place_sums_alike),
      TEST(Q9_two_sums_over_each_dimension),
      TEST(M7_averages_take_the_bytes_of_rows_and_columns),
      TEST(S1_local_steps_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
