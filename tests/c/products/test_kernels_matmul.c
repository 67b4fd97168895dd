/* test_kernels_matmul.c - compares matrix products with sums in double: transposes, batches, biases, activations, both
 * dtypes; by oneDNN, by the plain loops, and for f32 by the bf16 matrix unit if the processor has one. */
#include "matmul_case.h"

#include "base/error.h"
#include "kernels/cpu/matmul/split_panel.h"

/* Every combination of transposes and dtypes on each shape. */
static void check_shapes(const product *shapes, int count) {
  for (int i = 0; i < count; i++)
    for (int bits = 0; bits < 16; bits++) {
      product p = shapes[i];
      p.trans_a = bits & 1;
      p.trans_b = bits >> 1 & 1;
      p.dtype = bits & 4 ? MS_BF16 : MS_F32;
      p.out_dtype = bits & 8 ? MS_BF16 : MS_F32;
      p.bias_dtype = i & 1 ? MS_BF16 : MS_F32;
      check_product(&p);
    }
}

static void matrices(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 1, .n = 1, .k = 1},
                                   {.m = 1, .n = 70, .k = 33, .bias = 1},
                                   {.m = 65, .n = 1, .k = 7},
                                   {.m = 33, .n = 47, .k = 129},
                                   {.m = 64, .n = 64, .k = 64, .bias = 1},
                                   {.m = 5, .n = 130, .k = 300},
                                   {.m = 130, .n = 17, .k = 2, .bias = 1}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

/* Large enough for several blocks: ragged in every dimension, or deeper than one pass over k. */
static void large_matrices(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 64, .n = 32, .k = 32, .bias = 1},
                                   {.m = 97, .n = 75, .k = 61, .bias = 1},
                                   {.m = 300, .n = 40, .k = 96},
                                   {.m = 65, .n = 50, .k = 1024, .bias = 1},
                                   {.m = 66, .n = 34, .k = 1100, .activation = MS_ACT_GELU}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

static void batches(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 7, .n = 19, .k = 21, .leading = {2, 3}, .batched_b = 1},
                                   {.m = 7, .n = 19, .k = 21, .leading = {2, 3}, .bias = 1},
                                   {.m = 1, .n = 8, .k = 5, .leading = {4}},
                                   {.m = 16, .n = 3, .k = 9, .leading = {3}, .batched_b = 1, .bias = 1},
                                   {.m = 6, .n = 5, .k = 4, .leading = {1, 1}, .batched_b = 1}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

static void activations(void **state) {
  (void)state;
  static const int kinds[] = {MS_ACT_RELU, MS_ACT_GELU, MS_ACT_GELU_TANH, MS_ACT_SILU};
  for (int kind = 0; kind < 4; kind++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
      product p = {.m = 31,
                   .n = 50,
                   .k = 24,
                   .bias = 1,
                   .activation = kinds[kind],
                   .dtype = dtype,
                   .out_dtype = dtype,
                   .bias_dtype = dtype};
      check_product(&p);
      p.leading[0] = 2, p.batched_b = 1;
      check_product(&p);
    }
}

/* c += the product, in f32, for operands of any dtype. */
static void results_are_added_to_the_output(void **state) {
  (void)state;
  for (int bits = 0; bits < 8; bits++) {
    product p = {.m = 33, .n = 17, .k = 70, .trans_a = bits & 1, .trans_b = bits >> 1 & 1};
    p.dtype = bits & 4 ? MS_BF16 : MS_F32;
    kernel_case c = case_of_product(&p);
    c.call.op = MS_OP_matmul_accumulate;
    for (int64_t i = 0; i < p.m * p.n; i++) set_element(c.call.out_data[0], MS_F32, i, (double)i);
    run_once(&c, c.call, 1);
    for (int64_t i = 0; i < p.m * p.n; i++) {
      double size, sum = reference(&c, &p, 0, i / p.n, i % p.n, &size);
      assert_output(&c, 0, i, (double)i + sum, 1e-6 * (2 + size));
    }
    c.call.out[0].dtype = MS_BF16;
    assert_fails(kernel_of(MS_OP_matmul_accumulate)->prepare(&c.call), MS_EDTYPE, "accumulator | f32");
    free_case(&c);
  }
}

/* The product added to x, in x's memory or apart from it, in both dtypes, rounded once; deep enough for several passes
 * over k. Whichever memory it is computed in, the bits are the same. */
static void products_are_added_to_another_result(void **state) {
  (void)state;
  for (int bits = 0; bits < 16; bits++) {
    product p = {.m = 33, .n = 70, .k = bits & 8 ? 1100 : 70, .trans_a = bits & 1, .trans_b = bits >> 1 & 1};
    p.dtype = p.out_dtype = bits & 4 ? MS_BF16 : MS_F32;
    if (too_large(p.m * p.n * p.k / 10)) continue;
    kernel_case c = case_of_product(&p);
    c.call.op = MS_OP_matmul_add;
    add_input(&c, SHAPE(p.dtype, p.m, p.n));
    run_case(&c);
    for (int64_t i = 0; i < p.m * p.n; i++) {
      double size, sum = reference(&c, &p, 0, i / p.n, i % p.n, &size);
      assert_output(&c, 0, i, input_at(&c, 2, i) + sum, 1e-6 * (2 + size));
    }
    free_case(&c);
  }
}

/* A sum in bf16 of f32 products would be rounded twice. */
static void products_are_added_in_their_dtype(void **state) {
  (void)state;
  product p = {.m = 4, .n = 4, .k = 4, .out_dtype = MS_BF16};
  kernel_case c = case_of_product(&p);
  c.call.op = MS_OP_matmul_add;
  add_input(&c, SHAPE(MS_BF16, 4, 4));
  assert_fails(kernel_of(MS_OP_matmul_add)->prepare(&c.call), MS_EDTYPE, "matmul_add | f32 operands | bf16");
  free_case(&c);
}

/* relu of a negative number is exactly 0, however large the number. */
static void relu_is_exact(void **state) {
  (void)state;
  product p = {.m = 40, .n = 40, .k = 1, .activation = MS_ACT_RELU, .dtype = MS_F32, .out_dtype = MS_F32};
  kernel_case c = case_of_product(&p);
  for (int i = 0; i < 40; i++) set_input(&c, 0, i, pow(10, i % 20 - 9) * (i & 1 ? -1 : 1)), set_input(&c, 1, i, 1 + i);
  run_case(&c);
  for (int i = 0; i < 1600; i++)
    assert_true(output_at(&c, 0, i) == fmax(0, (float)(input_at(&c, 0, i / 40) * input_at(&c, 1, i % 40))));
  free_case(&c);
}

/* A NaN in row r of a makes only row r of the result NaN; so does an infinity whose products cancel. */
static void nan_propagates(void **state) {
  (void)state;
  for (int activation = MS_ACT_NONE; activation <= MS_ACT_SILU; activation++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
      for (int trans_b = 0; trans_b < 2; trans_b++) {
        product p = {.m = 20,
                     .n = 36,
                     .k = 40,
                     .trans_b = trans_b,
                     .activation = activation,
                     .dtype = dtype,
                     .out_dtype = dtype};
        kernel_case c = case_of_product(&p);
        set_input(&c, 0, 7 * p.k + 3, NAN);
        run_case(&c);
        for (int64_t i = 0; i < p.m * p.n; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i / p.n == 7);
        free_case(&c);
      }
}

static void dtypes_are_checked(void **state) {
  (void)state;
  product p = {.m = 4, .n = 4, .k = 4};
  kernel_case c = case_of_product(&p);
  c.call.in[1].dtype = MS_BF16;
  assert_fails(kernel_of(MS_OP_matmul)->prepare(&c.call), MS_EDTYPE, "f32 | bf16 | dtype");
  c.call.in[0].dtype = MS_I32;
  assert_fails(kernel_of(MS_OP_matmul)->prepare(&c.call), MS_EDTYPE, "input 0 | i32");
  free_case(&c);
}

#ifdef MS_TEST_CUDA
/* For tensors that are not aligned to 16 bytes the library has different algorithms. */
static void unaligned(void **state) {
  (void)state;
  for (int bits = 0; bits < 8; bits++) {
    product p = {.m = 33, .n = 24, .k = 40, .trans_a = bits & 1, .trans_b = bits >> 1 & 1, .bias = 1};
    p.dtype = p.out_dtype = p.bias_dtype = bits & 4 ? MS_BF16 : MS_F32;
    device_shift = bits & 4 ? 2 : 4;
    check_product(&p);
    device_shift = 0;
  }
}

static int by_own_kernels(void **state) {
  (void)state;
  return setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(matrices),
                                     TEST(large_matrices),
                                     TEST(batches),
                                     TEST(activations),
                                     TEST(results_are_added_to_the_output),
                                     TEST(products_are_added_to_another_result),
                                     TEST(relu_is_exact),
                                     TEST(nan_propagates),
                                     TEST(dtypes_are_checked),
                                     TEST(products_are_added_in_their_dtype),
                                     TEST(unaligned)};
  int failed = cmocka_run_group_tests_name("matmul by cuBLASLt", tests, by_cublaslt, NULL);
  return failed + cmocka_run_group_tests_name("matmul by own kernels", tests, by_own_kernels, NULL);
}
#else
static int by_plain_loops(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "plain", 1);
}

static int by_onednn(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "onednn", 1);
}

int main(void) {
  const struct CMUnitTest plain[] = {TEST(matrices),
                                     TEST(large_matrices),
                                     TEST(batches),
                                     TEST(activations),
                                     TEST(results_are_added_to_the_output),
                                     TEST(products_are_added_to_another_result),
                                     TEST(relu_is_exact),
                                     TEST(nan_propagates)};
  int failed = cmocka_run_group_tests_name("matmul by plain loops", plain, by_plain_loops, by_size);
  #ifndef __SANITIZE_THREAD__
  const struct CMUnitTest onednn[] = {TEST(matrices),
                                      TEST(large_matrices),
                                      TEST(batches),
                                      TEST(activations),
                                      TEST(results_are_added_to_the_output),
                                      TEST(products_are_added_to_another_result),
                                      TEST(relu_is_exact),
                                      TEST(nan_propagates)};
  const struct CMUnitTest split[] = {TEST(matrices),
                                     TEST(large_matrices),
                                     TEST(batches),
                                     TEST(activations),
                                     TEST(results_are_added_to_the_output),
                                     TEST(products_are_added_to_another_result),
                                     TEST(relu_is_exact),
                                     TEST(nan_propagates)};
  const struct CMUnitTest chosen[] = {TEST(large_matrices), TEST(dtypes_are_checked),
                                      TEST(products_are_added_in_their_dtype)};
  failed += cmocka_run_group_tests_name("matmul by oneDNN", onednn, by_onednn, by_size);
  if (ms_split_available()) failed += cmocka_run_group_tests_name("matmul in three parts", split, by_parts, by_size);
  failed += cmocka_run_group_tests_name("matmul by size", chosen, by_size, NULL);
  #endif
  return failed;
}
#endif
