/* test_exec_cuda.c - whole training runs through the host code of the CUDA device: over an emulated runtime and NCCL,
 * with the CPU's kernels, and with streams that are threads, so that what was not waited for shows. The CPU device
 * gives the numbers.
 */
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/networks/mlp_training.h"

#include <math.h>
#include <stdio.h>

#include "plan/lower/lower.h"

/* ---- comparing ---- */

static void assert_near(double value, double wanted, double tolerance, const char *what) {
  if (!(fabs(value - wanted) <= tolerance * fmax(1, fabs(wanted)))) fail_msg("%s: %.9g, not %.9g", what, value, wanted);
}

static void assert_same_training(const training_result *cpu, const training_result *cuda, double tolerance) {
  assert_int_equal(cpu->params, cuda->params);
  int64_t n = 0;
  for (int p = 0; p < cpu->params; p++) n += cpu->numel[p];
  assert_memory_equal(cpu->initial, cuda->initial, (size_t)n * sizeof(float));
  for (int step = 0; step < TRAINING_STEPS; step++) {
    assert_near(cuda->loss[step], cpu->loss[step], tolerance, "loss");
    assert_near(cuda->grad_norm[step], cpu->grad_norm[step], 10 * tolerance, "gradient norm");
  }
  assert_near(cuda->evaluated, cpu->evaluated, tolerance, "evaluated loss");
  for (int64_t i = 0; i < n; i++) assert_near(cuda->final[i], cpu->final[i], 100 * tolerance, "parameter element");
}

/* Numbers as on the CPU; collectives and bytes as the CPU counts them without masters in shared memory; memory as
 * planned, and nothing allocated after that. */
static void check_parity(const training_config *config, double tolerance) {
  training_config cpu = *config, cuda = *config;
  cpu.plan.shared_masters = 0;
  cpu.graphs = 0;
  cuda.plan.device = MS_DEVICE_CUDA;
  training_result *a = train(&cpu), *b = train(&cuda);
  assert_same_training(a, b, tolerance);
  assert_memory_equal(a->counters.collectives, b->counters.collectives, sizeof a->counters.collectives);
  assert_memory_equal(a->counters.comm_bytes, b->counters.comm_bytes, sizeof a->counters.comm_bytes);
  if (!config->graphs) assert_int_equal(b->counters.allocations, 0);
  assert_true(b->arena_bytes == b->summary.peak_bytes);
  /* Where products add their gradients in place, what waited to be added may need less. */
  if (config->plan.accumulate) assert_true(b->summary.peak_bytes <= a->summary.peak_bytes);
  else assert_true(a->summary.peak_bytes == b->summary.peak_bytes);
  training_free(a);
  training_free(b);
}

static void A1_cuda_equals_cpu_on_one_rank(void **state) {
  (void)state;
  training_config c = training_default(1, 1);
  check_parity(&c, 1e-5);
  c.net.block.param_dtype = c.net.root.param_dtype = MS_BF16;
  c.micro_batches = 2;
  c.plan.accumulate = 1;
  check_parity(&c, 1e-5);
}

/* So that nothing else may lie in a gradient chunk before a product adds to it. */
static void M4_what_a_product_adds_to_is_needed_before(void **state) {
  (void)state;
  ms_kernel_call call = {.op = MS_OP_matmul_accumulate, .inputs = 2, .outputs = 1};
  ms_instr instr = {
      .kind = MS_INSTR_KERNEL, .call = &call, .in = (ms_place[]){{5, 0}, {6, 0}}, .out = &(ms_place){7, 0}};
  assert_true(ms_instr_needs(&instr, 7));
  call.op = MS_OP_matmul;
  assert_false(ms_instr_needs(&instr, 7));
}

static void A1_cuda_equals_cpu_on_two_shards(void **state) {
  (void)state;
  for (int reshard = MS_RESHARD_KEEP; reshard <= MS_RESHARD_DEFAULT; reshard++) {
    training_config c = training_default(1, 2);
    c.net.root.layout = c.net.block.layout = reshard == MS_RESHARD_ALWAYS ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
    c.net.block.reshard = reshard;
    c.plan.max_norm = 1;
    check_parity(&c, 1e-5);
  }
}

static void A1_cuda_equals_cpu_in_bf16(void **state) {
  (void)state;
  training_config c = training_default(1, 2);
  c.net.block.param_dtype = c.net.root.param_dtype = MS_BF16;
  c.net.block.reshard = MS_RESHARD_ALWAYS;
  check_parity(&c, 1e-4);
  c.net.block.reduce_dtype = c.net.root.reduce_dtype = MS_BF16;
  c.micro_batches = 2;
  c.plan.accumulate = 1;
  check_parity(&c, 2e-2);
}

static void A1_cuda_equals_cpu_on_replicas_of_shards(void **state) {
  (void)state;
  for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_SHARD; sync++) {
    training_config c = training_default(2, 2);
    c.micro_batches = 2;
    c.plan.accumulate = 1;
    c.plan.sync = sync;
    c.plan.max_norm = 1;
    c.net.frozen_block = 1;
    c.net.block.param_dtype = c.net.root.param_dtype = MS_BF16;
    check_parity(&c, 1e-4);
  }
}

static void A1_cuda_equals_cpu_in_smaller_groups(void **state) {
  (void)state;
  training_config c = training_default(1, 4);
  c.net.block.reshard = MS_RESHARD_ALWAYS;
  c.net.block.reshard_size = 2;
  check_parity(&c, 1e-5);
}

static void A1_cuda_equals_cpu_on_a_tensor_dimension(void **state) {
  (void)state;
  training_config c = training_divided(1, 2, 2);
  c.plan.max_norm = 1;
  check_parity(&c, 1e-5);
  c.net.block.param_dtype = c.net.root.param_dtype = MS_BF16;
  check_parity(&c, 1e-4);
}

/* A rank is given the phase at once, and what it captured is what it replays. */
static void A2_graphs_give_the_numbers_of_streams(void **state) {
  (void)state;
  training_config c = training_default(1, 1);
  c.graphs = 1;
  c.micro_batches = 3;
  c.plan.accumulate = 1;
  check_parity(&c, 1e-5);
  c = training_default(2, 2);
  c.graphs = 1;
  check_parity(&c, 1e-5);
}

static int time_a_step(ms_world *world, void *context) {
  rank_engine engine;
  ms_step_outputs out;
  ms_exec_counters before, after;
  ms_profile *profile;
  abort_on_failed_checks();
  engine_open(world, context, &engine);
  must(ms_profile_new(world, &profile));
  engine_step(&engine, context, ms_world_rank(world), 0, &out);
  must(ms_exec_counts(engine.exec, &before, sizeof before));
  assert_true(before.kernel_seconds == 0 && before.collective_seconds == 0);
  ms_exec_set_profile(engine.exec, profile);
  engine_step(&engine, context, ms_world_rank(world), 1, &out);
  ms_exec_set_profile(engine.exec, NULL);
  must(ms_exec_counts(engine.exec, &after, sizeof after));
  assert_true(after.kernel_seconds > 0 && after.collective_seconds > 0);
  assert_true(after.kernel_seconds < after.total_seconds - before.total_seconds);
  ms_free(profile);
  engine_close(&engine);
  return MS_OK;
}

static void A1_profiled_steps_tell_how_long_kernels_took(void **state) {
  (void)state;
  training_config c = training_default(1, 2);
  c.plan.device = MS_DEVICE_CUDA;
  run_ranks_as_processes(2, time_a_step, &c);
}

/* What plans and the executor ask of a device instead of its kind; functions are there as it says. */
static void A1_devices_report_their_capabilities(void **state) {
  (void)state;
  const ms_device_api *cpu, *cuda;
  must(ms_device_find(MS_DEVICE_CPU, &cpu));
  must(ms_device_find(MS_DEVICE_CUDA, &cuda));
  assert_int_equal(cpu->capabilities, MS_DEVICE_HOST_MEMORY);
  assert_false(ms_device_can(MS_DEVICE_CUDA, MS_DEVICE_HOST_MEMORY));
  assert_true(ms_device_can(MS_DEVICE_CUDA, MS_DEVICE_ASYNCHRONOUS));
  assert_true(ms_device_can(MS_DEVICE_CUDA, MS_DEVICE_SPANS_HOSTS));
  assert_null(cpu->stream_open);
  assert_null(cpu->collective);
  assert_non_null(cuda->stream_open);
  assert_non_null(cuda->collective);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(A1_devices_report_their_capabilities),       TEST(A1_cuda_equals_cpu_on_one_rank),
      TEST(A1_cuda_equals_cpu_on_two_shards),           TEST(A1_cuda_equals_cpu_in_bf16),
      TEST(A1_cuda_equals_cpu_on_replicas_of_shards),   TEST(A1_cuda_equals_cpu_in_smaller_groups),
      TEST(A1_cuda_equals_cpu_on_a_tensor_dimension),   TEST(A2_graphs_give_the_numbers_of_streams),
      TEST(M4_what_a_product_adds_to_is_needed_before), TEST(A1_profiled_steps_tell_how_long_kernels_took),
  };
  emulate_cuda("threads");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
