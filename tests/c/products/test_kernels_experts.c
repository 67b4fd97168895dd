/* test_kernels_experts.c - compares the kernels of mixtures of experts with plain loops in double: the order of
 * choices, rows that follow it and come back, and products by group, with groups of any size: empty, one row, and all.
 */
#include "tests/c/support/kernel_case.h"

typedef struct sizes {
  int64_t tokens, each, experts, columns;
} sizes;

static const sizes some_sizes[] = {{1, 1, 1, 1},    {7, 2, 4, 9}, {33, 1, 3, 8},   {40, 8, 64, 5},
                                   {130, 4, 8, 16}, {0, 2, 3, 4}, {5, 2, 1000, 3}, {700, 2, 5, 3}};

/* An expert for every choice; some get many, others none. */
static int64_t choose(sizes s, int64_t choice) {
  return choice * 2654435761 % 1000003 % s.experts * (choice % 3) % s.experts;
}

/* ---- expert_order ------------------------------------------------------------------------------------------------ */

static kernel_case order_case(sizes s) {
  kernel_case c = case_of(MS_OP_expert_order);
  c.call.attrs.experts.experts = s.experts;
  add_input(&c, SHAPE(MS_I32, s.tokens, s.each));
  add_output(&c, SHAPE(MS_I32, s.tokens * s.each));
  add_output(&c, SHAPE(MS_I32, s.tokens, s.each));
  add_output(&c, SHAPE(MS_I32, s.experts + 1));
  for (int64_t i = 0; i < s.tokens * s.each; i++) set_input(&c, 0, i, (double)choose(s, i));
  return c;
}

static void order_is_sorted_and_stable(void **state) {
  (void)state;
  FOR_EACH(s, some_sizes) {
    kernel_case c = order_case(s);
    int64_t at = 0;
    run_case(&c);
    for (int64_t e = 0; e < s.experts; e++) {
      assert_true(output_at(&c, 2, e) == (double)at);
      for (int64_t i = 0; i < s.tokens * s.each; i++) {
        if (choose(s, i) != e) continue;
        assert_true(output_at(&c, 0, at) == (double)i);
        assert_true(output_at(&c, 1, i) == (double)at++);
      }
    }
    assert_true(output_at(&c, 2, s.experts) == (double)(s.tokens * s.each));
    free_case(&c);
  }
}

static void wrong_experts_are_reported(void **state) {
  (void)state;
  kernel_case c = order_case((sizes){5, 2, 4, 1});
  set_input(&c, 0, 7, 4);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("expert 4 | position 7 | [0,4)", "4 | [0,4)"));
  set_input(&c, 0, 7, -1);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("expert -1 | position 7 | [0,4)", "-1 | [0,4)"));
  free_case(&c);
}

/* ---- dispatch and combine ---------------------------------------------------------------------------------------- */

/* Adds inputs order and places of the choices above. */
static void add_order(kernel_case *c, sizes s) {
  const int order = add_input(c, SHAPE(MS_I32, s.tokens * s.each)),
            places = add_input(c, SHAPE(MS_I32, s.tokens, s.each));
  int64_t at = 0;
  for (int64_t e = 0; e < s.experts; e++)
    for (int64_t i = 0; i < s.tokens * s.each; i++)
      if (choose(s, i) == e) {
        set_input(c, order, at, (double)i);
        set_input(c, places, i, (double)at++);
      }
}

static kernel_case rows_case(int op, int dtype, sizes s, int weights_dtype) {
  const int64_t choices = s.tokens * s.each, spread = op == MS_OP_expert_dispatch;
  kernel_case c = case_of(op);
  add_input(&c, SHAPE(dtype, spread ? s.tokens : choices, s.columns));
  add_order(&c, s);
  if (weights_dtype >= 0) add_input(&c, SHAPE(weights_dtype, s.tokens, s.each));
  add_output(&c, SHAPE(dtype, spread ? choices : s.tokens, s.columns));
  return c;
}

static double weight_at(const kernel_case *c, int64_t choice) {
  return c->call.inputs < 4 ? 1 : input_at(c, 3, choice);
}

static const int weights_dtypes[] = {-1, MS_F32, MS_BF16};

static void dispatch_copies_rows_in_order(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, some_sizes)
  FOR_EACH(weights, weights_dtypes) {
    kernel_case c = rows_case(MS_OP_expert_dispatch, dtype, s, weights);
    run_case(&c);
    for (int64_t i = 0; i < s.tokens * s.each; i++)
      for (int64_t d = 0; d < s.columns; d++) {
        const int64_t choice = (int64_t)input_at(&c, 1, i);
        const double x = input_at(&c, 0, choice / s.each * s.columns + d) * weight_at(&c, choice);
        assert_output(&c, 0, i * s.columns + d, x, weights < 0 ? 0 : 1e-7);
      }
    free_case(&c);
  }
}

static void combine_sums_the_rows_of_a_token(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, some_sizes)
  FOR_EACH(weights, weights_dtypes) {
    kernel_case c = rows_case(MS_OP_expert_combine, dtype, s, weights);
    run_case(&c);
    for (int64_t t = 0; t < s.tokens; t++)
      for (int64_t d = 0; d < s.columns; d++) {
        double sum = 0;
        for (int64_t choice = t * s.each; choice < (t + 1) * s.each; choice++)
          sum += weight_at(&c, choice) * input_at(&c, 0, (int64_t)input_at(&c, 2, choice) * s.columns + d);
        assert_output(&c, 0, t * s.columns + d, sum, 1e-6);
      }
    free_case(&c);
  }
}

static void gradients_of_weights_are_products_of_rows(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, some_sizes) {
    kernel_case c = case_of(MS_OP_expert_weights_backward);
    add_input(&c, SHAPE(dtype, s.tokens, s.columns));
    add_input(&c, SHAPE(dtype, s.tokens * s.each, s.columns));
    add_input(&c, SHAPE(MS_I32, s.tokens, s.each));
    add_output(&c, SHAPE(MS_F32, s.tokens, s.each));
    for (int64_t i = 0; i < s.tokens * s.each; i++) set_input(&c, 2, i, (double)(s.tokens * s.each - 1 - i));
    run_case(&c);
    for (int64_t i = 0; i < s.tokens * s.each; i++) {
      double sum = 0;
      for (int64_t d = 0; d < s.columns; d++)
        sum +=
            input_at(&c, 0, i / s.each * s.columns + d) * input_at(&c, 1, (int64_t)input_at(&c, 2, i) * s.columns + d);
      assert_output(&c, 0, i, sum, 1e-5);
    }
    free_case(&c);
  }
}

static void a_nan_stays_with_its_token(void **state) {
  (void)state;
  const sizes s = {9, 2, 4, 5};
  kernel_case c = rows_case(MS_OP_expert_combine, MS_F32, s, MS_F32);
  const int64_t row = (int64_t)input_at(&c, 2, 4 * s.each + 1);
  set_input(&c, 0, row * s.columns + 3, NAN);
  run_case(&c);
  for (int64_t i = 0; i < s.tokens * s.columns; i++)
    assert_true(isnan(output_at(&c, 0, i)) == (i == 4 * s.columns + 3));
  free_case(&c);
}

static void wrong_places_are_reported(void **state) {
  (void)state;
  kernel_case c = rows_case(MS_OP_expert_dispatch, MS_F32, (sizes){5, 2, 4, 3}, -1);
  set_input(&c, 1, 6, 10);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("order is 10 | position 6 | [0,10)", "10 | [0,10)"));
  free_case(&c);
  c = rows_case(MS_OP_expert_combine, MS_F32, (sizes){5, 2, 4, 3}, -1);
  set_input(&c, 2, 6, -1);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("places is -1 | position 6 | [0,10)", "-1 | [0,10)"));
  free_case(&c);
}

/* ---- products by group ------------------------------------------------------------------------------------------- */

typedef struct groups {
  int64_t rows, inner, columns, n;
  int32_t offsets[80];
} groups;

static const groups some_groups[] = {
    {1, 1, 1, 1, {0, 1}},
    {37, 9, 5, 3, {0, 5, 5, 37}},
    {200, 16, 70, 4, {0, 130, 131, 131, 200}},
    {65, 66, 33, 2, {0, 0, 65}},
    /* several steps of whole units along every axis */
    {100, 136, 72, 3, {0, 70, 71, 100}},
    /* rows of no group, before and after */
    {90, 7, 12, 5, {3, 3, 67, 80, 81, 81}},
    {20, 4, 6, 2, {0, 0, 0}},
    /* many rows a group: more steps than stages, and sizes that divide by nothing */
    {300, 328, 136, 2, {0, 150, 300}},
    {259, 77, 131, 2, {2, 131, 259}},
    /* more tiles of rows than follow each other in a square */
    {2100, 8, 130, 1, {3, 2090}},
    /* more groups than a warp has lanes, of none to three rows, and one of many across the first and second 32 */
    {175, 5, 3, 75, {2,   2,   3,   5,   8,   8,   9,   11,  14,  14,  15,  17,  20,  20,  21,  23,  26,  26,  27,
                     29,  32,  32,  33,  35,  38,  38,  39,  41,  44,  44,  45,  45,  120, 120, 121, 121, 121, 121,
                     122, 122, 122, 123, 123, 126, 126, 127, 129, 132, 132, 133, 135, 138, 138, 139, 141, 144, 144,
                     145, 147, 150, 150, 151, 153, 156, 156, 157, 159, 162, 162, 163, 165, 168, 168, 169, 171, 173}},
};

static void add_offsets(kernel_case *c, groups g) {
  const int i = add_input(c, SHAPE(MS_I32, g.n + 1));
  for (int64_t e = 0; e <= g.n; e++) set_input(c, i, e, g.offsets[e]);
}

static kernel_case product_case(int dtype, groups g, int turned) {
  kernel_case c = case_of(MS_OP_grouped_matmul);
  c.call.attrs.product.trans_b = turned;
  add_input(&c, SHAPE(dtype, g.rows, g.inner));
  add_input(&c, SHAPE(dtype, g.n, turned ? g.columns : g.inner, turned ? g.inner : g.columns));
  add_offsets(&c, g);
  add_output(&c, SHAPE(dtype, g.rows, g.columns));
  return c;
}

static int64_t group_of(groups g, int64_t row) {
  for (int64_t e = 0; e < g.n; e++)
    if (row >= g.offsets[e] && row < g.offsets[e + 1]) return e;
  return -1;
}

/* `size` is that of the absolute products: tensor cores cut what they add instead of rounding it. */
static void groups_of_rows_have_their_own_weight(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(g, some_groups)
  for (int turned = 0; turned < 2; turned++) {
    if (too_large(g.rows * g.inner * g.columns / 10)) continue;
    kernel_case c = product_case(dtype, g, turned);
    run_case(&c);
    for (int64_t i = 0; i < g.rows; i++)
      for (int64_t j = 0; j < g.columns; j++) {
        const int64_t e = group_of(g, i);
        double sum = 0, size = 0;
        for (int64_t k = 0; e >= 0 && k < g.inner; k++) {
          const double product =
              input_at(&c, 0, i * g.inner + k) *
              input_at(&c, 1, e * g.inner * g.columns + (turned ? j * g.inner + k : k * g.columns + j));
          sum += product, size += fabs(product);
        }
        assert_output(&c, 0, i * g.columns + j, sum, 1e-6 * (2 + size));
      }
    free_case(&c);
  }
}

static void gradients_of_weights_sum_over_their_group(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(out_dtype, dtypes)
  FOR_EACH(g, some_groups) {
    if (too_large(g.rows * g.inner * g.columns / 10)) continue;
    kernel_case c = case_of(MS_OP_grouped_matmul_backward_weight);
    c.call.attrs.out_dtype = 1 + out_dtype;
    add_input(&c, SHAPE(dtype, g.rows, g.inner));
    add_input(&c, SHAPE(dtype, g.rows, g.columns));
    add_offsets(&c, g);
    add_output(&c, SHAPE(out_dtype, g.n, g.inner, g.columns));
    run_case(&c);
    for (int64_t e = 0; e < g.n; e++)
      for (int64_t i = 0; i < g.inner; i++)
        for (int64_t j = 0; j < g.columns; j++) {
          double sum = 0, size = 0;
          for (int64_t row = g.offsets[e]; row < g.offsets[e + 1]; row++) {
            const double product = input_at(&c, 0, row * g.inner + i) * input_at(&c, 1, row * g.columns + j);
            sum += product, size += fabs(product);
          }
          assert_output(&c, 0, (e * g.inner + i) * g.columns + j, sum, 1e-6 * (2 + size));
        }
    free_case(&c);
  }
}

static void wrong_offsets_are_reported(void **state) {
  (void)state;
  kernel_case c = product_case(MS_F32, some_groups[1], 0);
  set_input(&c, 2, 2, 4);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("offset 2 is 4 | 37", "4 | [5,38)"));
  set_input(&c, 2, 2, 5);
  set_input(&c, 2, 3, 38);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("offset 3 is 38 | 37", "38 | [5,38)"));
  free_case(&c);
}

#ifdef MS_TEST_CUDA
/* 2^31 - 100 rows of 8 numbers fit on a GPU, and their ends do not fit 32 bits when they are rounded up to tiles. */
static void too_many_rows_or_tiles_are_refused(void **state) {
  (void)state;
  const int64_t wrong[][4] = {
      /* rows, inner, columns, groups */
      {INT32_MAX - 100, 8, 8, 4}, {INT64_C(1) << 32, 8, 8, 4}, {8, INT64_C(1) << 31, 8, 4}, {8, 8, INT64_C(1) << 31, 4},
      {8, 8, 8, 65536},           {1 << 30, 8, 1 << 20, 4}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const int64_t *w = wrong[i];
    ms_kernel_call call = {.op = MS_OP_grouped_matmul, .inputs = 3, .outputs = 1};
    call.in[0] = SHAPE(MS_BF16, w[0], w[1]);
    call.in[1] = SHAPE(MS_BF16, w[3], w[1], w[2]);
    call.in[2] = SHAPE(MS_I32, w[3] + 1);
    call.out[0] = SHAPE(MS_BF16, w[0], w[2]);
    assert_fails(prepare_kernel(kernel_of(call.op), &call), MS_EUNSUPPORTED, "grouped_matmul | rows | groups | 65535");
  }
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(order_is_sorted_and_stable),
      TEST(wrong_experts_are_reported),
      TEST(dispatch_copies_rows_in_order),
      TEST(combine_sums_the_rows_of_a_token),
      TEST(gradients_of_weights_are_products_of_rows),
      TEST(a_nan_stays_with_its_token),
      TEST(wrong_places_are_reported),
      TEST(groups_of_rows_have_their_own_weight),
      TEST(gradients_of_weights_sum_over_their_group),
      TEST(wrong_offsets_are_reported),
#ifdef MS_TEST_CUDA
      TEST(too_many_rows_or_tiles_are_refused),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
