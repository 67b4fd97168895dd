/* test_kernels_reduce.c - tests sums, means, maxima and minima, the sums of broadcasting's gradient, and fused ops with
 * such sums. */
#include "tests/c/support/kernel_case.h"

typedef struct axis_case {
  int ndim;
  int64_t dims[4];
  int axis; /* ALL: over all axes */
} axis_case;

enum { ALL = 99 };

static const axis_case axis_cases[] = {
    {1, {1}, 0},          {1, {17}, -1},        {1, {70001}, 0},       {2, {3, 1000}, 1},    {2, {3, 1000}, 0},
    {2, {999, 384}, 0},   {2, {1000, 3}, 0},    {2, {20003, 5}, 0},    {2, {301, 4}, 1},     {3, {4, 33, 7}, 1},
    {3, {4, 33, 70}, -2}, {3, {40, 33, 70}, 2}, {3, {40, 33, 70}, 0},  {3, {5, 1, 6}, 1},    {0, {0}, ALL},
    {1, {1}, ALL},        {3, {4, 33, 7}, ALL}, {2, {1, 200003}, ALL}, {4, {2, 3, 4, 5}, 2}, {2, {2, 64}, 0},
};

/* out [outer][inner] from in [outer][n][inner]. */
typedef struct view {
  int64_t outer, n, inner;
} view;

static view view_of(axis_case a) {
  view v = {1, 1, 1};
  int axis = a.axis < 0 ? a.axis + a.ndim : a.axis;
  for (int d = 0; d < a.ndim; d++) {
    if (a.axis == ALL || d == axis) v.n *= a.dims[d];
    else if (d < axis) v.outer *= a.dims[d];
    else v.inner *= a.dims[d];
  }
  return v;
}

static void set_axis(kernel_case *c, axis_case a) {
  c->call.attrs.reduce.axis = a.axis == ALL ? -1 : a.axis;
  c->call.attrs.reduce.all = a.axis == ALL;
}

static void reductions_match(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_sum, MS_OP_mean, MS_OP_max, MS_OP_min};
  FOR_EACH(op, ops)
  FOR_EACH(from, dtypes)
  FOR_EACH(to, dtypes)
  FOR_EACH(a, axis_cases) {
    view v = view_of(a);
    if (too_large(v.outer * v.n * v.inner)) continue;
    kernel_case c = case_of(op);
    set_axis(&c, a);
    add_input(&c, shape(from, a.ndim, a.dims));
    add_output(&c, SHAPE(to, v.outer * v.inner));
    run_case(&c);
    for (int64_t o = 0; o < v.outer; o++)
      for (int64_t i = 0; i < v.inner; i++) {
        double sum = 0.0, largest = -INFINITY, smallest = INFINITY;
        for (int64_t k = 0; k < v.n; k++) {
          double x = input_at(&c, 0, (o * v.n + k) * v.inner + i);
          sum += x;
          largest = fmax(largest, x);
          smallest = fmin(smallest, x);
        }
        int sums = op == MS_OP_sum || op == MS_OP_mean;
        double expected = !sums ? (op == MS_OP_max ? largest : smallest) : op == MS_OP_mean ? sum / (double)v.n : sum;
        assert_output(&c, 0, o * v.inner + i, expected, sums ? 1e-4 : 0.0);
      }
    free_case(&c);
  }
}

static void reductions_keep_nonfinite(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_sum, MS_OP_mean, MS_OP_max, MS_OP_min};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  for (int axis = 0; axis < 2; axis++) {
    kernel_case c = case_of(op);
    c.call.attrs.reduce.axis = axis;
    add_input(&c, SHAPE(dtype, 70, 70));
    add_output(&c, SHAPE(dtype, 70));
    set_input(&c, 0, 11 * 70 + 11, NAN);
    set_input(&c, 0, 12 * 70 + 12, INFINITY);
    set_input(&c, 0, 13 * 70 + 13, -INFINITY);
    run_case(&c);
    for (int i = 0; i < 70; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i == 11);
    assert_true(op == MS_OP_min ? isfinite(output_at(&c, 0, 12)) : output_at(&c, 0, 12) == INFINITY);
    assert_true(op == MS_OP_max ? isfinite(output_at(&c, 0, 13)) : output_at(&c, 0, 13) == -INFINITY);
    free_case(&c);
  }
}

static void max_backward_is_shared_by_ties(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(a, axis_cases) {
    view v = view_of(a);
    if (too_large(v.outer * v.n * v.inner)) continue;
    kernel_case c = case_of(MS_OP_max_backward);
    set_axis(&c, a);
    add_input(&c, shape(dtype, a.ndim, a.dims));
    add_input(&c, SHAPE(dtype, v.outer * v.inner));
    add_input(&c, SHAPE(dtype, v.outer * v.inner));
    add_output(&c, shape(dtype, a.ndim, a.dims));
    for (int64_t i = 0; i < v.outer * v.n * v.inner; i++)
      set_input(&c, 0, i, floor(2.0 * input_at(&c, 0, i))); /* ties */
    for (int64_t o = 0; o < v.outer * v.inner; o++) {
      double largest = -INFINITY;
      for (int64_t k = 0; k < v.n; k++)
        largest = fmax(largest, input_at(&c, 0, (o / v.inner * v.n + k) * v.inner + o % v.inner));
      set_input(&c, 1, o, largest);
    }
    run_case(&c);
    for (int64_t o = 0; o < v.outer * v.inner; o++) {
      int ties = 0;
      for (int64_t k = 0; k < v.n; k++)
        ties += input_at(&c, 0, (o / v.inner * v.n + k) * v.inner + o % v.inner) == input_at(&c, 1, o);
      assert_true(ties > 0);
      for (int64_t k = 0; k < v.n; k++) {
        int64_t i = (o / v.inner * v.n + k) * v.inner + o % v.inner;
        int here = input_at(&c, 0, i) == input_at(&c, 1, o);
        assert_output(&c, 0, i, here ? input_at(&c, 2, o) / ties : 0.0, 1e-6);
      }
    }
    free_case(&c);
  }
}

typedef struct shapes {
  int from_ndim;
  int64_t from[4];
  int to_ndim;
  int64_t to[4];
} shapes;

static void sum_to_undoes_broadcasting(void **state) {
  (void)state;
  static const shapes list[] = {{2, {2048, 384}, 1, {384}},
                                {3, {8, 256, 96}, 1, {96}},
                                {2, {1000, 3}, 1, {3}},
                                {2, {6, 501}, 2, {6, 1}},
                                {3, {4, 33, 7}, 0, {0}},
                                {3, {4, 33, 7}, 3, {4, 1, 7}},
                                {3, {4, 33, 7}, 3, {1, 33, 1}},
                                {4, {3, 4, 5, 6}, 4, {3, 1, 5, 1}},
                                {4, {3, 4, 5, 6}, 4, {1, 4, 1, 6}},
                                {2, {5, 700}, 2, {5, 700}},
                                {3, {3, 2, 4}, 3, {3, 1, 1}},
                                {0, {0}, 0, {0}},
                                {4, {2, 3, 4, 700}, 3, {3, 1, 700}}};
  FOR_EACH(from, dtypes)
  FOR_EACH(to, dtypes)
  FOR_EACH(s, list) {
    kernel_case c = case_of(MS_OP_sum_to);
    add_input(&c, shape(from, s.from_ndim, s.from));
    add_output(&c, shape(to, s.to_ndim, s.to));
    run_case(&c);
    int64_t n = ms_numel(&c.call.in[0]), m = ms_numel(&c.call.out[0]);
    double *sums = calloc((size_t)m, sizeof *sums);
    for (int64_t i = 0; i < n; i++) {
      int64_t rest = i, index = 0, stride = 1;
      for (int d = s.from_ndim - 1, e = s.to_ndim - 1; e >= 0; d--, e--) {
        if (s.to[e] != 1) index += rest % s.from[d] * stride;
        rest /= s.from[d];
        stride *= s.to[e];
      }
      sums[index] += input_at(&c, 0, i);
    }
    for (int64_t i = 0; i < m; i++) assert_output(&c, 0, i, sums[i], 1e-4);
    free(sums);
    free_case(&c);
  }
}

static double activation_gradient(int activation, double a) {
  double s = 1.0 / (1.0 + exp(-a)), t = tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a));
  switch (activation) {
    case MS_ACT_NONE: return 1.0;
    case MS_ACT_RELU: return a > 0;
    case MS_ACT_GELU: return 0.5 * erfc(-a * M_SQRT1_2) + a * exp(-0.5 * a * a) / sqrt(2.0 * M_PI);
    case MS_ACT_GELU_TANH:
      return 0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * a * a);
    default: return s * (1.0 + a * (1.0 - s));
  }
}

static void activation_backward_bias_matches(void **state) {
  (void)state;
  static const int64_t dims[][2] = {{1, 1}, {3, 17}, {301, 384}, {33, 1100}, {1000, 3}};
  for (int activation = MS_ACT_NONE; activation <= MS_ACT_SILU; activation++) FOR_EACH(dtype, dtypes)
  FOR_EACH(bias_dtype, dtypes)
  for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
    int64_t rows = dims[d][0], columns = dims[d][1];
    kernel_case c = case_of(MS_OP_activation_backward_bias);
    c.call.attrs.product.activation = activation;
    add_input(&c, SHAPE(dtype, rows, columns));
    add_input(&c, SHAPE(dtype, rows, columns));
    add_output(&c, SHAPE(dtype, rows, columns));
    add_output(&c, SHAPE(bias_dtype, columns));
    run_case(&c);
    for (int64_t i = 0; i < columns; i++) {
      double sum = 0.0;
      for (int64_t r = 0; r < rows; r++) {
        int64_t e = r * columns + i;
        double dx = input_at(&c, 1, e) * activation_gradient(activation, input_at(&c, 0, e));
        assert_output(&c, 0, e, dx, 3e-6);
        sum += dx;
      }
      assert_output(&c, 1, i, sum, 1e-4);
    }
    free_case(&c);
  }
}

/* The bits of the sum of squares do not depend on the number of threads. */
static void sum_squares_is_exact_in_double(void **state) {
  (void)state;
  static const int64_t sizes[] = {0, 1, 17, 1000, 16384, 300001};
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_sum_squares);
    add_input(&c, SHAPE(MS_F32, n));
    add_output(&c, SCALAR(MS_F32));
    run_once(&c, c.call, 1);
    double sum = 0.0, one = output_at(&c, 0, 0);
    for (int64_t i = 0; i < n; i++) sum += input_at(&c, 0, i) * input_at(&c, 0, i);
    assert_true(fabs(one - sum) <= 1.2e-7 * sum);
    run_once(&c, c.call, TEAM);
    assert_true(output_at(&c, 0, 0) == one);
    if (n > 1) {
      set_input(&c, 0, n - 1, NAN);
      run_once(&c, c.call, 1);
      assert_true(isnan(output_at(&c, 0, 0)));
    }
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(reductions_match),           TEST(reductions_keep_nonfinite),        TEST(max_backward_is_shared_by_ties),
      TEST(sum_to_undoes_broadcasting), TEST(activation_backward_bias_matches), TEST(sum_squares_is_exact_in_double),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
