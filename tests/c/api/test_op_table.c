/* test_op_table.c - the op table as the public header describes it, what its rows claim in words that the compiler
 * cannot check, and what passes read of them. */
#include "tests/c/support/check.h"

#include <math.h>
#include <stdio.h>

#include "graph/graph.h"

/* ---- what the public header tells ------------------------------------------------------------------------------- */

static void table_describes_every_row(void **state) {
  (void)state;
  assert_int_equal(ms_op_count(), MS_OP_COUNT);
  for (int op = 0; op < ms_op_count(); op++) {
    ms_op_info info;
    ms_op_attrs given, own;
    must(ms_op_describe(op, &info, sizeof info));
    assert_int_equal(ms_op_find(info.name), op);
    assert_true(info.min_inputs <= info.max_inputs && info.max_inputs <= MS_MAX_INPUTS);
    assert_true(info.outputs >= 1 && info.outputs <= MS_MAX_OUTPUTS);
    assert_true(info.doc[0]);
    must(ms_op_row_defaults(op, &own));
    must(ms_op_read_attrs(op, info.attrs, &given));
    assert_memory_equal(&given, &own, sizeof own);
  }
  assert_int_equal(ms_op_find("conv9"), -1);
  assert_int_equal(ms_op_find(""), -1);
  assert_int_equal(ms_op_find(NULL), -1);
  assert_fails(ms_op_describe(-1, &(ms_op_info){0}, sizeof(ms_op_info)), MS_EINVAL, "ops | 0");
}

static void defaults_come_from_the_row(void **state) {
  (void)state;
  ms_op_attrs attrs;
  must(ms_op_row_defaults(MS_OP_rope, &attrs));
  assert_true(attrs.rope.theta == 10000 && attrs.rope.offset == 0 && attrs.out_dtype == 0);
  must(ms_op_row_defaults(MS_OP_layer_norm, &attrs));
  assert_true(attrs.norm.eps == 1e-5);
  must(ms_op_row_defaults(MS_OP_cross_entropy, &attrs));
  assert_int_equal(attrs.loss.ignore_index, -100);
  must(ms_op_row_defaults(MS_OP_adamw, &attrs));
  assert_true(attrs.update.lr_scale == 1 && attrs.update.weight_decay == 0 && attrs.update.beta1 == 0.9 &&
              attrs.update.beta2 == 0.999 && attrs.update.momentum == 0);
  must(ms_op_row_defaults(MS_OP_fill, &attrs));
  assert_int_equal(attrs.out_dtype, 1);
  must(ms_op_row_defaults(MS_OP_broadcast_to, &attrs));
  for (int d = 0; d < 6; d++) assert_int_equal(attrs.shape.d[d], 1);
  must(ms_op_row_defaults(MS_OP_transpose, &attrs));
  for (int d = 0; d < 6; d++) assert_int_equal(attrs.permutation.p[d], d);
}

static void programs_write_attributes_as_text(void **state) {
  (void)state;
  ms_op_attrs a, defaults;
  must(ms_op_read_attrs(MS_OP_rope, "theta=500.5 interleaved=1", &a));
  assert_true(a.rope.theta == 500.5 && a.rope.interleaved == 1 && a.rope.factor == 1 && a.rope.inverse == 0);
  must(ms_op_read_attrs(MS_OP_transpose, "p4=2", &a));
  assert_true(a.permutation.p[4] == 2 && a.permutation.p[3] == 3);
  must(ms_op_read_attrs(MS_OP_matmul, "  trans_b=1  out_dtype=2 ", &a));
  assert_true(a.product.trans_b == 1 && a.product.trans_a == 0 && a.out_dtype == 2);
  must(ms_op_read_attrs(MS_OP_scale, "alpha=0.10000000000000001 beta=-inf", &a));
  assert_true(a.scale.alpha == 0.1 && isinf(a.scale.beta));
  must(ms_op_row_defaults(MS_OP_sum, &defaults));
  for (int i = 0; i < 3; i++) {
    must(ms_op_read_attrs(MS_OP_sum, (const char *[]){NULL, "", " "}[i], &a));
    assert_memory_equal(&a, &defaults, sizeof a);
  }
  assert_fails(ms_op_read_attrs(MS_OP_rope, "thet=1", &a), MS_ENAME, "rope | thet | theta");
  assert_fails(ms_op_read_attrs(MS_OP_transpose, "p6=1", &a), MS_ENAME, "transpose | p6");
  assert_fails(ms_op_read_attrs(MS_OP_transpose, "p=1", &a), MS_ENAME, "transpose | p");
  assert_fails(ms_op_read_attrs(MS_OP_add, "axis=1", &a), MS_ENAME, "add | axis | none");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis=0.5", &a), MS_EINVAL, "sum | axis | integer | 0.5");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis=nan", &a), MS_EINVAL, "sum | axis | integer");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis=1152921504606846976", &a), MS_EINVAL, "sum | axis | 2^53");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis", &a), MS_EINVAL, "sum | axis | no value");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "keepdim= axis=1", &a), MS_EINVAL, "sum | keepdim= | number");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis=1,keepdim=1", &a), MS_EINVAL, "sum | axis=1,keepdim=1 | number");
  assert_fails(ms_op_read_attrs(MS_OP_sum, "axis=1 axis=1", &a), MS_EINVAL, "sum | axis | twice");
}

/* ---- what passes read ------------------------------------------------------------------------------------------- */

/* A row whose words its struct lacks, or with a default of the other kind, has no defaults. */
static void attributes_parse(void **state) {
  (void)state;
  for (int op = 0; op < ms_op_count(); op++) {
    ms_op_attrs attrs;
    int n;
    must(ms_op_row_defaults(op, &attrs));
    const ms_attribute *a = ms_op_attributes(op, &n);
    for (int k = 0; k < n; k++) {
      if (ms_attribute_value(&a[k], &attrs) != a[k].value)
        fail_msg("%s: %.*s is not its default", ms_op_row_of(op)->name, a[k].length, a[k].name);
      for (int j = 0; j < k; j++) assert_int_not_equal(a[j].word, a[k].word);
    }
  }
}

static void integers_are_those_of_whole_names(void **state) {
  (void)state;
  ms_op_attrs a;
  assert_ptr_equal(ms_op_integer(MS_OP_attention, &a, "causal"), &a.attention.causal);
  assert_ptr_equal(ms_op_integer(MS_OP_attention, &a, "part"), &a.attention.part);
  assert_null(ms_op_integer(MS_OP_attention, &a, "caus"));
  assert_null(ms_op_integer(MS_OP_attention, &a, "scale")); /* a real number */
  assert_null(ms_op_integer(MS_OP_attention, &a, "start")); /* in the struct, but not in the row */
  assert_ptr_equal(ms_op_integer(MS_OP_matmul, &a, "out_dtype"), &a.out_dtype);
  assert_ptr_equal(ms_op_integer(MS_OP_transpose, &a, "p5"), &a.permutation.p[5]);
  assert_null(ms_op_integer(MS_OP_add, &a, "part"));
}

static void flags_have_the_attributes_that_they_speak_of(void **state) {
  (void)state;
  for (int op = 0; op < ms_op_count(); op++) {
    const ms_op_row *row = ms_op_row_of(op);
    if ((row->flags & MS_OP_ADDS) && !ms_op_has(op, "add")) fail_msg("%s adds, without add", row->name);
    if ((row->flags & MS_OP_DRAWS_MASK) && !(ms_op_has(op, "p") && ms_op_has(op, "stream")))
      fail_msg("%s draws a mask, without p or stream", row->name);
    if ((row->flags & (MS_OP_INOUT | MS_OP_ADDS)) && row->grad) fail_msg("%s updates and has a gradient", row->name);
  }
}

static void outputs_are_read_as_flags_and_attributes_define(void **state) {
  (void)state;
  const ms_op_attrs none = {0}, add = {.add = 1};
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
    ms_op_attrs attrs;
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
      TEST(programs_write_attributes_as_text),
      TEST(attributes_parse),
      TEST(integers_are_those_of_whole_names),
      TEST(flags_have_the_attributes_that_they_speak_of),
      TEST(outputs_are_read_as_flags_and_attributes_define),
      TEST(activations_are_found_once),
      TEST(work_is_counted_for_every_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
