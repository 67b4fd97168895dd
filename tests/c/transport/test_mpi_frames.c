/* test_mpi_frames.c - messages over MPI that no rank sends: they fail the peer that they come from, whose pieces are
 * still received, and no other. Rank 1 is played by the test, on an emulated MPI.
 */
#include "tests/c/support/check.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text/hash.h"
#include "comm/transport/mpi/mpi.h"
#include "tests/emulated_mpi/emulated_mpi.h"

enum { RANKS = 3, SLOTS = 64 };

static struct {
  const ms_mpi_library *library;
  ms_mpi *mpi;
  int slots;
} played;

static ms_endpoint *endpoints[RANKS];
static int failures[RANKS], failed_peer;
static char why[512];

static void note_failure(void *context, int peer, const char *reason) {
  ++*(int *)context;
  failed_peer = peer;
  snprintf(why, sizeof why, "%s", reason);
}

static void open_rank(int rank, uint8_t address[MS_TRANSPORT_ADDRESS]) {
  ms_transport_config config = {.rank = rank,
                                .size = RANKS,
                                .token = "",
                                .job = "test",
                                .timeout = 20,
                                .failed = note_failure,
                                .context = &failures[rank]};
  be_emulated_rank(rank, RANKS);
  failures[rank] = 0;
  must(ms_transport_mpi.open(&config, &endpoints[rank]));
  must(ms_transport_mpi.address(endpoints[rank], address));
}

static void turn(int times) {
  for (; times; times--)
    for (int rank = 0; rank < RANKS; rank += 2) must(ms_transport_mpi.progress(endpoints[rank], 0));
}

/* Ranks 0 and 2 are endpoints, and rank 1 has started, as the same MPI, what the test says it sends. */
static void open_ranks(void) {
  uint8_t addresses[RANKS][MS_TRANSPORT_ADDRESS];
  ms_mpi_world world;
  for (int rank = 0; rank < RANKS; rank++) open_rank(rank, addresses[rank]);
  ms_transport_mpi.close(endpoints[1]);
  endpoints[1] = NULL;
  must(ms_mpi_load(&played.library));
  be_emulated_rank(1, RANKS);
  played.mpi = played.library->start(&world, why);
  assert_non_null(played.mpi);
  assert_true(played.library->make_slots(played.mpi, SLOTS));
  played.slots = 0;
  for (int rank = 0; rank < RANKS; rank += 2) {
    uint8_t of_peers[2][MS_TRANSPORT_ADDRESS];
    const int peers[] = {1, 2 - rank};
    memcpy(of_peers[0], addresses[1], MS_TRANSPORT_ADDRESS);
    memcpy(of_peers[1], addresses[2 - rank], MS_TRANSPORT_ADDRESS);
    must(ms_transport_mpi.connect(endpoints[rank], 2, peers, of_peers));
  }
  turn(5);
}

static void close_ranks(void) {
  for (int rank = 0; rank < RANKS; rank += 2) {
    ms_transport_mpi.close(endpoints[rank]);
    endpoints[rank] = NULL;
  }
  played.library->end(played.mpi);
}

static void play(int tag, const void *bytes, int n) {
  assert_true(played.slots < SLOTS);
  assert_true(played.library->send(played.mpi, played.slots++, 0, tag, bytes, n));
}

static void play_frame(ms_mpi_frame frame) {
  uint8_t bytes[MS_MPI_FRAME];
  ms_mpi_put_frame(bytes, &frame);
  play(0, bytes, sizeof bytes);
}

static void play_hello(void) {
  play_frame((ms_mpi_frame){
      .kind = MS_MPI_HELLO, .key = ms_hash_string(MS_HASH_INIT, "test"), .number = RANKS, .value = MS_MPI_VERSION});
}

/* Rank 0 says what was wrong with rank 1, and goes on with rank 2. */
static void fails_with(const char *facts) {
  static int out = 5, in;
  turn(10);
  assert_int_equal(failures[0], 1);
  assert_int_equal(failed_peer, 1);
  assert_has(why, facts);
  ms_transfer sends = {.peer = 2, .key = 1, .data = &out, .bytes = sizeof out};
  ms_transfer receives = {.peer = 0, .key = 1, .data = &in, .bytes = sizeof in, .receives = 1};
  in = 0;
  must(ms_transport_mpi.post(endpoints[0], &sends));
  must(ms_transport_mpi.post(endpoints[2], &receives));
  for (double end = ms_clock() + 20; receives.state != MS_TRANSFER_DONE && ms_clock() < end;) turn(1);
  assert_int_equal(in, 5);
  assert_int_equal(failures[2], 0);
  close_ranks();
}

static void H6_frames_that_make_no_sense_fail_their_sender(void **state) {
  static const struct {
    ms_mpi_frame frame;
    const char *facts;
  } wrong[] = {
      {{.kind = 0}, "rank 1 | unknown kind | kind 0"},
      {{.kind = 99}, "unknown kind | kind 99"},
      {{.kind = MS_MPI_DATA, .tag = 1}, "invalid size"},
      {{.kind = MS_MPI_DATA, .tag = 1, .bytes = MS_MPI_PIECE + 1}, "invalid size"},
      {{.kind = MS_MPI_CREDIT, .bytes = 1}, "invalid size"},
      {{.kind = MS_MPI_DATA, .bytes = 4}, "invalid tag | tag 0"},
      {{.kind = MS_MPI_DATA, .tag = MS_MPI_UNDER_WAY + 1, .bytes = 4}, "invalid tag | tag 9"},
      {{.kind = MS_MPI_PING, .tag = 1}, "invalid tag"},
      {{.kind = MS_MPI_CREDIT, .value = -1}, "negative"},
      {{.kind = MS_MPI_CREDIT, .value = 0}, "credit | turn"},
      {{.kind = MS_MPI_CREDIT, .number = 1, .value = 4}, "credit | turn | number 1"},
      {{.kind = MS_MPI_HELLO}, "second hello"},
      {{.kind = MS_MPI_DATA, .tag = 1, .bytes = 4, .key = 3}, "no receive | key 3"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    open_ranks();
    play_hello();
    play_frame(wrong[i].frame);
    fails_with(wrong[i].facts);
  }
}

static void H6_pieces_that_no_receive_waits_for_are_dropped(void **state) {
  char data[8] = "before", piece[8] = "after";
  (void)state;
  open_ranks();
  play_hello();
  turn(2);
  ms_transfer receives = {.peer = 1, .key = 3, .data = data, .bytes = sizeof data, .receives = 1};
  must(ms_transport_mpi.post(endpoints[0], &receives));
  turn(2);
  play_frame((ms_mpi_frame){.kind = MS_MPI_DATA, .tag = 2, .bytes = sizeof piece, .key = 3, .value = 4});
  play(2, piece, sizeof piece);
  fails_with("rank 1 | does not follow | key 3 | value 4");
  assert_int_equal(receives.state, MS_TRANSFER_FAILED);
  assert_string_equal(data, "before");
}

static void H6_a_piece_of_another_size_fails_its_sender(void **state) {
  char data[8] = "before";
  (void)state;
  open_ranks();
  play_hello();
  turn(2);
  ms_transfer receives = {.peer = 1, .key = 3, .data = data, .bytes = sizeof data, .receives = 1};
  must(ms_transport_mpi.post(endpoints[0], &receives));
  turn(2);
  play_frame((ms_mpi_frame){.kind = MS_MPI_DATA, .tag = 1, .bytes = sizeof data, .key = 3});
  play(1, "abcd", 4);
  fails_with("rank 1 | 4 bytes | announced 8");
  assert_int_equal(receives.state, MS_TRANSFER_FAILED);
}

static void H6_what_comes_before_hello_or_in_parts_fails_its_sender(void **state) {
  uint8_t part[MS_MPI_FRAME - 1] = {MS_MPI_PONG};
  (void)state;
  open_ranks();
  play_frame((ms_mpi_frame){.kind = MS_MPI_CREDIT, .value = 4});
  fails_with("rank 1 | before its hello");
  open_ranks();
  play_hello();
  play(0, part, sizeof part);
  fails_with("rank 1 | part of");
}

static void H6_more_keys_and_credits_than_there_may_be_fail_their_sender(void **state) {
  uint8_t message[MS_MPI_MESSAGE];
  (void)state;
  for (int many_keys = 0; many_keys < 2; many_keys++) {
    const int most = many_keys ? MS_TRANSPORT_KEYS : MS_TRANSPORT_UNDER_WAY;
    open_ranks();
    play_hello();
    for (int i = 0; i < most; i += MS_MPI_FRAMES) {
      for (int k = 0; k < MS_MPI_FRAMES; k++) {
        ms_mpi_frame credit = {.kind = MS_MPI_CREDIT, .value = 4};
        *(many_keys ? &credit.key : &credit.number) = (uint64_t)(i + k);
        ms_mpi_put_frame(message + k * MS_MPI_FRAME, &credit);
      }
      play(0, message, sizeof message);
    }
    turn(20);
    assert_int_equal(failures[0], 0);
    play_frame((ms_mpi_frame){.kind = MS_MPI_CREDIT,
                              .key = many_keys ? (uint64_t)most : 0,
                              .number = many_keys ? 0 : (uint64_t)most,
                              .value = 4});
    fails_with(many_keys ? "one key too | kind 2" : "too many credits");
  }
}

static int use_mpi(void **state) {
  (void)state;
  return use_emulated_mpi();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H6_frames_that_make_no_sense_fail_their_sender),
      TEST(H6_pieces_that_no_receive_waits_for_are_dropped),
      TEST(H6_a_piece_of_another_size_fails_its_sender),
      TEST(H6_what_comes_before_hello_or_in_parts_fails_its_sender),
      TEST(H6_more_keys_and_credits_than_there_may_be_fail_their_sender),
  };
  return cmocka_run_group_tests_name("mpi, frames", tests, use_mpi, NULL);
}
