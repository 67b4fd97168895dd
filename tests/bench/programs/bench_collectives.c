/* bench_collectives.c - what our collectives over shared memory take on this host, for 2 and 4 ranks.
 *
 * Measured like the peer, mpi_collectives.c. bytes is the full buffer of a rank: what an all-gather leaves on every
 * rank, what a reduce-scatter reads on every rank (each keeps 1/ranks of the sum), what an all-reduce reads and leaves.
 * f32. As in a training step, an all-gather's result is one buffer shared by all ranks; its source is this rank's
 * private chunk, or lies in the result already (in place). One JSON line a size and collective, from rank 0:
 *   {"name":"all_gather","ranks":2,"bytes":65536,"us":12.3}
 * us: median over repetitions of the slowest rank's time, each repetition started by a barrier.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/collectives/comm.h"
#include "comm/group/group.h"
#include "comm/group/world.h"
#include "comm/regions/region.h"
#include "host/launcher.h"

enum { WARM_UPS = 5, MAX_REPETITIONS = 201, MAX_BYTES = 64 << 20, FAILED_RUN = 3 };

typedef struct buffers {
  int ranks, rank;
  void *full[MS_MAX_LOCAL_RANKS]; /* each rank's [count], shared */
  float *result;                  /* [count], private */
} buffers;

static ms_coll_part make_part(const buffers *b, int kind, int in_place, int64_t count) {
  ms_coll_part part = {.count = kind == MS_COLL_ALL_REDUCE ? count : count / b->ranks, .shared = b->full};
  if (kind == MS_COLL_ALL_GATHER) part.src = in_place ? NULL : b->result;
  else part.dst = b->result;
  return part;
}

static int run_once(ms_comm *comm, const buffers *b, int kind, int in_place, int64_t count) {
  ms_coll_part part = make_part(b, kind, in_place, count);
  ms_coll coll = {.kind = kind, .parts = 1, .part = &part, .label = "bench"};
  MS_TRY(ms_comm_start(comm, &coll));
  return ms_comm_wait(comm);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median microseconds; the repetitions shrink with the size, so that a size takes about as long as another. */
static int measure(ms_world *world, ms_comm *comm, const buffers *b, int kind, int in_place, int64_t count,
                   double *us) {
  double times[MAX_REPETITIONS], all[MS_MAX_LOCAL_RANKS];
  int repetitions = count >= 1 << 22 ? 21 : MAX_REPETITIONS;
  for (int i = -WARM_UPS; i < repetitions; i++) {
    MS_TRY(ms_world_barrier(world));
    double began = ms_clock();
    MS_TRY(run_once(comm, b, kind, in_place, count));
    double mine = 1e6 * (ms_clock() - began), slowest = 0;
    MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all));
    for (int rank = 0; rank < b->ranks; rank++) slowest = fmax(slowest, all[rank]);
    if (i >= 0) times[i] = slowest;
  }
  qsort(times, (size_t)repetitions, sizeof *times, ascending);
  *us = times[repetitions / 2];
  return MS_OK;
}

/* Every rank holds i mod 7 + rank: the sum is known, and a collective that did nothing is noticed. */
static int check_sums(ms_comm *comm, const buffers *b, int64_t count) {
  float *full = b->full[b->rank];
  for (int64_t i = 0; i < count; i++) full[i] = (float)(i % 7 + b->rank);
  MS_TRY(run_once(comm, b, MS_COLL_ALL_REDUCE, 0, count));
  for (int64_t i = 0; i < count; i++)
    if (b->result[i] != (float)(i % 7 * b->ranks + b->ranks * (b->ranks - 1) / 2))
      return MS_FAIL(MS_EINTERNAL, "a wrong sum: %g at %lld", (double)b->result[i], (long long)i);
  return MS_OK;
}

static int run_all(ms_world *world) {
  static const struct {
    const char *name;
    int kind, in_place;
  } collectives[] = {{"all_gather", MS_COLL_ALL_GATHER, 0},
                     {"all_gather_in_place", MS_COLL_ALL_GATHER, 1},
                     {"reduce_scatter", MS_COLL_REDUCE_SCATTER, 0},
                     {"all_reduce", MS_COLL_ALL_REDUCE, 0}};
  static const int sizes[] = {64 << 10, 1 << 20, MAX_BYTES};
  buffers b = {.ranks = ms_world_size(world), .rank = ms_world_rank(world)};
  int group[MS_MAX_LOCAL_RANKS], rc = MS_OK;
  ms_region region;
  ms_group all;
  ms_comm *comm = NULL;
  MS_TRY(ms_group_open(world, b.ranks, NULL, "all", &all));
  MS_TRY(ms_region_map(&all, (size_t)MAX_BYTES * (size_t)b.ranks, &region));
  for (int rank = 0; rank < b.ranks; rank++) {
    group[rank] = rank;
    b.full[rank] = (char *)region.base + (size_t)MAX_BYTES * (size_t)rank;
  }
  b.result = aligned_alloc(64, MAX_BYTES);
  if (!b.result) MS_GOTO(MS_FAIL(MS_ENOMEM, "no memory for %d bytes", MAX_BYTES));
  memset(b.result, 0, MAX_BYTES);
  memset(b.full[b.rank], 0, MAX_BYTES);
  MS_GOTO(ms_comm_open(world, b.ranks, group, 0, &comm));
  MS_GOTO(check_sums(comm, &b, 1 << 14));
  for (int s = 0; s < 3; s++) {
    for (int c = 0; c < 4; c++) {
      double us;
      MS_GOTO(
          measure(world, comm, &b, collectives[c].kind, collectives[c].in_place, sizes[s] / (int)sizeof(float), &us));
      if (b.rank == 0)
        printf("{\"name\":\"%s\",\"ranks\":%d,\"bytes\":%d,\"us\":%.1f}\n", collectives[c].name, b.ranks, sizes[s], us);
    }
  }
fail:
  ms_comm_close(comm);
  free(b.result);
  ms_region_unmap(&region);
  return rc;
}

static int rank_main(void *context) {
  (void)context;
  ms_world *world;
  if (ms_world_join(NULL, &world)) return FAILED_RUN;
  int rc = run_all(world);
  if (rc) ms_world_abort(world, ms_error_message());
  ms_free(world);
  return rc ? FAILED_RUN : 0;
}

int main(void) {
  for (int ranks = 2; ranks <= 4; ranks += 2) {
    int status;
    ms_launch_config config = {.ranks = ranks, .rank_main = rank_main};
    if (ms_launch(&config, &status)) {
      fprintf(stderr, "bench_collectives: %s\n", ms_error_message());
      return 1;
    }
    if (status) return status;
  }
  return 0;
}
