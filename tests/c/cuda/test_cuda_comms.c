/* test_cuda_comms.c - the communicators of ranks on GPUs: which settings of NCCL they need and which are refused, ranks
 * that see one GPU each, windows that NCCL does not make, and their end. */
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/networks/mlp_training.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/group/world_state.h"
#include "device/device.h"
#include "exec/async/async.h"

/* Opens the first GPU and asks for an id, as every rank does before it opens communicators. */
static int ask_sharing(int carveout, int at_once) {
  const ms_device_api *api;
  ms_device *device;
  char id[MS_DEVICE_ID_BYTES];
  must(ms_device_find(MS_DEVICE_CUDA, &api));
  MS_TRY(api->open(0, 0, carveout, &device));
  int rc = api->comm_id(device, at_once, id);
  api->close(device);
  return rc;
}

static int ask_for_id(int at_once) { return ask_sharing(0, at_once); }

/* ---- order ---- */

static void assert_order(const char *driver, const char *before, const char *wanted) {
  setenv("MOONSHARD_EMULATE_DRIVER", driver, 1);
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (before) setenv("NCCL_LAUNCH_ORDER_IMPLICIT", before, 1);
  must(ask_for_id(2));
  const char *got = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (wanted) assert_string_equal(got, wanted);
  else assert_null(got);
  unsetenv("MOONSHARD_EMULATE_DRIVER");
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

static void A4_nccl_keeps_the_order_of_the_host_where_the_driver_can(void **state) {
  (void)state;
  assert_order("13000", NULL, "1");
  assert_order("12030", NULL, "1");
  assert_order("12020", NULL, NULL);
  assert_order("13000", "0", "0");
}

/* The emulated GPU has 2 multiprocessors. */
static void A4_settings_that_let_collectives_wait_for_each_other_are_refused(void **state) {
  (void)state;
  static const char *const settings[] = {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    char facts[64];
    snprintf(facts, sizeof facts, "%s is 2 | 2 communicators | at most 1", settings[i]);
    setenv(settings[i], "2", 1);
    assert_fails(ask_for_id(2), MS_EUNSUPPORTED, facts);
    must(ask_for_id(1));
    setenv(settings[i], "1", 1);
    must(ask_for_id(2));
    unsetenv(settings[i]);
  }
  setenv("MOONSHARD_EMULATE_NAME", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 1);
  assert_fails(ask_for_id(2), MS_EUNSUPPORTED, "GPU 0 (NVIDIA A100-SXM4-80GB MIG 1g.10gb) | whole GPUs");
  unsetenv("MOONSHARD_EMULATE_NAME");
}

/* Blocks are shared by the communicators that run at once; more than that is noted, and refused only where collectives
 * could wait for each other. */
static void A4_collectives_have_as_many_blocks_as_products_leave_multiprocessors(void **state) {
  (void)state;
  const char *note;
  while (ms_note_next()) continue;
  setenv("MOONSHARD_EMULATE_PROCESSORS", "132", 1);
  setenv("NCCL_MAX_CTAS", "8", 1);
  must(ask_sharing(16, 2));
  assert_null(ms_note_next());
  must(ask_sharing(16, 3));
  note = ms_note_next();
  assert_has(note ? note : "", "NCCL_MAX_CTAS is 8 | the 5 | sm_carveout 16 | 3 communicators");
  must(ask_sharing(2, 3));
  note = ms_note_next();
  assert_has(note ? note : "", "the 1 | sm_carveout 2");
  assert_fails(ask_sharing(132, 2), MS_EINVAL, "sm_carveout 132 | GPU 0 (emulated) | 132 | 1 to 131");
  assert_fails(ask_sharing(-1, 2), MS_EINVAL, "sm_carveout -1");
  unsetenv("NCCL_MAX_CTAS");
  unsetenv("MOONSHARD_EMULATE_PROCESSORS");
}

/* ---- one GPU for each rank, or one for two ---- */

static int train_a_step(ms_world *world, training_config *config) {
  rank_engine engine;
  engine_open(world, config, &engine);
  engine_step(&engine, config, ms_world_rank(world), 0, &(ms_step_outputs){0});
  engine_close(&engine);
  return MS_OK;
}

static int train_on_an_own_gpu(ms_world *world, void *context) {
  char place[8];
  abort_on_failed_checks();
  snprintf(place, sizeof place, "%d", ms_world_rank(world));
  setenv("MOONSHARD_EMULATE_FIRST", place, 1);
  return train_a_step(world, context);
}

static int share_a_gpu(ms_world *world, void *context) {
  const training_config *config = context;
  ms_state *state;
  rank_engine engine = {0};
  mlp_config net = config->net;
  abort_on_failed_checks();
  net.rank = ms_world_rank(world);
  net.batch = config->global_batch / ms_world_size(world);
  engine.net = mlp_make(&net);
  assert_fails(ms_state_new(world, engine.net.model, &config->plan, 1, &state), MS_EINVAL,
               "ranks 0 and 1 | GPU, 0000:00:00.0 | CUDA_VISIBLE_DEVICES");
  engine_close(&engine);
  return MS_OK;
}

static void A4_a_rank_that_sees_one_gpu_uses_it_and_two_ranks_do_not_share_one(void **state) {
  (void)state;
  training_config c = training_default(1, 2);
  const ms_device_api *api;
  ms_device *device;
  must(ms_device_find(MS_DEVICE_CUDA, &api));
  setenv("MOONSHARD_EMULATE_DEVICES", "2", 1);
  assert_fails(api->open(2, 0, 0, &device), MS_EINVAL, "local rank 2 | GPU 2 | there are 2");
  assert_fails(ms_device_check(MS_DEVICE_CUDA, 2), MS_EINVAL, "GPU 2 | there are 2");
  must(ms_device_check(MS_DEVICE_CUDA, 1));
  c.plan.device = MS_DEVICE_CUDA;
  setenv("MOONSHARD_EMULATE_DEVICES", "1", 1);
  run_ranks_as_processes(2, train_on_an_own_gpu, &c);
  run_ranks_as_processes(2, share_a_gpu, &c);
  unsetenv("MOONSHARD_EMULATE_DEVICES");
}

/* ---- windows ---- */

/* Growing an arena closes its windows, so a handle that NCCL did not store would be used. */
static int train_without_windows(ms_world *world, void *context) {
  training_config *config = context;
  rank_engine engine;
  abort_on_failed_checks();
  emulate_failure("");
  setenv("MOONSHARD_EMULATE_NCCL_WINDOWS", "none", 1);
  engine_open(world, config, &engine);
  engine_step(&engine, config, ms_world_rank(world), 0, &(ms_step_outputs){0});
  ms_async_close_windows(engine.state, MS_ARENA_GATHERED);
  engine_step(&engine, config, ms_world_rank(world), 1, &(ms_step_outputs){0});
  const char *note = ms_note_next();
  EXPECT(note && strstr(note, "NCCL") && strstr(note, "window"), "the note is: %s", note ? note : "none");
  engine_close(&engine);
  EXPECT(!emulated_left(), "left behind: %s", emulated_left());
  return MS_OK;
}

static void A4_windows_that_nccl_does_not_make_are_told_and_not_used(void **state) {
  (void)state;
  training_config c = training_default(1, 2);
  c.plan.device = MS_DEVICE_CUDA;
  c.plan.nccl = MS_NCCL_WINDOWS;
  run_ranks_as_processes(2, train_without_windows, &c);
}

/* ---- the end ---- */

static int end_together(ms_world *world, void *context) {
  training_config *config = context;
  rank_engine engine;
  abort_on_failed_checks();
  emulate_failure("");
  setenv("MOONSHARD_EMULATE_NCCL_ABORTS", "together", 1);
  engine_open(world, config, &engine);
  engine_step(&engine, config, ms_world_rank(world), 0, &(ms_step_outputs){0});
  const double began = ms_clock();
  engine_close(&engine);
  EXPECT(ms_clock() - began < MS_ASYNC_CLOSE_SECONDS, "communicators ended after %g s", ms_clock() - began);
  EXPECT(!emulated_left(), "left behind: %s", emulated_left());
  return MS_OK;
}

static void A4_communicators_whose_kernels_wait_for_each_other_are_aborted_together(void **state) {
  (void)state;
  training_config c = training_default(2, 2);
  c.plan.device = MS_DEVICE_CUDA;
  run_ranks_as_processes(4, end_together, &c);
}

/* ---- waiting ---- */

static void A6_a_host_thread_with_a_core_spins_while_a_step_runs(void **state) {
  (void)state;
  assert_true(ms_async_nap(0.075, 1) == 0); /* about a step of GPT-2 */
  assert_true(ms_async_nap(1e-4, 0) == 0);
  assert_true(ms_async_nap(0.001, 0) > 0 && ms_async_nap(0.001, 0) < 1e-4);
  assert_true(ms_async_nap(10, 1) > ms_async_nap(0.001, 0));
}

/* No nap means that the host gives the device the update as soon as the norm is there. Naps are right where other
 * processes take the core, which this process then believes for longer than a step takes. */
static int step_without_naps(ms_world *world, void *context) {
  static const double SHORT_STEP = 0.1;
  training_config *config = context;
  rank_engine engine;
  abort_on_failed_checks();
  setenv("MOONSHARD_EMULATE_JITTER", "1000", 1);
  world->spin = 1; /* as in a job with a core for each rank */
  engine_open(world, config, &engine);
  for (int step = 0; step < TRAINING_STEPS; step++) {
    const int64_t before = engine.state->async->naps;
    const int crowded = ms_crowded(); /* it may stop to believe this during the step, after a nap */
    const double began = ms_clock();
    engine_step(&engine, config, 0, step, &(ms_step_outputs){0});
    const double took = ms_clock() - began;
    const int64_t naps = engine.state->async->naps - before;
    EXPECT(!naps || crowded || ms_crowded() || took > SHORT_STEP, "step %d took %g s with %lld naps", step, took,
           (long long)naps);
  }
  engine_close(&engine);
  return MS_OK;
}

static void A6_the_host_does_not_sleep_between_the_norm_and_the_update(void **state) {
  (void)state;
  training_config c = training_default(1, 1);
  c.plan.device = MS_DEVICE_CUDA;
  run_ranks_as_processes(1, step_without_naps, &c);
}

/* Not even for the norm: its numbers arrive with the end of its phase. */
static void A6_a_step_makes_no_call_in_which_the_host_sleeps_for_the_device(void **state) {
  (void)state;
  training_config c = training_default(1, 1);
  rank_engine engine;
  ms_world *world;
  ms_step_outputs out;
  c.plan.device = MS_DEVICE_CUDA;
  must(ms_world_join_alone(&world));
  engine_open(world, &c, &engine);
  emulate_failure("cudaMemcpy:1,cudaDeviceSynchronize:1,cudaStreamSynchronize:1,cudaEventSynchronize:1");
  engine_step(&engine, &c, 0, 0, &out);
  assert_true(out.grad_norm > 0 && out.divisor > 0);
  emulate_failure("");
  engine_close(&engine);
  ms_free(world);
}

static int count_issued(ms_world *world, void *context) {
  training_config *config = context;
  rank_engine engine;
  int64_t expected = 0;
  ms_exec_counters counters;
  abort_on_failed_checks();
  engine_open(world, config, &engine);
  engine_step(&engine, config, ms_world_rank(world), 0, &(ms_step_outputs){0});
  must(ms_exec_counts(engine.exec, &counters, sizeof counters));
  for (int p = 0; p < MS_PHASES; p++) expected += counters.collectives[p];
  const int64_t collectives = counters.issued, launches = counters.launches;
  const double seconds = counters.issue_seconds, launched = counters.launch_seconds;
  EXPECT(collectives == expected, "%lld collectives were issued, not %lld", (long long)collectives,
         (long long)expected);
  EXPECT(seconds > 0 && seconds < counters.total_seconds, "the host issued them in %g s", seconds);
  EXPECT(launches > collectives && launches < counters.instructions, "%lld launches", (long long)launches);
  EXPECT(launched > seconds && launched < counters.total_seconds, "the host launched in %g s", launched);
  engine_close(&engine);
  return MS_OK;
}

static void A6_the_host_counts_what_collectives_cost_it(void **state) {
  (void)state;
  training_config c = training_default(1, 2);
  c.plan.device = MS_DEVICE_CUDA;
  run_ranks_as_processes(2, count_issued, &c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(A4_nccl_keeps_the_order_of_the_host_where_the_driver_can),
      TEST(A4_settings_that_let_collectives_wait_for_each_other_are_refused),
      TEST(A4_collectives_have_as_many_blocks_as_products_leave_multiprocessors),
      TEST(A4_a_rank_that_sees_one_gpu_uses_it_and_two_ranks_do_not_share_one),
      TEST(A4_windows_that_nccl_does_not_make_are_told_and_not_used),
      TEST(A4_communicators_whose_kernels_wait_for_each_other_are_aborted_together),
      TEST(A6_a_host_thread_with_a_core_spins_while_a_step_runs),
      TEST(A6_the_host_does_not_sleep_between_the_norm_and_the_update),
      TEST(A6_a_step_makes_no_call_in_which_the_host_sleeps_for_the_device),
      TEST(A6_the_host_counts_what_collectives_cost_it),
  };
  emulate_cuda("threads");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
