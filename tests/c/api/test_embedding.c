/* test_embedding.c - what a program that embeds the library keeps: its OpenMP settings, its error record, and
 * structures of the version that it was compiled with. */
#include "bound_exec.h"

#include <omp.h>

/* The program's own OpenMP threads stay as many as it has set, whatever the engine uses. */
static void openmp_settings_of_the_program_are_kept(void **state) {
  (void)state;
  enum { MINE = 3 };
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_world *world;
  ms_plan_config config;
  ms_plan *plan;
  ms_state *made;
  ms_exec *exec;
  float one;
  const char *message;
  const ms_step_inputs step = {.struct_size = sizeof(ms_step_inputs), .lr = 0, .step = 1, .micro_batches = 1};
  const int before = omp_get_max_threads(), dynamic = omp_get_dynamic(), levels = omp_get_max_active_levels();
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.threads = 2;
  omp_set_num_threads(MINE);
#define KEEPS(call)                                        \
  do {                                                     \
    must(call);                                            \
    assert_int_equal(omp_get_max_threads(), MINE);         \
    assert_int_equal(omp_get_dynamic(), dynamic);          \
    assert_int_equal(omp_get_max_active_levels(), levels); \
  } while (0)
  KEEPS(ms_world_join_alone(&world));
  KEEPS(ms_plan_compile(m.graph, &config, &plan));
  KEEPS(ms_state_new(world, m.model, &config, 1, &made));
  KEEPS(ms_exec_new(made, plan, &exec));
  for (int round = 0; round < 2; round++) {
    KEEPS(ms_exec_run(exec, MS_PHASE_FIRST, &step, NULL, 0));
    KEEPS(ms_exec_run(exec, MS_PHASE_NORM, &step, NULL, 0));
    KEEPS(ms_exec_run(exec, MS_PHASE_UPDATE, &step, NULL, 0));
    KEEPS(ms_exec_run(exec, MS_PHASE_EVALUATE, &step, NULL, 0));
  }
  KEEPS(ms_exec_find_nonfinite(exec, &step, &message));
  KEEPS(ms_state_read(made, 0, MS_TENSOR_PARAM, 0, 1, &one));
#undef KEEPS
  omp_set_num_threads(before);
  ms_free(exec);
  ms_free(made);
  ms_free(plan);
  mlp_free(&m);
  ms_free(world);
}

/* Whatever a call that succeeds tries on its way, the record of an earlier failure stays as it is. */
static void a_success_keeps_the_recorded_error(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  float one;
  const ms_step_inputs step = {.struct_size = sizeof(ms_step_inputs), .lr = 0, .step = 1, .micro_batches = 1};
  assert_int_equal(ms_config_default("no such struct", &one, sizeof one), MS_ENAME);
  char message[256], where[64];
  snprintf(message, sizeof message, "%s", ms_error_message());
  snprintf(where, sizeof where, "%s", ms_error_where());
  bound b = bind_one(&m);
  for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_UPDATE; phase++)
    if (phase != MS_PHASE_NEXT && phase != MS_PHASE_LAST)
      assert_int_equal(ms_exec_run(b.exec, phase, &step, NULL, 0), MS_OK);
  assert_int_equal(ms_state_read(b.state, 0, MS_TENSOR_PARAM, 0, 1, &one), MS_OK);
  assert_int_equal(ms_world_barrier(b.world), MS_OK);
  assert_int_equal(ms_error_code(), MS_ENAME);
  assert_string_equal(ms_error_message(), message);
  assert_string_equal(ms_error_where(), where);
  assert_int_equal(ms_state_read(b.state, -1, MS_TENSOR_PARAM, 0, 1, &one),
                   MS_EINVAL); /* the next failure replaces it */
  assert_int_equal(ms_error_code(), MS_EINVAL);
  assert_string_not_equal(ms_error_message(), message);
  unbind(&b);
  mlp_free(&m);
  ms_error_clear();
}

/* What a program was compiled with, before fields were added, and after. */
typedef struct older_param_config {
  int struct_size, init;
  double init_a, init_b;
  int frozen;
} older_param_config;

typedef struct newer_unit_config {
  ms_unit_config known;
  int64_t added;
} newer_unit_config;

static void older_and_newer_programs_are_understood(void **state) {
  (void)state;
  struct {
    older_param_config config;
    int after;
  } older = {.after = 4711};
  newer_unit_config newer;
  ms_model *model;
  int unit, param;
  const int64_t dims[1] = {4};
  must(ms_model_new(1, &model));
  must(ms_config_default("ms_unit_config", &newer.known, sizeof newer));
  assert_int_equal(newer.known.struct_size, sizeof newer);
  assert_int_equal(newer.added, 0);
  must(ms_model_add_unit(model, "root", &newer.known, &unit));
  newer.added = 1;
  assert_fails(ms_model_add_unit(model, "other", &newer.known, &unit), MS_EUNSUPPORTED, "ms_unit_config | newer");

  must(ms_config_default("ms_param_config", (ms_param_config *)&older.config, sizeof older.config));
  assert_int_equal(older.after, 4711);
  assert_true(older.config.struct_size == sizeof older.config && older.config.init == MS_INIT_NORMAL);
  older.config.frozen = 1;
  must(ms_model_add_param(model, unit, "w", 1, dims, (ms_param_config *)&older.config, &param));

  ms_param_config none;
  memset(&none, 0, sizeof none);
  assert_fails(ms_model_add_param(model, unit, "v", 1, dims, &none, &param), MS_EINVAL,
               "ms_param_config | call ms_config_default first");
  none.struct_size = -1;
  assert_fails(ms_model_add_param(model, unit, "v", 1, dims, &none, &param), MS_EINVAL, "struct_size | -1");
  none.struct_size = 1 << 30;
  assert_fails(ms_model_add_param(model, unit, "v", 1, dims, &none, &param), MS_EINVAL, "struct_size");
  assert_int_equal(ms_abi_version(), MS_ABI_VERSION);
  ms_free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(openmp_settings_of_the_program_are_kept),
      TEST(a_success_keeps_the_recorded_error),
      TEST(older_and_newer_programs_are_understood),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
