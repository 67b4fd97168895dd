/* test_comm_groups.c - several buffers in one operation, several channels in one rank, several groups in one world, and
 * what is refused. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/collective.h"

#include <pthread.h>

/* ---- grouped parts, streams, sub-groups ---- */

/* One operation with a bf16 part, an f32 part, an empty one and one that is in place already. */
static int gather_group(ms_world *world, void *context) {
  arena *memory = context;
  enum { PARTS = 4, COUNT = 333, PART_BYTES = MAX_RANKS * COUNT * 4 };
  int me = ms_world_rank(world), ranks = ms_world_size(world);
  float source[COUNT];
  ms_comm *comm;
  MS_TRY(open_world_comm(world, 0, &comm));
  for (int round = 0; round < ROUNDS; round++) {
    ms_coll_part part[PARTS];
    void *shared[PARTS][MAX_RANKS];
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
  void *shared[2][MAX_RANKS];
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
  void *shared[MAX_RANKS];
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

static int open_wrongly(ms_world *world, void *context) {
  (void)context;
  ms_comm *comm;
  int me = ms_world_rank(world), other = 1 - me;
  EXPECT_FAILS(ms_comm_open(world, 1, (int[]){me}, 0, &comm), MS_EINVAL, "2");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){me, me}, 0, &comm), MS_EINVAL, "twice");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){0, 7}, 0, &comm), MS_EINVAL, "rank 7");
  EXPECT_FAILS(ms_comm_open(world, 3, (int[]){0, 1, 2}, 0, &comm), MS_EINVAL, "2");
  EXPECT_FAILS(ms_comm_open(world, 2, (int[]){0, 1}, 16, &comm), MS_EINVAL, "16 | channel");
  float x[2] = {0};
  void *shared[2] = {x, x};
  MS_TRY(open_world_comm(world, 0, &comm));
  ms_coll_part part = {.count = 1, .src_dtype = MS_I32, .dst_dtype = MS_I32, .shared = shared, .dst = &x[1]};
  ms_coll coll = {.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part};
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "i32");
  for (int kind = MS_COLL_ALL_GATHER; kind <= MS_COLL_ALL_REDUCE; kind++) {
    coll.kind = kind;
    part.src_dtype = part.dst_dtype = MS_DTYPES;
    EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "unknown element type");
    part.src_dtype = part.dst_dtype = MS_NF4;
    EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "nf4 | u8");
    part.dst_dtype = -1;
    part.src_dtype = MS_F32;
    EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "element type -1");
  }
  coll.kind = MS_COLL_ALL_REDUCE;
  part.src_dtype = part.dst_dtype = MS_F8E4M3;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "f8e4m3 | sums");
  part.src_dtype = part.dst_dtype = MS_BF16;
  part.accumulate = 1;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EDTYPE, "f32 | accumulate");
  coll.kind = MS_COLL_SEND;
  coll.root = me;
  part.accumulate = 0;
  EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EINVAL, "peer");
  coll.kind = MS_COLL_BARRIER;
  coll.parts = 0;
  MS_TRY(ms_comm_start(comm, &coll));
  if (other == 0) EXPECT_FAILS(ms_comm_start(comm, &coll), MS_EINTERNAL, "flight");
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
               me ? "rank 1 | reduce_scatter | layers.3 | 9 | rank 0" : "rank 0 | all_reduce | layers.3 | 8 | rank 1");
  ms_comm_close(comm);
  return MS_OK;
}

static void D10_an_error_names_ranks_in_different_collectives(void **state) {
  (void)state;
  arena *memory = share_memory(sizeof *memory);
  run_ranks_as_threads(2, enter_different_things, memory);
  unshare_memory(memory, sizeof *memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_grouped_all_gather_mixes_types),
      TEST(one_thread_keeps_two_channels_moving),
      TEST(streams_of_a_rank_may_be_threads),
      TEST(sub_groups_of_a_mesh_work_side_by_side),
      TEST(D8_groups_of_one_and_other_nonsense_are_refused),
      TEST(D10_an_error_names_ranks_in_different_collectives),
  };
  return cmocka_run_group_tests_name("comm groups", tests, NULL, NULL);
}
