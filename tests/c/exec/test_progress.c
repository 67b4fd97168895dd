/* test_progress.c - which phase may follow which: every sequence of phases against the sentences of the public header.
 */
#include "tests/c/support/check.h"

#include <stdio.h>
#include <string.h>

#include "comm/bootstrap/join.h"
#include "exec/state/state.h"

enum { DEPTH = 5 };

/* What the header says, written down as facts about the phases so far, and not as a machine. */
static int may_run(const int *ran, int n, int phase) {
  int gradients = 0, last = n ? ran[n - 1] : -1;
  for (int i = 0; i < n; i++) {
    if (ran[i] == MS_PHASE_FIRST) gradients = 1;
    if (ran[i] == MS_PHASE_UPDATE) gradients = 0;
  }
  if (phase == MS_PHASE_NEXT || phase == MS_PHASE_LAST || phase == MS_PHASE_NORM) return gradients;
  if (phase == MS_PHASE_UPDATE) return last == MS_PHASE_NORM;
  if (phase == MS_PHASE_OUTER) return last == MS_PHASE_UPDATE;
  return 1;
}

static ms_state state_alone(void) {
  ms_world *world;
  ms_state state;
  memset(&state, 0, sizeof state);
  must(ms_world_join_alone(&world));
  state.world = world;
  state.process_group.size = 1;
  return state;
}

static void run(ms_state *state, int phase, int rc) {
  ms_progress_begin(state, phase);
  ms_progress_end(state, phase, rc);
}

/* Follows all sequences from one; counts those that were compared. */
static int follow(const ms_state *at, int *ran, int n) {
  int compared = 0;
  for (int phase = 0; phase < MS_PHASES; phase++, compared++) {
    ms_state state = *at;
    const int allowed = may_run(ran, n, phase);
    if ((ms_progress_check(&state, phase) == MS_OK) != allowed)
      fail_msg("phase %d after %d others: %s, and it should be %s", phase, n, allowed ? "refused" : "allowed",
               allowed ? "allowed" : "refused");
    if (!allowed || n == DEPTH) continue;
    run(&state, phase, MS_OK);
    ran[n] = phase;
    compared += follow(&state, ran, n + 1);
  }
  ms_error_clear();
  return compared;
}

static void phases_follow_each_other_as_the_header_says(void **unused) {
  (void)unused;
  int ran[DEPTH + 1];
  ms_state state = state_alone();
  assert_true(follow(&state, ran, 0) > 1000);
  ms_free(state.world);
}

static void a_failed_phase_leaves_no_gradients(void **unused) {
  (void)unused;
  for (int phase = 0; phase < MS_PHASES; phase++) {
    ms_state state = state_alone();
    run(&state, MS_PHASE_FIRST, MS_OK);
    run(&state, MS_PHASE_NORM, MS_OK);
    if (phase == MS_PHASE_OUTER) run(&state, MS_PHASE_UPDATE, MS_OK);
    (void)MS_FAIL(MS_EINVAL, "it failed");
    run(&state, phase, MS_EINVAL);
    const int apart = phase == MS_PHASE_EVALUATE || phase == MS_PHASE_GATHER; /* they do not touch them */
    const int expected = apart ? MS_OK : MS_EINVAL;
    assert_int_equal(ms_progress_check(&state, MS_PHASE_NEXT), phase == MS_PHASE_OUTER ? MS_EINVAL : expected);
    assert_int_equal(ms_progress_check(&state, MS_PHASE_UPDATE), MS_EINVAL);
    assert_int_equal(ms_progress_has(&state, MS_COPIES_BEHIND), phase == MS_PHASE_UPDATE || phase == MS_PHASE_OUTER);
    assert_int_equal(ms_progress_has(&state, MS_SYNC_FAILED), phase == MS_PHASE_OUTER);
    assert_false(ms_progress_is_interrupted(&state)); /* alone, nothing waits inside it */
    ms_error_clear();
    ms_free(state.world);
  }
}

static void several_ranks_are_interrupted_until_they_recover(void **unused) {
  (void)unused;
  ms_state state = state_alone();
  state.process_group.size = 2;
  (void)MS_FAIL(MS_EINVAL, "a token is out of range");
  run(&state, MS_PHASE_FIRST, MS_EINVAL);
  for (int phase = 0; phase < MS_PHASES; phase++)
    assert_fails(ms_progress_check(&state, phase), MS_EINVAL, "a token is out of range | ms_world_recover");
  state.progress.interrupted++; /* another epoch */
  must(ms_progress_check(&state, MS_PHASE_FIRST));
  ms_free(state.world);
}

static void conditions_refuse_all_but_evaluation(void **unused) {
  (void)unused;
  static const struct {
    int condition;
    const char *facts;
  } cases[] = {{MS_AVERAGES_SWAPPED, "averages | train"}, {MS_SYNC_FAILED, "sync | ms_state_restart"}};
  for (int i = 0; i < 2; i++) {
    ms_state state = state_alone();
    ms_progress_set(&state, cases[i].condition, 1);
    assert_fails(ms_progress_check(&state, MS_PHASE_FIRST), MS_EINVAL, cases[i].facts);
    must(ms_progress_check(&state, MS_PHASE_EVALUATE));
    ms_progress_set(&state, cases[i].condition, 0);
    must(ms_progress_check(&state, MS_PHASE_FIRST));
    ms_free(state.world);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(phases_follow_each_other_as_the_header_says),
      TEST(a_failed_phase_leaves_no_gradients),
      TEST(several_ranks_are_interrupted_until_they_recover),
      TEST(conditions_refuse_all_but_evaluation),
  };
  return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
