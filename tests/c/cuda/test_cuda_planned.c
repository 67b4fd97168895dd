/* test_cuda_planned.c - plans for the device cuda in a process that finds no library of it: they are compiled, and
 * everything that needs a GPU says what is missing; and how many launches the updates of an optimizer are. */
#include "device/device.h"
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/networks/planned.h"

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
  ms_free(plan);

  emulate_cuda_kernels("inline");
  must(compile(&net, &plan));
  assert_fails(ms_device_find(MS_DEVICE_CUDA, &device), MS_EUNSUPPORTED, "plans without libmoonshard_cuda.so | again");
  ms_free(plan);
  mlp_free(&net);
}

/* The updates of a plan, and the launches that they are. */
static void count_updates(const ms_plan *plan, int op, int *updates, int *launches) {
  const ms_plan_phase *phase = &plan->phase[MS_PHASE_UPDATE];
  int *together = calloc((size_t)phase->n, sizeof *together);
  char *joined = calloc((size_t)phase->n, 1);
  assert_true(together && joined);
  ms_plan_together(plan, MS_PHASE_UPDATE, together);
  ms_plan_mark_joined(plan, MS_PHASE_UPDATE, together, joined);
  *updates = *launches = 0;
  for (int i = 0; i < phase->n; i++) {
    if (phase->instr[i].kind != MS_INSTR_KERNEL || phase->instr[i].call->op != op) continue;
    *updates += 1;
    *launches += !joined[i];
  }
  free(together);
  free(joined);
}

/* One for those with the same settings but for the rate and the decay. */
static void A5_updates_of_every_optimizer_share_launches(void **state) {
  (void)state;
  const struct {
    int optimizer, op, moments;
    double momentum;
  } cases[] = {{MS_OPT_ADAMW, MS_OP_adamw, MS_F32, 0}, {MS_OPT_ADAM, MS_OP_adamw, MS_BF16, 0},
               {MS_OPT_LION, MS_OP_lion, MS_BF16, 0},  {MS_OPT_LION, MS_OP_lion, MS_F32, 0},
               {MS_OPT_SGD, MS_OP_sgd, MS_F32, 0},     {MS_OPT_SGD, MS_OP_sgd, MS_F32, 0.9}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int groups = 0; groups < 2; groups++) {
      const mlp_config c = mlp_default(1, 2, 0);
      mlp net = mlp_make(&c);
      ms_plan_config config = planned_config();
      ms_param_group group[64];
      ms_plan *plan;
      int updates, launches;
      config.device = MS_DEVICE_CUDA;
      config.optimizer = cases[i].optimizer;
      set_moments(&config, cases[i].moments);
      config.sgd.momentum = cases[i].momentum;
      for (int p = 0; p < net.model->params; p++) group[p] = net.model->param[p].config.group;
      group[0].lr_scale = 0.5;
      if (groups && cases[i].op == MS_OP_sgd) group[1].momentum = 0;
      else if (groups) group[1].beta2 = 0.5;
      must(ms_model_set_groups(net.model, group, sizeof(ms_param_group)));
      must(ms_plan_compile(net.graph, &config, &plan));
      count_updates(plan, cases[i].op, &updates, &launches);
      assert_true(updates > 4);
      const int apart = groups && (cases[i].op != MS_OP_sgd || cases[i].momentum != 0);
      assert_int_equal(launches, 1 + apart);
      ms_free(plan);
      mlp_free(&net);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(A5_plans_need_no_library_and_runs_do),
                                     TEST(A5_updates_of_every_optimizer_share_launches)};
  return cmocka_run_group_tests_name("planned cuda", tests, NULL, NULL);
}
