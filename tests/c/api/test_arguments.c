/* test_arguments.c - numbers out of range are refused where they are given, and the message names the argument and its
 * value: of a step, an optimizer, parameters, and what a checkpoint writes.
 */
#include "bound_exec.h"

#include <math.h>

static void wrong_betas_eps_and_rates_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_world *world;
  ms_state *made;
  ms_plan *plan;
  must(ms_world_join_alone(&world));
  const struct {
    int optimizer;
    size_t field;
    double value;
    const char *facts;
  } wrong[] = {
      {MS_OPT_ADAMW, offsetof(ms_plan_config, adamw.beta1), 1.0, "beta1 | 0 | 1"},
      {MS_OPT_SGD, offsetof(ms_plan_config, ema_decay), 1, "ema_decay | 0 | 1"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ms_plan_config config;
    must(ms_config_default("ms_plan_config", &config, sizeof config));
    config.optimizer = wrong[i].optimizer;
    memcpy((char *)&config + wrong[i].field, &wrong[i].value, sizeof(double));
    assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, wrong[i].facts);
    assert_fails(ms_state_new(world, m.model, &config, 1, &made), MS_EINVAL, wrong[i].facts);
  }
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.threads = -3;
  assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, "threads | 0");
  mlp_free(&m);
  ms_free(world);
}

static void wrong_inputs_of_a_step_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  bound b = bind_one(&m);
  const ms_step_inputs right = {.struct_size = sizeof(ms_step_inputs), .lr = 0, .step = 1, .micro_batches = 1};
  ms_step_inputs inputs = right;
  inputs.lr = -1e-3;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "lr | 0 | -0.001");
  inputs.lr = NAN;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "lr | 0");
  inputs = right;
  inputs.step = 0;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "step | 1 | 0");
  inputs.step = ((int64_t)1 << 53) + 1;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL,
               "step | 9007199254740992 | 9007199254740993");
  inputs = right;
  inputs.first_row = -1;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "first_row | -1");
  inputs = right;
  inputs.micro_batches = 0;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "micro_batches | 1 | 0");
  inputs.micro_batches = (1 << 24) + 1;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &inputs, NULL, 0), MS_EINVAL, "micro_batches | 16777216 | 16777217");
  must(ms_exec_run(b.exec, MS_PHASE_FIRST, &right, NULL, 0)); /* nothing is left half-way */
  unbind(&b);
  mlp_free(&m);
}

static void counts_and_kinds_out_of_range_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_rules *rules;
  ms_mesh *mesh;
  ms_tokens *tokens;
  ms_safetensors_writer *writer;
  ms_safetensors_config file;
  float out[1];
  int decided[1];
  char version[8];
  const char *const names[2] = {NULL, NULL};
  must(ms_rules_new("test", &rules));
  assert_fails(ms_rules_resolve(rules, -1, names, decided), MS_EINVAL, "n | -1");
  assert_fails(ms_rules_resolve(rules, 1, NULL, decided), MS_EINVAL, "names is NULL");
  assert_fails(ms_rules_resolve(rules, 2, names, decided), MS_EINVAL, "NULL");
  assert_fails(ms_mesh_slice(m.mesh, 1, names, &mesh), MS_EINVAL, "NULL");
  assert_fails(ms_mesh_new(7, 1, (int[]){1}, NULL, 1, 0, NULL, &mesh), MS_EINVAL, "ms_device_kind | 7");
  assert_fails(ms_model_set_prefetch(m.model, 0, 7, 0, NULL), MS_EINVAL, "backward | 7");
  assert_fails(ms_model_set_prefetch(m.model, 0, 0, -2, NULL), MS_EINVAL, "n | -2");
  assert_fails(ms_model_set_prefetch(m.model, 0, 0, -1, (int[]){0}), MS_EINVAL, "n | -1");
  assert_fails(ms_model_set_prefetch(m.model, 0, 1, 2, (int[]){1, 1}), MS_EINVAL, "1 twice");
  assert_fails(ms_initial_values(1, "w", MS_INIT_NORMAL, NAN, 1, 0, 1, out), MS_EINVAL, "finite");
  assert_fails(ms_initial_values(1, "w", MS_INIT_NORMAL, 0, 1, INT64_MAX, 1, out), MS_EINVAL, "2^53");
  assert_fails(ms_initial_values(1, "w", MS_INIT_NORMAL, 0, 1, 0, 1, NULL), MS_EINVAL, "out is NULL");
  assert_fails(ms_tokens_open(0, names, MS_TOKEN_BYTES, &tokens, NULL), MS_EINVAL, "files | 0");
  assert_fails(ms_tokens_open(1, names, MS_TOKEN_BYTES, &tokens, NULL), MS_EINVAL, "NULL");
  must(ms_config_default("ms_safetensors_config", &file, sizeof file));
  file.metadata = -1;
  assert_fails(ms_safetensors_create("/proc/nowhere/w", 0, NULL, 0, &file, &writer), MS_EINVAL, "metadata | -1");
  file.metadata = 1;
  assert_fails(ms_safetensors_create("/proc/nowhere/w", 0, NULL, 0, &file, &writer), MS_EINVAL, "metadata_text | NULL");
  const ms_safetensors_tensor shapeless = {.name = "w", .dtype = "F32", .ndim = 1};
  assert_fails(ms_safetensors_create("/proc/nowhere/w", 1, &shapeless, sizeof(ms_safetensors_tensor), NULL, &writer),
               MS_EINVAL, "dims | NULL");
  const ms_safetensors_tensor negative = {.name = "w", .dtype = "F32", .ndim = -1};
  assert_fails(ms_safetensors_create("/proc/nowhere/w", 1, &negative, sizeof(ms_safetensors_tensor), NULL, &writer),
               MS_EINVAL, "ndim | -1");
  assert_fails(ms_checkpoint_make_folder("", 0), MS_EINVAL, "path");
  assert_fails(ms_device_library(MS_DEVICE_CUDA, MS_LIBRARIES, version, 8), MS_EINVAL, "ms_gpu_library | 7");
  assert_fails(ms_transport_describe(MS_TRANSPORT_NAMES + 1, version, 8), MS_EINVAL, "ms_transport_fact | 3");
  assert_fails(ms_transport_describe(MS_TRANSPORT_UCX, version, 0), MS_EINVAL, "0 bytes");
  ms_free(rules);
  mlp_free(&m);
}

/* A hash has no status: what it cannot compute is 0, and leaves the record. */
static void a_hash_of_nothing_is_zero(void **state) {
  (void)state;
  uint32_t hash[2] = {1, 1};
  ms_hash(NULL, 8, hash);
  assert_int_equal(hash[0] | hash[1], 0);
  assert_has(ms_error_message(), "data is NULL");
  hash[0] = 1;
  ms_hash("x", -1, hash);
  assert_int_equal(hash[0] | hash[1], 0);
  assert_has(ms_error_message(), "bytes | -1");
  ms_error_clear();
  ms_hash("x", 1, NULL);
  assert_has(ms_error_message(), "hash is NULL");
  ms_error_clear();
  ms_hash(NULL, 0, hash);
  assert_int_equal(ms_error_code(), MS_OK);
  assert_true(hash[0] | hash[1]);
}

static void wrong_settings_of_parameters_are_refused(void **state) {
  (void)state;
  ms_model *model;
  ms_unit_config unit;
  int index;
  must(ms_model_new(1, &model));
  must(ms_config_default("ms_unit_config", &unit, sizeof unit));
  must(ms_model_add_unit(model, "root", &unit, &index));
  const int64_t dims[7] = {2, 2, 2, 2, 2, 2, 2}, empty[1] = {0};
  ms_param_config right, config;
  must(ms_config_default("ms_param_config", &right, sizeof right));
#define REFUSED(status, facts) \
  assert_fails(ms_model_add_param(model, 0, "w", 1, dims, &config, &index), status, "parameter 'w' | " facts)
  config = right, config.group.lr_scale = -1;
  REFUSED(MS_EINVAL, "lr_scale | 0 | -1");
  char name[300];
  memset(name, 'n', sizeof name - 1), name[sizeof name - 1] = 0;
  config = right, config.init = 17;
  assert_int_equal(ms_model_add_param(model, 0, name, 1, dims, &config, &index), MS_EINVAL);
  assert_has(ms_error_message(), name); /* all of it */
  ms_error_clear();
  config = right, config.init_b = INFINITY;
  REFUSED(MS_EINVAL, "init_b | finite | inf");
#undef REFUSED
  assert_fails(ms_model_add_param(model, 0, "w", -1, dims, &right, &index), MS_ESHAPE, "-1 dimensions | 0 | 6");
  assert_fails(ms_model_add_param(model, 0, "w", 1, NULL, &right, &index), MS_EINVAL, "dims | NULL");
  assert_int_equal(ms_model_add_param(model, 0, "w", 0, NULL, &right, &index), MS_OK);
  assert_fails(ms_model_add_param(model, 0, "w", 7, dims, &right, &index), MS_ESHAPE, "7 dimensions | 0 | 6");
  assert_fails(ms_model_add_param(model, 0, "w", 1, empty, &right, &index), MS_ESHAPE, "dimension 0 | 0");
  ms_free(model);
}

static void wrong_rates_of_a_sharded_model_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  const ms_param_group right = {.lr_scale = 1, .beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1, .heads = -1};
  const struct {
    size_t field;
    double value;
    const char *message;
  } wrong[] = {{offsetof(ms_param_group, lr_scale), NAN, "lr_scale | 0"},
               {offsetof(ms_param_group, weight_decay), -0.1, "weight_decay | 0 | -0.1"},
               {offsetof(ms_param_group, beta1), 1, "beta1 | 0 | 1 | -1 | 1"},
               {offsetof(ms_param_group, momentum), NAN, "momentum | 0 | 1 | -1 | nan"}};
  ms_param_group group[64];
  for (int i = 0; i < 64; i++) group[i] = right;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    group[2] = right;
    memcpy((char *)&group[2] + wrong[i].field, &wrong[i].value, sizeof(double));
    assert_fails(ms_model_set_groups(m.model, group, sizeof(ms_param_group)), MS_EINVAL, wrong[i].message);
  }
  group[2] = right;
  must(ms_model_set_groups(m.model, group, sizeof(ms_param_group)));
  mlp_free(&m);
}

/* What an optimizer does not have is refused where it would be ignored: by plans and states that train with it. */
static void settings_that_an_optimizer_does_not_have_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_world *world;
  ms_plan *plan;
  ms_state *made;
  must(ms_world_join_alone(&world));
  const struct {
    int optimizer;
    size_t field;
    double value;
    const char *message;
  } cases[] = {{MS_OPT_SGD, offsetof(ms_param_group, beta1), 0.5, "parameter | beta1 | 0.5 | sgd | -1"},
               {MS_OPT_SGD, offsetof(ms_param_group, eps), 1e-6, "parameter | eps | 1e-06 | sgd | -1"},
               {MS_OPT_LION, offsetof(ms_param_group, eps), 1e-6, "parameter | eps | 1e-06 | lion | -1"},
               {MS_OPT_ADAMW, offsetof(ms_param_group, momentum), 0.5, "parameter | momentum | 0.5 | adamw | -1"},
               {MS_OPT_SGD, offsetof(ms_param_group, momentum), 0.5, "momentum | 0.5 | sgd | 0 | above 0"},
               {MS_OPT_SGD, offsetof(ms_param_group, momentum), 0, NULL},
               {MS_OPT_ADAM, offsetof(ms_param_group, eps), 1e-6, NULL},
               {MS_OPT_LION, offsetof(ms_param_group, beta2), 0.5, NULL}};
  const ms_param_group none = {.lr_scale = 1, .beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1, .heads = -1};
  ms_param_group group[64];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ms_plan_config config;
    must(ms_config_default("ms_plan_config", &config, sizeof config));
    config.optimizer = cases[i].optimizer;
    for (int p = 0; p < 64; p++) group[p] = none;
    memcpy((char *)&group[2] + cases[i].field, &cases[i].value, sizeof(double));
    must(ms_model_set_groups(m.model, group, sizeof(ms_param_group)));
    if (cases[i].message) {
      assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, cases[i].message);
      assert_fails(ms_state_new(world, m.model, &config, 1, &made), MS_EINVAL, cases[i].message);
    } else {
      must(ms_plan_compile(m.graph, &config, &plan));
      ms_free(plan);
    }
    config.train = 0; /* nothing is updated */
    must(ms_plan_compile(m.graph, &config, &plan));
    ms_free(plan);
  }
  mlp_free(&m);
  ms_free(world);
}

static void wrong_shapes_of_saved_tensors_are_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_world *world;
  ms_plan_config config;
  ms_state *made;
  ms_save *save;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  must(ms_world_join_alone(&world));
  must(ms_state_new(world, m.model, &config, 1, &made));
  ms_save_piece piece = {
      .name = "w", .parameter = "w", .kind = "param", .what = MS_TENSOR_PARAM, .count = 4, .ndim = 9};
  assert_fails(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save), MS_ESHAPE, "tensor w | ndim | 9 | 0 | 6");
  piece.ndim = 1, piece.dims[0] = 3;
  assert_fails(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save), MS_ESHAPE, "3 | 4 | multiply");
  piece.dims[0] = -4;
  assert_fails(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save), MS_ESHAPE, "tensor w | dims[0] | -4");
  assert_fails(ms_save_new(made, -1, &piece, sizeof(ms_save_piece), &save), MS_EINVAL, "ms_save_new | n | -1");
  piece.dims[0] = 4, piece.first = 1, piece.name = NULL;
  assert_fails(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save), MS_EINVAL, "name is NULL");
  piece.name = "w", piece.first = INT64_MAX;
  assert_fails(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save), MS_EINVAL, "owns | 9223372036854775807");
  piece.first = 0;
  piece.dims[0] = 4;
  must(ms_save_new(made, 1, &piece, sizeof(ms_save_piece), &save));
  assert_fails(
      ms_save_start(save,
                    &(ms_save_config){.struct_size = sizeof(ms_save_config), .folder = "/proc/nowhere", .writer = -1}),
      MS_EINVAL, "writer | -1");
  assert_fails(ms_save_start(save, &(ms_save_config){.struct_size = sizeof(ms_save_config),
                                                     .folder = "/proc/nowhere",
                                                     .target = "/proc/nowhere",
                                                     .head = "{}"}),
               MS_EINVAL, "writers | 0");
  assert_fails(ms_save_wait(save, 99, 0), MS_EINVAL, "stage | 99");
  ms_free(save);
  ms_free(made);
  mlp_free(&m);
  ms_free(world);
}

static void wrong_times_of_a_profile_are_refused(void **state) {
  (void)state;
  ms_world *world;
  ms_profile *profile;
  must(ms_world_join_alone(&world));
  must(ms_profile_new(world, &profile));
  const double wrong[] = {NAN, -1, INFINITY, 1e300};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_fails(ms_profile_mark(profile, "x", wrong[i]), MS_EINVAL, "ms_profile_mark | began");
  must(ms_profile_mark(profile, "x", 0));
  ms_free(profile);
  ms_free(world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(wrong_betas_eps_and_rates_are_refused),
      TEST(wrong_inputs_of_a_step_are_refused),

      TEST(counts_and_kinds_out_of_range_are_refused),
      TEST(a_hash_of_nothing_is_zero),
      TEST(wrong_settings_of_parameters_are_refused),
      TEST(wrong_rates_of_a_sharded_model_are_refused),
      TEST(settings_that_an_optimizer_does_not_have_are_refused),
      TEST(wrong_shapes_of_saved_tensors_are_refused),
      TEST(wrong_times_of_a_profile_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
