/* test_plan_waits.c - the verifier against mutants: a plan that lacks any one of its waits is refused; the plan as it
 * was made is accepted.
 */
#include "tests/c/support/networks/plan_variant.h"

/* Takes out one wait and puts it back; returns what the verifier said in between. */
static int without_wait(ms_plan *plan, int phase, int at) {
  ms_plan_phase *p = &plan->phase[phase];
  ms_instr wait = p->instr[at];
  size_t after = (size_t)(p->n - at - 1) * sizeof wait;
  memmove(&p->instr[at], &p->instr[at + 1], after);
  p->n--;
  int rc = ms_plan_verify(plan, phase);
  ms_error_clear();
  memmove(&p->instr[at + 1], &p->instr[at], after);
  p->instr[at] = wait;
  p->n++;
  return rc;
}

/* waits: [phases] how many each phase has. */
static void check_mutants(const variant *v, int *waits) {
  planned p = plan_of(v);
  for (int phase = 0; phase < MS_PHASES; phase++) {
    const ms_plan_phase *ph = &p.plan->phase[phase];
    waits[phase] = 0;
    for (int i = 0; i < ph->n; i++) {
      if (ph->instr[i].kind != MS_INSTR_WAIT) continue;
      waits[phase]++;
      int event = ph->instr[i].event;
      if (without_wait(p.plan, phase, i) != MS_ERACE)
        fail_msg("%s, phase %s: wait %d (event %d) is not missed", v->what, ms_phase_name(phase), i, event);
    }
    if (ph->present) must(ms_plan_verify(p.plan, phase));
  }
  drop(&p);
}

static void M4_every_wait_of_every_mesh_and_prefetch_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {2, 2}, {4, 1}, {1, 3}};
  for (int m = 0; m < 4; m++)
    for (int prefetch = 0; prefetch < 3; prefetch++)
      for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
        variant v = {.what = "meshes",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = prefetch,
                     .dtype = dtype,
                     .reshard = ALWAYS};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_FIRST] > 1 && waits[MS_PHASE_NEXT] > 1 && waits[MS_PHASE_NORM] > 0);
        assert_true(v.shard == 1 || waits[MS_PHASE_EVALUATE] > 2);
      }
}

static void M4_every_wait_is_needed_when_gradients_wait(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {2, 2}, {4, 1}};
  for (int m = 0; m < 3; m++)
    for (int sync = MS_SYNC_SHARD; sync <= MS_SYNC_LAST; sync++)
      for (int stays = 0; stays < 2; stays++)
        for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
          variant v = {.what = "gradient sync",
                       .replicate = meshes[m][0],
                       .shard = meshes[m][1],
                       .prefetch = 1,
                       .sync = sync,
                       .stays = stays,
                       .dtype = dtype,
                       .reshard = ALWAYS};
          int waits[MS_PHASES];
          check_mutants(&v, waits);
          assert_true(waits[MS_PHASE_LAST] > 2);
        }
}

static void M4_every_wait_is_needed_whatever_the_policies(void **state) {
  (void)state;
  static const variant policies[] = {
      {.what = "own copies", .own_copies = 1, .reshard = ALWAYS},
      {.what = "kept", .dtype = MS_BF16, .reshard = KEEP},
      {.what = "default", .dtype = MS_BF16, .reshard = MS_RESHARD_DEFAULT},
      {.what = "groups of 2", .dtype = MS_BF16, .reshard = ALWAYS, .groups = 2},
      {.what = "groups of 2 of own copies", .own_copies = 1, .reshard = ALWAYS, .groups = 2},
      {.what = "groups of 2 of shared masters", .reshard = ALWAYS, .groups = 2},
      {.what = "recomputed", .dtype = MS_BF16, .reshard = ALWAYS, .recompute = 1},
      {.what = "recomputed in groups of 2", .dtype = MS_BF16, .reshard = ALWAYS, .recompute = 1, .groups = 2},
      {.what = "a frozen block", .dtype = MS_BF16, .reshard = ALWAYS, .frozen_block = 1},
      {.what = "frozen weights", .dtype = MS_BF16, .reshard = ALWAYS, .frozen_weights = 1},
      {.what = "f32 biases", .dtype = MS_BF16, .reshard = ALWAYS, .f32_biases = 1},
      {.what = "f32 biases, frozen weights, ragged",
       .dtype = MS_BF16,
       .reshard = ALWAYS,
       .f32_biases = 1,
       .frozen_weights = 1,
       .ragged = 1},
      {.what = "recomputed, f32 biases, gradients wait",
       .dtype = MS_BF16,
       .reshard = ALWAYS,
       .f32_biases = 1,
       .recompute = 1,
       .sync = MS_SYNC_SHARD},
      {.what = "evaluation alone", .dtype = MS_BF16, .reshard = ALWAYS, .eval_only = 1},
  };
  static const int meshes[][2] = {{1, 4}, {2, 2}};
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
    for (int m = 0; m < 2; m++)
      for (int prefetch = 0; prefetch < 3; prefetch++) {
        variant v = policies[i];
        v.replicate = meshes[m][0];
        v.shard = meshes[m][1];
        v.prefetch = prefetch;
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_EVALUATE] > 0);
      }
}

static void M4_Q6_every_wait_of_sums_in_few_bits_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{2, 2}, {4, 1}, {3, 1}};
  for (int m = 0; m < 3; m++)
    for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++)
      for (int own = 0; own < 2; own++) {
        variant v = {.what = "sums in few bits",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = 1,
                     .sync = sync,
                     .ragged = m == 1,
                     .own_copies = own,
                     .reshard = ALWAYS,
                     .quantised = sync == MS_SYNC_LAST ? MS_I4 : MS_I8};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_LAST] + waits[MS_PHASE_FIRST] > 8);
      }
}

/* At once, and in two hops between nodes of two ranks. */
static void M4_Q6_every_wait_of_sums_in_few_bits_over_shards_is_needed(void **state) {
  (void)state;
  static const int shapes[][3] = {{1, 4, 0}, {1, 4, 2}, {2, 4, 2}, {2, 2, 0}};
  for (int m = 0; m < 4; m++)
    for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++)
      for (int both = 0; both < 2; both++) {
        variant v = {.what = "sums over shards",
                     .replicate = shapes[m][0],
                     .shard = shapes[m][1],
                     .per_node = shapes[m][2],
                     .prefetch = 1,
                     .sync = sync,
                     .ragged = both,
                     .reshard = ALWAYS,
                     .quantised = both ? MS_I4 : MS_F32,
                     .shards_quantised = MS_I8};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_LAST] + waits[MS_PHASE_FIRST] > 8);
      }
}

static void M4_every_wait_of_divided_layers_is_needed(void **state) {
  (void)state;
  for (int shard = 1; shard <= 2; shard++)
    for (int recompute = 0; recompute < 2; recompute++) {
      variant v = {
          .what = "tensor", .replicate = 1, .shard = shard, .tensor = 2, .reshard = ALWAYS, .recompute = recompute};
      int waits[MS_PHASES];
      check_mutants(&v, waits);
      assert_true(waits[MS_PHASE_FIRST] > 8);
    }
}

/* Matrices are exchanged over one dimension after the other, in as many buckets as there are blocks. */
static void M4_Q9_every_wait_of_exchanges_with_owners_is_needed(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 2, 0}, {2, 1, 0}, {2, 2, 0}, {1, 1, 2}, {2, 2, 2}};
  for (int m = 0; m < 5; m++)
    for (int copies = 0; copies < 3; copies++) {
      variant v = {.what = "owners",
                   .replicate = meshes[m][0],
                   .shard = meshes[m][1],
                   .tensor = meshes[m][2],
                   .prefetch = 1,
                   .own_copies = copies > 0,
                   .sliced = copies > 1,
                   .ragged = m == 2,
                   .reshard = ALWAYS,
                   .muon = 1};
      int waits[MS_PHASES];
      check_mutants(&v, waits);
      assert_true(waits[MS_PHASE_UPDATE] > 3);
    }
}

static void M4_every_wait_of_an_outer_step_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{2, 1}, {2, 2}, {1, 2}};
  for (int m = 0; m < 3; m++)
    for (int delay = 0; delay < 2; delay++)
      for (int own_copies = 0; own_copies < 2; own_copies++) {
        variant v = {.what = "outer step",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = 1,
                     .own_copies = own_copies,
                     .frozen_weights = own_copies,
                     .reshard = ALWAYS,
                     .fragment = 1,
                     .outer_parts = MS_OUTER_SEND | MS_OUTER_APPLY,
                     .outer_delay = delay};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_int_equal(waits[MS_PHASE_OUTER] > 0, v.replicate > 1 && !delay);
      }
}

/* A phase without communication has one stream, and so nothing to wait for; replicas that update slices of one
 * copy meet after the last. */
static void M4_the_update_waits_once_for_replicas_with_one_copy(void **state) {
  (void)state;
  static const struct {
    int replicate, shard, own_copies, waits;
  } of[] = {{1, 4, 0, 0}, {2, 2, 1, 0}, {2, 2, 0, 1}, {4, 1, 0, 1}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    variant v = {.what = "update",
                 .replicate = of[i].replicate,
                 .shard = of[i].shard,
                 .own_copies = of[i].own_copies,
                 .prefetch = 1,
                 .dtype = MS_BF16,
                 .reshard = ALWAYS};
    int waits[MS_PHASES];
    check_mutants(&v, waits);
    assert_int_equal(waits[MS_PHASE_UPDATE], of[i].waits);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M4_every_wait_of_every_mesh_and_prefetch_is_needed),
      TEST(M4_every_wait_is_needed_when_gradients_wait),
      TEST(M4_every_wait_is_needed_whatever_the_policies),
      TEST(M4_every_wait_of_divided_layers_is_needed),
      TEST(M4_Q9_every_wait_of_exchanges_with_owners_is_needed),
      TEST(M4_every_wait_of_an_outer_step_is_needed),
      TEST(M4_Q6_every_wait_of_sums_in_few_bits_is_needed),
      TEST(M4_Q6_every_wait_of_sums_in_few_bits_over_shards_is_needed),
      TEST(M4_the_update_waits_once_for_replicas_with_one_copy),
  };
  return cmocka_run_group_tests_name("plan waits", tests, NULL, NULL);
}
