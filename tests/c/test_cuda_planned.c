/* test_cuda_planned.c - plans for the device cuda in a process that finds no library of it: they are compiled, and
 * everything that needs a GPU says what is missing. */
#include "device/device.h"
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/planned.h"

#include <stdlib.h>

static const char missing[] = "device cuda | no libmoonshard_cuda.so | nvcc | MOONSHARD_CUDA_LIBRARY";

static int compile(const mlp *net, ms_plan **plan) {
  ms_plan_config config = planned_config();
  config.device = MS_DEVICE_CUDA;
  return ms_plan_compile(net->graph, &config, plan);
}

/* In this order, since a process that has compiled a plan without the library stays without it. */
static void A5_plans_need_no_library_and_runs_do(void **state) {
  (void)state;
  const mlp_config c = mlp_default(1, 2, 0);
  mlp net = mlp_make(&c);
  const ms_device_api *device;
  ms_plan *plan;
  int gpus;
  char version[64];

  setenv("MOONSHARD_CUDA_LIBRARY", "/proc/nowhere/lib.so", 1);
  assert_fails(compile(&net, &plan), MS_EUNSUPPORTED, "MOONSHARD_CUDA_LIBRARY: /proc/nowhere/lib.so");
  unsetenv("MOONSHARD_CUDA_LIBRARY");
  assert_fails(ms_device_find(MS_DEVICE_CUDA, &device), MS_EUNSUPPORTED, missing);

  must(compile(&net, &plan));
  assert_false(ms_device_can(MS_DEVICE_CUDA, MS_DEVICE_HOST_MEMORY));
  assert_true(ms_device_can(MS_DEVICE_CUDA, MS_DEVICE_PRODUCT_EPILOGUES));
  assert_fails(ms_device_find(MS_DEVICE_CUDA, &device), MS_EUNSUPPORTED, missing);
  assert_fails(ms_device_count(MS_DEVICE_CUDA, &gpus), MS_EUNSUPPORTED, missing);
  assert_fails(ms_device_library(MS_DEVICE_CUDA, 0, version, sizeof version), MS_EUNSUPPORTED, missing);
  assert_fails(ms_device_check(MS_DEVICE_CUDA, 0), MS_EUNSUPPORTED, missing);
  ms_plan_free(plan);

  emulate_cuda_kernels("inline");
  must(compile(&net, &plan));
  assert_fails(ms_device_find(MS_DEVICE_CUDA, &device), MS_EUNSUPPORTED, "plans without libmoonshard_cuda.so | again");
  ms_plan_free(plan);
  mlp_free(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(A5_plans_need_no_library_and_runs_do)};
  return cmocka_run_group_tests_name("planned cuda", tests, NULL, NULL);
}
