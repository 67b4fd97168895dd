/* test_hosts_failures.c - collectives between hosts when ranks do not come, enter something else, fail or give up: the
 * error names who and what, and after a recovery everything works.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/reduction.h"

static int miss_rank_3(ms_world *world, void *context) {
  (void)context;
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  ms_world_set_timeout(world, 0.4);
  if (ms_world_rank(world) < 3) {
    static const char *const facts[] = {"all_reduce layers.0 | 0.4 s | rank 2 | rank 3 has been outside",
                                        "all_reduce layers.0 | 0.4 s | rank 3", "all_reduce layers.0 | 0.4 s | rank 3"};
    int rc = reduce(&r, world, 1000, 1);
    reached++;
    EXPECT_FAILS(rc, MS_ETIMEOUT, facts[ms_world_rank(world)]);
  }
  await_reached(3);
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H4_a_rank_that_does_not_come_is_named_at_the_deadline(void **state) {
  (void)state;
  run_over_each(&two_by_two, miss_rank_3);
}

static int lose_rank_1(ms_world *world, void *context) {
  (void)context;
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  MS_TRY(reduce(&r, world, 1000, 1));
  if (ms_world_rank(world) == 0) {
    cut_off_rank(1);
    EXPECT_FAILS(reduce(&r, world, 1000, 2), MS_EPEER, "all_reduce layers.0 | rank 0 | rank 1 | unreachable");
    EXPECT_FAILS(ms_comm_start(r.comm, &r.coll), MS_EINTERNAL, "in flight");
  } else EXPECT_FAILS(reduce(&r, world, 1000, 2), MS_EPEER, "all_reduce layers.0 | rank 1 | rank 0");
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H4_a_peer_whose_connection_fails_is_named_with_the_reason(void **state) {
  (void)state;
  run_ranks_on_hosts(&two_by_one, &threads_transport, lose_rank_1, NULL);
}

static int leave_without_rank_1(ms_world *world, void *context) {
  (void)context;
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  if (ms_world_rank(world) == 0) EXPECT_FAILS(reduce(&r, world, 1000, 1), MS_EPEER, "all_reduce layers.0 | rank 1");
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H4_a_rank_that_leaves_early_is_named(void **state) {
  (void)state;
  run_over_each(&two_by_one, leave_without_rank_1);
}

static int enter_different_operations(ms_world *world, void *context) {
  (void)context;
  static float result[2][64];
  const int me = ms_world_rank(world);
  ms_comm *comm;
  void *shared[2] = {result[me], me ? result[1] : NULL};
  ms_coll_part part = {.count = 32,
                       .src_dtype = MS_F32,
                       .dst_dtype = MS_F32,
                       .src = source[0][me],
                       .shared = shared,
                       .dst = source[1][me]};
  ms_coll coll = {.parts = 1, .part = &part};
  coll.kind = me ? MS_COLL_REDUCE_SCATTER : MS_COLL_ALL_GATHER;
  coll.label = me ? "layers.1" : "layers.0";
  MS_TRY(open_everyone(world, 0, &comm));
  MS_TRY(ms_comm_start(comm, &coll));
  EXPECT_FAILS(
      ms_comm_wait(comm), MS_EMISMATCH,
      me ? "rank 1 entered reduce_scatter layers.1 | of 1 parts, 32 elements | rank 0 entered all_gather layers.0"
         : "rank 0 entered all_gather layers.0 | of 1 parts, 32 elements | rank 1 entered reduce_scatter");
  ms_comm_close(comm);
  return MS_OK;
}

static void H7_ranks_of_two_hosts_that_enter_different_operations_are_named(void **state) {
  (void)state;
  run_over_each(&two_by_one, enter_different_operations);
}

static int enter_different_types(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  prepare(&r, world, everyone, 0, 100, 1);
  if (me) r.part.src_dtype = r.part.dst_dtype = MS_BF16;
  MS_TRY(ms_comm_start(r.comm, &r.coll));
  EXPECT_FAILS(ms_comm_wait(r.comm), MS_EMISMATCH, "rank 0 entered | rank 1 entered | sizes or types");
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H7_ranks_of_two_hosts_with_different_types_are_named(void **state) {
  (void)state;
  run_over_each(&two_by_one, enter_different_types);
}

/* Rank 3 does not enter; the others give up, some of them when bytes have moved; then all recover. */
static int give_up_and_recover(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0}, other = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  MS_TRY(open_everyone(world, 1, &other.comm));
  for (int round = 1; round < 4; round++) {
    if (me < 3) {
      prepare(&r, world, everyone, 0, COUNT, round);
      MS_TRY(ms_comm_start(r.comm, &r.coll));
      usleep((useconds_t)(1000 * me * round));
      int done;
      MS_TRY(ms_comm_test(r.comm, &done));
      EXPECT(!done, "round %d is done without rank 3", round);
    }
    MS_TRY(recover_on_hosts(world));
    MS_TRY(reduce(&r, world, COUNT, round + 10));
    if (round == 2) MS_TRY(reduce(&other, world, 10, round));
  }
  ms_comm_close(r.comm);
  ms_comm_close(other.comm);
  return MS_OK;
}

static void H4_operations_that_were_given_up_leave_nothing_after_a_recovery(void **state) {
  (void)state;
  run_over_each(&two_by_two, give_up_and_recover);
}

/* Rank 1 gives up when both have entered and nothing has moved yet: it has entered, so the operation completes if its
 * bytes come, and fails if they do not. */
static int give_up_during_transfers(ms_world *world, void *context) {
  const int stays = *(const int *)context, me = ms_world_rank(world);
  const int64_t words = sizeof(ms_hosts_signature);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  if (me == 0) hold_pieces(1);
  reached++;
  await_reached(2);
  prepare(&r, world, everyone, 0, COUNT, 1);
  MS_TRY(ms_comm_start(r.comm, &r.coll));
  await_counts(world, words, words);
  if (me == 1) ms_world_abort(world, "for another reason");
  reached++;
  await_reached(4);
  int done;
  if (me == 0) {
    MS_TRY(ms_comm_test(r.comm, &done));
    EXPECT(!done, "the operation is done before a piece has moved");
  }
  reached++;
  await_reached(6);
  if (me == 1 && !stays) hold_pieces(0);
  if (me == 0 && stays) EXPECT_FAILS(ms_comm_wait(r.comm), MS_EPEER, "rank 1 gave up: for another reason");
  if (!stays) {
    MS_TRY(ms_comm_wait(r.comm));
    MS_TRY(check(&r, everyone, 0, 1));
  }
  reached++;
  await_reached(8);
  if (me == 0) hold_pieces(0);
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H4_an_operation_that_all_entered_completes_although_one_gives_up(void **state) {
  (void)state;
  for (int stays = 0; stays < 2; stays++) {
    reached = 0;
    run_ranks_on_hosts(&two_by_one, &threads_transport, give_up_during_transfers, &stays);
  }
}

static int open_another_transport(ms_world *world, void *context) {
  (void)context;
  const ms_transport_api *api = ms_world_rank(world) ? &threads_transport : &ms_transport_tcp;
  int rc = ms_progress_open(world, api, "", "test");
  EXPECT(rc == MS_EMISMATCH, "%s", ms_status_name(rc));
  EXPECT(!message_lacks(ms_error_message(), "rank 0 | tcp | rank 1 | threads | MOONSHARD_TRANSPORT"), "%s",
         ms_error_message());
  ms_error_clear();
  return MS_OK;
}

static void H7_ranks_with_different_transports_are_named(void **state) {
  (void)state;
  run_ranks_on_hosts(&two_by_one, NULL, open_another_transport, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H4_a_rank_that_does_not_come_is_named_at_the_deadline),
      TEST(H4_a_peer_whose_connection_fails_is_named_with_the_reason),
      TEST(H4_a_rank_that_leaves_early_is_named),
      TEST(H7_ranks_of_two_hosts_that_enter_different_operations_are_named),
      TEST(H7_ranks_of_two_hosts_with_different_types_are_named),
      TEST(H7_ranks_with_different_transports_are_named),
      TEST(H4_operations_that_were_given_up_leave_nothing_after_a_recovery),
      TEST(H4_an_operation_that_all_entered_completes_although_one_gives_up),
  };
  return cmocka_run_group_tests_name("hosts failures", tests, NULL, NULL);
}
