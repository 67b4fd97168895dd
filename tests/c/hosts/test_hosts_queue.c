/* test_hosts_queue.c - several operations of a communicator between hosts that are started at once: each begins by
 * itself when the one before it is done.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/reduction.h"

enum { THREE = 3 };

/* Starts all-reduces of buffers 0 to n - 1 on one communicator; buffer b has the label layers.b. */
static int start_all(ms_world *world, ms_comm *comm, reduction *r, int n, int64_t count, int round) {
  static const char *const labels[CHANNELS] = {"layers.0", "layers.1", "layers.2"};
  for (int b = 0; b < n; b++) {
    r[b].comm = comm;
    prepare(&r[b], world, everyone, b, count, round);
    r[b].coll.label = labels[b];
  }
  for (int b = 0; b < n; b++) MS_TRY(ms_comm_start(comm, &r[b].coll));
  return MS_OK;
}

static int wait_for_all(reduction *r, int n, int round) {
  for (int b = 0; b < n; b++) {
    MS_TRY(ms_comm_wait(r[b].comm));
    MS_TRY(check(&r[b], everyone, b, round));
  }
  return MS_OK;
}

static uint64_t head_of(const ms_comm *comm) { return atomic_load(&ms_comm_ring(comm)->head); }

/* Looks only at the records, until `n` operations more than `before` were entered and the last of them was left. */
static int await_left(const ms_comm *comm, uint64_t before, uint64_t n) {
  for (double end = ms_clock() + 20; ms_clock() < end; usleep(1000)) {
    const ms_recorder_record *last = ms_recorder_last(ms_comm_ring(comm));
    if (head_of(comm) == before + n && atomic_load(&last->left)) return MS_OK;
  }
  return MS_FAIL(MS_EINTERNAL, "after 20 s, %d operations have been entered", (int)(head_of(comm) - before));
}

/* ---- without the caller ---- */

static int start_and_sleep(ms_world *world, void *context) {
  (void)context;
  reduction r[THREE] = {0};
  ms_comm *comm;
  uint64_t left = 0;
  MS_TRY(open_everyone(world, 0, &comm));
  for (int round = 1; round < 4; round++) {
    const uint64_t before = head_of(comm);
    EXPECT(ms_comm_free(comm) == MS_COMM_QUEUE, "room for %d", ms_comm_free(comm));
    MS_TRY(start_all(world, comm, r, THREE, COUNT >> 2 * round, round));
    EXPECT(ms_comm_free(comm) == MS_COMM_QUEUE - THREE, "room for %d after three", ms_comm_free(comm));
    MS_TRY(await_left(comm, before, THREE));
    for (int b = 0; b < THREE; b++) MS_TRY(check(&r[b], everyone, b, round));
    for (int b = 0; b < THREE; b++) {
      MS_TRY(ms_comm_wait(comm)); /* a test alone can miss it while the progress thread has its turn */
      const ms_recorder_record *record = ms_comm_last_done(comm);
      EXPECT(record->sequence == before + (uint64_t)b + 1, "operation %d has number %d", b, (int)record->sequence);
      EXPECT(record->entered >= left && record->met >= record->entered && record->left >= record->met,
             "operation %d was entered before the one before it was left, or its times are out of order", b);
      left = record->left;
    }
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void H5_operations_that_were_started_complete_while_the_program_sleeps(void **state) {
  (void)state;
  run_over_each(&two_by_two, start_and_sleep);
}

/* The ranks of a host come to each step at different times. A progress thread that does not hear the others looks again
 * only after a tenth of a second, or after a millisecond if it polls. */
static int pass_barriers(ms_world *world, void *context) {
  enum { ROUNDS = 8 };
  (void)context;
  const ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "layers.0"};
  ms_comm *comm;
  MS_TRY(open_everyone(world, 0, &comm));
  const double began = ms_clock();
  for (int round = 0; round < ROUNDS; round++) {
    const uint64_t before = head_of(comm);
    for (int k = 0; k < MS_COMM_QUEUE; k++) MS_TRY(ms_comm_start(comm, &barrier));
    MS_TRY(await_left(comm, before, MS_COMM_QUEUE));
    for (int k = 0; k < MS_COMM_QUEUE; k++) MS_TRY(ms_comm_wait(comm));
  }
  const double seconds = ms_clock() - began;
  EXPECT(seconds < 0.02 * ROUNDS * MS_COMM_QUEUE, "%d barriers took %g s", ROUNDS * MS_COMM_QUEUE, seconds);
  ms_comm_close(comm);
  return MS_OK;
}

static void H5_progress_threads_hear_the_steps_of_the_ranks_of_their_host(void **state) {
  (void)state;
  run_over_each(&two_by_two, pass_barriers);
}

/* ---- order ---- */

enum { CHUNK = 300, WHOLE = 4 * CHUNK };

/* By turns: x = the sum of all x, y += a chunk of the sum of all x. So y depends on the order. */
static int add_by_turns(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  float y[CHUNK] = {0};
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  prepare(&r, world, everyone, 0, WHOLE, 0);
  for (int i = 0; i < WHOLE; i++) source[0][me][i] = (float)(me + 1);
  ms_coll_part chunk = r.part;
  ms_coll scatter = {.kind = MS_COLL_REDUCE_SCATTER, .parts = 1, .part = &chunk, .label = "layers.1"};
  chunk.count = CHUNK;
  chunk.dst = y;
  chunk.accumulate = 1;
  usleep((useconds_t)(2000 * me));
  for (int k = 0; k < MS_COMM_QUEUE; k++) MS_TRY(ms_comm_start(r.comm, k % 2 ? &scatter : &r.coll));
  EXPECT(ms_comm_free(r.comm) == 0, "room for %d", ms_comm_free(r.comm));
  EXPECT_FAILS(ms_comm_start(r.comm, &r.coll), MS_EINTERNAL, "in flight");
  for (int k = 0; k < MS_COMM_QUEUE; k++) MS_TRY(ms_comm_wait(r.comm));
  EXPECT(ms_comm_free(r.comm) == MS_COMM_QUEUE, "room for %d afterwards", ms_comm_free(r.comm));
  float x = 1 + 2 + 3 + 4, sum = 0;
  for (int k = 0; k < MS_COMM_QUEUE / 2; k++, x *= 4) sum += 4 * x;
  for (int i = 0; i < CHUNK; i++) EXPECT(y[i] == sum, "element %d is %g, not %g", i, (double)y[i], (double)sum);
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H1_operations_that_wait_for_their_turn_keep_their_order(void **state) {
  (void)state;
  run_over_each(&two_by_two, add_by_turns);
}

/* What rank 0 sends to its neighbour, and rank 2 to its own, is the sum of the operation before. */
static int send_between_sums(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world), near = me ^ 1;
  static float received[MAX_HOST_RANKS][1000];
  reduction r[2] = {0};
  ms_comm *comm;
  MS_TRY(open_everyone(world, 0, &comm));
  for (int round = 0; round < 5; round++) {
    for (int b = 0; b < 2; b++) {
      r[b].comm = comm;
      prepare(&r[b], world, everyone, b, 1000, round);
    }
    ms_coll_part part = r[0].part;
    part.dst = received[me];
    ms_coll pair = {.kind = me % 2 ? MS_COLL_RECV : MS_COLL_SEND, .parts = 1, .part = &part, .root = near};
    MS_TRY(ms_comm_start(comm, &r[0].coll));
    MS_TRY(ms_comm_start(comm, &pair));
    MS_TRY(ms_comm_start(comm, &r[1].coll));
    for (int k = 0; k < 3; k++) MS_TRY(ms_comm_wait(comm));
    for (int b = 0; b < 2; b++) MS_TRY(check(&r[b], everyone, b, round));
    for (int i = 0; i < 1000 && me % 2; i++)
      EXPECT(received[me][i] == source[0][me][i], "round %d, element %d is %g", round, i, (double)received[me][i]);
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void H3_sends_within_a_host_wait_for_their_turn(void **state) {
  (void)state;
  run_over_each(&two_by_two, send_between_sums);
}

/* ---- failures ---- */

/* Rank 1 enters the first operation only, and its connection ends when rank 0 is in the second one. */
static int lose_rank_1(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r[THREE] = {0};
  ms_comm *comm;
  MS_TRY(open_everyone(world, 0, &comm));
  if (me == 1) {
    MS_TRY(start_all(world, comm, r, 1, 1000, 1));
    MS_TRY(wait_for_all(r, 1, 1));
    reached++;
    await_reached(2);
    ms_comm_close(comm);
    return MS_OK;
  }
  MS_TRY(start_all(world, comm, r, THREE, 1000, 1));
  await_reached(1);
  for (double end = ms_clock() + 20; head_of(comm) < 2 && ms_clock() < end;) usleep(1000);
  cut_off_rank(1);
  MS_TRY(ms_comm_wait(comm)); /* all have entered the first one */
  MS_TRY(check(&r[0], everyone, 0, 1));
  EXPECT_FAILS(ms_comm_wait(comm), MS_EPEER, "all_reduce layers.1 | rank 0 | rank 1 | unreachable");
  EXPECT_FAILS(ms_comm_wait(comm), MS_EPEER, "rank 1");
  EXPECT(ms_comm_free(comm) == 0, "room for %d after one that failed", ms_comm_free(comm));
  EXPECT_FAILS(ms_comm_start(comm, &r[0].coll), MS_EINTERNAL, "in flight");
  EXPECT(head_of(comm) == 2, "an operation after one that failed was entered");
  reached++;
  ms_comm_close(comm);
  return MS_OK;
}

static void H4_operations_before_one_that_fails_are_done_and_those_behind_it_are_not_entered(void **state) {
  (void)state;
  reached = 0;
  run_ranks_on_hosts(&two_by_one, &threads_transport, lose_rank_1, NULL);
}

/* Rank 3 starts fewer operations than the others, so they are in one that cannot complete, with others after it. */
static int give_up_and_recover(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r[THREE] = {0};
  ms_comm *comm, *other;
  MS_TRY(open_everyone(world, 0, &comm));
  MS_TRY(open_everyone(world, 0, &other));
  for (int round = 0; round < THREE; round++) {
    MS_TRY(start_all(world, comm, r, me == 3 ? round : THREE, COUNT >> 4, round));
    if (me == 0) EXPECT_FAILS(ms_comm_start(other, &r[0].coll), MS_EINTERNAL, "another communicator");
    usleep((useconds_t)(5000 * me));
    MS_TRY(recover_on_hosts(world));
    EXPECT(ms_comm_free(comm) == MS_COMM_QUEUE, "room for %d after a recovery", ms_comm_free(comm));
    if (me == 1) EXPECT_FAILS(ms_comm_wait(comm), MS_EPEER, "recovery");
    MS_TRY(start_all(world, comm, r, THREE, COUNT >> 4, round + 10));
    MS_TRY(wait_for_all(r, THREE, round + 10));
  }
  ms_comm_close(other);
  /* What is left when a communicator closes is given up, too. */
  MS_TRY(start_all(world, comm, r, me == 3 ? 1 : THREE, COUNT >> 4, 1));
  ms_comm_close(comm);
  return MS_OK;
}

static void H4_operations_that_wait_for_their_turn_are_gone_after_a_recovery(void **state) {
  (void)state;
  run_over_each(&two_by_two, give_up_and_recover);
}

/* ---- ranks that disagree ---- */

static int differ_in_the_second(ms_world *world, void *context) {
  const int me = ms_world_rank(world), differs = *(const int *)context;
  reduction r[THREE] = {0};
  ms_comm *comm;
  MS_TRY(open_everyone(world, 0, &comm));
  for (int b = 0; b < THREE; b++) {
    r[b].comm = comm;
    prepare(&r[b], world, everyone, b, b == 1 && me == differs ? 600 : 500, 1);
    if (b == 1) r[b].coll.label = "layers.1";
  }
  for (int b = 0; b < THREE; b++) MS_TRY(ms_comm_start(comm, &r[b].coll));
  MS_TRY(wait_for_all(r, 1, 1));
  reached++;
  await_reached(ms_world_size(world)); /* none gives up while the first one is not done on another */
  int rc = ms_comm_wait(comm);
  ms_world_abort(world, ms_error_message());
  /* It finds it itself, or hears it from one that has found it. */
  EXPECT(rc == MS_EMISMATCH || rc == MS_EPEER, "%s: %s", ms_status_name(rc), ms_error_message());
  const char *lacks = message_lacks(ms_error_message(), "disagree | layers.1 | 500 elements | layers.1 | 600 elements");
  if (lacks && me != differs) lacks = message_lacks(ms_error_message(), "disagree | 600 elements | 500 elements");
  if (lacks) return ms_error_prefix("expected \"%s\" in", lacks);
  ms_error_clear();
  EXPECT(head_of(comm) == 2, "the operation after it was entered");
  reached++;
  await_reached(2 * ms_world_size(world));
  ms_comm_close(comm);
  return MS_OK;
}

static void H7_ranks_that_disagree_about_an_operation_in_the_queue_are_named(void **state) {
  (void)state;
  reached = 0;
  run_ranks_on_hosts(&two_by_one, &ms_transport_tcp, differ_in_the_second, &(int){1});
  reached = 0;
  run_ranks_on_hosts(&two_by_two, &ms_transport_tcp, differ_in_the_second, &(int){1});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H5_operations_that_were_started_complete_while_the_program_sleeps),
      TEST(H5_progress_threads_hear_the_steps_of_the_ranks_of_their_host),
      TEST(H1_operations_that_wait_for_their_turn_keep_their_order),
      TEST(H3_sends_within_a_host_wait_for_their_turn),
      TEST(H4_operations_before_one_that_fails_are_done_and_those_behind_it_are_not_entered),
      TEST(H4_operations_that_wait_for_their_turn_are_gone_after_a_recovery),
      TEST(H7_ranks_that_disagree_about_an_operation_in_the_queue_are_named),
  };
  return cmocka_run_group_tests_name("hosts queue", tests, NULL, NULL);
}
