/* test_mpi.c - what the transport mpi does because it is MPI, on an emulated one: memory that MPI holds, deadlines,
 * who may use it. What it has in common with tcp is in test_transport.c.
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/emulated_mpi/emulated_mpi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { MIB = 1 << 20, LONG = 24 * MIB };

static ends all;
static emulated_mpi *mpi; /* after the first open */

static void open_all(int n, double timeout) {
  open_ends(&all, n, timeout);
  void *found = dlsym(RTLD_DEFAULT, EMULATED_MPI);
  assert_non_null(found);
  mpi = found;
}

static void turn_one(int rank) { must(ms_transport_mpi.progress(all.of[rank].endpoint, 0)); }

static int64_t sent_by(int rank) {
  ms_transport_counts counts;
  ms_transport_mpi.counts(all.of[rank].endpoint, &counts);
  return counts.sent;
}

/* ---- who may use it ---- */

static void open_fails(const end *one, int status, const char *facts) {
  ms_endpoint *endpoint;
  assert_fails(ms_transport_mpi.open(&one->config, &endpoint), status, facts);
  assert_null(endpoint);
}

static void H7_only_ranks_that_a_launcher_of_mpi_started_can_use_it(void **state) {
  end one;
  char why[512];
  (void)state;
  prepare_end(&one, 1, 2);
  unsetenv("OMPI_COMM_WORLD_RANK");
  assert_false(ms_transport_mpi_usable(why, sizeof why));
  assert_has(why, "mpirun | srun");
  assert_int_equal(ms_error_code(), MS_OK);
  open_fails(&one, MS_EUNSUPPORTED, "mpirun | srun");
  setenv("SLURM_PROCID", "1", 1); /* of a batch script: nothing without a step */
  assert_false(ms_transport_mpi_usable(why, sizeof why));
  unsetenv("SLURM_PROCID");
  setenv("PMI_RANK", "1", 1);
  setenv("PMI_SIZE", "2", 1);
  setenv("MOONSHARD_JOB_FD", "3", 1);
  open_fails(&one, MS_EUNSUPPORTED, "moonshard run | mpirun");
  unsetenv("MOONSHARD_JOB_FD");
  setenv("PMI_RANK", "0", 1);
  open_fails(&one, MS_EINVAL, "rank 1 of 2 | rank 0 of 2 | PMI_RANK");
  setenv("PMI_RANK", "1", 1);
  setenv("PMI_SIZE", "4", 1);
  open_fails(&one, MS_EINVAL, "rank 1 of 2 | rank 1 of 4");
  unsetenv("PMI_RANK");
  unsetenv("PMI_SIZE");
}

/* The library is loaded once, so these come before the others. */
static void H7_a_library_that_is_missing_or_of_another_version_is_named(void **state) {
  end one;
  char why[512];
  (void)state;
  prepare_end(&one, 0, 1);
  be_emulated_rank(0, 1);
  setenv("MOONSHARD_MPI_LIBRARY", "/nowhere/libmoonshard_mpi.so", 1);
  open_fails(&one, MS_EUNSUPPORTED, "MOONSHARD_MPI_LIBRARY | /nowhere/libmoonshard_mpi.so");
  setenv("MOONSHARD_MPI_LIBRARY", "libm.so.6", 1);
  open_fails(&one, MS_EUNSUPPORTED, "libmoonshard_mpi.so | version");
  use_emulated_mpi();
  assert_true(ms_transport_mpi_usable(why, sizeof why));
  assert_string_equal(why, "");
}

static void H7_a_world_of_mpi_that_is_not_the_job_is_refused(void **state) {
  end one;
  (void)state;
  prepare_end(&one, 0, 2);
  be_emulated_rank(0, 2);
  setenv("EMULATED_SIZE", "1", 1); /* as MPI_Init makes it without its own mpirun */
  open_fails(&one, MS_EINVAL, "rank 0 of 2 | emulated MPI | rank 0 of 1");
  unsetenv("EMULATED_SIZE");
  prepare_end(&one, 2, 2);
  open_fails(&one, MS_EINVAL, "rank 2 of 2");
}

static void H7_addresses_of_other_transports_and_ranks_are_refused(void **state) {
  uint8_t address[MS_TRANSPORT_ADDRESS];
  int peer = 1;
  (void)state;
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    open_end(&all, rank);
  }
  memset(address, 7, sizeof address);
  assert_fails(ms_transport_mpi.connect(all.of[0].endpoint, 1, &peer, address), MS_EINVAL, "rank 1 | MPI");
  close_ends(&all);
  open_end(&all, 0);
  assert_fails(ms_transport_mpi.connect(all.of[0].endpoint, 1, &peer, all.addresses[0]), MS_EINVAL,
               "rank 1 | emulated MPI | rank 0");
  ms_transport_mpi.close(all.of[0].endpoint);
}

static void H7_a_peer_of_another_job_is_refused(void **state) {
  (void)state;
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    if (rank) all.of[rank].config.job = "another";
    open_end(&all, rank);
  }
  for (int rank = 0; rank < 2; rank++) connect_end(&all, rank);
  for (int rank = 0; rank < 2; rank++) turn_until(&all, &all.of[rank].failures, 1);
  assert_has(all.of[0].why, "another job");
  assert_has(all.of[1].why, "another job");
  close_ends(&all);
}

/* ---- receivers that are late ---- */

static void H5_nothing_is_sent_before_the_receive_is_posted(void **state) {
  uint8_t *out = calloc(1, LONG), *in = calloc(1, LONG);
  (void)state;
  open_all(2, 0.4);
  memset(out, 5, LONG);
  ms_transfer sends = send_to(1, 1, out, LONG), receives = receive_from(0, 1, in, LONG);
  post_at(&all, 0, &sends);
  turn_for(&all, 0.6); /* longer than the deadline, which is for transfers of both sides */
  assert_int_equal(sent_by(0), 0);
  assert_in_range(mpi->waiting, 0, 2 * 512);
  post_at(&all, 1, &receives);
  turn_one(1);
  /* The receiver reads nothing now: the sender's memory waits for it, and not MPI's. */
  for (int i = 0; i < 100; i++) turn_one(0);
  assert_int_equal(sent_by(0), 0);
  assert_in_range(mpi->waiting, 1, 2 * 512);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  assert_memory_equal(in, out, LONG);
  assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
  close_ends(&all);
  assert_int_equal(mpi->waiting, 0);
  free(out);
  free(in);
}

/* More bytes than an int counts; a MiB of memory, mapped again and again. Sanitizers take minutes to copy so many. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const int64_t bytes = 20 * MIB + 5;
#else
static const int64_t bytes = (2ll << 30) + MIB + 5;
#endif

static void H5_a_transfer_can_be_larger_than_2_GiB(void **state) {
  const int64_t room = bytes + MIB;
  uint8_t *memory[2];
  (void)state;
  for (int rank = 0; rank < 2; rank++) {
    const int fd = memfd_create("large", MFD_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, MIB));
    memory[rank] = mmap(NULL, (size_t)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(memory[rank], MAP_FAILED);
    for (int64_t at = 0; at < bytes; at += MIB)
      assert_ptr_equal(mmap(memory[rank] + at, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0),
                       memory[rank] + at);
    close(fd);
  }
  open_all(2, 60);
  memset(memory[0], 3, MIB);
  ms_transfer sends = send_to(1, 1, memory[0], bytes), receives = receive_from(0, 1, memory[1], bytes);
  post_at(&all, 0, &sends);
  post_at(&all, 1, &receives);
  turn_until_is(&all, &receives, MS_TRANSFER_DONE);
  turn_until_is(&all, &sends, MS_TRANSFER_DONE);
  assert_memory_equal(memory[1], memory[0], MIB);
  assert_int_equal(sent_by(0), bytes);
  close_ends(&all);
  for (int rank = 0; rank < 2; rank++) munmap(memory[rank], (size_t)room);
}

/* ---- cancelling ---- */

static struct {
  pthread_t thread;
  ms_endpoint *endpoint;
  atomic_int stop;
} other;

static void *keep_turning_other(void *context) {
  while (!atomic_load(&other.stop)) ms_transport_mpi.progress(other.endpoint, 0.001);
  return context;
}

/* Both cancel in the middle of a transfer, the sender or the receiver first, while the other rank goes on. */
static void cancel_in_the_middle(int first) {
  uint8_t *memory[2] = {calloc(1, LONG), calloc(1, LONG)};
  int word[2] = {17, 0};
  open_all(2, 20);
  ms_transfer moves[2] = {send_to(1, 7, memory[0], LONG), receive_from(0, 7, memory[1], LONG)};
  for (int rank = 0; rank < 2; rank++) post_at(&all, rank, &moves[rank]);
  while (moves[1].moved < MIB) turn_ends(&all);
  other.endpoint = all.of[!first].endpoint;
  atomic_store(&other.stop, 0);
  assert_int_equal(pthread_create(&other.thread, NULL, keep_turning_other, NULL), 0);
  ms_transport_mpi.cancel(all.of[first].endpoint, 7);
  assert_int_equal(moves[first].state, MS_TRANSFER_FAILED);
  memset(memory[first], 0x55, LONG); /* the caller's memory again */
  ms_transfer again = first ? receive_from(0, 7, memory[1], LONG) : send_to(1, 7, memory[0], LONG);
  assert_fails(ms_transport_mpi.post(all.of[first].endpoint, &again), MS_EINVAL, "key 7 | cancelled");
  for (int i = 0; i < 1000; i++) turn_one(first);
  atomic_store(&other.stop, 1);
  pthread_join(other.thread, NULL);
  turn_for(&all, 0.02);
  assert_int_equal(moves[!first].state, MS_TRANSFER_POSTED);
  assert_int_equal(memory[first][0], 0x55);
  assert_memory_equal(memory[first], memory[first] + 1, LONG - 1);
  ms_transport_mpi.cancel(all.of[!first].endpoint, 7);
  assert_int_equal(moves[!first].state, MS_TRANSFER_FAILED);
  turn_for(&all, 0.02);
  /* Both have forgotten the key: it begins again. */
  moves[0] = send_to(1, 7, &word[0], 4), moves[1] = receive_from(0, 7, &word[1], 4);
  for (int rank = 0; rank < 2; rank++) post_at(&all, rank, &moves[rank]);
  assert_int_equal(moves[0].number, 0);
  turn_until_is(&all, &moves[1], MS_TRANSFER_DONE);
  assert_int_equal(word[1], 17);
  assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
  close_ends(&all);
  free(memory[0]);
  free(memory[1]);
}

static void H5_a_cancelled_key_waits_for_what_mpi_holds(void **state) {
  (void)state;
  cancel_in_the_middle(0);
  cancel_in_the_middle(1);
}

/* ---- deadlines ---- */

static uint8_t memory[2][LONG];
static ms_transfer sends, receives;

/* Rank 0 sends to rank 1, and is in the middle of it. */
static void begin_long(void) {
  sends = send_to(1, 1, memory[0], LONG), receives = receive_from(0, 1, memory[1], LONG);
  post_at(&all, 0, &sends);
  post_at(&all, 1, &receives);
  while (sends.moved < MIB) turn_ends(&all);
}

/* Rank 1 has announced pieces, which never come: it is stopped. MPI takes unmatched receives back, but no sends. */
static void H4_a_peer_that_stops_with_pieces_under_way_fails_the_endpoint(void **state) {
  (void)state;
  open_all(3, 0.3);
  begin_long();
  int rc = MS_OK;
  for (double end = ms_clock() + 20; !rc && ms_clock() < end;) {
    turn_one(2);
    rc = ms_transport_mpi.progress(all.of[0].endpoint, 0.001);
  }
  assert_int_equal(rc, MS_EIO);
  assert_has(ms_error_message(), "rank 1 | stopped | memory | process");
  ms_error_clear();
  assert_int_equal(all.of[0].failures, 1);
  assert_int_equal(all.of[0].failed_peer, 1);
  assert_has(all.of[0].why, "stopped | 0.3 s");
  assert_int_equal(sends.state, MS_TRANSFER_FAILED);
  assert_int_equal(all.of[2].failures, 0);
  /* It stays so, and is no endless loop of calls: once the reason has gone out, each sleeps as it is asked to. */
  for (int i = 0; i < 10; i++) ms_transport_mpi.progress(all.of[0].endpoint, 0);
  double began = ms_clock();
  assert_fails(ms_transport_mpi.progress(all.of[0].endpoint, 0.02), MS_EIO, "rank 1 | memory");
  assert_true(ms_clock() - began >= 0.015);
  /* Rank 1 goes on, and hears why. */
  for (double end = ms_clock() + 20; !all.of[1].failures && ms_clock() < end;) {
    turn_one(1);
    ms_transport_mpi.progress(all.of[0].endpoint, 0);
    ms_error_clear();
  }
  assert_has(all.of[1].why, "ended | stopped");
  close_ends(&all);
}

/* A transfer that only this side has posted: a late peer is no failure, a stopped one is. */
static void H4_a_peer_that_stops_before_it_has_posted_is_named(void **state) {
  char data[8] = "";
  (void)state;
  open_all(2, 0.4);
  ms_transfer waits = receive_from(1, 2, data, sizeof data);
  post_at(&all, 0, &waits);
  turn_for(&all, 1.0);
  assert_int_equal(all.of[0].failures, 0);
  for (double end = ms_clock() + 20; !all.of[0].failures && ms_clock() < end;) turn_one(0);
  assert_int_equal(all.of[0].failures, 1);
  assert_has(all.of[0].why, "no answer | stopped | 0.4 s");
  assert_int_equal(waits.state, MS_TRANSFER_FAILED);
  turn_one(0); /* MPI held nothing */
  close_ends(&all);
}

static void H4_a_peer_that_says_no_hello_is_named(void **state) {
  (void)state;
  all = (ends){.n = 2};
  for (int rank = 0; rank < 2; rank++) {
    prepare_end(&all.of[rank], rank, 2);
    all.of[rank].config.timeout = 0.2;
    open_end(&all, rank);
  }
  connect_end(&all, 0);
  turn_until(&all, &all.of[0].failures, 1);
  assert_int_equal(all.of[0].failed_peer, 1);
  assert_has(all.of[0].why, "hello | 0.2 s");
  close_ends(&all);
}

/* The process that was stopped blames no peer for the time that it was away. */
static void H4_who_was_away_does_not_blame_its_peers(void **state) {
  (void)state;
  open_all(2, 0.4);
  begin_long();
  usleep(600000);
  turn_until_is(&all, &sends, MS_TRANSFER_DONE);
  assert_int_equal(all.of[0].failures + all.of[1].failures, 0);
  close_ends(&all);
}

static void H4_an_error_of_mpi_fails_the_endpoint(void **state) {
  (void)state;
  open_all(2, 20);
  mpi->fails = 1;
  assert_fails(ms_transport_mpi.progress(all.of[0].endpoint, 0), MS_EIO, "MPI_Testsome");
  mpi->fails = 0;
  assert_fails(ms_transport_mpi.progress(all.of[0].endpoint, 0), MS_EIO, "MPI_Testsome");
  close_ends(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H7_only_ranks_that_a_launcher_of_mpi_started_can_use_it),
      TEST(H7_a_library_that_is_missing_or_of_another_version_is_named),
      TEST(H7_a_world_of_mpi_that_is_not_the_job_is_refused),
      TEST(H7_addresses_of_other_transports_and_ranks_are_refused),
      TEST(H7_a_peer_of_another_job_is_refused),
      TEST(H5_nothing_is_sent_before_the_receive_is_posted),
      TEST(H5_a_transfer_can_be_larger_than_2_GiB),
      TEST(H5_a_cancelled_key_waits_for_what_mpi_holds),
      TEST(H4_a_peer_that_stops_with_pieces_under_way_fails_the_endpoint),
      TEST(H4_a_peer_that_stops_before_it_has_posted_is_named),
      TEST(H4_a_peer_that_says_no_hello_is_named),
      TEST(H4_who_was_away_does_not_blame_its_peers),
      TEST(H4_an_error_of_mpi_fails_the_endpoint),
  };
  return cmocka_run_group_tests_name("mpi", tests, use_mpi, NULL);
}
