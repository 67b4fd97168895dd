/* test_dtype.c - the table of element types: every dtype goes through every function that takes one, which takes it or
 * refuses it as the table says, and a number that is no dtype is refused everywhere.
 */
#include "tests/c/graph/graph_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "plan/lower/lower.h"

static const int unknown[] = {-1, MS_DTYPES, 17};
enum { UNKNOWN = sizeof unknown / sizeof *unknown };

/* MS_OK where the table allows the use, else MS_EDTYPE with the dtype's name or number in the message. */
static void assert_as_the_table_says(int status, int dtype, int uses, const char *what) {
  const int allowed = ms_dtype_may(dtype, uses);
  if (status != (allowed ? MS_OK : MS_EDTYPE))
    fail_msg("%s of %s: %s, %s", what, ms_dtype_name(dtype), ms_status_name(status), ms_error_message());
  if (!allowed) assert_int_equal(ms_error_code(), MS_EDTYPE);
  ms_error_clear();
}

static void every_row_is_whole(void **state) {
  (void)state;
  for (int t = 0; t < MS_DTYPES; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(t);
    ms_dtype_info info;
    must(ms_dtype_describe(t, &info, sizeof info));
    assert_string_equal(ms_dtype_name(t), info.name);
    assert_int_equal(ms_dtype_size(t), info.size);
    assert_true(info.bits >= 4 && info.bits <= 64 && info.lowest < info.largest && isfinite(info.largest));
    assert_int_equal(info.size, info.bits / 8);
    assert_true(info.stored && strlen(info.stored) >= 2);
    assert_true(info.is_float || !ms_dtype_may(t, MS_DTYPE_FLOAT));
    /* What shares a byte means something only in records, with scales. */
    assert_true(info.size || !(info.uses & ~(MS_DTYPE_BLOCKS | MS_DTYPE_STORED | MS_DTYPE_PIECES)));
    for (int other = 0; other < t; other++) {
      assert_string_not_equal(ms_dtype_row_of(other)->info.name, info.name);
      assert_string_not_equal(ms_dtype_row_of(other)->info.long_name, info.long_name);
    }
    /* What a float is used for needs its casts; packed ones mean something only with scales. */
    assert_true((row->widen && row->narrow) == (info.is_float && info.size));
  }
}

static void floats_widen_in_place_and_narrow_to_the_nearest(void **state) {
  (void)state;
  enum { N = 1003 };
  for (int t = 0; t < MS_DTYPES; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(t);
    if (!ms_dtype_may(t, MS_DTYPE_FLOAT)) continue; /* test_float8.c has the others */
    float x[N], back[N], apart[N];
    char packed[8 * N];
    for (int i = 0; i < N; i++) x[i] = (float)((i - N / 2) * 1.37);
    x[0] = (float)row->info.largest, x[1] = (float)row->info.lowest, x[2] = NAN, x[3] = -0.0f;
    row->narrow(x, N, packed);
    row->widen(packed, N, apart);
    char *end = (char *)(back + N) - (int64_t)row->info.size * N;
    memcpy(end, packed, (size_t)row->info.size * N);
    row->widen(end, N, back);
    assert_memory_equal(back, apart, sizeof back);
    assert_true(apart[0] == x[0] && apart[1] == x[1] && isnan(apart[2]) && apart[3] == 0 && signbit(apart[3]));
    for (int i = 4; i < N; i++)
      if (fabsf(apart[i] - x[i]) > fabsf(x[i]) * 0x1p-8f) fail_msg("%s: %g became %g", row->info.name, x[i], apart[i]);
  }
}

static void models_and_plans_ask_the_table(void **state) {
  (void)state;
  ms_model *model;
  must(ms_model_new(1, &model));
  for (int t = -1; t <= MS_DTYPES; t++) {
    char name[16];
    int unit;
    const int64_t dims[1] = {4};
    ms_unit_config u;
    ms_param_config p;
    ms_plan_config plan;
    must(ms_config_default("ms_unit_config", &u, sizeof u));
    snprintf(name, sizeof name, "param%d", t + 1);
    u.param_dtype = t;
    assert_as_the_table_says(ms_model_add_unit(model, name, &u, &unit), t, MS_DTYPE_PARAM, "param_dtype of a unit");
    must(ms_config_default("ms_unit_config", &u, sizeof u));
    snprintf(name, sizeof name, "reduce%d", t + 1);
    u.reduce_dtype = t;
    assert_as_the_table_says(ms_model_add_unit(model, name, &u, &unit), t, MS_DTYPE_REDUCE, "reduce_dtype of a unit");
    must(ms_config_default("ms_unit_config", &u, sizeof u));
    snprintf(name, sizeof name, "unit%d", t + 1);
    must(ms_model_add_unit(model, name, &u, &unit));
    must(ms_config_default("ms_param_config", &p, sizeof p));
    p.param_dtype = t; /* -1: the unit's */
    const int status = ms_model_add_param(model, unit, name, 1, dims, &p, &unit);
    assert_as_the_table_says(status, t < 0 ? MS_F32 : t, MS_DTYPE_PARAM, "param_dtype of a parameter");
    must(ms_config_default("ms_plan_config", &plan, sizeof plan));
    plan.optimizer = MS_OPT_ADAMW;
    plan.adamw.moments = t;
    assert_as_the_table_says(ms_plan_check_config(&plan), t, MS_DTYPE_MOMENT, "adamw.moments");
  }
  ms_free(model);
}

static void graphs_ask_the_table(void **state) {
  (void)state;
  fixture f;
  fixture_start(&f);
  const int x = input(&f, "x", MS_F32, SHAPE(2, 3));
  for (int t = -2; t <= MS_DTYPES; t++) {
    char name[16];
    int value;
    ms_op_attrs attrs = {.out_dtype = 1 + t},
                shape = {.out_dtype = 1 + t, .shape = {.d = {2, 1, 1, 1, 1, 1}, .ndim = 1}},
                sum = {.out_dtype = 1 + t, .reduce = {.all = 1}};
    snprintf(name, sizeof name, "in%d", t + 2);
    const int status = ms_graph_input(f.graph, name, t, SHAPE(2), -1, &value);
    if (ms_dtype_row_of(t) && !ms_dtype_size(t)) {
      assert_int_equal(status, MS_EDTYPE);
      assert_has(ms_error_message(), ms_dtype_name(t));
      ms_error_clear();
    } else assert_as_the_table_says(status, t, 0, "an input");
    if (t == -1) continue; /* out_dtype 0: what the rule gives */
    assert_as_the_table_says(typed_op(f.graph, "cast", 1, &x, &attrs, &value), t, MS_DTYPE_CAST, "cast");
    assert_as_the_table_says(typed_op(f.graph, "fill", 0, NULL, &shape, &value), t, MS_DTYPE_LOOPS, "fill");
    assert_as_the_table_says(typed_op(f.graph, "sum", 1, &x, &sum, &value), t, MS_DTYPE_FLOAT, "sum");
  }
  fixture_end(&f);
}

/* The dtypes of whole bytes that no kernel computes in. */
static const int stored_only[] = {MS_F8E4M3, MS_F8E5M2, MS_E8M0, MS_I8};
enum { STORED_ONLY = sizeof stored_only / sizeof *stored_only };

static void Q1_ops_that_compute_refuse_low_precision_by_name(void **state) {
  (void)state;
  fixture f;
  fixture_start(&f);
  int refused = 0;
  for (int t = 0; t < STORED_ONLY; t++) {
    const char *dtype = ms_dtype_name(stored_only[t]);
    const int low = input(&f, dtype, stored_only[t], SHAPE(2, 3));
    for (int op = 0; op < MS_OP_COUNT; op++) {
      const ms_op_row *row = ms_op_row_of(op);
      if (!row->max_inputs || row->flags & MS_OP_ANY_DTYPE) continue;
      int in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
      for (int i = 0; i < MS_MAX_INPUTS; i++) in[i] = low;
      ms_op_attrs attrs;
      must(ms_op_row_defaults(op, &attrs));
      char wanted[96];
      snprintf(wanted, sizeof wanted, "%s: | input 0 is %s | f32 or bf16", row->name, dtype);
      assert_fails(ms_graph_emit(f.graph, op, row->min_inputs, in, &attrs, out), MS_EDTYPE, wanted);
      refused++;
    }
  }
  assert_true(refused > 4 * 60);
  fixture_end(&f);
}

static void Q1_ops_that_move_elements_take_low_precision(void **state) {
  (void)state;
  static const char *const moving[] = {"cast", "reshape", "transpose", "slice", "concat", "roll", "gather"};
  enum { MOVING = sizeof moving / sizeof *moving };
  int found = 0;
  /* Some of the engine's own ops have codes among their inputs, and check each. */
  for (int op = 0; op < MS_OP_COUNT; op++)
    if ((ms_op_row_of(op)->flags & (MS_OP_ANY_DTYPE | MS_OP_INTERNAL)) == MS_OP_ANY_DTYPE) {
      assert_true(found < MOVING);
      assert_string_equal(ms_op_row_of(op)->name, moving[found++]);
    }
  assert_int_equal(found, MOVING);
  fixture f;
  fixture_start(&f);
  const int index = input(&f, "index", MS_I32, SHAPE(1, 3));
  for (int t = 0; t < STORED_ONLY; t++) {
    int low = input(&f, ms_dtype_name(stored_only[t]), stored_only[t], SHAPE(2, 3)), value;
    const ms_op_attrs same = {.shape = {.d = {2, 3, 1, 1, 1, 1}, .ndim = 2}}, swapped = {.permutation = {.p = {1, 0}}},
                      first = {.cut = {.stop = 1}}, none = {0};
    must(typed_op(f.graph, "reshape", 1, &low, &same, &value));
    must(typed_op(f.graph, "transpose", 1, &low, &swapped, &value));
    must(typed_op(f.graph, "slice", 1, &low, &first, &value));
    must(typed_op(f.graph, "concat", 2, (int[]){low, low}, &none, &value));
    must(typed_op(f.graph, "roll", 1, &low, &none, &value));
    must(typed_op(f.graph, "gather", 2, (int[]){low, index}, &none, &value));
    for (int to = 0; to < MS_DTYPES; to++) {
      const ms_op_attrs attrs = {.out_dtype = 1 + to};
      assert_as_the_table_says(typed_op(f.graph, "cast", 1, &low, &attrs, &value), to, MS_DTYPE_CAST, "cast");
    }
  }
  fixture_end(&f);
}

static void Q1_nothing_is_differentiated_through_low_precision(void **state) {
  (void)state;
  fixture f;
  fixture_start(&f);
  const int w = param(&f, MS_F32, SHAPE(2, 3));
  const int low = op1(&f, MS_OP_cast, w, ATTRS(.out_dtype = 1 + MS_F8E4M3));
  const int wide = op1(&f, MS_OP_cast, low, ATTRS(.out_dtype = 1 + MS_F32));
  must(ms_graph_set_loss(f.graph, op1(&f, MS_OP_sum, wide, ATTRS(.reduce = {.all = 1})), -1));
  assert_fails(ms_graph_differentiate(f.graph), MS_EUNSUPPORTED, "f8e4m3 | no gradient | detach");
  fixture_end(&f);
}

/* Kernels and sums dispatch on bf16 or not, so what else there may be must never reach them. */
static void kernels_are_prepared_only_for_what_they_have_loops_for(void **state) {
  (void)state;
  ms_plan plan = {.config = {.device = MS_DEVICE_CPU, .threads = 1}};
  const ms_op_attrs attrs = {0};
  ms_instr instr = {0};
  for (int i = 0; i < UNKNOWN; i++) {
    ms_ref ref[2] = {{.info = {.dtype = MS_F32, .ndim = 1, .dims = {4}}},
                     {.info = {.dtype = unknown[i], .ndim = 1, .dims = {4}}}};
    assert_fails(ms_plan_prepare(&plan, MS_OP_relu, &attrs, 1, &ref[1], 1, &ref[0], &instr), MS_EDTYPE,
                 "relu | input 0 | f32 | bf16");
    assert_fails(ms_plan_prepare(&plan, MS_OP_relu, &attrs, 1, &ref[0], 1, &ref[1], &instr), MS_EDTYPE,
                 "relu | output 0 | f32 | bf16");
    must(ms_plan_prepare(&plan, MS_OP_relu, &attrs, 1, &ref[0], 1, &ref[0], &instr));
  }
  ms_plan_release_prepared(&plan);
}

static void unknown_dtypes_are_refused(void **state) {
  (void)state;
  for (int i = 0; i < UNKNOWN; i++) {
    char list[MS_DTYPE_LIST];
    ms_dtype_info info;
    assert_null(ms_dtype_row_of(unknown[i]));
    assert_int_equal(ms_dtype_size(unknown[i]), 0);
    assert_false(ms_dtype_may(unknown[i], 0));
    assert_int_equal(ms_dtype_describe(unknown[i], &info, sizeof info), MS_EDTYPE);
    ms_error_clear();
    assert_fails(ms_dtype_check(unknown[i], 0, "what is asked"), MS_EDTYPE, "what is asked | f32 | bf16 | i32 | u8");
    assert_string_equal(ms_dtype_list(0, list), "f32, bf16, i32, u8, f8e4m3, f8e5m2, e8m0, i8, i4 or nf4");
    assert_string_equal(ms_dtype_list(MS_DTYPE_LOOPS, list), "f32, bf16, i32 or u8");
    assert_string_equal(ms_dtype_list(MS_DTYPE_SUM, list), "f32");
  }
  assert_fails(ms_dtype_describe(MS_F32, NULL, sizeof(ms_dtype_info)), MS_EINVAL, "ms_dtype_describe");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_row_is_whole),
      TEST(floats_widen_in_place_and_narrow_to_the_nearest),
      TEST(models_and_plans_ask_the_table),
      TEST(graphs_ask_the_table),
      TEST(Q1_ops_that_compute_refuse_low_precision_by_name),
      TEST(Q1_ops_that_move_elements_take_low_precision),
      TEST(Q1_nothing_is_differentiated_through_low_precision),
      TEST(kernels_are_prepared_only_for_what_they_have_loops_for),
      TEST(unknown_dtypes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
