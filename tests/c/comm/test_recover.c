/* test_recover.c - after some ranks failed in the middle of something, all start afresh: barriers, collectives,
 * training. */
#include "tests/c/support/check.h"
#include "tests/c/support/ranks/collective.h"
#include "tests/c/support/networks/mlp_training.h"

#include <pthread.h>

#include "comm/control/control.h"
#include "comm/group/group.h"

/* ---- barriers and exchanges ---- */

enum { RECOVERIES = 20 };

static int exchange_ranks(ms_world *world, int round) {
  int mine = 100 * round + ms_world_rank(world), all[MAX_RANKS];
  MS_TRY(ms_world_all_gather_bytes(world, &mine, sizeof mine, all));
  for (int r = 0; r < ms_world_size(world); r++)
    EXPECT(all[r] == 100 * round + r, "round %d: rank %d sent %d", round, r, all[r]);
  return MS_OK;
}

/* In each round another rank gives up while the others wait for it, after an odd or even number of meetings. */
static int give_up_in_turn(ms_world *world, void *context) {
  (void)context;
  int rank = ms_world_rank(world);
  unsigned seed = (unsigned)rank;
  for (int round = 0; round < RECOVERIES; round++) {
    for (int i = 0; i < round % 3; i++) MS_TRY(ms_world_barrier(world));
    dawdle(&seed);
    if (rank == round % ms_world_size(world)) ms_world_abort(world, "a mistake in a line");
    else EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "a mistake in a line");
    MS_TRY(ms_world_recover(world));
    MS_TRY(exchange_ranks(world, round));
  }
  return MS_OK;
}

static void I1_ranks_meet_again_after_one_gave_up(void **state) {
  (void)state;
  run_ranks_as_threads(4, give_up_in_turn, NULL);
  run_ranks_as_processes(4, give_up_in_turn, NULL);
  run_ranks_as_processes(1, give_up_in_turn, NULL);
}

/* Rank 0 waits for others that have gone on. */
static int wait_in_vain(ms_world *world, void *context) {
  (void)context;
  if (ms_world_rank(world) == 0) EXPECT_FAILS(ms_world_barrier(world), MS_EMISMATCH, "rank 0 | ranks 1-2");
  MS_TRY(ms_world_recover(world));
  return exchange_ranks(world, 1);
}

static void I1_a_wait_for_ranks_that_have_gone_on_ends(void **state) {
  (void)state;
  run_ranks_as_threads(3, wait_in_vain, NULL);
}

/* A prompt's texts reach a rank that is behind, although another has got them already and given up in their line. */
static int give_up_before_the_rest(ms_world *world, void *context) {
  (void)context;
  int rank = ms_world_rank(world);
  ms_group group = {0};
  char **texts;
  MS_TRY(ms_group_open(world, ms_world_size(world), NULL, "session", &group));
  group.outlasts = 1;
  if (rank == 1) ms_world_abort(world, "a mistake in the line");
  if (rank == 2) usleep(100000);
  MS_TRY(ms_group_all_gather_text(&group, rank ? "none" : "the line", &texts));
  EXPECT(!strcmp(texts[0], "the line"), "rank %d got %s", rank, texts[0]);
  ms_group_free_texts(&group, texts);
  ms_group_close(&group);
  if (rank == 0) EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "a mistake in the line");
  MS_TRY(ms_world_recover(world));
  return exchange_ranks(world, 1);
}

static void I1_a_group_can_outlast_a_rank_that_gave_up(void **state) {
  (void)state;
  run_ranks_as_threads(3, give_up_before_the_rest, NULL);
  run_ranks_as_processes(3, give_up_before_the_rest, NULL);
}

/* ---- all or none ---- */

enum { MEETINGS = 300 };

/* A rank gives up as soon as it is through: the others, which may not have noticed that all have come,
 * go through too. */
static int give_up_afterwards(ms_world *world, void *context) {
  (void)context;
  int rank = ms_world_rank(world);
  ms_comm *comm = NULL;
  ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "all or none"};
  MS_TRY(open_world_comm(world, 0, &comm));
  for (int round = 0; round < MEETINGS; round++) {
    MS_TRY(round % 2 ? complete(comm, &barrier) : ms_world_barrier(world));
    if (rank == round % ms_world_size(world)) ms_world_abort(world, "afterwards");
    MS_TRY(ms_world_recover(world));
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void I1_a_barrier_that_all_entered_completes_despite_an_abort(void **state) {
  (void)state;
  run_ranks_as_threads(3, give_up_afterwards, NULL);
  run_ranks_as_processes(3, give_up_afterwards, NULL);
}

/* As a step ends on a mesh: along one dimension, then along the other. A rank that is through gives up at once, when
 * others have not even begun the second: they complete it all the same. Every third time a rank stays away: nobody
 * completes. */
static int give_up_behind_held_collectives(ms_world *world, void *context) {
  (void)context;
  int rank = ms_world_rank(world), rows[2] = {rank & ~1, rank | 1}, columns[2] = {rank & 1, (rank & 1) + 2};
  unsigned seed = (unsigned)rank;
  ms_comm *row = NULL, *column = NULL;
  ms_coll barrier = {.kind = MS_COLL_BARRIER, .label = "all or none"};
  MS_TRY(ms_comm_open(world, 2, rows, 0, &row));
  MS_TRY(ms_comm_open(world, 2, columns, 1, &column));
  for (int round = 0; round < MEETINGS; round++) {
    int away = round % 3 == 2 && rank == round % 4;
    dawdle(&seed);
    ms_interrupt_defer(1);
    int rc = away ? MS_OK : complete(row, &barrier);
    dawdle(&seed);
    if (!rc && !away) rc = complete(column, &barrier);
    ms_interrupt_defer(-1);
    EXPECT((rc == MS_OK) == (round % 3 != 2 || away), "round %d: %s", round, ms_error_message());
    ms_error_clear();
    if (away || rc || rank == round % 4) ms_world_abort(world, "behind");
    MS_TRY(ms_world_recover(world));
  }
  ms_comm_close(row);
  ms_comm_close(column);
  return MS_OK;
}

static void I1_held_collectives_of_several_groups_are_done_on_all_or_none(void **state) {
  (void)state;
  run_ranks_as_processes(4, give_up_behind_held_collectives, NULL);
}

/* ---- collectives ---- */

typedef struct sums {
  arena *memory;
} sums;

/* Rank 2 stays away from an all-reduce that the others have started; the next one, on the same channel, is right. */
static int leave_half_way(ms_world *world, void *context) {
  const sums *s = context;
  enum { COUNT = 1000 };
  int rank = ms_world_rank(world), ranks = ms_world_size(world);
  ms_comm *comm = NULL;
  void *shared[MAX_RANKS];
  float result[COUNT];
  for (int r = 0; r < ranks; r++) shared[r] = s->memory->rank[r];
  ms_coll_part part = {.count = COUNT, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = shared, .dst = result};
  ms_coll sum = {.kind = MS_COLL_ALL_REDUCE, .parts = 1, .part = &part, .label = "layers.0"};
  MS_TRY(open_world_comm(world, 3, &comm));
  for (int round = 0; round < 8; round++) {
    if (rank == round % ranks) {
      ms_world_abort(world, "elsewhere");
    } else {
      MS_TRY(ms_comm_start(comm, &sum));
      EXPECT_FAILS(ms_comm_wait(comm), MS_EPEER, "elsewhere");
    }
    MS_TRY(ms_world_recover(world));
    fill(shared[rank], MS_F32, COUNT, rank, round);
    MS_TRY(complete(comm, &sum));
    for (int i = 0; i < COUNT; i++) {
      float want = value_of(0, round, i);
      for (int r = 1; r < ranks; r++) want += value_of(r, round, i);
      EXPECT(result[i] == want, "round %d: sum[%d] is %g, not %g", round, i, (double)result[i], (double)want);
    }
    MS_TRY(ms_world_barrier(world)); /* no rank fills before all have compared */
  }
  ms_comm_close(comm);
  return MS_OK;
}

static void I1_a_channel_works_after_a_collective_left_half_way(void **state) {
  (void)state;
  sums s = {share_memory(sizeof(arena))};
  run_ranks_as_threads(3, leave_half_way, &s);
  run_ranks_as_processes(4, leave_half_way, &s);
  unshare_memory(s.memory, sizeof(arena));
}

/* ---- training ---- */

typedef struct interrupted_training {
  training_config config;
  ms_step_outputs *out; /* [2][TRAINING_STEPS], shared memory: undisturbed, disturbed */
} interrupted_training;

/* The rank after this step's is stopped before or inside the first phase, where the others wait for it. */
static void disturb(ms_world *world, rank_engine *engine, const training_config *config, int step) {
  int rank = ms_world_rank(world), stopped = (step + 1) % ms_world_size(world);
  must(ms_world_barrier(world)); /* all have done the step before */
  engine_feed(engine, config, rank, 99, 0);
  if (rank == stopped) {
    ms_interrupt_set(step % 2);
    if (step % 2) assert_fails(ms_exec_run(engine->exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EINTERRUPT, "interrupted");
    ms_interrupt_set(0);
    ms_world_abort(world, "stopped");
  } else {
    assert_fails(ms_exec_run(engine->exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EPEER, "stopped");
    assert_fails(ms_exec_run(engine->exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EINVAL, "ms_world_recover");
  }
  must(ms_world_recover(world));
}

static int train_through(ms_world *world, void *context) {
  interrupted_training *t = context;
  abort_on_failed_checks();
  for (int disturbed = 0; disturbed < 2; disturbed++) {
    rank_engine engine;
    engine_open(world, &t->config, &engine);
    for (int step = 0; step < TRAINING_STEPS; step++) {
      ms_step_outputs out;
      if (disturbed) disturb(world, &engine, &t->config, step);
      engine_step(&engine, &t->config, ms_world_rank(world), step, &out);
      if (ms_world_rank(world) == 0) t->out[disturbed * TRAINING_STEPS + step] = out;
    }
    engine_close(&engine);
  }
  return MS_OK;
}

static void I1_training_goes_on_bit_for_bit_after_interrupted_phases(void **state) {
  (void)state;
  static const int shapes[][2] = {{1, 3}, {2, 2}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    size_t bytes = 2 * TRAINING_STEPS * sizeof(ms_step_outputs);
    interrupted_training t = {training_default(shapes[i][0], shapes[i][1]), share_memory(bytes)};
    run_ranks_as_processes(shapes[i][0] * shapes[i][1], train_through, &t);
    for (int step = 0; step < TRAINING_STEPS; step++) {
      const ms_step_outputs *plain = &t.out[step], *disturbed = &t.out[TRAINING_STEPS + step];
      assert_true(plain->loss > 0);
      assert_memory_equal(plain, disturbed, sizeof *plain);
    }
    unshare_memory(t.out, bytes);
  }
}

/* ---- what cannot be recovered from ---- */

static int lose_a_rank(ms_world *world, void *context) {
  int rank = ms_world_rank(world);
  if (rank == 2) {
    ms_control_give_up(ms_world_control(world), MS_CONTROL_LAUNCHER, 2, context);
    return MS_OK;
  }
  if (rank == 1) ms_world_abort(world, "something else, before");
  EXPECT_FAILS(ms_world_recover(world), MS_EPEER, "rank 2 | signal 9");
  return MS_OK;
}

static int miss_a_rank(ms_world *world, void *context) {
  (void)context;
  if (ms_world_rank(world) == 1) return MS_OK; /* leaves */
  EXPECT_FAILS(ms_world_recover(world), MS_EPEER, "rank 1 | rank 0");
  return MS_OK;
}

static int wait_for_a_late_rank(ms_world *world, void *context) {
  pthread_barrier_t *end = context;
  if (ms_world_rank(world) == 0) {
    ms_world_set_timeout(world, 0.05);
    EXPECT_FAILS(ms_world_recover(world), MS_ETIMEOUT, "rank 1");
  }
  pthread_barrier_wait(end);
  return MS_OK;
}

static void I1_a_dead_rank_does_not_come_back(void **state) {
  (void)state;
  pthread_barrier_t end;
  run_ranks_as_threads(3, lose_a_rank, (void *)(intptr_t) "rank 2 died: killed by signal 9 (Killed)");
  run_ranks_as_threads(2, miss_a_rank, NULL);
  pthread_barrier_init(&end, NULL, 2);
  run_ranks_as_threads(2, wait_for_a_late_rank, &end);
  pthread_barrier_destroy(&end);
}

/* ---- interrupts ---- */

static void I1_interrupts_can_be_held_back(void **state) {
  (void)state;
  ms_world *world;
  must(ms_world_join(NULL, &world));
  ms_interrupt_set(1);
  ms_interrupt_defer(1);
  assert_int_equal(ms_interrupted(), 0);
  must(ms_world_barrier(world));
  ms_interrupt_defer(-1);
  assert_int_equal(ms_interrupted(), 1);
  assert_fails(ms_world_barrier(world), MS_EINTERRUPT, "interrupted");
  ms_interrupt_set(0);
  assert_int_equal(ms_interrupted(), 0);
  must(ms_world_recover(world));
  ms_free(world);
}

/* Rank 1 gave up because of another rank, and has ended: what the others hear is why, not that it ended. */
static int end_after_giving_up(ms_world *world, void *context) {
  (void)context;
  if (ms_world_rank(world) == 1) {
    ms_world_abort(world, "waited for rank 2");
    ms_control_give_up(ms_world_control(world), MS_CONTROL_LAUNCHER, 1, "it ended");
    return MS_OK;
  }
  ms_interrupt_defer(1);
  EXPECT_FAILS(ms_world_barrier(world), MS_EPEER, "rank 1 gave up | waited for rank 2");
  ms_interrupt_defer(-1);
  return MS_OK;
}

static void H4_a_held_wait_names_the_first_cause(void **state) {
  (void)state;
  run_ranks_as_processes(2, end_after_giving_up, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(I1_ranks_meet_again_after_one_gave_up),
      TEST(I1_a_wait_for_ranks_that_have_gone_on_ends),
      TEST(I1_a_group_can_outlast_a_rank_that_gave_up),
      TEST(I1_a_barrier_that_all_entered_completes_despite_an_abort),
      TEST(I1_held_collectives_of_several_groups_are_done_on_all_or_none),
      TEST(I1_a_channel_works_after_a_collective_left_half_way),
      TEST(I1_training_goes_on_bit_for_bit_after_interrupted_phases),
      TEST(I1_a_dead_rank_does_not_come_back),
      TEST(I1_interrupts_can_be_held_back),
      TEST(H4_a_held_wait_names_the_first_cause),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
