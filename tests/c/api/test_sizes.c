/* test_sizes.c - programs that were compiled with an older or a newer header: their structs, and the rows of their
 * lists, are shorter or longer than the library's. It writes and reads no byte beyond them, and keeps their distance.
 */
#include "tests/c/api/bound_exec.h"
#include "tests/c/support/networks/planned.h"
#include "tests/c/support/networks/priced_cluster.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MORE = 24, UNTOUCHED = 0xa5 };

/* A list of an object, as a program asks for it. */
typedef struct list {
  const char *name;
  int (*get)(const void *object, void *rows, int size, int capacity, int *n);
  int known; /* bytes of the library's row */
} list;

/* Rows of `size` bytes: what both know is equal, what the library does not know is 0, and nothing else is written. */
static void check_rows(const list *l, const void *object, int size, int capacity, int n, const unsigned char *rows) {
  const int filled = capacity < n ? capacity : n, common = size < l->known ? size : l->known;
  unsigned char *got = malloc((size_t)capacity * (size_t)size + MORE);
  int all;
  memset(got, UNTOUCHED, (size_t)capacity * (size_t)size + MORE);
  must(l->get(object, got, size, capacity, &all));
  assert_int_equal(all, n);
  for (int i = 0; i < filled; i++) {
    if (memcmp(got + i * size, rows + i * l->known, (size_t)common))
      fail_msg("%s: row %d of %d bytes differs", l->name, i, size);
    for (int b = common; b < size; b++) assert_int_equal(got[i * size + b], 0);
  }
  for (int b = filled * size; b < capacity * size + MORE; b++) assert_int_equal(got[b], UNTOUCHED);
  free(got);
}

static void check_list(const list *l, const void *object) {
  int n;
  must(l->get(object, NULL, 0, 0, &n));
  if (n < 2) fail_msg("%s: %d rows say nothing of their distance", l->name, n);
  unsigned char *rows = calloc((size_t)n, (size_t)l->known);
  must(l->get(object, rows, l->known, n, &n));
  const int sizes[] = {4, l->known - 8, l->known, l->known + MORE}, capacities[] = {1, n - 1, n, n + 1};
  for (int s = 0; s < 4; s++)
    for (int c = 0; c < 4; c++) check_rows(l, object, sizes[s], capacities[c], n, rows);
  assert_fails(l->get(object, rows, 0, n, &n), MS_EINVAL, "size is 0");
  assert_fails(l->get(object, rows, -8, n, &n), MS_EINVAL, "size is -8");
  assert_fails(l->get(object, rows, l->known, -1, &n), MS_EINVAL, "capacity | -1");
  assert_fails(l->get(object, NULL, l->known, 1, &n), MS_EINVAL, "rows is NULL");
  free(rows);
}

/* ---- lists that the library fills -------------------------------------------------------------------------------- */

static int passes(const void *plan, void *rows, int size, int capacity, int *n) {
  return ms_plan_list(plan, MS_PLAN_PASSES, rows, size, capacity, n);
}

static int conversions(const void *plan, void *rows, int size, int capacity, int *n) {
  return ms_plan_list(plan, MS_PLAN_CONVERSIONS, rows, size, capacity, n);
}

static int peak(const void *plan, void *rows, int size, int capacity, int *n) {
  return ms_plan_list(plan, MS_PLAN_PEAK, rows, size, capacity, n);
}

static int memory(const void *plan, void *rows, int size, int capacity, int *n) {
  return ms_plan_list(plan, MS_PLAN_MEMORY, rows, size, capacity, n);
}

static int timeline(const void *plan, void *rows, int size, int capacity, int *n) {
  return ms_plan_timeline(plan, NULL, MS_PHASE_FIRST, rows, size, capacity, n);
}

static int priced(const void *plan, void *rows, int size, int capacity, int *n) {
  const ms_cluster cluster = cluster_of(MS_DEVICE_CPU);
  return ms_plan_timeline(plan, &cluster, MS_PHASE_FIRST, rows, size, capacity, n);
}

static void rows_of_a_plan_have_the_size_of_the_program(void **state) {
  (void)state;
  static const list lists[] = {
      {"passes", passes, sizeof(ms_plan_pass)},       {"conversions", conversions, sizeof(ms_plan_conversion)},
      {"peak", peak, sizeof(ms_peak_buffer)},         {"memory", memory, sizeof(struct ms_peak)},
      {"timeline", timeline, sizeof(ms_price_event)}, {"priced", priced, sizeof(ms_price_event)}};
  mlp_config c = mlp_on_mesh(&(mesh_case){.replicate = 1, .shard = 2, .tensor = 2}, 0, 0);
  const ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  int n;
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) check_list(&lists[i], p.plan);
  assert_fails(ms_plan_list(p.plan, 99, NULL, 0, 0, &n), MS_EINVAL, "what | 99 | ms_plan_rows");
  assert_fails(ms_plan_list(p.plan, -1, NULL, 0, 0, &n), MS_EINVAL, "what | -1");
  drop(&p);
}

static int items(const void *profile, void *rows, int size, int capacity, int *n) {
  return ms_profile_items(profile, rows, size, capacity, n);
}

static void rows_of_a_profile_have_the_size_of_the_program(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  bound b = bind_one(&m);
  ms_profile *profile;
  must(ms_profile_new(b.world, &profile));
  ms_exec_set_profile(b.exec, profile);
  must(ms_exec_run(b.exec, MS_PHASE_FIRST, NULL, NULL, 0));
  check_list(&(list){"items", items, sizeof(ms_profile_item)}, profile);
  ms_free(profile);
  unbind(&b);
  mlp_free(&m);
}

/* ---- structs that the library fills ------------------------------------------------------------------------------ */

static void outputs_of_a_step_have_the_size_of_the_program(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  bound b = bind_one(&m);
  struct {
    ms_step_outputs known;
    unsigned char more[MORE];
  } out;
  memset(&out, UNTOUCHED, sizeof out);
  must(ms_exec_run(b.exec, MS_PHASE_EVALUATE, NULL, &out.known, sizeof(double)));
  const double loss = out.known.loss;
  assert_true(loss > 0);
  assert_int_equal(*(unsigned char *)&out.known.grad_norm, UNTOUCHED);
  must(ms_exec_run(b.exec, MS_PHASE_EVALUATE, NULL, &out.known, sizeof out));
  assert_true(out.known.loss == loss && out.known.divisor > 0);
  for (int i = 0; i < MORE; i++) assert_int_equal(out.more[i], 0);
  assert_fails(ms_exec_run(b.exec, MS_PHASE_EVALUATE, NULL, &out.known, 0), MS_EINVAL, "ms_exec_run | size is 0");
  unbind(&b);
  mlp_free(&m);
}

static void both_parts_of_traffic_have_the_size_of_the_program(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  const ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  ms_traffic full[2], part[2];
  memset(part, UNTOUCHED, sizeof part);
  must(ms_plan_traffic(p.plan, 1, &full[0], &full[1], sizeof *full));
  must(ms_plan_traffic(p.plan, 1, &part[0], &part[1], sizeof(double)));
  for (int i = 0; i < 2; i++) {
    assert_true(part[i].inside == full[i].inside && full[i].inside > 0);
    assert_int_equal(*(unsigned char *)&part[i].sent, UNTOUCHED);
  }
  drop(&p);
}

/* ---- structs and lists that the library reads -------------------------------------------------------------------- */

/* A program with a newer header: each row has fields that this library does not know. */
static void rows_of_a_newer_program_are_read_at_their_distance(void **state) {
  (void)state;
  char path[64];
  static const int64_t dims[2] = {2, 3};
  struct newer {
    ms_safetensors_tensor known;
    int64_t added;
  } tensors[2] = {{.known = {.name = "b", .dtype = "F32", .ndim = 2, .dims = dims}},
                  {.known = {.name = "a", .dtype = "F32", .ndim = 1, .dims = dims}}};
  ms_safetensors_writer *writer;
  snprintf(path, sizeof path, "/tmp/moonshard-sizes-%d.safetensors", (int)getpid());
  must(ms_safetensors_create(path, 2, &tensors->known, sizeof *tensors, NULL, &writer));
  must(ms_safetensors_write(writer, 0, NULL, 0, 24, (float[6]){0}));
  must(ms_safetensors_write(writer, 1, NULL, 0, 8, (float[2]){0}));
  must(ms_safetensors_finish(writer));
  assert_int_equal(unlink(path), 0);
  tensors[1].added = 1;
  assert_fails(ms_safetensors_create(path, 2, &tensors->known, sizeof *tensors, NULL, &writer), MS_EUNSUPPORTED,
               "ms_safetensors_create | newer");
  assert_fails(ms_safetensors_create(path, 2, &tensors->known, 0, NULL, &writer), MS_EINVAL, "size is 0");
}

/* A program with an older header: what its rows lack is 0, the default. */
static void rows_of_an_older_program_are_read_at_their_distance(void **state) {
  (void)state;
  enum { OLDER = offsetof(ms_safetensors_tensor, elements), ROOM = 4 * sizeof(ms_safetensors_tensor) };
  static const int64_t dims[1] = {2};
  _Alignas(8) unsigned char rows[ROOM];
  ms_safetensors_writer *writer;
  char path[64];
  memset(rows, UNTOUCHED, sizeof rows); /* what is read after a row is no number of bytes */
  for (int i = 0; i < 3; i++) {
    const ms_safetensors_tensor tensor = {
        .name = (const char *[]){"c", "a", "b"}[i], .dtype = "F32", .ndim = 1, .dims = dims};
    memcpy(rows + i * OLDER, &tensor, OLDER);
  }
  snprintf(path, sizeof path, "/tmp/moonshard-sizes-%d.safetensors", (int)getpid());
  must(ms_safetensors_create(path, 3, (const ms_safetensors_tensor *)(void *)rows, OLDER, NULL, &writer));
  for (int i = 0; i < 3; i++) must(ms_safetensors_write(writer, i, NULL, 0, 8, (float[2]){0}));
  must(ms_safetensors_finish(writer));
  assert_int_equal(unlink(path), 0);
}

static void groups_are_read_at_their_distance(void **state) {
  (void)state;
  enum { MAX = 64 };
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  struct newer {
    ms_param_group known;
    double added;
  } group[MAX];
  memset(group, 0, sizeof group);
  for (int p = 0; p < MAX; p++) {
    group[p].known = (ms_param_group){.beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1, .heads = -1};
    group[p].known.lr_scale = 1 + p;
  }
  must(ms_model_set_groups(m.model, &group->known, sizeof *group));
  for (int p = 0; p < m.model->params; p++) assert_true(m.model->param[p].config.group.lr_scale == 1 + p);
  group[2].added = 0.5;
  assert_fails(ms_model_set_groups(m.model, &group->known, sizeof *group), MS_EUNSUPPORTED, "newer");
  mlp_free(&m);
}

static void measured_kernels_are_read_at_their_distance(void **state) {
  (void)state;
  ms_cluster c = cluster_of(MS_DEVICE_CPU);
  const ms_kernel_work work = {.op = ms_op_find("matmul"),
                               .shape = MS_SHAPE_PRODUCT,
                               .dtype = MS_F32,
                               .threads = 1,
                               .flops = 2e6,
                               .bytes = 1.2e5,
                               .size = {1, 100, 100, 100}};
  struct newer {
    ms_kernel_work known;
    double added;
  } points[2] = {{.known = work}, {.known = work}};
  double plain, seconds;
  must(ms_cluster_kernel_time(&c, &work, sizeof work, &plain));
  points[0].known.threads = 2; /* the other one is of the second */
  points[0].known.seconds = 1, points[1].known.seconds = 3 * plain;
  c.point = &points->known;
  c.points = 2;
  assert_fails(ms_cluster_kernel_time(&c, &work, sizeof work, &seconds), MS_EINVAL, "point_size is 0");
  c.point_size = sizeof *points;
  must(ms_cluster_kernel_time(&c, &work, sizeof work, &seconds));
  assert_true(seconds > 2.99 * plain && seconds < 3.01 * plain);
  must(ms_cluster_kernel_time(&c, &work, offsetof(ms_kernel_work, seconds), &seconds));
  assert_true(seconds > 2.99 * plain && seconds < 3.01 * plain);
  points[1].added = 1;
  assert_fails(ms_cluster_kernel_time(&c, &work, sizeof work, &seconds), MS_EUNSUPPORTED, "newer");
}

static void logit_clips_are_read_at_their_distance(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  ms_plan_config config = planned_config();
  ms_plan *plan;
  struct newer {
    ms_logit_clip known;
    double added;
  } clip[2] = {{.known = {.output = "scores", .heads = 1, .shared = 1}}, {.known = {.output = "scores", .shared = 1}}};
  config.qk_clip_threshold = 1;
  config.logit_clip = &clip->known;
  config.logit_clips = 2;
  assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EINVAL, "logit_clip_size is 0");
  config.logit_clip_size = sizeof *clip;
  assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_ESHAPE, "qk_clip of 0 heads"); /* the second */
  clip[1].added = 1;
  assert_fails(ms_plan_compile(m.graph, &config, &plan), MS_EUNSUPPORTED, "newer");
  mlp_free(&m);
}

/* After the settings of an older program lies what is none. */
static void settings_of_an_older_program_are_checked_alone(void **state) {
  (void)state;
  struct {
    ms_param_group group;
    ms_param_config param;
  } older;
  memset(&older, UNTOUCHED, sizeof older);
  must(ms_config_default("ms_param_config", &older.param, offsetof(ms_param_config, frozen)));
  must(ms_config_check("ms_param_config", &older.param, offsetof(ms_param_config, frozen)));
  older.param.init = 77;
  assert_fails(ms_config_check("ms_param_config", &older.param, offsetof(ms_param_config, frozen)), MS_EINVAL, "init");
  assert_fails(ms_config_check("ms_param_config", &older.param, sizeof older.param), MS_EINVAL, "struct_size");
  older.group.lr_scale = 1;
  must(ms_config_check("ms_param_group", &older.group, sizeof(double)));
  older.group.lr_scale = -1;
  assert_fails(ms_config_check("ms_param_group", &older.group, sizeof(double)), MS_EINVAL, "lr_scale | -1");
}

static void inputs_of_an_older_program_have_defaults(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 1, 0);
  mlp m = mlp_make(&c);
  bound b = bind_one(&m);
  ms_step_inputs older;
  memset(&older, UNTOUCHED, sizeof older);
  must(ms_config_default("ms_step_inputs", &older, offsetof(ms_step_inputs, step)));
  must(ms_exec_run(b.exec, MS_PHASE_FIRST, &older, NULL, 0)); /* step 1, rows from 0 on */
  older.struct_size = 0;
  assert_fails(ms_exec_run(b.exec, MS_PHASE_FIRST, &older, NULL, 0), MS_EINVAL, "ms_step_inputs | ms_config_default");
  unbind(&b);
  mlp_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rows_of_a_plan_have_the_size_of_the_program),
      TEST(rows_of_a_profile_have_the_size_of_the_program),
      TEST(outputs_of_a_step_have_the_size_of_the_program),
      TEST(both_parts_of_traffic_have_the_size_of_the_program),
      TEST(rows_of_a_newer_program_are_read_at_their_distance),
      TEST(rows_of_an_older_program_are_read_at_their_distance),
      TEST(groups_are_read_at_their_distance),
      TEST(measured_kernels_are_read_at_their_distance),
      TEST(logit_clips_are_read_at_their_distance),
      TEST(settings_of_an_older_program_are_checked_alone),
      TEST(inputs_of_an_older_program_have_defaults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
