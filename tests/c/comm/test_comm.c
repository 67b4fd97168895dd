/* test_comm.c - every collective against a plain reference, bit for bit, with ranks as threads and as processes.
 *
 * Sources are overwritten with the next round's values as soon as an operation says it is done, and ranks pause at
 * random: a peer that still reads, or reads too early, gets wrong numbers.
 */
#include <math.h>

#include "base/numbers/dtype.h"
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/collective.h"

typedef struct collective_case {
  int kind, src_dtype, dst_dtype, accumulate, in_place, largest;
  int64_t count;
  arena *memory;
} collective_case;

static float expected_sum(const collective_case *c, int ranks, int round, int64_t i) {
  float sum = rounded(value_of(0, round, i), c->src_dtype);
  for (int p = 1; p < ranks; p++) {
    const float x = rounded(value_of(p, round, i), c->src_dtype);
    sum = !c->largest ? sum + x : x > sum ? x : sum;
  }
  return sum;
}

/* ---- one round of a kind ---- */

typedef struct bench {
  const collective_case *c;
  ms_comm *comm;
  int ranks, me, round;
  void *shared[MAX_RANKS];
  float *mine; /* private: source of an all-gather, destination of the others */
} bench;

static int round_gather(bench *b, ms_coll *coll, ms_coll_part *part) {
  const collective_case *c = b->c;
  for (int p = 0; p < b->ranks; p++) b->shared[p] = c->memory->all;
  fill(b->mine, c->src_dtype, c->count, b->me, b->round);
  part->src = b->mine;
  MS_TRY(complete(b->comm, coll));
  memset(b->mine, 0xff, (size_t)c->count * 4);
  for (int p = 0; p < b->ranks; p++)
    for (int64_t i = 0; i < c->count; i++) {
      float want = rounded(rounded(value_of(p, b->round, i), c->src_dtype), c->dst_dtype);
      float got = read_element(c->memory->all, c->dst_dtype, p * c->count + i);
      EXPECT(got == want, "chunk %d[%lld] is %g, not %g", p, (long long)i, (double)got, (double)want);
    }
  return MS_OK;
}

static int round_reduce(bench *b, ms_coll *coll, ms_coll_part *part) {
  const collective_case *c = b->c;
  int scatter = c->kind == MS_COLL_REDUCE_SCATTER;
  int64_t whole = scatter ? c->count * b->ranks : c->count, first = scatter ? c->count * b->me : 0;
  void *source = b->shared[b->me];
  fill(source, c->src_dtype, whole, b->me, b->round);
  part->dst = c->in_place ? (char *)source + first * ms_dtype_size(c->src_dtype) : (void *)b->mine;
  if (c->accumulate) fill(part->dst, MS_F32, c->count, 100, b->round);
  MS_TRY(complete(b->comm, coll));
  if (!c->in_place) memset(source, 0xff, (size_t)whole * (size_t)ms_dtype_size(c->src_dtype));
  for (int64_t i = 0; i < c->count; i++) {
    float want = expected_sum(c, b->ranks, b->round, first + i);
    want = c->accumulate ? want + value_of(100, b->round, i) : rounded(want, c->dst_dtype);
    float got = read_element(part->dst, c->dst_dtype, i);
    EXPECT(got == want, "sum[%lld] is %g, not %g", (long long)i, (double)got, (double)want);
  }
  return MS_OK;
}

static int round_broadcast(bench *b, ms_coll *coll, ms_coll_part *part) {
  const collective_case *c = b->c;
  coll->root = b->round % b->ranks;
  if (coll->root == b->me) fill(b->shared[b->me], c->src_dtype, c->count, b->me, b->round);
  part->dst = b->mine;
  MS_TRY(complete(b->comm, coll));
  if (coll->root == b->me) memset(b->shared[b->me], 0xff, (size_t)c->count * 4);
  for (int64_t i = 0; i < c->count && coll->root != b->me; i++) {
    float want = rounded(rounded(value_of(coll->root, b->round, i), c->src_dtype), c->dst_dtype);
    float got = read_element(b->mine, c->dst_dtype, i);
    EXPECT(got == want, "element %lld is %g, not %g", (long long)i, (double)got, (double)want);
  }
  return MS_OK;
}

static int round_exchange(bench *b, ms_coll *coll, ms_coll_part *part) {
  const collective_case *c = b->c;
  const int64_t whole = c->count * b->ranks;
  fill(b->shared[b->me], c->src_dtype, whole, b->me, b->round);
  part->dst = b->mine;
  MS_TRY(complete(b->comm, coll));
  memset(b->shared[b->me], 0xff, (size_t)whole * (size_t)ms_dtype_size(c->src_dtype));
  for (int64_t i = 0; i < whole; i++) {
    const int p = (int)(i / c->count);
    const float want = rounded(value_of(p, b->round, b->me * c->count + i % c->count), c->src_dtype);
    const float got = read_element(b->mine, c->dst_dtype, i);
    EXPECT(got == want, "chunk %d[%lld] is %g, not %g", p, (long long)(i % c->count), (double)got, (double)want);
  }
  return MS_OK;
}

/* Everybody sends to the next rank; even ranks send first. */
static int round_ring(bench *b, ms_coll *coll, ms_coll_part *part) {
  const collective_case *c = b->c;
  int next = (b->me + 1) % b->ranks, previous = (b->me + b->ranks - 1) % b->ranks;
  for (int turn = 0; turn < 2; turn++) {
    coll->kind = (turn ^ b->me) & 1 ? MS_COLL_RECV : MS_COLL_SEND;
    coll->root = coll->kind == MS_COLL_SEND ? next : previous;
    part->dst = b->mine;
    if (coll->kind == MS_COLL_SEND) fill(b->shared[b->me], c->src_dtype, c->count, b->me, b->round);
    MS_TRY(complete(b->comm, coll));
    if (coll->kind == MS_COLL_SEND) memset(b->shared[b->me], 0xff, (size_t)c->count * 4);
  }
  for (int64_t i = 0; i < c->count; i++) {
    float want = rounded(rounded(value_of(previous, b->round, i), c->src_dtype), c->dst_dtype);
    float got = read_element(b->mine, c->dst_dtype, i);
    EXPECT(got == want, "element %lld from rank %d is %g, not %g", (long long)i, previous, (double)got, (double)want);
  }
  return MS_OK;
}

static int run_case(ms_world *world, void *context) {
  const collective_case *c = context;
  bench b = {.c = c, .ranks = ms_world_size(world), .me = ms_world_rank(world)};
  unsigned seed = (unsigned)b.me + 1;
  int rc = MS_OK;
  b.mine = calloc(BUFFER_BYTES, 1);
  EXPECT(b.mine, "no memory");
  MS_GOTO(open_world_comm(world, 0, &b.comm));
  for (b.round = 0; b.round < ROUNDS; b.round++) {
    for (int p = 0; p < b.ranks; p++) b.shared[p] = c->memory->rank[p];
    ms_coll_part part = {.count = c->count,
                         .src_dtype = c->src_dtype,
                         .dst_dtype = c->dst_dtype,
                         .accumulate = c->accumulate,
                         .shared = b.shared};
    ms_coll coll = {.kind = c->kind, .largest = c->largest, .parts = 1, .part = &part, .label = "layers.0"};
    dawdle(&seed);
    if (c->kind == MS_COLL_ALL_GATHER) MS_GOTO(round_gather(&b, &coll, &part));
    else if (c->kind == MS_COLL_BROADCAST) MS_GOTO(round_broadcast(&b, &coll, &part));
    else if (c->kind == MS_COLL_SEND) MS_GOTO(round_ring(&b, &coll, &part));
    else if (c->kind == MS_COLL_ALL_TO_ALL) MS_GOTO(round_exchange(&b, &coll, &part));
    else MS_GOTO(round_reduce(&b, &coll, &part));
  }
fail:
  if (rc)
    ms_error_prefix("%d ranks, kind %d, %s to %s, %lld elements%s%s, round %d", b.ranks, c->kind,
                    ms_dtype_name(c->src_dtype), ms_dtype_name(c->dst_dtype), (long long)c->count,
                    c->accumulate ? ", accumulating" : "", c->in_place ? ", in place" : "", b.round);
  ms_comm_close(b.comm);
  free(b.mine);
  return rc;
}

static const int64_t counts[] = {1, 7, 1000, MAX_COUNT};

static void for_all_cases(void (*run)(int, rank_body *, void *)) {
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE,
                              MS_COLL_BROADCAST,  MS_COLL_SEND,           MS_COLL_ALL_TO_ALL};
  const char *cases = getenv("MOONSHARD_CASES");
  const int few = cases && !strcmp(cases, "few");
  arena *memory = share_memory(sizeof *memory);
  for (int ranks = 2; ranks <= MAX_RANKS; ranks += few && ranks == 3 ? MAX_RANKS - 3 : 1)
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
      for (int types = 0; types < 4; types++)
        for (int variant = 0; variant < 5; variant++)
          for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            collective_case c = {.kind = kinds[k],
                                 .src_dtype = types & 1,
                                 .dst_dtype = types >> 1,
                                 .accumulate = variant == 1,
                                 .in_place = variant == 2 || variant == 4,
                                 .largest = variant >= 3,
                                 .count = counts[n],
                                 .memory = memory};
            int sums = c.kind == MS_COLL_REDUCE_SCATTER || c.kind == MS_COLL_ALL_REDUCE;
            if (variant && !sums) continue;
            if (c.largest && c.kind != MS_COLL_ALL_REDUCE) continue;
            if (c.kind == MS_COLL_ALL_TO_ALL && c.src_dtype != c.dst_dtype) continue;
            if (c.accumulate && c.dst_dtype != MS_F32) continue;
            if (c.in_place && c.src_dtype != c.dst_dtype) continue;
            run(ranks, run_case, &c);
          }
  unshare_memory(memory, sizeof *memory);
}

static void every_kind_with_ranks_as_threads(void **state) {
  (void)state;
  for_all_cases(run_ranks_as_threads);
}

static void every_kind_with_ranks_as_processes(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  skip(); /* they see the same in the threads of one process */
#endif
  for_all_cases(run_ranks_as_processes);
}

static int takes_the_largest(ms_world *world, void *context) {
  const collective_case *c = context;
  const float mine[2] = {ms_world_rank(world) ? 3 : NAN, (float)-ms_world_rank(world)};
  ms_comm *comm = NULL;
  void *shared[2] = {c->memory->rank[0], c->memory->rank[1]};
  float got[2] = {0};
  int rc;
  ms_coll_part part = {.count = 2, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = shared, .dst = got};
  ms_coll coll = {.kind = MS_COLL_ALL_REDUCE, .largest = 1, .parts = 1, .part = &part, .label = "layers.0"};
  MS_GOTO(open_world_comm(world, 0, &comm));
  memcpy(shared[ms_world_rank(world)], mine, sizeof mine);
  MS_GOTO(complete(comm, &coll));
  EXPECT(isnan(got[0]), "the largest of NaN and 3 is %g", (double)got[0]);
  EXPECT(got[1] == 0, "the largest of 0 and -1 is %g", (double)got[1]);
  coll.kind = MS_COLL_REDUCE_SCATTER;
  EXPECT(ms_comm_start(comm, &coll) == MS_EINVAL, "only an all_reduce takes the largest");
fail:
  ms_comm_close(comm);
  return rc;
}

static void the_largest_of_a_NaN_is_NaN(void **state) {
  arena *memory = share_memory(sizeof *memory);
  collective_case c = {.memory = memory};
  (void)state;
  run_ranks_as_threads(2, takes_the_largest, &c);
  unshare_memory(memory, sizeof *memory);
}

static void bytes_follow_the_ring_formulas(void **state) {
  (void)state;
  ms_coll_part part[2] = {{.count = 100, .src_dtype = MS_F32, .dst_dtype = MS_BF16}, {.count = 12}};
  assert_true(ms_coll_bytes(MS_COLL_ALL_GATHER, 4, part, 2) == 3 * (100 * 2 + 12 * 4));
  assert_true(ms_coll_bytes(MS_COLL_REDUCE_SCATTER, 4, part, 2) == 3 * (100 * 4 + 12 * 4));
  assert_true(ms_coll_bytes(MS_COLL_ALL_REDUCE, 4, part, 2) == 2 * 3 / 4.0 * (100 * 4 + 12 * 4));
  assert_true(ms_coll_bytes(MS_COLL_BARRIER, 4, NULL, 0) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_kind_with_ranks_as_threads),
      TEST(every_kind_with_ranks_as_processes),
      TEST(the_largest_of_a_NaN_is_NaN),
      TEST(bytes_follow_the_ring_formulas),
  };
  return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
