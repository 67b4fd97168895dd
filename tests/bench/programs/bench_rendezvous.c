/* bench_rendezvous.c - how long ranks that another launcher started take to find each other: from the fork of the first
 * to the moment at which the last one has joined, over a socket of the host and over TCP.
 *
 * One JSON line a figure: {"name", "unit", "ours"}; milliseconds, the best of many meetings.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "moonshard.h"

enum { RANKS = 8, ROUNDS = 40, FIRST_PORT = 24000 };

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

static _Noreturn void become_rank(int rank, double *joined) {
  ms_world *world = NULL;
  set_number("RANK", rank);
  int rc = ms_world_join(NULL, &world);
  *joined = ms_clock();
  if (!rc) rc = ms_world_barrier(world);
  if (rc) fprintf(stderr, "bench_rendezvous: rank %d: %s\n", rank, ms_error_message());
  ms_free(world);
  _exit(rc != 0);
}

/* Seconds, or -1. */
static double meet(double *joined, int port) {
  int failed = 0, status;
  double began = ms_clock(), last = began;
  set_number("MASTER_PORT", port);
  for (int rank = 0; rank < RANKS; rank++) {
    pid_t pid = fork();
    if (pid == 0) become_rank(rank, &joined[rank]);
    failed |= pid < 0;
  }
  while (wait(&status) > 0) failed |= status != 0;
  for (int rank = 0; rank < RANKS; rank++)
    if (joined[rank] > last) last = joined[rank];
  return failed ? -1 : last - began;
}

static int measure(double *joined, const char *name) {
  double best = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double seconds = meet(joined, FIRST_PORT + round);
    if (seconds < 0) return 1;
    if (seconds < best) best = seconds;
  }
  printf("{\"name\":\"rendezvous/%d ranks, %s\",\"unit\":\"ms\",\"ours\":%.2f}\n", RANKS, name, 1e3 * best);
  return 0;
}

int main(void) {
  double *joined = mmap(NULL, RANKS * sizeof *joined, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (joined == MAP_FAILED) {
    perror("bench_rendezvous: mmap");
    return 3;
  }
  set_number("WORLD_SIZE", RANKS);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MOONSHARD_TIMEOUT", "20", 1);
  int failed = measure(joined, "tcp");
  set_number("LOCAL_WORLD_SIZE", RANKS); /* all are on this host: they need no port */
  failed |= measure(joined, "a socket of the host");
  return failed ? 3 : 0;
}
