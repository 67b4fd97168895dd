/* test_cuda_faults.c - lets every call of the CUDA device to the runtime and to NCCL fail in turn: the run must end at
 * once with an error that names the call, and leave nothing allocated. */
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/networks/mlp_training.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "device/device.h"

/* ---- one rank: the runtime ---- */

static int run_steps(ms_exec *exec, rank_engine *engine, const training_config *config, int steps) {
  for (int step = 0; step < steps; step++) {
    ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.02, .step = step + 1, .micro_batches = 1};
    ms_step_outputs out;
    engine_feed(engine, config, 0, step, 0);
    MS_TRY(ms_exec_run(exec, MS_PHASE_FIRST, &inputs, NULL, 0));
    MS_TRY(ms_exec_run(exec, MS_PHASE_NORM, &inputs, &out, sizeof(ms_step_outputs)));
    MS_TRY(ms_exec_run(exec, MS_PHASE_UPDATE, &inputs, NULL, 0));
  }
  MS_TRY(ms_exec_run(exec, MS_PHASE_EVALUATE, NULL, &(ms_step_outputs){0}, sizeof(ms_step_outputs)));
  if (!ms_exec_output(exec, "logits")) return ms_error_code();
  ms_state_memory_info memory;
  MS_TRY(ms_state_memory(engine->state, NULL, &memory, sizeof memory));
  float *full = malloc(TRAINING_ELEMENTS * sizeof *full);
  int rc = ms_state_gather(engine->state, 1, MS_TENSOR_PARAM, 0, -1, full);
  free(full);
  return rc;
}

/* A short training with graphs, from opening to closing the device. nccl: enum ms_nccl_option. */
static int train_shortly(ms_world *world, int rank, int nccl) {
  training_config config = training_default(1, ms_world_size(world));
  rank_engine engine = {0};
  config.plan.device = MS_DEVICE_CUDA;
  config.plan.nccl = nccl;
  mlp_config net = config.net;
  net.rank = rank;
  net.batch = config.global_batch / ms_world_size(world);
  engine.net = mlp_make(&net);
  int rc = ms_plan_compile(engine.net.graph, &config.plan, &engine.plan);
  if (!rc) rc = ms_state_new(world, engine.net.model, &config.plan, 1, &engine.state);
  if (!rc) rc = ms_exec_new(engine.state, engine.plan, &engine.exec);
  if (!rc) rc = ms_exec_set_graph(engine.exec, 1);
  if (!rc) rc = run_steps(engine.exec, &engine, &config, 3);
  engine_close(&engine);
  return rc;
}

/* Returns 1 if the call failed and the failure was reported. */
static int fails_at(ms_world *world, const char *function, int call) {
  char spec[128];
  const char *name = strcmp(function, "cudaLaunchKernel") ? function : "";
  snprintf(spec, sizeof spec, "%s:%d", function, call);
  emulate_failure(spec);
  double began = ms_clock();
  int rc = train_shortly(world, 0, 0);
  if (emulated_left()) fail_msg("%s: left behind: %s", spec, emulated_left());
  assert_true(ms_clock() - began < 60); /* the deadline is 300 s away */
  if (!rc) return 0;
  int told = strstr(ms_error_message(), name) || !strcmp(function, "cudaMalloc");
  if (!told || rc == MS_EINTERNAL) fail_msg("%s: %s: %s", spec, ms_status_name(rc), ms_error_message());
  ms_error_clear();
  return 1;
}

static void A4_every_call_of_the_runtime_may_fail(void **state) {
  (void)state;
  static const char *const functions[] = {"cudaGetDeviceCount",
                                          "cudaDeviceGetAttribute",
                                          "cudaSetDevice",
                                          "cudaMemGetInfo",
                                          "cudaMalloc",
                                          "cudaHostAlloc",
                                          "cudaMemset",
                                          "cudaMemcpy",
                                          "cudaMemcpyAsync",
                                          "cudaDeviceSynchronize",
                                          "cudaDeviceGetStreamPriorityRange",
                                          "cudaStreamCreateWithPriority",
                                          "cudaEventCreateWithFlags",
                                          "cudaEventRecord",
                                          "cudaEventQuery",
                                          "cudaLaunchKernel",
                                          "cudaStreamBeginCapture",
                                          "cudaStreamEndCapture",
                                          "cudaGraphInstantiate",
                                          "cudaGraphLaunch"};
  ms_world *world;
  must(ms_world_join_alone(&world));
  for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
    int call = 1, next = 2, failed = 0;
    while (fails_at(world, functions[f], call)) { /* 1, 2, 3, 5, 8, ...: until there are fewer calls */
      int sum = call + next;
      call = next;
      next = sum;
      failed++;
    }
    if (!failed) fail_msg("%s is never called", functions[f]);
  }
  ms_free(world);
}

/* ---- two ranks: NCCL ---- */

typedef struct lost_call {
  const char *spec;
  int rank, nccl; /* the rank whose call fails; enum ms_nccl_option */
} lost_call;

/* One rank's call fails: that rank reports the call, and the other gets an error instead of waiting. */
static int lose_a_call(ms_world *world, void *context) {
  const lost_call *lost = context;
  const char *spec = lost->spec;
  int rank = ms_world_rank(world);
  abort_on_failed_checks();
  emulate_failure(rank == lost->rank ? spec : "");
  double began = ms_clock();
  int rc = train_shortly(world, rank, lost->nccl);
  EXPECT(rc, "%s did not fail", spec);
  EXPECT(ms_clock() - began < 60, "%s took %g s", spec, ms_clock() - began);
  EXPECT(!emulated_left(), "%s: left behind: %s", spec, emulated_left());
  if (rank == lost->rank) {
    const char *end = strchr(spec, ':'), *told = ms_error_message();
    const int memory = !strncmp(spec, "ncclMemAlloc", 12); /* its failure is reported as lack of memory */
    const char *name = memory ? "GPU" : !strncmp(spec, "asynchronous", 12) ? "" : spec;
    const size_t length = name == spec ? (size_t)(end - spec) : strlen(name);
    EXPECT(memmem(told, strlen(told), name, length) && rc == (memory ? MS_ENOMEM : MS_EDEVICE), "%s: %s: %s", spec,
           ms_status_name(rc), told);
    ms_world_abort(world, told);
  } else {
    EXPECT(rc == MS_EPEER || rc == MS_EDEVICE, "rank %d: %s: %s", rank, ms_status_name(rc), ms_error_message());
  }
  ms_error_clear();
  return MS_OK;
}

static void A4_every_call_of_nccl_may_fail(void **state) {
  (void)state;
  static lost_call lost[] = {{"ncclGetUniqueId:1", 0, 0},
                             {"ncclCommInitRankConfig:1", 1, 0},
                             {"ncclCommSplit:1", 1, 0},
                             {"ncclCommSplit:2", 1, 0},
                             {"ncclCommGetAsyncError:1", 1, 0},
                             {"ncclGroupStart:3", 1, 0},
                             {"ncclGroupEnd:2", 1, 0},
                             {"ncclAllGather:4", 1, 0},
                             {"ncclAllReduce:1", 1, 0},
                             {"ncclReduceScatter:5", 1, 0},
                             {"ncclMemAlloc:1", 1, MS_NCCL_WINDOWS},
                             {"ncclCommWindowRegister:1", 1, MS_NCCL_WINDOWS},
                             {"asynchronous:7", 1, 0},
                             {"cudaDriverGetVersion:1", 1, 0},
                             {"cudaGetDeviceProperties:1", 1, 0},
                             {"cudaDeviceGetPCIBusId:1", 1, 0},
                             {"cudaStreamWaitEvent:9", 1, 0}};
  for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) run_ranks_as_processes(2, lose_a_call, &lost[i]);
}

/* A communicator of one rank. */
static void open_communicator(const ms_device_api *api, ms_device *device, ms_device_comm **comm) {
  char id[MS_DEVICE_ID_BYTES];
  must(api->comm_id(device, 1, id));
  must(api->comm_open(device, id, 1, 0, comm));
  for (int ready = 0; !ready;) must(api->comm_ready(device, *comm, &ready));
}

static void a_collective_of_an_unknown_dtype_is_refused(void **state) {
  (void)state;
  const ms_device_api *api;
  ms_device *device;
  ms_device_comm *comm;
  ms_device_stream *stream;
  void *memory;
  float two[2] = {1, 2}, same[2];
  emulate_failure("");
  must(ms_device_find(MS_DEVICE_CUDA, &api));
  must(api->open(0, 0, 0, &device));
  must(api->allocate(device, 4096, 1, "a test", &memory));
  must(api->stream_open(device, 0, &stream));
  open_communicator(api, device, &comm);
  must(api->write(device, memory, two, sizeof two));
  ms_device_part part = {.from = memory, .to = memory, .count = 2};
  for (int kind = MS_DEVICE_ALL_GATHER; kind <= MS_DEVICE_ALL_REDUCE; kind++) {
    for (int unknown = -1; unknown <= MS_DTYPES; unknown += 1 + MS_DTYPES) {
      part.dtype = unknown;
      assert_fails(api->collective(device, comm, stream, kind, 1, &part), MS_EDTYPE, "nccl: | dtype");
    }
    part.dtype = MS_F32; /* nothing of the refused one is left in the library */
    must(api->collective(device, comm, stream, kind, 1, &part));
    for (int ready = 0; !ready;) must(api->comm_ready(device, comm, &ready));
  }
  api->comm_abort(device, &comm);
  api->comm_close(device, comm, 5);
  api->stream_close(device, stream);
  must(api->read(device, same, memory, sizeof same));
  assert_memory_equal(same, two, sizeof two);
  api->release(device, memory, 4096, 1);
  api->close(device);
  assert_null(emulated_left());
}

/* ---- what doctor asks ---- */

static void A4_every_call_that_describes_a_gpu_may_fail(void **state) {
  (void)state;
  static const char *const functions[] = {"cudaGetDeviceCount", "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
                                          "cudaDeviceCanAccessPeer"};
  for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
    char spec[64];
    ms_device_info info;
    snprintf(spec, sizeof spec, "%s:1", functions[f]);
    emulate_failure(spec);
    assert_fails(ms_device_describe(MS_DEVICE_CUDA, 0, &info, sizeof info), MS_EDEVICE, functions[f]);
    emulate_failure("");
    must(ms_device_describe(MS_DEVICE_CUDA, 0, &info, sizeof info));
  }
}

/* ---- what kernels find ---- */

static void A4_an_error_in_a_kernel_is_reported_with_the_norm(void **state) {
  (void)state;
  training_config config = training_default(1, 1);
  rank_engine engine;
  ms_world *world;
  ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 0.02, .step = 1, .micro_batches = 1};
  emulate_failure("");
  config.plan.device = MS_DEVICE_CUDA;
  must(ms_world_join_alone(&world));
  engine_open(world, &config, &engine);
  engine_feed(&engine, &config, 0, 0, 0);
  ((int32_t *)ms_exec_input(engine.exec, "y"))[3] = 1000;
  must(ms_exec_run(engine.exec, MS_PHASE_FIRST, &inputs, NULL, 0));
  assert_fails(ms_exec_run(engine.exec, MS_PHASE_NORM, &inputs, NULL, 0), MS_EINVAL, "cross_entropy");
  engine_step(&engine, &config, 0, 0, &(ms_step_outputs){0}); /* reported once */
  engine_close(&engine);
  ms_free(world);
}

static void D9_a_plan_and_its_state_are_of_one_device(void **state) {
  (void)state;
  training_config config = training_default(1, 1);
  rank_engine engine;
  ms_world *world;
  ms_exec *exec;
  ms_plan *plan;
  must(ms_world_join_alone(&world));
  engine_open(world, &config, &engine);
  assert_fails(ms_exec_set_graph(engine.exec, 1), MS_EUNSUPPORTED, "captured | cuda");
  config.plan.device = MS_DEVICE_CUDA;
  must(ms_plan_compile(engine.net.graph, &config.plan, &plan));
  assert_fails(ms_exec_new(engine.state, plan, &exec), MS_EINVAL, "cuda | cpu");
  ms_free(plan);
  engine_close(&engine);
  ms_free(world);
}

static void D9_a_plan_and_its_state_leave_as_many_multiprocessors(void **state) {
  (void)state;
  training_config config = training_default(1, 1);
  rank_engine engine;
  ms_world *world;
  ms_exec *exec;
  ms_plan *plan;
  emulate_failure("");
  config.plan.device = MS_DEVICE_CUDA;
  must(ms_world_join_alone(&world));
  engine_open(world, &config, &engine);
  config.plan.sm_carveout = 1;
  must(ms_plan_compile(engine.net.graph, &config.plan, &plan));
  assert_fails(ms_exec_new(engine.state, plan, &exec), MS_EINVAL, "plan leave 1 | state | 0 | sm_carveout");
  ms_free(plan);
  config.plan.sm_carveout = -1;
  assert_fails(ms_plan_compile(engine.net.graph, &config.plan, &plan), MS_EINVAL, "sm_carveout | -1");
  config.plan.sm_carveout = 1;
  config.plan.device = MS_DEVICE_CPU;
  assert_fails(ms_plan_compile(engine.net.graph, &config.plan, &plan), MS_EINVAL, "sm_carveout 1 | cpu");
  assert_fails(ms_state_new(world, engine.net.model, &config.plan, 1, &engine.state), MS_EINVAL, "sm_carveout 1 | cpu");
  engine_close(&engine);
  ms_free(world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(A4_every_call_of_the_runtime_may_fail),
      TEST(A4_every_call_of_nccl_may_fail),
      TEST(A4_every_call_that_describes_a_gpu_may_fail),
      TEST(A4_an_error_in_a_kernel_is_reported_with_the_norm),
      TEST(a_collective_of_an_unknown_dtype_is_refused),
      TEST(D9_a_plan_and_its_state_are_of_one_device),
      TEST(D9_a_plan_and_its_state_leave_as_many_multiprocessors),
  };
  emulate_cuda("threads");
  setenv("MOONSHARD_EMULATE_JITTER", "0", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
