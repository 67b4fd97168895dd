/* bench_mesh.c - how long the layout of a mesh of 4,096 ranks takes: made, every slice of it, every group of every
 * dimension. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "mesh/mesh.h"

enum { RANKS = 4096, NDIM = 4, ROUNDS = 200 };

static const int sizes[NDIM] = {8, 4, 16, 8};
static const char *const names[NDIM] = {"pipe", "replicate", "shard", "tensor"};

static int lay_out(void) {
  static int ranks[RANKS];
  ms_mesh *mesh = NULL, *slice = NULL;
  int rc = MS_OK;
  MS_GOTO(ms_mesh_new(MS_DEVICE_CPU, NDIM, sizes, names, RANKS, 0, NULL, &mesh));
  for (unsigned mask = 1; mask < 1u << NDIM; mask++) {
    const char *some[NDIM];
    int n = 0;
    for (int d = 0; d < NDIM; d++)
      if (mask >> d & 1) some[n++] = names[d];
    MS_GOTO(ms_mesh_slice(mesh, n, some, &slice));
    MS_GOTO(ms_mesh_ranks(slice, -1, RANKS / 3, ranks));
    ms_free(slice);
    slice = NULL;
  }
  for (int d = 0; d < NDIM; d++) MS_GOTO(ms_mesh_ranks(mesh, d, -1, ranks));
fail:
  ms_free(slice);
  ms_free(mesh);
  return rc;
}

int main(void) {
  double best = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double began = ms_clock();
    if (lay_out()) {
      fprintf(stderr, "bench_mesh: %s\n", ms_error_message());
      return 1;
    }
    double seconds = ms_clock() - began;
    if (seconds < best) best = seconds;
  }
  printf("{\"name\":\"mesh/4096 ranks, every slice and group\",\"ns\":%.0f}\n", 1e9 * best);
  return 0;
}
