/* collectives.c - what our collectives take on this host: collectives RANKS.
**
** The other side of mpi_collectives.c, with its sizes, its protocol and its lines of output, so that the two can be
** divided. bytes is the full buffer: the gathered result, which the ranks share; the source that a rank reduces. f32, sums;
** an all-gather writes the rank's private chunk into the shared result, an all-reduce leaves its sum in place.
*/
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/comm.h"

enum { WARM_UPS = 5, MOST_REPETITIONS = 201, MOST_RANKS = 16 };

static const struct {
  const char *name;
  int kind;
} collectives[] = {
    {"all_gather", MS_COLL_ALL_GATHER}, {"reduce_scatter", MS_COLL_REDUCE_SCATTER}, {"all_reduce", MS_COLL_ALL_REDUCE}};
static const int sizes[] = {64 << 10, 1 << 20, 64 << 20};

typedef struct bench {
  ms_world *world;
  ms_comm *comm;
  int rank, ranks;
  void *sources[MOST_RANKS]; /* [ranks], each 64 MiB, as mapped here; the first is the gathered result too */
  float *chunk;              /* 64 MiB, private */
} bench;

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static ms_coll_part part_of(const bench *b, int kind, int bytes) {
  int count = bytes / (int)sizeof(float);
  ms_coll_part part = {.count = kind == MS_COLL_ALL_REDUCE ? count : count / b->ranks};
  part.src_dtype = part.dst_dtype = MS_F32;
  part.src = b->chunk;
  part.dst = kind == MS_COLL_ALL_REDUCE ? b->sources[b->rank] : b->chunk;
  part.shared = (void *const *)b->sources;
  return part;
}

/* Median microseconds of the slowest rank, each repetition started by a barrier. */
static int measure(const bench *b, int kind, int bytes, double *us) {
  double times[MOST_REPETITIONS], all[MOST_RANKS];
  int repetitions = bytes >= 1 << 24 ? 21 : MOST_REPETITIONS;
  ms_coll_part part = part_of(b, kind, bytes);
  ms_coll coll = {.kind = kind, .parts = 1, .part = &part, .label = "bench"};
  for (int i = -WARM_UPS; i < repetitions; i++) {
    MS_TRY(ms_world_barrier(b->world));
    double began = ms_clock();
    MS_TRY(ms_comm_start(b->comm, &coll));
    MS_TRY(ms_comm_wait(b->comm));
    double mine = 1e6 * (ms_clock() - began), slowest = 0;
    MS_TRY(ms_world_exchange(b->world, &mine, sizeof mine, all));
    for (int r = 0; r < b->ranks; r++) slowest = all[r] > slowest ? all[r] : slowest;
    if (i >= 0) times[i] = slowest;
  }
  qsort(times, (size_t)repetitions, sizeof *times, ascending);
  *us = times[repetitions / 2];
  return MS_OK;
}

static int run_rank(bench *b) {
  int everyone[MOST_RANKS];
  size_t largest = (size_t)sizes[2];
  ms_region region;
  MS_TRY(ms_world_join(&b->world));
  b->rank = ms_world_rank(b->world);
  for (int r = 0; r < b->ranks; r++) everyone[r] = r;
  MS_TRY(ms_comm_open(b->world, b->ranks, everyone, 0, &b->comm));
  MS_TRY(ms_world_region(b->world, largest * (size_t)b->ranks, &region));
  for (int r = 0; r < b->ranks; r++) b->sources[r] = (char *)region.base + largest * (size_t)r;
  b->chunk = calloc(largest, 1);
  if (!b->chunk) return MS_FAIL(MS_ENOMEM, "no %zu bytes for the private buffer", largest);
  for (int s = 0; s < 3; s++) {
    for (int c = 0; c < 3; c++) {
      double us;
      MS_TRY(measure(b, collectives[c].kind, sizes[s], &us));
      if (b->rank != 0) continue;
      printf("{\"name\":\"%s\",\"ranks\":%d,\"bytes\":%d,\"us\":%.1f}\n", collectives[c].name, b->ranks, sizes[s], us);
      fflush(stdout);
    }
  }
  free(b->chunk);
  ms_comm_close(b->comm);
  ms_region_unmap(&region);
  ms_world_leave(b->world);
  return MS_OK;
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

int main(int argc, char **argv) {
  bench b = {.ranks = argc == 2 ? atoi(argv[1]) : 0};
  int fd, bad = 0, status;
  if (b.ranks < 1 || b.ranks > MOST_RANKS) {
    fprintf(stderr, "usage: %s RANKS (1 to %d)\n", argv[0], MOST_RANKS);
    return 2;
  }
  if (ms_job_create(b.ranks, &fd) != MS_OK) {
    fprintf(stderr, "%s\n", ms_error_message());
    return 1;
  }
  for (int rank = 0; rank < b.ranks; rank++) {
    if (fork() != 0) continue;
    set_number("MOONSHARD_JOB_FD", fd);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", b.ranks);
    if (run_rank(&b) == MS_OK) return 0;
    fprintf(stderr, "rank %d: %s\n", rank, ms_error_message());
    ms_world_abort(b.world, ms_error_message());
    return 1;
  }
  while (wait(&status) > 0) bad |= status != 0;
  return bad;
}
