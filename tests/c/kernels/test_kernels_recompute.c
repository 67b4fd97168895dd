/* test_kernels_recompute.c - tests gradients that recompute the forward op's result: the result has the bits of the
 * forward kernel, everything else those of the gradient without it, on any device. */
#include "tests/c/support/kernel_case.h"

typedef struct matrix {
  int64_t rows, columns;
} matrix;

static const matrix matrices[] = {{1, 1}, {3, 17}, {139, 32}, {2, 2051}, {33, 300}};
static const double eps = 1e-5;

/* An input with the same numbers as an input of another case. */
static void copy_input(kernel_case *c, const kernel_case *from, int input) {
  add_input(c, from->call.in[input]);
  memcpy((void *)c->call.in_data[c->call.inputs - 1], from->call.in_data[input],
         (size_t)tensor_bytes(&from->call.in[input]));
}

static void copy_output(kernel_case *c, const kernel_case *from, int output) {
  add_input(c, from->call.out[output]);
  memcpy((void *)c->call.in_data[c->call.inputs - 1], from->call.out_data[output],
         (size_t)tensor_bytes(&from->call.out[output]));
}

static void assert_bits(const kernel_case *a, int output_a, const kernel_case *b, int output_b) {
  const ms_value_info *info = &a->call.out[output_a];
  assert_int_equal(tensor_bytes(info), tensor_bytes(&b->call.out[output_b]));
  assert_memory_equal(a->call.out_data[output_a], b->call.out_data[output_b], (size_t)tensor_bytes(info));
}

static void activations_have_forwards_bits(void **state) {
  (void)state;
  static const int forward_ops[] = {MS_OP_gelu, MS_OP_gelu_tanh, MS_OP_silu};
  FOR_EACH(op, forward_ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(m, matrices)
  for (int biased = 0; biased < 2; biased++) {
    if (too_large(m.rows * m.columns)) continue;
    ms_value_info x = SHAPE(dtype, m.rows, m.columns), vector = SHAPE(MS_F32, m.columns);
    kernel_case forward = case_of(op), plain = case_of(MS_OP_activation_backward_bias);
    kernel_case again =
        case_of(biased ? MS_OP_activation_backward_bias_recompute : MS_OP_activation_backward_recompute);
    again.call.attrs.product.activation = plain.call.attrs.product.activation = op == MS_OP_gelu ? MS_ACT_GELU
                                                                                : op == MS_OP_gelu_tanh
                                                                                    ? MS_ACT_GELU_TANH
                                                                                    : MS_ACT_SILU;
    for (int i = 0; i < 2; i++) add_input(&again, x);
    for (int i = 0; i < 2; i++) copy_input(&plain, &again, i);
    copy_input(&forward, &again, 0);
    add_output(&forward, x);
    add_output(&plain, x);
    add_output(&plain, vector);
    add_output(&again, x);
    if (biased) add_output(&again, vector);
    add_output(&again, x);
    run_case(&forward);
    run_case(&plain);
    contract(1);
    run_case(&again);
    contract(0);
    assert_bits(&again, 0, &plain, 0);
    if (biased) assert_bits(&again, 1, &plain, 1);
    assert_bits(&again, 1 + biased, &forward, 0);
    free_case(&forward);
    free_case(&plain);
    free_case(&again);
  }
}

static void swiglu_has_forwards_bits(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    ms_value_info x = SHAPE(dtype, m.rows, m.columns);
    kernel_case forward = case_of(MS_OP_swiglu), plain = case_of(MS_OP_swiglu_backward),
                again = case_of(MS_OP_swiglu_backward_recompute);
    for (int i = 0; i < 3; i++) add_input(&again, x);
    for (int i = 0; i < 3; i++) copy_input(&plain, &again, i);
    for (int i = 0; i < 2; i++) copy_input(&forward, &again, i);
    add_output(&forward, x);
    for (int o = 0; o < 2; o++) add_output(&plain, x);
    for (int o = 0; o < 3; o++) add_output(&again, x);
    run_case(&forward);
    run_case(&plain);
    contract(1);
    run_case(&again);
    contract(0);
    for (int o = 0; o < 2; o++) assert_bits(&again, o, &plain, o);
    assert_bits(&again, 2, &forward, 0);
    free_case(&forward);
    free_case(&plain);
    free_case(&again);
  }
}

static void check_norm(int centred, int dtype, int channel_dtype, matrix m, int more) {
  ms_value_info x = SHAPE(dtype, m.rows, m.columns), vector = SHAPE(channel_dtype, m.columns);
  kernel_case forward = case_of(centred ? MS_OP_layer_norm : MS_OP_rms_norm);
  kernel_case plain = case_of(centred ? MS_OP_layer_norm_backward : MS_OP_rms_norm_backward);
  kernel_case again = case_of(centred ? MS_OP_layer_norm_backward_recompute : MS_OP_rms_norm_backward_recompute);
  forward.call.attrs.norm.eps = eps;
  add_input(&forward, x);
  for (int i = 0; i < 1 + centred; i++) add_input(&forward, vector);
  add_output(&forward, x);
  add_output(&forward, centred ? SHAPE(MS_F32, m.rows, 2) : SHAPE(MS_F32, m.rows));
  run_case(&forward);

  for (int i = 0; i < 2; i++) copy_input(&again, &forward, i);
  copy_output(&again, &forward, 1);
  add_input(&again, x);
  if (centred) copy_input(&again, &forward, 2);
  if (more) add_input(&again, x);
  for (int i = 0; i < 4; i++) copy_input(&plain, &again, i);
  if (more) copy_input(&plain, &again, 4 + centred);
  add_output(&plain, x);
  add_output(&again, x);
  for (int i = 0; i < 1 + centred; i++) {
    add_output(&plain, vector);
    add_output(&again, vector);
  }
  add_output(&again, x);
  run_case(&plain);
  contract(1);
  run_case(&again);
  contract(0);
  for (int o = 0; o < 2 + centred; o++) assert_bits(&again, o, &plain, o);
  assert_bits(&again, 2 + centred, &forward, 0);
  free_case(&forward);
  free_case(&plain);
  free_case(&again);
}

/* Of 9216 elements CUDA holds a row in registers in forward, and streams it for the gradient. */
static void norms_have_forwards_bits(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  for (int centred = 0; centred < 2; centred++) check_norm(centred, dtype, MS_F32, (matrix){1, 9216}, 1);
  FOR_EACH(dtype, dtypes)
  FOR_EACH(channel_dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    /* All pairs of centred, more and a mixture of dtypes, in half of the cases. */
    for (int centred = 0; centred < 2; centred++)
      check_norm(centred, dtype, channel_dtype, m, centred ^ (dtype == channel_dtype));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(activations_have_forwards_bits),
      TEST(swiglu_has_forwards_bits),
      TEST(norms_have_forwards_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
