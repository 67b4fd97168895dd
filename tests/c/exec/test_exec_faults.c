/* test_exec_faults.c - what a run does when something is wrong, and what it promises besides numbers: no allocation, no
 * hang, the same message on every rank.
 */
#include "tests/c/support/networks/mlp_training.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/plan.h"

/* ---- allocation ---- */

/* Sanitizers bring an allocator of their own; elsewhere every call of the C library's in this program counts. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static long allocator_calls;
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

__attribute__((visibility("default"))) void *malloc(size_t bytes) {
  allocator_calls++;
  return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t bytes) {
  allocator_calls++;
  return __libc_calloc(n, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t bytes) {
  allocator_calls++;
  return __libc_realloc(memory, bytes);
}
#else
static const long allocator_calls = 0;
#endif

static int count_allocations(ms_world *world, void *context) {
  rank_engine engine;
  ms_step_outputs out;
  ms_exec_counters counters;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  engine_open(world, context, &engine);
  engine_step(&engine, context, rank, 0, &out); /* libraries may make what they keep */
  long before = allocator_calls;
  for (int step = 1; step < 4; step++) engine_step(&engine, context, rank, step, &out);
  assert_int_equal(allocator_calls, before);
  must(ms_exec_counts(engine.exec, &counters, sizeof counters));
  assert_int_equal(counters.allocations, 0);
  assert_true(counters.kernel_seconds > 0 && counters.total_seconds >= counters.kernel_seconds);
  engine_close(&engine);
  return MS_OK;
}

static void M1_a_run_allocates_nothing(void **state) {
  (void)state;
  training_config alone = training_default(1, 1), hybrid = training_default(2, 2);
  hybrid.plan.accumulate = 1;
  hybrid.micro_batches = 2;
  run_ranks_as_processes(1, count_allocations, &alone);
  run_ranks_as_processes(4, count_allocations, &hybrid);
}

/* ---- arenas that move ---- */

static int grow_between_runs(ms_world *world, void *context) {
  const training_config *small = context;
  rank_engine engine;
  ms_step_outputs before, after, evaluated;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  engine_open(world, small, &engine);
  engine_feed(&engine, small, rank, 7, 0);
  must(ms_exec_run(engine.exec, MS_PHASE_EVALUATE, NULL, &before, sizeof(ms_step_outputs)));
  int64_t bytes, grown;
  bytes = ms_state_arena_bytes(engine.state);

  /* A plan that only evaluates, for three times the rows. */
  training_config large = *small;
  large.global_batch *= 3;
  mlp_config net = large.net;
  net.rank = rank;
  net.batch = large.global_batch / ms_world_size(world);
  rank_engine wide = {.net.model = engine.net.model, .state = engine.state};
  large.plan.train = 0;
  mlp_trace(&wide.net, &net, 2, 0, 1);
  must(ms_plan_compile(wide.net.graph, &large.plan, &wide.plan));
  must(ms_exec_new(engine.state, wide.plan, &wide.exec));
  grown = ms_state_arena_bytes(engine.state);
  assert_true(grown > bytes);
  engine_feed(&wide, &large, rank, 7, 0);
  must(ms_exec_run(wide.exec, MS_PHASE_EVALUATE, NULL, &evaluated, sizeof(ms_step_outputs)));
  assert_true(evaluated.loss != before.loss && isfinite(evaluated.loss));
  assert_fails(ms_exec_run(wide.exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EINVAL, "phase | first");

  engine_feed(&engine, small, rank, 7, 0);
  must(ms_exec_run(engine.exec, MS_PHASE_EVALUATE, NULL, &after, sizeof(ms_step_outputs)));
  assert_true(after.loss == before.loss);
  const float *logits = ms_exec_output(engine.exec, "logits");
  assert_non_null(logits);
  assert_true(isfinite(logits[0]));
  assert_null(ms_exec_input(engine.exec, "z"));
  assert_null(ms_exec_output(engine.exec, "z"));

  ms_free(wide.exec);
  ms_free(wide.plan);
  ms_free(wide.net.graph);
  engine_close(&engine);
  return MS_OK;
}

static void execs_bound_before_the_arenas_grew_run_on(void **state) {
  (void)state;
  training_config alone = training_default(1, 1), sharded = training_default(1, 3);
  run_ranks_as_processes(1, grow_between_runs, &alone);
  run_ranks_as_processes(3, grow_between_runs, &sharded);
}

/* ---- the end ---- */

enum { HANDLES = 5 };

/* Collectors free what they find in an order of their own. */
static int free_in_some_order(ms_world *world, void *context) {
  static const int orders[][HANDLES] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {0, 3, 2, 4, 1}, {3, 4, 0, 2, 1}};
  for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
    rank_engine engine;
    ms_step_outputs out;
    engine_open(world, context, &engine);
    engine_step(&engine, context, ms_world_rank(world), 0, &out);
    must(ms_world_barrier(world));
    for (int k = 0; k < HANDLES; k++) switch (orders[i][k]) {
        case 0: ms_free(engine.net.model); break;
        case 1: ms_free(engine.net.graph); break;
        case 2: ms_free(engine.plan); break;
        case 3: ms_free(engine.state); break;
        default: ms_free(engine.exec); break;
      }
    ms_free(engine.net.mesh);
  }
  return MS_OK;
}

static void handles_are_freed_in_any_order(void **state) {
  (void)state;
  training_config sharded = training_default(2, 2);
  run_ranks_as_threads(4, free_in_some_order, &sharded);
}

/* ---- what is not finite ---- */

enum fault { NAN_PARAMETER, INF_INPUT, OVERFLOW };

typedef struct fault_case {
  training_config config;
  enum fault fault;
  const char *streams; /* MOONSHARD_STREAMS: the runner */
  char *messages;      /* [ranks][512], shared memory */
} fault_case;

static void spoil_parameter(rank_engine *engine, float value) {
  int64_t n = 32 * 16;
  float *full = malloc((size_t)n * sizeof *full);
  must(ms_state_gather(engine->state, 6, MS_TENSOR_PARAM, 0, -1, full)); /* layers.1.fc1.weight [32,16] */
  full[200] = value;
  must(ms_state_scatter(engine->state, 6, -1, full));
  free(full);
}

static int run_into_fault(ms_world *world, void *context) {
  const fault_case *fault = context;
  rank_engine engine;
  ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.02, .step = 12, .micro_batches = 1};
  ms_step_outputs out;
  const char *message;
  float before[16];
  ms_elements mine;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  setenv("MOONSHARD_STREAMS", fault->streams, 1);
  engine_open(world, &fault->config, &engine);
  if (fault->fault == NAN_PARAMETER) spoil_parameter(&engine, NAN);
  if (fault->fault == OVERFLOW) spoil_parameter(&engine, 3e38f);
  must(ms_params_find(engine.state, 0, MS_TENSOR_PARAM, &mine));
  memcpy(before, mine.data, sizeof before);
  engine_feed(&engine, &fault->config, rank, 0, 0);
  float *x = ms_exec_input(engine.exec, "x");
  if (fault->fault == INF_INPUT && rank == ms_world_size(world) - 1) x[3] = -INFINITY;
  for (int i = 0; fault->fault == OVERFLOW && i < 6 * 12; i++) x[i] *= 100;
  must(ms_exec_run(engine.exec, MS_PHASE_FIRST, &inputs, NULL, 0));
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_NORM, &inputs, &out, sizeof(ms_step_outputs)), MS_ENONFINITE,
               "step 12");
  assert_true(!isfinite(out.loss) || !isfinite(out.grad_norm));
  /* The search is no part of the step: no profile records it, and no update may follow it. */
  ms_profile *profile;
  must(ms_profile_new(world, &profile));
  ms_exec_set_profile(engine.exec, profile);
  inputs.first_row = -1;
  assert_fails(ms_exec_find_nonfinite(engine.exec, &inputs, &message), MS_EINVAL, "first_row | -1");
  inputs.first_row = 0;
  must(ms_exec_find_nonfinite(engine.exec, &inputs, &message));
  ms_free(profile);
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_UPDATE, &inputs, NULL, 0), MS_EINVAL, "update | norm");
  snprintf(fault->messages + 512 * rank, 512, "%s", message);
  assert_memory_equal(before, mine.data, sizeof before);
  engine_close(&engine);
  return MS_OK;
}

static void check_fault(int replicate, int shard, enum fault kind, const char *wanted) {
  static const char *const runners[] = {"inline", "threads"};
  int ranks = replicate * shard;
  for (int r = 0; r < 2; r++) {
    fault_case fault = {training_default(replicate, shard), kind, runners[r], share_memory(4 * 512)};
    run_ranks_as_processes(ranks, run_into_fault, &fault);
    for (int rank = 0; rank < ranks; rank++) {
      assert_has(fault.messages + 512 * rank, wanted);
      assert_string_equal(fault.messages + 512 * rank, fault.messages);
    }
    unshare_memory(fault.messages, 4 * 512);
  }
}

static void nonfinite_values_are_traced_to_their_source(void **state) {
  (void)state;
  check_fault(1, 1, NAN_PARAMETER, "parameter layers.1.fc1.weight | nan | element 200 | rank 0");
  check_fault(1, 3, NAN_PARAMETER, "parameter layers.1.fc1.weight | nan | element 200 | rank 1");
  check_fault(2, 2, INF_INPUT, "input x | -inf | element 3 | [6,12] | rank 3");
  check_fault(1, 2, OVERFLOW, "matmul | layers.1 | forward | inf | element 12 | [12,32] | rank");
  check_fault(2, 1, OVERFLOW, "matmul | layers.1 | forward | inf | element 12 | [12,32] | rank");
}

/* ---- ranks that disagree, stall or fail ---- */

static int bind_other_plans(ms_world *world, void *context) {
  training_config config = *(const training_config *)context;
  abort_on_failed_checks();
  int rank = ms_world_rank(world);
  mlp_config net = config.net;
  net.rank = rank;
  net.batch = 4;
  rank_engine engine = {.net = mlp_make(&net)};
  config.plan.prefetch = rank == 2 ? 2 : 1;
  must(ms_plan_compile(engine.net.graph, &config.plan, &engine.plan));
  must(ms_state_new(world, engine.net.model, &config.plan, 1, &engine.state));
  assert_int_equal(ms_exec_new(engine.state, engine.plan, &engine.exec), MS_EMISMATCH);
  assert_has(ms_error_message(), "rank 0 | \"prefetch 1\"");
  assert_has(ms_error_message(), "rank 2 | \"prefetch 2\"");
  ms_error_clear();
  engine_close(&engine);
  return MS_OK;
}

static void an_error_names_the_difference_between_plans(void **state) {
  (void)state;
  training_config config = training_default(1, 3);
  run_ranks_as_processes(3, bind_other_plans, &config);
}

/* Ranks that still wait for one that does not take part, in memory that all share. */
static int *still_waiting;

/* Rank 1 does not take part; the others tell who, in which unit, and then refuse to go on. */
static int stall(ms_world *world, void *context) {
  const training_config *config = context;
  rank_engine engine;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  must(ms_world_barrier(world));
  if (rank == 1) {
    while (__atomic_load_n(still_waiting, __ATOMIC_SEQ_CST)) usleep(1000);
  } else {
    ms_world_set_timeout(world, 0.2);
    assert_fails(ms_exec_run(engine.exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_ETIMEOUT,
                 "all_gather root | rank 0 | 0.2 s | rank 1");
    assert_fails(ms_exec_run(engine.exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EINVAL, "phase | failed");
    __atomic_fetch_sub(still_waiting, 1, __ATOMIC_SEQ_CST);
  }
  engine_close(&engine);
  return MS_OK;
}

static void a_stalled_rank_is_named_with_the_unit(void **state) {
  (void)state;
  training_config config = training_default(1, 2);
  still_waiting = share_memory(sizeof *still_waiting);
  *still_waiting = 1;
  run_ranks_as_processes(2, stall, &config);
  unshare_memory(still_waiting, sizeof *still_waiting);
}

static int leave_early(ms_world *world, void *context) {
  const training_config *config = context;
  rank_engine engine;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  if (rank != 1) {
    assert_int_equal(ms_exec_run(engine.exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EPEER);
    if (!rank) assert_has(ms_error_message(), "rank 1 | rank 0");
    ms_error_clear();
  }
  engine_close(&engine);
  return MS_OK;
}

static void a_rank_that_left_is_an_error_at_once(void **state) {
  (void)state;
  training_config config = training_default(1, 2);
  run_ranks_as_processes(2, leave_early, &config);
}

/* One rank feeds a class that does not exist. */
static int feed_wrong_class(ms_world *world, void *context) {
  const training_config *config = context;
  rank_engine engine;
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  engine_feed(&engine, config, 0, 0, 0);
  int32_t *y = ms_exec_input(engine.exec, "y");
  y[1] = 77;
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_FIRST, NULL, NULL, 0), MS_EINVAL, "head | cross_entropy");
  y[1] = 2;
  must(ms_exec_run(engine.exec, MS_PHASE_FIRST, NULL, NULL, 0)); /* alone, no rank was left inside a collective */
  engine_close(&engine);
  return MS_OK;
}

static void a_kernel_that_fails_is_named_with_its_module(void **state) {
  (void)state;
  training_config config = training_default(1, 1);
  run_ranks_as_processes(1, feed_wrong_class, &config);
}

static int misuse(ms_world *world, void *context) {
  const training_config *config = context;
  rank_engine engine;
  ms_tensor_info info;
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  assert_fails(ms_exec_run(engine.exec, 9, NULL, NULL, 0), MS_EINVAL, "phase | 9");
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_NEXT, NULL, NULL, 0), MS_EINVAL, "phase | next | accumulate = 1");
  assert_fails(ms_state_describe(engine.state, 0, MS_TENSOR_KINDS, &info, sizeof info), MS_EINVAL,
               "ms_tensor_kind | 12");
  assert_fails(ms_state_describe(engine.state, 99, MS_TENSOR_PARAM, &info, sizeof info), MS_EINVAL, "99 | parameter");
  ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.01, .step = 1, .micro_batches = 1};
  engine_feed(&engine, config, 0, 0, 0);
  must(ms_exec_run(engine.exec, MS_PHASE_FIRST, &inputs, NULL, 0));
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_UPDATE, &inputs, NULL, 0), MS_EINVAL, "update | norm");
  must(ms_exec_run(engine.exec, MS_PHASE_NORM, &inputs, NULL, 0));
  must(ms_exec_run(engine.exec, MS_PHASE_EVALUATE, &inputs, NULL, 0));
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_UPDATE, &inputs, NULL, 0), MS_EINVAL, "update | norm");
  ms_state *bare;
  ms_exec *exec;
  ms_plan_config other = config->plan;
  other.optimizer = MS_OPT_SGD;
  must(ms_state_new(world, engine.net.model, &other, 1, &bare));
  assert_fails(ms_state_describe(bare, 0, MS_TENSOR_EXP_AVG, &info, sizeof info), MS_EINVAL, "in.weight | exp_avg");
  assert_fails(ms_state_describe(bare, 0, MS_TENSOR_ROW_VAR, &info, sizeof info), MS_EINVAL,
               "in.weight | row_var | adafactor");
  assert_fails(ms_exec_new(bare, engine.plan, &exec), MS_EINVAL, "optimizer");
  ms_free(bare);
  other.optimizer = MS_OPT_ADAFACTOR;
  must(ms_state_new(world, engine.net.model, &other, 1, &bare));
  assert_fails(ms_state_describe(bare, 0, MS_TENSOR_EXP_AVG, &info, sizeof info), MS_EINVAL, "in.weight | exp_avg");
  assert_fails(ms_state_describe(bare, 0, MS_TENSOR_VARIANCE, &info, sizeof info), MS_EINVAL, "in.weight | variance");
  must(ms_state_describe(bare, 0, MS_TENSOR_COL_VAR, &info, sizeof info));
  assert_int_equal(info.first, 0);
  assert_int_equal(info.count, 12); /* in.weight [16,12] */
  const int streams = engine.plan->streams;
  engine.plan->streams = MS_NAMED_STREAMS + 1;
  assert_fails(ms_exec_new(engine.state, engine.plan, &exec), MS_EUNSUPPORTED, "7 streams | 6");
  engine.plan->streams = streams;
  setenv("MOONSHARD_STREAMS", "two", 1);
  assert_fails(ms_exec_new(engine.state, engine.plan, &exec), MS_EINVAL, "MOONSHARD_STREAMS");
  ms_free(bare);
  engine_close(&engine);
  return MS_OK;
}

static void misuse_is_an_error(void **state) {
  (void)state;
  training_config config = training_default(1, 1);
  run_ranks_as_processes(1, misuse, &config);
}

int main(void) {
  setenv("MOONSHARD_TIMEOUT", "60", 1);
  setenv("MOONSHARD_MATMUL", "plain", 1); /* oneDNN allocates in every call: the engine's own calls are counted here */
  const struct CMUnitTest tests[] = {
      TEST(M1_a_run_allocates_nothing),
      TEST(handles_are_freed_in_any_order),
      TEST(execs_bound_before_the_arenas_grew_run_on),
      TEST(nonfinite_values_are_traced_to_their_source),
      TEST(an_error_names_the_difference_between_plans),
      TEST(a_stalled_rank_is_named_with_the_unit),
      TEST(a_rank_that_left_is_an_error_at_once),
      TEST(a_kernel_that_fails_is_named_with_its_module),
      TEST(misuse_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
