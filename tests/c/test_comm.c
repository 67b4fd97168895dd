/* test_comm.c - every collective against a plain reference, bit for bit, with ranks as threads and as processes.
**
** Sources are overwritten with the next round's values as soon as an operation says it is done, and ranks pause at random:
** a peer that still reads, or reads too early, gets wrong numbers.
*/
#include "comm/comm.h"

#include "tests/c/support/check.h"
#include "tests/c/support/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/error.h"

enum { MOST_RANKS = 5, MOST_COUNT = 17000, ROUNDS = 6 };
enum { BUFFER_BYTES = MOST_RANKS * MOST_COUNT * 4 };

/* What the ranks of a test share: each rank's buffer, and one that belongs to all. */
typedef struct arena {
  char rank[MOST_RANKS][BUFFER_BYTES];
  char all[BUFFER_BYTES];
} arena;

typedef struct collective_case {
  int kind, src_dtype, dst_dtype, accumulate, in_place;
  int64_t count;
  arena *memory;
} collective_case;

#define EXPECT(condition, ...) \
  if (!(condition)) return MS_FAIL(MS_EINTERNAL, __VA_ARGS__)

/* A value that depends on everything; not exact in bf16, so that rounding shows. */
static float value_of(int rank, int round, int64_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + round * 9176 + 77);
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return (float)(int32_t)x * (1.0f / (1 << 24));
}

static float read_element(const void *array, int dtype, int64_t i) {
  return dtype == MS_BF16 ? ms_bf16_to_f32(((const ms_bf16 *)array)[i]) : ((const float *)array)[i];
}

static void write_element(void *array, int dtype, int64_t i, float x) {
  if (dtype == MS_BF16) ((ms_bf16 *)array)[i] = ms_f32_to_bf16(x);
  else ((float *)array)[i] = x;
}

static float rounded(float x, int dtype) { return dtype == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16(x)) : x; }

static void fill(void *array, int dtype, int64_t n, int rank, int round) {
  for (int64_t i = 0; i < n; i++) write_element(array, dtype, i, value_of(rank, round, i));
}

static float expected_sum(const collective_case *c, int ranks, int round, int64_t i) {
  float sum = rounded(value_of(0, round, i), c->src_dtype);
  for (int p = 1; p < ranks; p++) sum += rounded(value_of(p, round, i), c->src_dtype);
  return sum;
}

static void dawdle(unsigned *seed) {
  unsigned draw = (unsigned)rand_r(seed) % 8;
  if (draw == 0) usleep((useconds_t)rand_r(seed) % 300);
}

static int complete(ms_comm *comm, const ms_coll *coll) {
  MS_TRY(ms_comm_start(comm, coll));
  return ms_comm_wait(comm);
}

static int open_world_comm(ms_world *world, int channel, ms_comm **comm) {
  int ranks[MS_MAX_LOCAL_RANKS];
  for (int r = 0; r < ms_world_size(world); r++) ranks[r] = r;
  return ms_comm_open(world, ms_world_size(world), ranks, channel, comm);
}

/* ---- one round of a kind ---- */

typedef struct bench {
  const collective_case *c;
  ms_comm *comm;
  int ranks, me, round;
  void *shared[MOST_RANKS];
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
    ms_coll coll = {.kind = c->kind, .parts = 1, .part = &part, .label = "layers.0"};
    dawdle(&seed);
    if (c->kind == MS_COLL_ALL_GATHER) MS_GOTO(round_gather(&b, &coll, &part));
    else if (c->kind == MS_COLL_BROADCAST) MS_GOTO(round_broadcast(&b, &coll, &part));
    else if (c->kind == MS_COLL_SEND) MS_GOTO(round_ring(&b, &coll, &part));
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

static const int64_t counts[] = {1, 7, 1000, MOST_COUNT};

static void for_all_cases(void (*run)(int, rank_body *, void *)) {
  static const int kinds[] = {MS_COLL_ALL_GATHER, MS_COLL_REDUCE_SCATTER, MS_COLL_ALL_REDUCE, MS_COLL_BROADCAST,
                              MS_COLL_SEND};
  arena *memory = share_memory(sizeof *memory);
  for (int ranks = 2; ranks <= MOST_RANKS; ranks++)
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
      for (int types = 0; types < 4; types++)
        for (int variant = 0; variant < 3; variant++)
          for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            collective_case c = {.kind = kinds[k],
                                 .src_dtype = types & 1,
                                 .dst_dtype = types >> 1,
                                 .accumulate = variant == 1,
                                 .in_place = variant == 2,
                                 .count = counts[n],
                                 .memory = memory};
            int sums = c.kind == MS_COLL_REDUCE_SCATTER || c.kind == MS_COLL_ALL_REDUCE;
            if (variant && !sums) continue;
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
  for_all_cases(run_ranks_as_processes);
}

/* ---- grouped parts, streams, sub-groups ---- */

/* One operation with a bf16 part, an f32 part, an empty one and one that is in place already. */
static int gather_group(ms_world *world, void *context) {
  arena *memory = context;
  enum { PARTS = 4, COUNT = 333, PART_BYTES = MOST_RANKS * COUNT * 4 };
  int me = ms_world_rank(world), ranks = ms_world_size(world);
  float source[COUNT];
  ms_comm *comm;
  MS_TRY(open_world_comm(world, 0, &comm));
  for (int round = 0; round < ROUNDS; round++) {
    ms_coll_part part[PARTS];
    void *shared[PARTS][MOST_RANKS];
    fill(source, MS_F32, COUNT, me, round);
    for (int i = 0; i < PARTS; i++) {
      for (int p = 0; p < ranks; p++) shared[i][p] = memory->all + i * PART_BYTES;
      part[i] = (ms_coll_part){
          .count = i == 2 ? 0 : COUNT, .src = source, .dst_dtype = i == 0 ? MS_BF16 : MS_F32, .shared = shared[i]};
    }
    part[3].src = NULL;
    if (round == 0) fill((float *)shared[3][0] + me * COUNT, MS_F32, COUNT, me, 0);
    ms_coll coll = {.kind = MS_COLL_ALL_GATHER, .parts = PARTS, .part = part, .label = "head"};
    MS_TRY(complete(comm, &coll));
    for (int p = 0; p < ranks; p++)
      for (int i = 0; i < COUNT; i++) {
        float half = read_element(shared[0][0], MS_BF16, p * COUNT + i), whole = ((float *)shared[1][0])[p * COUNT + i];
        EXPECT(half == rounded(value_of(p, round, i), MS_BF16), "the bf16 part is wrong at %d", i);
        EXPECT(whole == value_of(p, round, i), "the f32 part is wrong at %d", i);
        EXPECT(((float *)shared[3][0])[p * COUNT + i] == value_of(p, 0, i), "the part in place changed at %d", i);
      }
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void a_grouped_all_gather_mixes_types(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(3, gather_group, memory);
  run_ranks_as_processes(3, gather_group, memory);
  unshare_memory(memory, sizeof *memory);
}

/* One thread keeps two channels moving without waiting on either alone. */
static int poll_two_channels(ms_world *world, void *context) {
  arena *memory = context;
  enum { COUNT = 500 };
  int me = ms_world_rank(world), ranks = ms_world_size(world);
  ms_comm *comm[2];
  void *shared[2][MOST_RANKS];
  float sum[2][COUNT];
  for (int c = 0; c < 2; c++) {
    MS_TRY(open_world_comm(world, c, &comm[c]));
    for (int p = 0; p < ranks; p++) shared[c][p] = memory->rank[p] + c * COUNT * 4;
  }
  for (int round = 0; round < 20 * ROUNDS; round++) {
    ms_coll_part part[2];
    ms_coll coll[2];
    int done[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
      int c = (me + i) & 1; /* ranks start the channels in different orders */
      fill(shared[c][me], MS_F32, COUNT, me + c, round);
      part[c] = (ms_coll_part){.count = COUNT, .shared = shared[c], .dst = sum[c]};
      coll[c] = (ms_coll){.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part[c], .label = "two"};
      MS_TRY(ms_comm_start(comm[c], &coll[c]));
    }
    ms_wait wait = {0};
    while (!done[0] || !done[1]) {
      unsigned seen = ms_world_doorbell(world);
      for (int c = 0; c < 2; c++)
        if (!done[c]) MS_TRY(ms_comm_test(comm[c], &done[c]));
      for (int c = 0; c < 2; c++)
        if (!done[c]) {
          MS_TRY(ms_comm_pause(comm[c], &wait, seen));
          break;
        }
    }
    for (int c = 0; c < 2; c++) {
      float want = value_of(c, round, 11);
      for (int p = 1; p < ranks; p++) want += value_of(p + c, round, 11);
      EXPECT(sum[c][11] == want, "channel %d, round %d: %g, not %g", c, round, (double)sum[c][11], (double)want);
    }
  }
  ms_comm_close(comm[0]);
  ms_comm_close(comm[1]);
  return MS_OK;
}

static void one_thread_keeps_two_channels_moving(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(4, poll_two_channels, memory);
  run_ranks_as_processes(4, poll_two_channels, memory);
  unshare_memory(memory, sizeof *memory);
}

typedef struct stream {
  ms_world *world;
  arena *memory;
  int channel, status;
} stream;

static int run_stream_rounds(stream *s) {
  enum { COUNT = 200 };
  int me = ms_world_rank(s->world), ranks = ms_world_size(s->world);
  void *shared[MOST_RANKS];
  float sum[COUNT];
  unsigned seed = (unsigned)(me * 10 + s->channel);
  ms_comm *comm;
  MS_TRY(open_world_comm(s->world, s->channel, &comm));
  for (int p = 0; p < ranks; p++) shared[p] = s->memory->rank[p] + s->channel * 65536;
  ms_coll_part part = {.count = COUNT, .shared = shared, .dst = sum};
  ms_coll coll = {.kind = MS_COLL_REDUCE_SCATTER, .parts = 1, .part = &part, .label = "stream"};
  for (int round = 0; round < 20 * ROUNDS; round++) {
    dawdle(&seed);
    fill(shared[me], MS_F32, COUNT * ranks, me, round);
    MS_TRY(complete(comm, &coll));
    float want = value_of(0, round, COUNT * me + 3);
    for (int p = 1; p < ranks; p++) want += value_of(p, round, COUNT * me + 3);
    EXPECT(sum[3] == want, "stream %d, round %d: %g, not %g", s->channel, round, (double)sum[3], (double)want);
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void *run_stream(void *argument) {
  stream *s = argument;
  ms_error_clear();
  s->status = run_stream_rounds(s);
  if (s->status) ms_world_abort(s->world, ms_error_message());
  return NULL;
}

/* As in a checking build: every stream of a rank is a thread with a channel of its own. */
static int run_streams(ms_world *world, void *context) {
  enum { STREAMS_OF_A_RANK = 3 };
  stream streams[STREAMS_OF_A_RANK];
  pthread_t thread[STREAMS_OF_A_RANK];
  for (int i = 0; i < STREAMS_OF_A_RANK; i++) {
    streams[i] = (stream){world, context, i, MS_OK};
    EXPECT(!pthread_create(&thread[i], NULL, run_stream, &streams[i]), "no thread");
  }
  for (int i = 0; i < STREAMS_OF_A_RANK; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < STREAMS_OF_A_RANK; i++) EXPECT(!streams[i].status, "stream %d failed", i);
  return MS_OK;
}

static void streams_of_a_rank_may_be_threads(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(3, run_streams, memory);
  run_ranks_as_processes(3, run_streams, memory);
  unshare_memory(memory, sizeof *memory);
}

/* A 2x2 mesh: sums over rows, then over columns, give the sum over all. */
static int reduce_over_mesh(ms_world *world, void *context) {
  arena *memory = context;
  int me = ms_world_rank(world), row = me / 2, column = me % 2;
  int across[2] = {2 * row, 2 * row + 1}, down[2] = {column, 2 + column};
  void *shared[2][2] = {{memory->rank[across[0]], memory->rank[across[1]]},
                        {memory->rank[down[0]] + 64, memory->rank[down[1]] + 64}};
  float sum = 0;
  ms_comm *comm[2];
  MS_TRY(ms_comm_open(world, 2, across, 0, &comm[0]));
  MS_TRY(ms_comm_open(world, 2, down, 1, &comm[1]));
  EXPECT(ms_comm_size(comm[0]) == 2 && ms_comm_rank(comm[0]) == column && ms_comm_rank(comm[1]) == row, "group ranks");
  for (int round = 0; round < 50 * ROUNDS; round++) {
    float mine = (float)(me + round);
    for (int dim = 0; dim < 2; dim++) {
      memcpy(memory->rank[me] + 64 * dim, dim ? &sum : &mine, sizeof mine);
      ms_coll_part part = {.count = 1, .shared = shared[dim], .dst = &sum};
      ms_coll coll = {.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part, .label = "mesh"};
      MS_TRY(complete(comm[dim], &coll));
    }
    EXPECT(sum == (float)(6 + 4 * round), "round %d: %g", round, (double)sum);
  }
  ms_comm_close(comm[0]);
  ms_comm_close(comm[1]);
  return MS_OK;
}

static void sub_groups_of_a_mesh_work_side_by_side(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(4, reduce_over_mesh, memory);
  run_ranks_as_processes(4, reduce_over_mesh, memory);
  unshare_memory(memory, sizeof *memory);
}

/* ---- refusals ---- */

#define EXPECT_FAILS(call, code, part)                                                             \
  do {                                                                                             \
    int got_ = (call);                                                                             \
    EXPECT(got_ == (code), "%s instead of %s", ms_status_name(got_), ms_status_name(code));        \
    if (!strstr(ms_error_message(), (part))) return ms_error_prefix("expected \"%s\" in", (part)); \
    ms_error_clear();                                                                              \
  } while (0)

static int open_wrongly(ms_world *world, void *context) {
  (void)context;
  ms_comm *comm;
  int me = ms_world_rank(world), other = 1 - me;
  EXPECT_FAILS(ms_comm_open(world, 1, (int[]){me}, 0, &comm), MS_EINVAL, "at least 2");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){me, me}, 0, &comm), MS_EINVAL, "twice");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){0, 7}, 0, &comm), MS_EINVAL, "rank 7");
  EXPECT_FAILS(ms_comm_open(world, 3, (int[]){0, 1, 2}, 0, &comm), MS_EINVAL, "world of 2");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){0, 1}, 16, &comm), MS_EINVAL, "channel 16");
  float x[2] = {0};
  void *shared[2] = {x, x};
  MS_TRY(open_world_comm(world, 0, &comm));
  ms_coll_part part = {.count = 1, .src_dtype = MS_I32, .dst_dtype = MS_I32, .shared = shared, .dst = &x[1]};
  ms_coll coll = {.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part};
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "i32");
  part.src_dtype = part.dst_dtype = MS_BF16;
  part.accumulate = 1;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "accumulates in f32 only");
  coll.kind = MS_COLL_SEND;
  coll.root = me;
  part.accumulate = 0;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EINVAL, "peer");
  coll.kind = MS_COLL_BARRIER;
  coll.parts = 0;
  MS_TRY(ms_comm_start(comm, &coll));
  if (other == 0) EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EINTERNAL, "in flight");
  MS_TRY(ms_comm_wait(comm));
  ms_comm_close(comm);
  return MS_OK;
}

static void D8_groups_of_one_and_other_nonsense_are_refused(void **state) {
  (void)state;
  run_ranks_as_threads(2, open_wrongly, NULL);
}

static int enter_different_things(ms_world *world, void *context) {
  arena *memory = context;
  int me = ms_world_rank(world);
  float result[64];
  void *shared[2] = {memory->rank[0], memory->rank[1]};
  ms_comm *comm;
  MS_TRY(open_world_comm(world, 0, &comm));
  ms_coll_part part = {.count = 8 + me, .src = result, .shared = shared, .dst = result};
  ms_coll coll = {
      .kind = me ? MS_COLL_REDUCE_SCATTER : MS_COLL_ALL_REDUCE, .parts = 1, .part = &part, .label = "layers.3"};
  EXPECT_FAILS(complete(comm, &coll), MS_EMISMATCH,
               me ? "rank 1 entered reduce_scatter layers.3 of 1 parts, 9 elements; rank 0 entered all_reduce"
                  : "rank 0 entered all_reduce layers.3 of 1 parts, 8 elements; rank 1 entered reduce_scatter");
  ms_comm_close(comm);
  return MS_OK;
}

static void D10_ranks_that_enter_different_collectives_are_told(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(2, enter_different_things, memory);
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
      TEST(a_grouped_all_gather_mixes_types),
      TEST(one_thread_keeps_two_channels_moving),
      TEST(streams_of_a_rank_may_be_threads),
      TEST(sub_groups_of_a_mesh_work_side_by_side),
      TEST(D8_groups_of_one_and_other_nonsense_are_refused),
      TEST(D10_ranks_that_enter_different_collectives_are_told),
      TEST(bytes_follow_the_ring_formulas),
  };
  return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
