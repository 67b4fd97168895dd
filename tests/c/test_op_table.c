/* test_op_table.c - the op table as the public header describes it, what its rows claim in words that the compiler
 * cannot check, and what passes read of them. */
#include "tests/c/support/check.h"

#include <stdio.h>

#include "graph/graph.h"

/* ---- what the public header tells ------------------------------------------------------------------------------- */

static void table_describes_every_row(void **state) {
  (void)state;
  assert_int_equal(ms_op_count(), MS_OP_COUNT);
  for (int op = 0; op < ms_op_count(); op++) {
    ms_op_info info;
    ms_attrs attrs;
    must(ms_op_describe(op, &info));
    assert_int_equal(ms_op_find(info.name), op);
    assert_true(info.min_inputs <= info.max_inputs && info.max_inputs <= MS_MAX_INPUTS);
    assert_true(info.outputs >= 1 && info.outputs <= MS_MAX_OUTPUTS);
    assert_true(info.doc[0]);
    must(ms_op_defaults(info.name, &attrs));
  }
  assert_int_equal(ms_op_find("conv9"), -1);
  assert_int_equal(ms_op_find(""), -1);
  assert_int_equal(ms_op_find(NULL), -1);
  assert_fails(ms_op_describe(-1, &(ms_op_info){0}), MS_EINVAL, "ops | 0");
}

static void defaults_come_from_the_row(void **state) {
  (void)state;
  ms_attrs attrs;
  must(ms_op_defaults("rope", &attrs));
  assert_true(attrs.f[0] == 10000 && attrs.i[0] == 0 && attrs.i[7] == 0);
  must(ms_op_defaults("layer_norm", &attrs));
  assert_true(attrs.f[0] == 1e-5);
  must(ms_op_defaults("cross_entropy", &attrs));
  assert_int_equal(attrs.i[0], -100);
  must(ms_op_defaults("adamw", &attrs));
  assert_true(attrs.f[0] == 1 && attrs.f[1] == 0 && attrs.f[2] == 0.9 && attrs.f[3] == 0.999);
  must(ms_op_defaults("fill", &attrs));
  assert_int_equal(attrs.i[7], 1);
  assert_fails(ms_op_defaults("sofmax", &attrs), MS_ENAME, "sofmax");
}

/* ---- what passes read ------------------------------------------------------------------------------------------- */

static void attributes_parse_and_shared_names_have_their_slots(void **state) {
  (void)state;
  static const char *const shared[] = {"axis:i0", "all:i2", "d0:i0", "ndim:i6", "out_dtype:i7", "add:i0"};
  for (int op = 0; op < ms_op_count(); op++) {
    ms_attrs attrs;
    must(ms_op_row_defaults(op, &attrs));
    for (size_t s = 0; s < sizeof shared / sizeof *shared; s++) {
      char name[16];
      snprintf(name, sizeof name, "%.*s", (int)(strchr(shared[s], ':') - shared[s]) + 1, shared[s]);
      if (ms_op_has(op, name) && !ms_op_has(op, shared[s]))
        fail_msg("%s: its attribute %s is not %s, where passes look for it", ms_op_row_of(op)->name, name, shared[s]);
    }
  }
}

static void slots_are_those_of_whole_names(void **state) {
  (void)state;
  assert_int_equal(ms_op_slot(MS_OP_attention, "causal"), 0);
  assert_int_equal(ms_op_slot(MS_OP_attention, "part"), 1);
  assert_int_equal(ms_op_slot(MS_OP_attention, "caus"), -1);
  assert_int_equal(ms_op_slot(MS_OP_attention, "scale"), -1); /* a number of the other kind */
  assert_int_equal(ms_op_slot(MS_OP_matmul, "out_dtype"), 7);
  assert_int_equal(ms_op_slot(MS_OP_add, "part"), -1);
}

static void flags_have_the_attributes_that_they_speak_of(void **state) {
  (void)state;
  for (int op = 0; op < ms_op_count(); op++) {
    const ms_op_row *row = ms_op_row_of(op);
    if ((row->flags & MS_OP_ADDS) && !ms_op_has(op, "add:i0")) fail_msg("%s adds, without add:i0", row->name);
    if ((row->flags & MS_OP_DRAWS_MASK) && !(ms_op_has(op, "p:f0") && ms_op_has(op, "stream:i0")))
      fail_msg("%s draws a mask, without p:f0 or stream:i0", row->name);
    if ((row->flags & (MS_OP_INOUT | MS_OP_ADDS)) && row->grad) fail_msg("%s updates and has a gradient", row->name);
  }
}

static void outputs_are_read_as_flags_and_attributes_define(void **state) {
  (void)state;
  const ms_attrs none = {0}, add = {.i = {1}};
  assert_true(ms_op_reads_outputs(MS_OP_adamw, &none) && ms_op_reads_outputs(MS_OP_matmul_accumulate, &none));
  assert_true(ms_op_reads_outputs(MS_OP_accumulate, &add) && !ms_op_reads_outputs(MS_OP_accumulate, &none));
  assert_false(ms_op_reads_outputs(MS_OP_add, &add) || ms_op_reads_outputs(MS_OP_embedding_backward, &none));
}

/* Fusions look activations up by their number: each is of one op, and of one gradient. */
static void activations_are_found_once(void **state) {
  (void)state;
  for (int activation = MS_ACT_RELU; activation <= MS_ACT_SILU; activation++) {
    int forward = 0, backward = 0;
    for (int op = 0; op < ms_op_count(); op++) {
      forward += ms_op_activation(op, MS_OP_PUBLIC) == activation;
      backward += ms_op_activation(op, MS_OP_INTERNAL) == activation;
    }
    assert_true(forward == 1 && backward == 1);
  }
  assert_int_equal(ms_op_activation(MS_OP_gelu, MS_OP_INTERNAL), MS_ACT_NONE);
  assert_int_equal(ms_op_activation(-1, MS_OP_PUBLIC), MS_ACT_NONE);
}

/* Only aliases touch no bytes. */
static void work_is_counted_for_every_row(void **state) {
  (void)state;
  ms_value_info info = {.dtype = MS_F32, .ndim = 4, .dims = {2, 3, 4, 8}}, in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  for (int i = 0; i < MS_MAX_INPUTS; i++) in[i] = info;
  for (int o = 0; o < MS_MAX_OUTPUTS; o++) out[o] = info;
  for (int op = 0; op < ms_op_count(); op++) {
    const ms_op_row *row = ms_op_row_of(op);
    ms_attrs attrs;
    must(ms_op_row_defaults(op, &attrs));
    const ms_cost_case c = {op, &attrs, row->min_inputs, row->outputs, in, out};
    const int product = row->work == ms_work_product || row->work == ms_work_product_bias ||
                        row->work == ms_work_product_f8 || row->work == ms_work_orthogonalise;
    if ((ms_op_flops(&c) > 0) != (row->flops > 0 || product)) fail_msg("%s: %g operations", row->name, ms_op_flops(&c));
    if ((ms_op_bytes(&c) > 0) == ((row->flags & MS_OP_ALIAS) != 0))
      fail_msg("%s: %g bytes", row->name, ms_op_bytes(&c));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(table_describes_every_row),
      TEST(defaults_come_from_the_row),
      TEST(attributes_parse_and_shared_names_have_their_slots),
      TEST(slots_are_those_of_whole_names),
      TEST(flags_have_the_attributes_that_they_speak_of),
      TEST(outputs_are_read_as_flags_and_attributes_define),
      TEST(activations_are_found_once),
      TEST(work_is_counted_for_every_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
