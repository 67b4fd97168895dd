/* test_hosts_pairs.c - sends and receives between ranks of two hosts: they concern no other rank of the group. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/reduction.h"

#include "base/numbers/bf16.h"

enum { MAX_PARTS = 3, LONG = 900000 };

/* A send or recv of one rank. */
typedef struct transfer {
  ms_coll coll;
  ms_coll_part part[MAX_PARTS];
  void *shared[MAX_PARTS][4];
} transfer;

static float sent[4][MAX_PARTS][LONG], received[4][MAX_PARTS][LONG];

static const int64_t COUNTS[][MAX_PARTS] = {{1, 0, 0}, {1000, 3, 0}, {0, LONG, 65537}, {0, 0, 0}};
static const int N_COUNTS = sizeof COUNTS / sizeof *COUNTS;

static float value_of(int rank, int round, int part, int64_t i) {
  return (float)(rank * 7 + round * 3 + part) + (float)(i % 100);
}

static void prepare_pair(transfer *t, int me, int kind, int peer, const int64_t *counts, int dtype, int round) {
  t->coll = (ms_coll){.kind = kind, .parts = MAX_PARTS, .part = t->part, .root = peer, .label = "layers.0"};
  for (int i = 0; i < MAX_PARTS; i++) {
    memset(t->shared[i], 0, sizeof t->shared[i]);
    t->shared[i][me] = sent[me][i];
    t->part[i] = (ms_coll_part){
        .count = counts[i], .src_dtype = dtype, .dst_dtype = MS_F32, .shared = t->shared[i], .dst = received[me][i]};
    for (int64_t k = 0; k < counts[i]; k++) {
      float x = value_of(me, round, i, k);
      if (dtype == MS_BF16) ((ms_bf16 *)(void *)sent[me][i])[k] = ms_f32_to_bf16(x);
      else sent[me][i][k] = x;
      received[me][i][k] = -1;
    }
  }
}

/* Values up to 256 are exact in bf16. */
static int move_one(ms_comm *comm, int me, int kind, int peer, const int64_t *counts, int dtype, int round) {
  static transfer of_rank[4];
  transfer *t = &of_rank[me];
  prepare_pair(t, me, kind, peer, counts, dtype, round);
  MS_TRY(ms_comm_start(comm, &t->coll));
  MS_TRY(ms_comm_wait(comm));
  for (int i = 0; i < MAX_PARTS && kind == MS_COLL_RECV; i++)
    for (int64_t k = 0; k < counts[i]; k++)
      EXPECT(received[me][i][k] == value_of(peer, round, i, k), "round %d, part %d, element %lld is %g", round, i,
             (long long)k, (double)received[me][i][k]);
  return MS_OK;
}

/* Ranks 0 and 3 send to each other, later 1 and 3; rank 2 takes no part until all sum. */
static int send_both_ways(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  for (int lower = 0; lower < 2; lower++)
    for (int round = 0; round < 2 * N_COUNTS && (me == lower || me == 3); round++) {
      const int peer = me == 3 ? lower : 3, dtype = round & 1 ? MS_BF16 : MS_F32;
      const int64_t *counts = COUNTS[round / 2];
      MS_TRY(move_one(r.comm, me, me == 3 ? MS_COLL_RECV : MS_COLL_SEND, peer, counts, dtype, round));
      MS_TRY(move_one(r.comm, me, me == 3 ? MS_COLL_SEND : MS_COLL_RECV, peer, counts, dtype, round + 1));
    }
  MS_TRY(reduce(&r, world, 1000, 1));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H1_ranks_of_two_hosts_send_and_receive(void **state) {
  (void)state;
  run_over_each(&two_by_two, send_both_ways);
}

static int send_beside_sums(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  for (int round = 0; round < 20; round++) {
    MS_TRY(reduce(&r, world, 1000, round));
    if (round % 3 == 0)
      MS_TRY(move_one(r.comm, me, me < 2 ? MS_COLL_SEND : MS_COLL_RECV, me ^ 2, COUNTS[1], MS_F32, round));
    if (round % 10 == 9) MS_TRY(recover_on_hosts(world));
  }
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H1_sends_and_sums_take_turns_in_a_channel(void **state) {
  (void)state;
  run_over_each(&two_by_two, send_beside_sums);
}

static int disagree(ms_world *world, void *context) {
  const int me = ms_world_rank(world), both_send = *(const int *)context;
  static const int64_t fewer[MAX_PARTS] = {1000, 2, 0};
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  EXPECT_FAILS(move_one(r.comm, me, me && !both_send ? MS_COLL_RECV : MS_COLL_SEND, !me,
                        me && !both_send ? fewer : COUNTS[1], MS_F32, 1),
               MS_EMISMATCH,
               both_send
                   ? "rank 0 entered send layers.0 | rank 1 entered send layers.0"
                   : "rank 0 entered send layers.0 | 1003 elements | rank 1 entered recv layers.0 | 1002 elements");
  /* All have found it before one recovers. */
  reached++;
  await_reached(2);
  MS_TRY(recover_on_hosts(world));
  MS_TRY(move_one(r.comm, me, me ? MS_COLL_RECV : MS_COLL_SEND, !me, COUNTS[1], MS_F32, 2));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H7_a_send_that_meets_something_else_is_named(void **state) {
  (void)state;
  for (int both_send = 0; both_send < 2; both_send++) {
    reached = 0;
    run_ranks_on_hosts(&two_by_one, &ms_transport_tcp, disagree, &both_send);
  }
}

static int miss_the_receiver(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  const double timeout = ms_world_timeout(world);
  ms_world_set_timeout(world, 0.4);
  if (me == 0)
    EXPECT_FAILS(move_one(r.comm, me, MS_COLL_SEND, 1, COUNTS[2], MS_F32, 1), MS_ETIMEOUT,
                 "send layers.0 | 0.4 s | rank 1 | has been outside");
  ms_world_set_timeout(world, timeout);
  reached++;
  await_reached(2);
  MS_TRY(recover_on_hosts(world));
  MS_TRY(move_one(r.comm, me, me ? MS_COLL_RECV : MS_COLL_SEND, !me, COUNTS[2], MS_F32, 2));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H4_a_receiver_that_does_not_come_is_named(void **state) {
  (void)state;
  run_over_each(&two_by_one, miss_the_receiver);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H1_ranks_of_two_hosts_send_and_receive),
      TEST(H1_sends_and_sums_take_turns_in_a_channel),
      TEST(H7_a_send_that_meets_something_else_is_named),
      TEST(H4_a_receiver_that_does_not_come_is_named),
  };
  return cmocka_run_group_tests_name("hosts pairs", tests, NULL, NULL);
}
