/* collective.h - what tests of collectives share: memory for up to five ranks, values, and opening and completing. */
#ifndef MS_TESTS_COLLECTIVE_H
#define MS_TESTS_COLLECTIVE_H

#include <stdlib.h>
#include <unistd.h>

#include "base/numbers/bf16.h"
#include "comm/collectives/comm.h"
#include "tests/c/support/ranks/ranks.h"

enum { MAX_RANKS = 5, MAX_COUNT = 17000, ROUNDS = 6 };
enum { BUFFER_BYTES = MAX_RANKS * MAX_COUNT * 4 };

/* What the ranks of a test share: each rank's buffer, and one that belongs to all. */
typedef struct arena {
  char rank[MAX_RANKS][BUFFER_BYTES];
  char all[BUFFER_BYTES];
} arena;

/* A value that depends on everything; not exact in bf16, so that rounding shows. */
static inline float value_of(int rank, int round, int64_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + round * 9176 + 77);
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return (float)(int32_t)x * (1.0f / (1 << 24));
}

static inline float read_element(const void *array, int dtype, int64_t i) {
  return dtype == MS_BF16 ? ms_bf16_to_f32(((const ms_bf16 *)array)[i]) : ((const float *)array)[i];
}

static inline void write_element(void *array, int dtype, int64_t i, float x) {
  if (dtype == MS_BF16) ((ms_bf16 *)array)[i] = ms_f32_to_bf16(x);
  else ((float *)array)[i] = x;
}

static inline float rounded(float x, int dtype) { return dtype == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16(x)) : x; }

static inline void fill(void *array, int dtype, int64_t n, int rank, int round) {
  for (int64_t i = 0; i < n; i++) write_element(array, dtype, i, value_of(rank, round, i));
}

/* Now and then, a rank is late. */
static inline void dawdle(unsigned *seed) {
  unsigned draw = (unsigned)rand_r(seed) % 8;
  if (draw == 0) usleep((useconds_t)rand_r(seed) % 300);
}

static inline int complete(ms_comm *comm, const ms_coll *coll) {
  MS_TRY(ms_comm_start(comm, coll));
  return ms_comm_wait(comm);
}

static inline int open_world_comm(ms_world *world, int channel, ms_comm **comm) {
  int ranks[MS_MAX_LOCAL_RANKS];
  for (int r = 0; r < ms_world_size(world); r++) ranks[r] = r;
  return ms_comm_open(world, ms_world_size(world), ranks, channel, comm);
}

#endif
