/* test_profile.c - the lists of what a profiled step did: every kernel and collective of the plan once, in order. */
#include "tests/c/support/networks/mlp_training.h"
#include "tests/c/support/ranks/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

enum { MAX = 4096 };

static int is_collective(const ms_instr *instr) { return instr->kind == MS_INSTR_COLLECTIVE; }

static int is_listed(const ms_instr *instr) { return instr->kind == MS_INSTR_KERNEL || is_collective(instr); }

/* The items of a phase are its kernels and collectives; each stream's are in the order of the plan. */
static void check_phase(const ms_plan *plan, int phase, const ms_profile_item *item, int n) {
  const ms_plan_phase *p = &plan->phase[phase];
  char *seen = calloc((size_t)p->n, 1);
  int latest[MS_NAMED_STREAMS];
  for (int s = 0; s < MS_NAMED_STREAMS; s++) latest[s] = -1;
  for (int i = 0; i < n; i++) {
    if (item[i].phase != phase) continue;
    const int at = item[i].instruction, s = item[i].stream;
    assert_in_range(at, 0, p->n - 1);
    assert_int_equal(p->instr[at].stream, s);
    assert_int_equal(is_collective(&p->instr[at]), item[i].collective);
    assert_false(seen[at]);
    assert_true(at > latest[s]);
    assert_true(item[i].begin > 0 && item[i].begin <= item[i].met && item[i].met <= item[i].end);
    seen[at] = 1;
    latest[s] = at;
  }
  for (int i = 0; i < p->n; i++) assert_int_equal(seen[i], is_listed(&p->instr[i]));
  free(seen);
}

static int list_a_step(ms_world *world, void *context) {
  rank_engine engine;
  ms_step_outputs out;
  ms_profile *profile;
  int n, again;
  abort_on_failed_checks();
  engine_open(world, context, &engine);
  engine_step(&engine, context, ms_world_rank(world), 0, &out);
  must(ms_profile_new(world, &profile));
  must(ms_profile_items(profile, NULL, 0, 0, &n));
  assert_int_equal(n, 0);
  ms_exec_set_profile(engine.exec, profile);
  engine_step(&engine, context, ms_world_rank(world), 1, &out);
  ms_exec_set_profile(engine.exec, NULL);
  ms_profile_item *item = calloc(MAX, sizeof *item);
  must(ms_profile_items(profile, item, sizeof *item, MAX, &n));
  assert_in_range(n, 1, MAX);
  static const int phases[] = {MS_PHASE_FIRST, MS_PHASE_NORM, MS_PHASE_UPDATE};
  for (int k = 0; k < 3; k++) check_phase(engine.plan, phases[k], item, n);
  item[1].phase = -1;
  must(ms_profile_items(profile, item, sizeof *item, 1, &again));
  assert_int_equal(again, n);
  assert_int_equal(item[1].phase, -1); /* beyond the capacity */
  free(item);
  ms_free(profile);
  engine_close(&engine);
  return MS_OK;
}

static void E6_a_profile_lists_every_kernel_and_collective_once(void **state) {
  (void)state;
  for (int replicate = 1; replicate <= 2; replicate++) {
    training_config c = training_default(replicate, 2);
    run_ranks_as_processes(2 * replicate, list_a_step, &c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(E6_a_profile_lists_every_kernel_and_collective_once)};
  return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
