/* test_mpi_launched.c - the transport mpi over a real MPI: each test runs this program again as ranks of mpirun, and
 * looks at how the job ends. Skipped where mpirun or libmoonshard_mpi.so is missing (`make test-mpi` installs Open
 * MPI).
 */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/endpoints.h"
#include "tests/c/files/scratch_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { MIB = 1 << 20, MAX = 4, FAILED = 3 };

/* ---- in a rank ---- */

static end self;
static int size;

static void EXPECT(int holds, const char *otherwise) {
  if (holds) return;
  fprintf(stderr, "rank %d: %s\n", self.rank, otherwise);
  _exit(FAILED);
}

static void check(int status) { EXPECT(!status, ms_error_message()); }

static int number_in(const char *name) {
  const char *text = getenv(name);
  EXPECT(text != NULL, name);
  return atoi(text);
}

/* Ranks tell each other their addresses by files. */
static void exchange(const uint8_t *own, uint8_t (*all)[MS_TRANSPORT_ADDRESS]) {
  char path[512], made[520];
  for (int i = 0; i < size; i++) {
    const int rank = (self.rank + i) % size;
    snprintf(path, sizeof path, "%s/%d", getenv("TEST_FOLDER"), rank);
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = i ? NULL : fopen(made, "wb");
    if (!i) EXPECT(file && fwrite(own, MS_TRANSPORT_ADDRESS, 1, file) == 1 && !fclose(file), "an address");
    if (!i) EXPECT(!rename(made, path), "an address");
    for (double end = ms_clock() + 60; i && !(file = fopen(path, "rb")) && ms_clock() < end;) usleep(1000);
    if (i) EXPECT(file && fread(all[i - 1], MS_TRANSPORT_ADDRESS, 1, file) == 1 && !fclose(file), "its address");
  }
}

static void turn(void) { check(ms_transport_mpi.progress(self.endpoint, 0.01)); }

static void open_rank(double timeout) {
  uint8_t own[MS_TRANSPORT_ADDRESS], addresses[MAX][MS_TRANSPORT_ADDRESS];
  int peers[MAX];
  self.config.timeout = timeout;
  check(ms_transport_mpi.open(&self.config, &self.endpoint));
  check(ms_transport_mpi.address(self.endpoint, own));
  exchange(own, addresses);
  for (int i = 1; i < size; i++) peers[i - 1] = (self.rank + i) % size;
  check(ms_transport_mpi.connect(self.endpoint, size - 1, peers, addresses));
  for (double end = ms_clock() + 60; ms_transport_mpi.connected(self.endpoint) < size - 1;) {
    turn();
    EXPECT(ms_clock() < end && !self.failures, *self.why ? self.why : "not connected");
  }
  fprintf(stderr, "rank %d: connected\n", self.rank);
}

static void post(ms_transfer *transfer) { check(ms_transport_mpi.post(self.endpoint, transfer)); }

static void finish(ms_transfer *transfer) {
  for (double end = ms_clock() + 60; transfer->state == MS_TRANSFER_POSTED && ms_clock() < end;) turn();
  EXPECT(transfer->state == MS_TRANSFER_DONE, *self.why ? self.why : "a transfer has not ended well");
}

/* Waits for the other of two ranks. */
static void meet(void) {
  static int out, in;
  ms_transfer sends = send_to(!self.rank, 99, &out, 4), receives = receive_from(!self.rank, 99, &in, 4);
  post(&sends);
  post(&receives);
  finish(&sends);
  finish(&receives);
}

static void fill(uint8_t *data, int64_t bytes, int seed) {
  for (int64_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 7 + i / 251 + seed);
}

static void check_filled(const uint8_t *data, int64_t bytes, int seed) {
  for (int64_t i = 0; i < bytes; i++)
    EXPECT(data[i] == (uint8_t)(i * 7 + i / 251 + seed), "other bytes have come than were sent");
}

/* Every rank with every other, sizes around those of messages and pieces. */
static void data(void) {
  static const int64_t sizes[] = {1, 31, 4095, 4097, 65537, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, 9 * MIB + 5};
  ms_transfer sends[MAX], receives[MAX];
  uint8_t *out[MAX], *in[MAX];
  ms_transport_counts counts;
  int64_t sum = 0;
  open_rank(60);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    for (int i = 1; i < size; i++) {
      const int peer = (self.rank + i) % size;
      out[i] = malloc((size_t)sizes[s]);
      in[i] = calloc(1, (size_t)sizes[s]);
      fill(out[i], sizes[s], 10 * self.rank + peer);
      sends[i] = send_to(peer, 1, out[i], sizes[s]);
      receives[i] = receive_from(peer, 1, in[i], sizes[s]);
      post(&sends[i]);
      post(&receives[i]);
    }
    for (int i = 1; i < size; i++) {
      finish(&sends[i]);
      finish(&receives[i]);
      check_filled(in[i], sizes[s], 10 * ((self.rank + i) % size) + self.rank);
      free(out[i]);
      free(in[i]);
      sum += sizes[s];
    }
  }
  ms_transport_mpi.counts(self.endpoint, &counts);
  EXPECT(counts.sent == sum && counts.received == sum, "counts differ from the bytes sent");
}

/* Rank 1 posts a receive only when more time has passed than rank 0's deadline; a short transfer goes on. */
static void late(void) {
  enum { LONG = 32 * MIB };
  uint8_t *memory = calloc(1, LONG);
  ms_transport_counts counts = {0};
  open_rank(0.8);
  ms_transfer moves = self.rank ? receive_from(0, 1, memory, LONG) : send_to(1, 1, memory, LONG);
  meet();
  if (!self.rank) {
    fill(memory, LONG, 3);
    post(&moves);
  }
  for (double end = ms_clock() + 1.2; ms_clock() < end;) turn();
  ms_transport_mpi.counts(self.endpoint, &counts);
  EXPECT(counts.sent == 4, "bytes were sent before the receive was posted");
  meet();
  if (self.rank) post(&moves);
  finish(&moves);
  check_filled(memory, LONG, 3);
  EXPECT(!self.failures, self.why);
}

/* Both cancel in the middle, rank 1 first or rank 0; then the key begins again. */
static void cancel(void) {
  enum { LONG = 64 * MIB };
  uint8_t *memory = calloc(1, LONG);
  open_rank(60);
  for (int first = 0; first < 2; first++) {
    ms_transfer moves = self.rank ? receive_from(0, 7, memory, LONG) : send_to(1, 7, memory, LONG);
    post(&moves);
    while (moves.moved < MIB) turn();
    if (self.rank == first) {
      ms_transport_mpi.cancel(self.endpoint, 7);
      EXPECT(moves.state == MS_TRANSFER_FAILED, "a cancelled transfer has not failed");
      memset(memory, 0x55, LONG);
    }
    meet();
    if (self.rank == first)
      for (int64_t i = 0; i < LONG; i++) EXPECT(memory[i] == 0x55, "memory was written after it was taken back");
    else ms_transport_mpi.cancel(self.endpoint, 7);
    EXPECT(moves.state == MS_TRANSFER_FAILED, "a cancelled transfer has not failed");
    meet();
    fill(memory, 1000, self.rank);
    moves = self.rank ? receive_from(0, 7, memory, 1000) : send_to(1, 7, memory, 1000);
    post(&moves);
    EXPECT(moves.number == 0, "the key has not begun again");
    finish(&moves);
    check_filled(memory, 1000, 0);
  }
}

/* More bytes than an int counts; a MiB of memory, mapped again and again. */
static void large(void) {
  const int64_t bytes = (2ll << 30) + MIB + 5;
  const int fd = memfd_create("large", 0);
  uint8_t *memory = mmap(NULL, (size_t)bytes + MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT(fd >= 0 && !ftruncate(fd, MIB) && memory != MAP_FAILED, "memory");
  for (int64_t at = 0; at < bytes; at += MIB)
    EXPECT(mmap(memory + at, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED, "a map");
  open_rank(60);
  if (!self.rank) fill(memory, MIB, 4);
  ms_transfer moves = self.rank ? receive_from(0, 1, memory, bytes) : send_to(1, 1, memory, bytes);
  post(&moves);
  finish(&moves);
  EXPECT(moves.moved == bytes, "not all bytes were moved");
  check_filled(memory, MIB, 4);
}

/* Rank 0 closes and ends at once; the other one goes on for longer than a second, and then ends too. */
static void goodbye(void) {
  open_rank(60);
  meet();
  for (double end = ms_clock() + 1.3; self.rank && ms_clock() < end;) turn();
  EXPECT(!self.failures, self.why);
}

static void keep_moving(ms_transfer *moves, uint8_t *memory) {
  *moves = self.rank ? receive_from(0, 1, memory, 8 * MIB) : send_to(1, 1, memory, 8 * MIB);
  post(moves);
  while (moves->state == MS_TRANSFER_POSTED) turn();
}

/* Rank 1 ends itself by a signal in the middle of transfers. */
static void end_by(int signal) {
  uint8_t *memory = calloc(1, 8 * MIB);
  ms_transfer moves;
  open_rank(1);
  for (int i = 0; !self.failures; i++) {
    if (self.rank && i == 20) kill(getpid(), signal);
    keep_moving(&moves, memory);
  }
  fprintf(stderr, "rank %d: rank %d has failed: %s\n", self.rank, self.failed_peer, self.why);
  exit(FAILED);
}

static void killed(void) { end_by(SIGKILL); }
static void stopped(void) { end_by(SIGSTOP); }

/* Rank 1 ends well without close. */
static void left(void) {
  open_rank(60);
  meet();
  if (self.rank) exit(0);
  while (!self.failures) turn();
}

/* A rank that fails waits for no other, also if it says goodbye. */
static void failed(void) {
  open_rank(60);
  meet();
  if (!self.rank) ms_transport_mpi.close(self.endpoint);
  if (!self.rank) exit(FAILED);
  while (1) turn();
}

static void another_rank(void) {
  self.config.rank = size - 1 - self.rank;
  EXPECT(ms_transport_mpi.open(&self.config, &self.endpoint) == MS_EINVAL, "a wrong rank was not refused");
  EXPECT(!message_lacks(ms_error_message(), "rank 0 of 2 | rank 1 of 2"), ms_error_message());
}

static const struct rank_case {
  const char *name;
  void (*run)(void);
} cases[] = {
    {"data", data},     {"late", late},       {"cancel", cancel}, {"large", large},   {"goodbye", goodbye},
    {"killed", killed}, {"stopped", stopped}, {"left", left},     {"failed", failed}, {"another_rank", another_rank}};

static int run_rank(const char *name) {
  char why[512];
  size = number_in("TEST_RANKS");
  prepare_end(&self, number_in(getenv("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK"), size);
  self.config.context = &self;
  EXPECT(ms_transport_mpi_usable(why, sizeof why), why);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    if (!strcmp(cases[i].name, name)) cases[i].run();
  ms_transport_mpi.close(self.endpoint);
  return 0;
}

/* ---- in the test ---- */

static char output[65536];

static int is_there(const char *command) {
  int status = system(command);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The library in the folder of the one under test; a test without it is skipped. */
static void need_mpi(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s",
           getenv("MOONSHARD_LIB") ? getenv("MOONSHARD_LIB") : "build/release/libmoonshard.so");
  strcpy(strrchr(path, '/') + 1, "libmoonshard_mpi.so");
  setenv("MOONSHARD_MPI_LIBRARY", path, 1);
  if (!access(path, R_OK) && is_there("command -v mpirun >/dev/null")) return;
  print_message("# skipped: no mpirun, or no libmoonshard_mpi.so, which is built where mpicc is: make test-mpi\n");
  skip();
}

/* Exit status of mpirun; *output has what all ranks wrote. */
static int launch(int ranks, const char *name) {
  char command[1024], exe[512] = "", name_of_rank[16];
  const int is_open_mpi = is_there("mpirun --version 2>/dev/null | grep -q 'Open MPI'");
  assert_true(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
  strcpy(strrchr(exe, '/') + 1, "test_mpi_launched"); /* the program has other tests, too */
  setenv("TEST_FOLDER", folder, 1);
  snprintf(command, sizeof command, "TEST_RANKS=%d mpirun %s -n %d %s rank %s 2>&1 </dev/null", ranks,
           is_open_mpi ? "--oversubscribe --allow-run-as-root --bind-to none" : "", ranks, exe, name);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  size_t n = fread(output, 1, sizeof output - 1, pipe);
  output[n] = '\0';
  int status = pclose(pipe);
  for (int rank = 0; rank < ranks; rank++) {
    snprintf(name_of_rank, sizeof name_of_rank, "%d", rank);
    unlink(in_folder(name_of_rank));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

static void ends_well(int ranks, const char *name) {
  need_mpi();
  int status = launch(ranks, name);
  if (status) fail_msg("mpirun ended with status %d: %s", status, output);
}

static void H5_transfers_over_mpi_arrive_between_all_ranks(void **state) {
  (void)state;
  ends_well(4, "data");
}

static void H5_over_mpi_nothing_moves_before_the_receive_is_posted(void **state) {
  (void)state;
  ends_well(2, "late");
}

static void H5_over_mpi_a_cancelled_key_leaves_memory_alone(void **state) {
  (void)state;
  ends_well(2, "cancel");
}

static void H5_over_mpi_a_transfer_can_be_larger_than_2_GiB(void **state) {
  (void)state;
  ends_well(2, "large");
}

static void H4_over_mpi_a_goodbye_is_no_failure(void **state) {
  (void)state;
  ends_well(2, "goodbye");
}

static void H4_over_mpi_a_killed_rank_ends_the_job(void **state) {
  (void)state;
  need_mpi();
  assert_int_not_equal(launch(2, "killed"), 0);
  assert_has(output, "rank 0: connected | rank 1: connected");
}

static void H4_over_mpi_a_stopped_rank_is_named(void **state) {
  (void)state;
  need_mpi();
  assert_int_not_equal(launch(2, "stopped"), 0);
  assert_has(output, "rank 0: rank 1 has failed | stopped | 1 s");
}

static void H4_over_mpi_a_rank_that_ends_without_goodbye_ends_the_job(void **state) {
  (void)state;
  need_mpi();
  launch(2, "left"); /* the other rank goes on for ever; what mpirun says of it, implementations do not agree on */
  assert_has(output, "rank 0: connected | rank 1: connected");
}

static void H4_over_mpi_a_rank_that_fails_waits_for_no_other(void **state) {
  (void)state;
  need_mpi();
  assert_int_not_equal(launch(2, "failed"), 0);
  assert_has(output, "rank 0: connected | rank 1: connected");
}

static void H7_ranks_other_than_those_of_mpirun_are_refused(void **state) {
  (void)state;
  ends_well(2, "another_rank");
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "rank")) return run_rank(argv[2]);
  const struct CMUnitTest tests[] = {
      TEST(H5_transfers_over_mpi_arrive_between_all_ranks),
      TEST(H5_over_mpi_nothing_moves_before_the_receive_is_posted),
      TEST(H5_over_mpi_a_cancelled_key_leaves_memory_alone),
      TEST(H5_over_mpi_a_transfer_can_be_larger_than_2_GiB),
      TEST(H4_over_mpi_a_goodbye_is_no_failure),
      TEST(H4_over_mpi_a_killed_rank_ends_the_job),
      TEST(H4_over_mpi_a_stopped_rank_is_named),
      TEST(H4_over_mpi_a_rank_that_ends_without_goodbye_ends_the_job),
      TEST(H4_over_mpi_a_rank_that_fails_waits_for_no_other),
      TEST(H7_ranks_other_than_those_of_mpirun_are_refused),
  };
  return cmocka_run_group_tests_name("mpi, launched", tests, make_folder, remove_folder);
}
