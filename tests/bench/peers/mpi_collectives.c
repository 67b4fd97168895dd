/* mpi_collectives.c - what Open MPI's collectives take on this host: mpirun -n RANKS mpi_collectives.
 *
 * The peer of our collectives over shared memory. bytes is the full buffer of a rank: what an all-gather leaves on
 * every rank, what a reduce-scatter reads on every rank (each keeps 1/ranks of the sum), what an all-reduce reads and
 * leaves. f32, sums; the all-gather both from a buffer of its own and in place. One JSON line a size and collective,
 * from rank 0:
 *   {"name":"all_gather","ranks":2,"bytes":65536,"us":12.3}
 * us: median over repetitions of the slowest rank's time, each repetition started by a barrier.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_UPS = 5, MAX_REPETITIONS = 201 };

/* full: [count] f32, this rank's whole buffer; result: [count] f32. */
typedef void collective(float *full, float *result, int count, int rank, int ranks);

static void all_gather(float *full, float *result, int count, int rank, int ranks) {
  (void)rank;
  MPI_Allgather(result, count / ranks, MPI_FLOAT, full, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void all_gather_in_place(float *full, float *result, int count, int rank, int ranks) {
  (void)result;
  (void)rank;
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, full, count / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(float *full, float *result, int count, int rank, int ranks) {
  (void)rank;
  MPI_Reduce_scatter_block(full, result, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_reduce(float *full, float *result, int count, int rank, int ranks) {
  (void)rank;
  (void)ranks;
  MPI_Allreduce(full, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median microseconds; the repetitions shrink with the size, so that a size takes about as long as another. */
static double measure(collective *run, float *full, float *result, int count, int rank, int ranks) {
  double times[MAX_REPETITIONS];
  int repetitions = count >= 1 << 22 ? 21 : MAX_REPETITIONS;
  for (int i = -WARM_UPS; i < repetitions; i++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    run(full, result, count, rank, ranks);
    double mine = 1e6 * (MPI_Wtime() - began), slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= 0) times[i] = slowest;
  }
  qsort(times, (size_t)repetitions, sizeof *times, ascending);
  return times[repetitions / 2];
}

/* Every rank holds i mod 7 + rank: the sum is known, and a collective that did nothing is noticed. */
static int sums_are_right(float *full, float *result, int count, int rank, int ranks) {
  for (int i = 0; i < count; i++) full[i] = (float)(i % 7 + rank);
  all_reduce(full, result, count, rank, ranks);
  for (int i = 0; i < count; i++) {
    if (result[i] != (float)(i % 7 * ranks + ranks * (ranks - 1) / 2)) return 0;
  }
  return 1;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    collective *run;
  } collectives[] = {{"all_gather", all_gather},
                     {"all_gather_in_place", all_gather_in_place},
                     {"reduce_scatter", reduce_scatter},
                     {"all_reduce", all_reduce}};
  static const int sizes[] = {64 << 10, 1 << 20, 64 << 20};

  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *full = calloc(64 << 20, 1), *result = calloc(64 << 20, 1);
  if (!full || !result || !sums_are_right(full, result, 1 << 14, rank, ranks)) {
    fprintf(stderr, "mpi_collectives: no memory, or a wrong sum, on rank %d\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (int s = 0; s < 3; s++) {
    for (int c = 0; c < 4; c++) {
      double us = measure(collectives[c].run, full, result, sizes[s] / (int)sizeof(float), rank, ranks);
      if (rank == 0) {
        printf("{\"name\":\"%s\",\"ranks\":%d,\"bytes\":%d,\"us\":%.1f}\n", collectives[c].name, ranks, sizes[s], us);
        fflush(stdout);
      }
    }
  }
  free(full);
  free(result);
  MPI_Finalize();
  return 0;
}
