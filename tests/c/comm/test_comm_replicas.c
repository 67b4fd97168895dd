/* test_comm_replicas.c - collectives that replicas do together: a rank moves its slice of the result that its shard
 * would have had by itself. Bit for bit against a plain reference, with ranks as threads and as processes.
 */
#include "base/numbers/dtype.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/collective.h"

typedef struct replicas_case {
  int replicas, src_dtype, dst_dtype, accumulate;
  int64_t count;
  arena *memory;
} replicas_case;

typedef struct grid {
  const replicas_case *c;
  ms_comm *comm;
  int ranks, shards, me, shard, round;
  void *shared[MAX_RANKS];
} grid;

/* A rank's sum lies after its sources. */
static void *sum_of(const replicas_case *c, int rank) { return c->memory->rank[rank] + 4 * 3 * MAX_COUNT; }

/* One result and one chunk a shard for all replicas. */
static int gather_once(grid *g) {
  const replicas_case *c = g->c;
  char *chunk = c->memory->rank[g->shard];
  if (g->me == g->shard) fill(chunk, c->src_dtype, c->count, g->shard, g->round);
  for (int p = 0; p < g->ranks; p++) g->shared[p] = c->memory->all;
  ms_coll_part part = {
      .count = c->count, .src_dtype = c->src_dtype, .dst_dtype = c->dst_dtype, .src = chunk, .shared = g->shared};
  ms_coll coll = {.kind = MS_COLL_ALL_GATHER, .replicas = c->replicas, .parts = 1, .part = &part, .label = "layers.0"};
  MS_TRY(complete(g->comm, &(ms_coll){.kind = MS_COLL_BARRIER, .label = "chunks"}));
  MS_TRY(complete(g->comm, &coll));
  for (int64_t i = 0; i < g->shards * c->count; i++) {
    float want = rounded(rounded(value_of((int)(i / c->count), g->round, i % c->count), c->src_dtype), c->dst_dtype);
    float got = read_element(c->memory->all, c->dst_dtype, i);
    EXPECT(got == want, "gathered[%lld] is %g, not %g", (long long)i, (double)got, (double)want);
  }
  return MS_OK;
}

/* A reduce-scatter over the grid, or an all-reduce of everything: each rank has a slice, a third of what there is or
 * the rest. */
static int reduce_once(grid *g, int kind) {
  const replicas_case *c = g->c;
  int scatters = kind == MS_COLL_REDUCE_SCATTER, slices = scatters ? c->replicas : g->ranks;
  int64_t whole = g->shards * c->count, count = scatters ? c->count : whole;
  int64_t begin = (g->me / (g->ranks / slices)) * (count / 3), end = begin + count / 3;
  if (g->me / (g->ranks / slices) == slices - 1) end = count;
  int64_t first = (scatters ? g->shard * c->count : 0) + begin;
  for (int p = 0; p < g->ranks; p++) g->shared[p] = c->memory->rank[p];
  fill(g->shared[g->me], c->src_dtype, whole, g->me, g->round);
  memset(sum_of(c, g->me), 0x55, (size_t)(4 * (end - begin + 1)));
  if (c->accumulate) fill(sum_of(c, g->me), MS_F32, end - begin, 100 + g->me, g->round);
  ms_coll_part part = {.count = count,
                       .src_dtype = c->src_dtype,
                       .dst_dtype = c->dst_dtype,
                       .accumulate = c->accumulate,
                       .shared = g->shared,
                       .dst = sum_of(c, g->me),
                       .first = begin,
                       .n = end - begin};
  ms_coll coll = {.kind = kind,
                  .replicas = scatters ? c->replicas : 0,
                  .sliced = 1,
                  .parts = 1,
                  .part = &part,
                  .label = "layers.0"};
  MS_TRY(complete(g->comm, &coll));
  memset(g->shared[g->me], 0xff, (size_t)whole * (size_t)ms_dtype_size(c->src_dtype));
  for (int64_t i = 0; i < part.n; i++) {
    float want = rounded(value_of(0, g->round, first + i), c->src_dtype);
    for (int p = 1; p < g->ranks; p++) want += rounded(value_of(p, g->round, first + i), c->src_dtype);
    want = c->accumulate ? want + value_of(100 + g->me, g->round, i) : rounded(want, c->dst_dtype);
    float got = read_element(sum_of(c, g->me), c->dst_dtype, i);
    EXPECT(got == want, "sum[%lld] is %g, not %g", (long long)i, (double)got, (double)want);
  }
  const unsigned char *after = (unsigned char *)sum_of(c, g->me) + part.n * ms_dtype_size(c->dst_dtype);
  EXPECT(*after == 0x55, "what lies after the slice of %lld elements was written", (long long)part.n);
  return MS_OK;
}

static int run_case(ms_world *world, void *context) {
  const replicas_case *c = context;
  grid g = {.c = c, .ranks = ms_world_size(world), .me = ms_world_rank(world)};
  unsigned seed = (unsigned)g.me + 1;
  int rc = MS_OK;
  g.shards = g.ranks / c->replicas;
  g.shard = g.me % g.shards;
  MS_GOTO(open_world_comm(world, 0, &g.comm));
  for (g.round = 0; g.round < ROUNDS; g.round++) {
    dawdle(&seed);
    if (!c->accumulate) MS_GOTO(gather_once(&g));
    dawdle(&seed);
    MS_GOTO(reduce_once(&g, MS_COLL_REDUCE_SCATTER));
    MS_GOTO(reduce_once(&g, MS_COLL_ALL_REDUCE));
  }
fail:
  if (rc)
    ms_error_prefix("%d replicas of %d, %s to %s, %lld elements%s, round %d", c->replicas, g.shards,
                    ms_dtype_name(c->src_dtype), ms_dtype_name(c->dst_dtype), (long long)c->count,
                    c->accumulate ? ", accumulating" : "", g.round);
  ms_comm_close(g.comm);
  return rc;
}

static void for_all_cases(void (*run)(int, rank_body *, void *)) {
  static const int64_t counts[] = {1, 65, 1000};          /* less than a slice, hardly more, and parts of all */
  static const int grids[][2] = {{2, 1}, {4, 2}, {3, 3}}; /* ranks, replicas */
  arena *memory = share_memory(sizeof *memory);
  for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
    for (int types = 0; types < 4; types++)
      for (int accumulate = 0; accumulate < 2; accumulate++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
          replicas_case c = {.replicas = grids[g][1],
                             .src_dtype = types & 1,
                             .dst_dtype = types >> 1,
                             .accumulate = accumulate,
                             .count = counts[n],
                             .memory = memory};
          if (accumulate && c.dst_dtype != MS_F32) continue;
          run(grids[g][0], run_case, &c);
        }
  unshare_memory(memory, sizeof *memory);
}

static void slices_make_the_whole_with_ranks_as_threads(void **state) {
  (void)state;
  for_all_cases(run_ranks_as_threads);
}

static void slices_make_the_whole_with_ranks_as_processes(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* it sees the threads of one process */
#endif
  for_all_cases(run_ranks_as_processes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(slices_make_the_whole_with_ranks_as_threads),
      TEST(slices_make_the_whole_with_ranks_as_processes),
  };
  return cmocka_run_group_tests_name("comm replicas", tests, NULL, NULL);
}
