/* test_flight_recorder.c - the flight recorder itself: texts, where a rank is, rings of records; and what is read from
 * them. */
#include "comm/diagnose/report.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/collective.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

static ms_recorder *fresh(void) {
  ms_recorder *recorder = share_memory(sizeof *recorder);
  assert_ptr_equal(ms_recorder_ring_of(recorder, MS_RECORDER_WORLD), &recorder->ring[0]);
  return recorder;
}

static void texts_are_numbered_once(void **state) {
  (void)state;
  ms_recorder *recorder = fresh();
  char text[200];
  assert_int_equal(ms_recorder_number(recorder, NULL), 0);
  assert_int_equal(ms_recorder_number(recorder, ""), 0);
  int first = ms_recorder_number(recorder, "layers.0");
  assert_int_equal(first, ms_recorder_number(recorder, "layers.0"));
  assert_int_not_equal(first, ms_recorder_number(recorder, "layers.1"));
  assert_string_equal(ms_recorder_text(recorder, (uint32_t)first), "layers.0");
  memset(text, 'a', sizeof text);
  strcpy(text + 150, ".mlp.fc1");
  int number = ms_recorder_number(recorder, text);
  const char *kept = ms_recorder_text(recorder, (uint32_t)number);
  assert_int_equal(strlen(kept), MS_RECORDER_TEXT_BYTES - 1);
  assert_non_null(strstr(kept, "a.mlp.fc1"));
  for (int i = 0; i < MS_RECORDER_TEXTS; i++) {
    snprintf(text, sizeof text, "unit.%d", i);
    ms_recorder_number(recorder, text);
  }
  assert_int_equal(ms_recorder_number(recorder, "one too many"), 0);
  assert_int_equal(ms_recorder_number(recorder, "layers.0"), first);
  assert_string_equal(ms_recorder_text(recorder, 0), "");
  assert_string_equal(ms_recorder_text(recorder, MS_RECORDER_TEXTS + 1), "");
  unshare_memory(recorder, sizeof *recorder);
}

static void rings_belong_to_groups_and_run_out(void **state) {
  (void)state;
  ms_recorder *recorder = fresh();
  ms_recorder_ring *ring = ms_recorder_ring_of(recorder, MS_RECORDER_GROUP + 7);
  assert_non_null(ring);
  assert_ptr_equal(ms_recorder_ring_of(recorder, MS_RECORDER_GROUP + 7), ring);
  for (uint32_t group = 100; group < 100 + MS_RECORDER_RINGS - 2; group++)
    assert_non_null(ms_recorder_ring_of(recorder, MS_RECORDER_GROUP + group));
  assert_null(ms_recorder_ring_of(recorder, MS_RECORDER_GROUP + 999));
  unshare_memory(recorder, sizeof *recorder);
}

static void a_ring_keeps_the_last_records(void **state) {
  (void)state;
  ms_recorder *recorder = fresh();
  ms_recorder_ring *ring = ms_recorder_ring_of(recorder, MS_RECORDER_GROUP);
  assert_null(ms_recorder_last(ring));
  for (uint64_t sequence = 1; sequence <= 3 * MS_RECORDER_RECORDS + 5; sequence++) {
    ms_recorder_entered(recorder, ring, sequence, 2, 3, 100.0 * (double)sequence);
    const ms_recorder_record *record = ms_recorder_last(ring);
    assert_int_equal(record->sequence, sequence);
    assert_int_equal(record->bytes, 100 * sequence);
    assert_true(record->entered > 0 && record->met == 0 && record->left == 0);
    ms_recorder_met(ring);
    ms_recorder_left(ring);
    assert_true(record->entered <= record->met && record->met <= record->left);
  }
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < MS_RECORDER_RECORDS; i++)
    if (ring->record[i].sequence < least) least = ring->record[i].sequence;
  assert_int_equal(least, 2 * MS_RECORDER_RECORDS + 6);
  unshare_memory(recorder, sizeof *recorder);
}

static void ranks_are_listed_as_ranges(void **state) {
  (void)state;
  enum { LAST = MS_MAX_RANKS - 1 };
  static const struct {
    int rank[8]; /* up to the first -1 */
    const char *text;
  } cases[] = {{{5, -1}, "rank 5"},
               {{0, 2, -1}, "ranks 0, 2"},
               {{0, 2, 3, 4, 5, 6, 7, -1}, "ranks 0, 2-7"},
               {{0, LAST, -1}, "ranks 0, 4095"}};
  char text[256];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ms_rank_set set = {{0}};
    for (int k = 0; cases[i].rank[k] >= 0; k++) ms_rank_set_add(&set, cases[i].rank[k]);
    ms_rank_set_text(&set, text, sizeof text);
    assert_string_equal(text, cases[i].text);
  }
  ms_rank_set all = ms_rank_set_all(MS_MAX_RANKS), last = {{0}};
  ms_rank_set_text(&all, text, sizeof text);
  assert_string_equal(text, "ranks 0-4095");
  ms_rank_set_add(&last, LAST);
  assert_int_equal(ms_rank_set_next(&last, 0), LAST);
  assert_int_equal(ms_rank_set_next(&last, LAST), LAST);
  last = ms_rank_set_both(&last, &all);
  ms_rank_set_remove(&all, LAST);
  assert_int_equal(ms_rank_set_count(&all), LAST);
  assert_int_equal(ms_rank_set_next(&all, LAST), -1);
  assert_false(ms_rank_set_equal(&all, &last));
  ms_rank_set_remove(&last, LAST);
  assert_true(ms_rank_set_is_empty(&last));
}

/* What a rank's flight recorder says while it is inside, outside, waiting and failed. */
static int tell_places(ms_world *world, void *context) {
  ms_control *control = ms_world_control(world);
  ms_recorder *recorder = ms_world_recorder(world);
  int rank = ms_world_rank(world);
  ms_rank_status s;
  ms_world_set_progress(world, 12, 3500.5);
  ms_world_set_activity(world, "data");
  ms_report_status(control, rank, &s);
  EXPECT(s.state == MS_CONTROL_JOINED && s.pid == getpid(), "state %d, process %d", s.state, s.pid);
  EXPECT(s.done == 12 && s.tokens_per_s > 3500 && s.tokens_per_s < 3501, "step %d, %g", (int)s.done, s.tokens_per_s);
  EXPECT(!*s.activity && !strcmp(s.doing, "data") && s.since >= 0 && s.since < 60, "'%s', '%s'", s.activity, s.doing);
  ms_world_set_activity(world, NULL);
  usleep(20000);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "phase first"));
  ms_recorder_at(recorder, (uint32_t)ms_recorder_number(recorder, "layers.3.wq"), ms_clock());
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "inner"));
  ms_recorder_leave(recorder, MS_OK);
  ms_report_status(control, rank, &s);
  EXPECT(!strcmp(s.activity, "phase first") && !strcmp(s.at, "layers.3.wq"), "'%s' at '%s'", s.activity, s.at);
  EXPECT(s.outside > 0.019 && !*s.doing, "outside for %g s", s.outside);
  ms_recorder_leave(recorder, MS_OK);
  MS_TRY(ms_world_barrier(world));
  ms_report_status(control, rank, &s);
  EXPECT(!*s.activity && s.last.kind && !strcmp(s.last.kind, "barrier") && s.last.sequence == 1, "'%s'", s.activity);
  ms_world_set_timeout(world, 0.2);
  int *gave_up = context;
  if (rank == 1) {
    while (!__atomic_load_n(gave_up, __ATOMIC_SEQ_CST)) usleep(1000);
  } else {
    EXPECT_FAILS(ms_world_barrier(world), MS_ETIMEOUT, "rank 0 | 0.2 s | rank 1");
    __atomic_store_n(gave_up, 1, __ATOMIC_SEQ_CST);
  }
  ms_report_status(control, 0, &s);
  EXPECT(s.wait.kind && ms_rank_set_has(&s.wait.missing, 1) && ms_rank_set_count(&s.wait.missing) == 1 &&
             s.wait.sequence == 2,
         "the failed wait is not told any more");
  return MS_OK;
}

static void a_status_contains_where_a_rank_is(void **state) {
  (void)state;
  int *gave_up = share_memory(sizeof *gave_up);
  *gave_up = 0;
  run_ranks_as_processes(2, tell_places, gave_up);
  unshare_memory(gave_up, sizeof *gave_up);
}

/* Two ranks write as fast as they can while a third reads: every record that is read is whole. */
static int write_and_read(ms_world *world, void *context) {
  int *writing = context, me = ms_world_rank(world);
  ms_control *control = ms_world_control(world);
  ms_comm *comm = NULL;
  char text[256];
  if (me < 2) {
    float x = 0;
    void *shared[2] = {&x, &x};
    MS_TRY(ms_comm_open(world, 2, (int[]){0, 1}, 1, &comm));
    for (int round = 1; round <= 3000; round++) {
      ms_coll_part part = {.count = 0, .shared = shared, .src = &x};
      ms_coll coll = {.kind = round % 2 ? MS_COLL_ALL_GATHER : MS_COLL_BARRIER,
                      .parts = 1,
                      .part = &part,
                      .label = round % 2 ? "odd" : "even"};
      MS_TRY(complete(comm, &coll));
    }
    ms_comm_close(comm);
    __atomic_fetch_sub(writing, 1, __ATOMIC_SEQ_CST);
  }
  while (me == 2 && __atomic_load_n(writing, __ATOMIC_SEQ_CST)) {
    ms_rank_status s;
    ms_report_status(control, 0, &s);
    if (!s.last.kind) continue;
    EXPECT(!strcmp(s.last.kind, s.last.sequence % 2 ? "all_gather" : "barrier"), "%s in %d", s.last.kind,
           (int)s.last.sequence);
    EXPECT(!strcmp(s.last.label, s.last.sequence % 2 ? "odd" : "even"), "%s in %d", s.last.label, (int)s.last.sequence);
    ms_report_entered(control, 1, MS_RECORDER_GROUP + 999, 1, text, sizeof text);
    EXPECT(!*text, "a record of no group: %s", text);
  }
  return ms_world_barrier(world);
}

static void records_are_read_whole_while_they_are_written(void **state) {
  (void)state;
  int *writing = share_memory(sizeof *writing);
  *writing = 2;
  run_ranks_as_threads(3, write_and_read, writing);
  *writing = 2;
  run_ranks_as_processes(3, write_and_read, writing);
  unshare_memory(writing, sizeof *writing);
}

/* A rank that waits in a step looks for a deadlock, and allocates for it; the step itself has allocated nothing. */
static int look_for_a_deadlock(ms_world *world, void *context) {
  (void)context;
  uint64_t state;
  const int64_t before = ms_allocations();
  const ms_rank_set stuck = ms_report_deadlock(ms_world_control(world), &state);
  EXPECT(ms_rank_set_is_empty(&stuck), "ranks are stuck that run");
  EXPECT(ms_allocations() == before, "%lld allocations", (long long)(ms_allocations() - before));
  free(ms_calloc(1, 1));
  EXPECT(ms_allocations() == before + 1, "later ones are not counted");
  return ms_world_barrier(world);
}

static void a_search_for_a_deadlock_is_no_part_of_a_step(void **state) {
  (void)state;
  run_ranks_as_processes(2, look_for_a_deadlock, NULL);
}

static int enter_other_meetings(ms_world *world, void *context) {
  (void)context;
  int mine = 1, all[4];
  MS_TRY(ms_world_barrier(world));
  if (ms_world_rank(world) == 1) EXPECT_FAILS(ms_world_barrier(world), MS_EMISMATCH, "rank 1 | barrier");
  else EXPECT_FAILS(ms_world_all_gather_bytes(world, &mine, sizeof mine, all), MS_EMISMATCH, "rank 1 | barrier");
  return MS_OK;
}

static void D10_a_barrier_is_no_exchange(void **state) {
  (void)state;
  run_ranks_as_processes(3, enter_other_meetings, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(texts_are_numbered_once),
      TEST(rings_belong_to_groups_and_run_out),
      TEST(a_ring_keeps_the_last_records),
      TEST(ranks_are_listed_as_ranges),
      TEST(a_status_contains_where_a_rank_is),
      TEST(records_are_read_whole_while_they_are_written),
      TEST(a_search_for_a_deadlock_is_no_part_of_a_step),
      TEST(D10_a_barrier_is_no_exchange),
  };
  return cmocka_run_group_tests_name("flight recorder", tests, NULL, NULL);
}
