/* test_hosts_order.c - collectives between hosts when ranks come late or in another order, or compute in between; and
 * what needs no transport.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/reduction.h"

/* ---- several channels ---- */

static int test_all(reduction *r, int n, int *left) {
  *left = 0;
  for (int c = 0; c < n; c++) {
    int done;
    MS_TRY(ms_comm_test(r[c].comm, &done));
    *left += !done;
  }
  return MS_OK;
}

static int complete_all(ms_world *world, reduction *r, int n) {
  ms_wait wait = {0};
  for (int left = n; left;) {
    unsigned seen = ms_world_doorbell(world);
    MS_TRY(test_all(r, n, &left));
    for (int c = 0; c < n && left; c++) {
      int done;
      MS_TRY(ms_comm_test(r[c].comm, &done));
      if (done) continue;
      MS_TRY(ms_comm_pause(r[c].comm, &wait, seen));
      break;
    }
  }
  return MS_OK;
}

/* Channel 2 is that of two ranks, one on each host. */
static int use_channels_in_different_orders(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world), pair[2] = {me % 2, me % 2 + 2};
  const int *members[CHANNELS] = {everyone, everyone, pair};
  reduction r[CHANNELS] = {0};
  for (int c = 0; c < CHANNELS; c++) MS_TRY(ms_comm_open(world, c < 2 ? 4 : 2, members[c], c, &r[c].comm));
  for (int round = 0; round < 10; round++) {
    for (int turn = 0; turn < CHANNELS; turn++) {
      int c = (turn * (me % 2 ? 2 : 1) + me + round) % CHANNELS;
      prepare(&r[c], world, members[c], c, COUNT >> round, round);
      MS_TRY(ms_comm_start(r[c].comm, &r[c].coll));
    }
    MS_TRY(complete_all(world, r, CHANNELS));
    for (int c = 0; c < CHANNELS; c++) MS_TRY(check(&r[c], members[c], c, round));
  }
  for (int c = 0; c < CHANNELS; c++) ms_comm_close(r[c].comm);
  return MS_OK;
}

static void H1_channels_can_be_used_in_different_orders(void **state) {
  (void)state;
  run_over_each(&two_by_two, use_channels_in_different_orders);
}

/* Communicators of the same ranks and channel share its sequence of operations. */
static int take_turns(ms_world *world, void *context) {
  (void)context;
  reduction a = {0}, b = {0};
  MS_TRY(open_everyone(world, 0, &a.comm));
  MS_TRY(open_everyone(world, 0, &b.comm));
  for (int round = 0; round < 6; round++) MS_TRY(reduce(round % 2 ? &a : &b, world, 1000, round));
  ms_comm_close(b.comm);
  MS_TRY(reduce(&a, world, 1000, 7));
  ms_comm_close(a.comm);
  MS_TRY(open_everyone(world, 0, &b.comm));
  MS_TRY(reduce(&b, world, 1000, 8));
  ms_comm_close(b.comm);
  return MS_OK;
}

static void H1_communicators_of_the_same_ranks_take_turns(void **state) {
  (void)state;
  run_over_each(&two_by_two, take_turns);
}

/* ---- late ranks ---- */

/* Rank 3 comes when the others have waited; until then rank 1, its partner, has only said what it entered. */
static int let_rank_3_be_late(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  const int64_t words = sizeof(ms_hosts_signature);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  MS_TRY(reduce(&r, world, COUNT, 1));
  const int64_t before = words + COUNT * 4 / 2; /* rank 1's bytes of the first one */
  if (me == 3) await_reached(1);
  prepare(&r, world, everyone, 0, COUNT, 2);
  MS_TRY(ms_comm_start(r.comm, &r.coll));
  if (me == 1) {
    int done;
    await_counts(world, before + words, before);
    usleep(200000);
    int64_t sent = ms_progress_counts(world->progress).sent;
    MS_TRY(ms_comm_test(r.comm, &done));
    EXPECT(!done, "the operation is done without rank 3");
    EXPECT(sent == before + words, "%lld bytes were sent to a rank that has not come", (long long)(sent - before));
    reached = 1;
  }
  MS_TRY(ms_comm_wait(r.comm));
  MS_TRY(check(&r, everyone, 0, 2));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H5_a_late_rank_costs_its_partner_no_memory(void **state) {
  (void)state;
  run_over_each(&two_by_two, let_rank_3_be_late);
}

/* Operations allocate nothing once the channel is open. */
static int allocate_nothing(ms_world *world, void *context) {
  (void)context;
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  for (int round = 0; round < 2; round++) MS_TRY(reduce(&r, world, COUNT, round));
  ms_coll barrier = {.kind = MS_COLL_BARRIER};
  MS_TRY(ms_comm_start(r.comm, &barrier));
  MS_TRY(ms_comm_wait(r.comm));
  int64_t before = ms_allocations();
  for (int round = 0; round < 5; round++) MS_TRY(reduce(&r, world, COUNT, round));
  EXPECT(ms_allocations() == before, "%lld allocations", (long long)(ms_allocations() - before));
  MS_TRY(ms_comm_start(r.comm, &barrier));
  MS_TRY(ms_comm_wait(r.comm));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H5_operations_between_hosts_allocate_nothing(void **state) {
  (void)state;
  reached = 0;
  run_ranks_on_hosts(&two_by_two, &ms_transport_tcp, allocate_nothing, NULL);
  if (!has_ucx()) return;
  reached = 0;
  run_ranks_on_hosts(&two_by_two, &ms_transport_ucx, allocate_nothing, NULL);
}

/* Rank 0 enters first, and then computes until the others are done: it does not look at the operation. */
static int compute_during_transfers(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world);
  reduction r = {0};
  MS_TRY(open_everyone(world, 0, &r.comm));
  prepare(&r, world, everyone, 0, COUNT, 1);
  if (me) await_reached(1);
  MS_TRY(ms_comm_start(r.comm, &r.coll));
  if (me) MS_TRY(ms_comm_wait(r.comm));
  reached++;
  if (!me) await_reached(4);
  EXPECT(me || reached == 4, "only %d other ranks are done after 20 s", reached - 1);
  MS_TRY(ms_comm_wait(r.comm));
  MS_TRY(check(&r, everyone, 0, 1));
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H5_transfers_go_on_while_a_rank_computes(void **state) {
  (void)state;
  run_over_each(&two_by_two, compute_during_transfers);
}

/* ---- connections ---- */

static int expect_peers(int me, const int *is_peer) {
  for (int rank = 0; rank < 4; rank++)
    EXPECT(has_peer(me, rank) == is_peer[rank], "rank %d has %s connection to rank %d", me, is_peer[rank] ? "no" : "a",
           rank);
  return MS_OK;
}

static int connect_to_partners(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world), across = 3 - me,
            pair[2] = {me < across ? me : across, me < across ? across : me};
  int is_peer[4] = {0};
  reduction all = {0}, two = {0};
  MS_TRY(expect_peers(me, is_peer));
  is_peer[(me + 2) % 4] = 1;
  MS_TRY(open_everyone(world, 0, &all.comm));
  MS_TRY(expect_peers(me, is_peer));
  MS_TRY(reduce(&all, world, 1000, 1));
  is_peer[across] = 1;
  MS_TRY(ms_comm_open(world, 2, pair, 1, &two.comm));
  MS_TRY(expect_peers(me, is_peer));
  prepare(&two, world, pair, 1, 1000, 2);
  MS_TRY(ms_comm_start(two.comm, &two.coll));
  MS_TRY(ms_comm_wait(two.comm));
  MS_TRY(check(&two, pair, 1, 2));
  ms_comm_close(two.comm);
  ms_comm_close(all.comm);
  return MS_OK;
}

static void H5_ranks_connect_to_the_partners_of_their_groups(void **state) {
  (void)state;
  run_ranks_on_hosts(&two_by_two, &threads_transport, connect_to_partners, NULL);
}

/* ---- what needs no wire, and what is not there ---- */

static int stay_on_the_host(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world), mate[2] = {me / 2 * 2, me / 2 * 2 + 1};
  reduction r = {0};
  ms_comm *all;
  MS_TRY(ms_comm_open(world, 2, mate, 0, &r.comm));
  prepare(&r, world, mate, 0, 1000, 1);
  MS_TRY(ms_comm_start(r.comm, &r.coll));
  MS_TRY(ms_comm_wait(r.comm));
  MS_TRY(check(&r, mate, 0, 1));
  EXPECT_FAILS(open_everyone(world, 0, &all), MS_EUNSUPPORTED, "host0 (ranks 0-1) and host1 (ranks 2-3)");
  ms_comm_close(r.comm);
  return MS_OK;
}

static void H3_a_group_inside_one_host_needs_no_transport(void **state) {
  (void)state;
  run_ranks_on_hosts(&two_by_two, NULL, stay_on_the_host, NULL);
}

/* Rank 0 sends to its neighbour through shared memory. Plans share copies within a host only. */
static int send_to_neighbour(ms_world *world, void *context) {
  (void)context;
  const int me = ms_world_rank(world), near = me ^ 1;
  void *shared[4] = {0};
  ms_comm *comm;
  shared[me] = source[0][me];
  shared[near] = source[0][near];
  for (int i = 0; i < 100; i++) source[0][me][i] = (float)(me * 100 + i);
  ms_coll_part part = {.count = 100, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = shared, .dst = source[1][me]};
  ms_coll coll = {.kind = me % 2 ? MS_COLL_RECV : MS_COLL_SEND, .parts = 1, .part = &part, .root = near};
  MS_TRY(open_everyone(world, 0, &comm));
  MS_TRY(ms_comm_start(comm, &coll));
  MS_TRY(ms_comm_wait(comm));
  for (int i = 0; i < 100 && me % 2; i++) EXPECT(source[1][me][i] == (float)(near * 100 + i), "element %d", i);
  coll.kind = MS_COLL_ALL_GATHER;
  coll.replicas = 2;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EINTERNAL, "2 replicas | 2 hosts");
  ms_comm_close(comm);
  return MS_OK;
}

static void H3_sends_within_a_host_use_its_memory(void **state) {
  (void)state;
  run_ranks_on_hosts(&two_by_two, &threads_transport, send_to_neighbour, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H1_channels_can_be_used_in_different_orders),   TEST(H1_communicators_of_the_same_ranks_take_turns),
      TEST(H5_a_late_rank_costs_its_partner_no_memory),    TEST(H5_operations_between_hosts_allocate_nothing),
      TEST(H5_transfers_go_on_while_a_rank_computes),      TEST(H5_ranks_connect_to_the_partners_of_their_groups),
      TEST(H3_a_group_inside_one_host_needs_no_transport), TEST(H3_sends_within_a_host_use_its_memory),
  };
  return cmocka_run_group_tests_name("hosts order", tests, NULL, NULL);
}
