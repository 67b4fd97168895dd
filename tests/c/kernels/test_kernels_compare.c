/* test_kernels_compare.c - compares comparisons and `where` of floats, i32 and u8 masks, maximum and minimum with their
 * shared gradient, and casts to and from integers, with plain loops. */
#include <limits.h>

#include "tests/c/support/kernel_case.h"

static const int64_t sizes[] = {1, 3, 17, 1000, 70001};
static const int compare_ops[] = {MS_OP_less, MS_OP_less_equal, MS_OP_equal, MS_OP_not_equal};
static const int integers[] = {MS_I32, MS_U8};

static int holds(int op, double a, double b) {
  switch (op) {
    case MS_OP_less: return a < b;
    case MS_OP_less_equal: return a <= b;
    case MS_OP_equal: return a == b;
    default: return a != b;
  }
}

/* Adjacent integers that f32 cannot distinguish, and equal numbers. */
static void draw_integers(kernel_case *c, int i) {
  for (int64_t e = 0; e < ms_numel(&c->call.in[i]); e++) {
    int64_t value = (7 * e + 3 * i) % 5;
    set_input(c, i, e, (double)(c->call.in[i].dtype == MS_I32 ? 16777216 * (value % 3 - 1) + value : value));
  }
}

static void integers_are_compared_exactly(void **state) {
  (void)state;
  FOR_EACH(op, compare_ops)
  FOR_EACH(dtype, integers)
  for (int scalars = 0; scalars < 4; scalars++) FOR_EACH(n, sizes) {
      kernel_case c = case_of(op);
      add_input(&c, scalars & 1 ? SCALAR(dtype) : SHAPE(dtype, n));
      add_input(&c, scalars & 2 ? SCALAR(dtype) : SHAPE(dtype, n));
      add_output(&c, scalars == 3 ? SCALAR(MS_U8) : SHAPE(MS_U8, n));
      draw_integers(&c, 0);
      draw_integers(&c, 1);
      run_case(&c);
      for (int64_t i = 0, count = ms_numel(&c.call.out[0]); i < count; i++)
        assert_true(output_at(&c, 0, i) ==
                    holds(op, input_at(&c, 0, scalars & 1 ? 0 : i), input_at(&c, 1, scalars & 2 ? 0 : i)));
      free_case(&c);
    }
}

static void integers_broadcast(void **state) {
  (void)state;
  FOR_EACH(dtype, integers) {
    kernel_case c = case_of(MS_OP_less_equal);
    add_input(&c, SHAPE(dtype, 5, 1, 7));
    add_input(&c, SHAPE(dtype, 3, 1));
    add_output(&c, SHAPE(MS_U8, 5, 3, 7));
    draw_integers(&c, 0);
    draw_integers(&c, 1);
    run_case(&c);
    for (int64_t i = 0; i < 105; i++)
      assert_true(output_at(&c, 0, i) == (input_at(&c, 0, i / 21 * 7 + i % 7) <= input_at(&c, 1, i / 7 % 3) ? 1 : 0));
    free_case(&c);
  }
}

/* A NaN is neither less than nor equal to any number. */
static void comparisons_with_nan(void **state) {
  (void)state;
  FOR_EACH(op, compare_ops)
  FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(dtype, 40));
    add_input(&c, SHAPE(dtype, 40));
    add_output(&c, SHAPE(MS_U8, 40));
    for (int i = 0; i < 40; i += 3) set_input(&c, i % 2, i, NAN);
    set_input(&c, 0, 1, INFINITY);
    set_input(&c, 1, 1, INFINITY);
    run_case(&c);
    for (int i = 0; i < 40; i += 3) assert_true(output_at(&c, 0, i) == (op == MS_OP_not_equal));
    assert_true(output_at(&c, 0, 1) == (op == MS_OP_less_equal || op == MS_OP_equal));
    free_case(&c);
  }
}

static void where_chooses_integers(void **state) {
  (void)state;
  FOR_EACH(dtype, integers)
  for (int scalars = 0; scalars < 8; scalars++) FOR_EACH(n, sizes) {
      kernel_case c = case_of(MS_OP_where);
      add_input(&c, scalars & 1 ? SCALAR(MS_U8) : SHAPE(MS_U8, n));
      add_input(&c, scalars & 2 ? SCALAR(dtype) : SHAPE(dtype, n));
      add_input(&c, scalars & 4 ? SCALAR(dtype) : SHAPE(dtype, n));
      add_output(&c, scalars == 7 ? SCALAR(dtype) : SHAPE(dtype, n));
      draw_integers(&c, 1);
      draw_integers(&c, 2);
      run_case(&c);
      for (int64_t i = 0, count = ms_numel(&c.call.out[0]); i < count; i++) {
        int first = input_at(&c, 0, scalars & 1 ? 0 : i) != 0;
        assert_true(output_at(&c, 0, i) ==
                    (first ? input_at(&c, 1, scalars & 2 ? 0 : i) : input_at(&c, 2, scalars & 4 ? 0 : i)));
      }
      free_case(&c);
    }
}

static const int extreme_ops[] = {MS_OP_maximum, MS_OP_minimum};

static void maximum_keeps_nan(void **state) {
  (void)state;
  FOR_EACH(op, extreme_ops)
  FOR_EACH(a, dtypes)
  FOR_EACH(b, dtypes) {
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(a, 90));
    add_input(&c, SHAPE(b, 90));
    add_output(&c, SHAPE(a == MS_BF16 && b == MS_BF16 ? MS_BF16 : MS_F32, 90));
    for (int i = 0; i < 90; i += 3) set_input(&c, i % 2, i, NAN);
    set_input(&c, 0, 1, -INFINITY);
    set_input(&c, 1, 2, INFINITY);
    run_case(&c);
    for (int i = 0; i < 90; i++) {
      double x = input_at(&c, 0, i), y = input_at(&c, 1, i);
      double expected = i % 3 == 0 ? NAN : op == MS_OP_maximum ? fmax(x, y) : fmin(x, y);
      assert_true(same_number(output_at(&c, 0, i), expected, 0.0));
    }
    free_case(&c);
  }
}

/* For a [rows][1], b [columns] and dy [rows][columns]. */
static void maximum_backward_shares_ties(void **state) {
  (void)state;
  enum { ROWS = 13 };
  static const int64_t widths[] = {1, 17, 600};
  FOR_EACH(a, dtypes)
  FOR_EACH(b, dtypes)
  FOR_EACH(columns, widths) {
    const int result = a == MS_BF16 && b == MS_BF16 ? MS_BF16 : MS_F32;
    kernel_case c = case_of(MS_OP_maximum_backward);
    add_input(&c, SHAPE(a, ROWS, 1));
    add_input(&c, SHAPE(b, columns));
    add_input(&c, SHAPE(result, ROWS, columns));
    add_output(&c, SHAPE(result, ROWS, columns));
    for (int64_t r = 0; r < ROWS; r++) set_input(&c, 0, r, (double)(r % 3));
    for (int64_t i = 0; i < columns; i++) set_input(&c, 1, i, i % 7 == 6 ? NAN : (double)(i % 3));
    run_case(&c);
    for (int64_t i = 0; i < ROWS * columns; i++) {
      double x = input_at(&c, 0, i / columns), y = input_at(&c, 1, i % columns), dy = input_at(&c, 2, i);
      assert_true(output_at(&c, 0, i) == (x < y ? 0.0 : x == y ? dy / 2 : dy));
    }
    free_case(&c);
  }
}

static void casts_from_integers(void **state) {
  (void)state;
  static const int to[] = {MS_F32, MS_BF16, MS_I32};
  FOR_EACH(from, integers)
  FOR_EACH(dtype, to)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_cast);
    add_input(&c, SHAPE(from, n));
    add_output(&c, SHAPE(dtype, n));
    for (int64_t i = 0; i < n; i++)
      set_input(&c, 0, i, from == MS_U8 ? (double)(i % 256) : (double)((i * 2654435761u) % 4294967296u) - 2147483648.0);
    run_case(&c);
    for (int64_t i = 0; i < n; i++) {
      double x = input_at(&c, 0, i), rounded = (double)(float)x;
      double expected = dtype == MS_I32 ? x : dtype == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16((float)x)) : rounded;
      assert_true(output_at(&c, 0, i) == expected);
    }
    free_case(&c);
  }
}

static void casts_to_integers_cut_off(void **state) {
  (void)state;
  static const double special[] = {NAN,    INFINITY, -INFINITY, 3e9,    -3e9, 2147483520.0, -2147483648.0,
                                   -0.999, 0.999,    -1.5,      -2.999, 2.5,  -0.0,         16777216.0};
  enum { COUNT = sizeof special / sizeof *special };
  FOR_EACH(from, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_cast);
    add_input(&c, SHAPE(from, n));
    add_output(&c, SHAPE(MS_I32, n));
    for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, i < COUNT ? special[i] : 1000.0 * input_at(&c, 0, i));
    run_case(&c);
    for (int64_t i = 0; i < n; i++) {
      double x = input_at(&c, 0, i), cut = trunc(x);
      double expected = isnan(x) ? 0 : cut > INT_MAX ? INT_MAX : cut < INT_MIN ? INT_MIN : cut;
      assert_true(output_at(&c, 0, i) == expected);
    }
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(integers_are_compared_exactly), TEST(integers_broadcast),        TEST(comparisons_with_nan),
      TEST(where_chooses_integers),        TEST(maximum_keeps_nan),         TEST(maximum_backward_shares_ties),
      TEST(casts_from_integers),           TEST(casts_to_integers_cut_off),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
