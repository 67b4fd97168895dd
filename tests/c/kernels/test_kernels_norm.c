/* test_kernels_norm.c - compares layer_norm, rms_norm, group_norm and softmax, forward and backward, with formulas in
 * double. */
#include "tests/c/support/kernel_case.h"

typedef struct matrix {
  int64_t rows, columns;
} matrix;

static const matrix matrices[] = {{1, 1}, {3, 3}, {5, 17}, {3, 1000}, {301, 384}, {2, 2051}};
static const double eps = 1e-5;

typedef struct moments {
  double mean, rstd;
} moments;

/* Statistics of row r of an input; mean is 0 for rms_norm. */
static moments moments_of(const kernel_case *c, int input, int64_t r, int64_t n, int centred) {
  moments m = {0.0, 0.0};
  for (int64_t i = 0; i < n && centred; i++) m.mean += input_at(c, input, r * n + i) / (double)n;
  double variance = 0.0;
  for (int64_t i = 0; i < n; i++) variance += pow(input_at(c, input, r * n + i) - m.mean, 2) / (double)n;
  m.rstd = 1.0 / sqrt(variance + eps);
  return m;
}

static int is_centred(int op) {
  return op == MS_OP_layer_norm || op == MS_OP_add_layer_norm || op == MS_OP_layer_norm_backward;
}

static void norms_match(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_layer_norm, MS_OP_rms_norm};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(gain_dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    int centred = is_centred(op);
    int64_t n = m.columns;
    kernel_case c = case_of(op);
    c.call.attrs.norm.eps = eps;
    add_input(&c, SHAPE(dtype, m.rows, n));
    add_input(&c, SHAPE(gain_dtype, n));
    if (centred) add_input(&c, SHAPE(gain_dtype, n));
    add_output(&c, SHAPE(dtype, m.rows, n));
    add_output(&c, centred ? SHAPE(MS_F32, m.rows, 2) : SHAPE(MS_F32, m.rows));
    for (int64_t i = 0; i < m.rows * n; i++) set_input(&c, 0, i, 3.0 + 2.0 * input_at(&c, 0, i));
    run_case(&c);
    for (int64_t r = 0; r < m.rows; r++) {
      moments s = moments_of(&c, 0, r, n, centred);
      if (centred) assert_output(&c, 1, 2 * r, s.mean, 1e-5);
      assert_output(&c, 1, centred ? 2 * r + 1 : r, s.rstd, n == 1 ? 1e-3 : 1e-5);
      for (int64_t i = 0; i < n; i++) {
        double y = (input_at(&c, 0, r * n + i) - s.mean) * s.rstd * input_at(&c, 1, i);
        assert_output(&c, 0, r * n + i, y + (centred ? input_at(&c, 2, i) : 0.0), 2e-5);
      }
    }
    free_case(&c);
  }
}

/* add followed by the norm has the same bits as the fused op. */
static void fused_sum_gives_the_bits_of_both(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_add_layer_norm, MS_OP_add_rms_norm};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    int centred = is_centred(op);
    ms_value_info x = SHAPE(dtype, m.rows, m.columns), gain = SHAPE(dtype, m.columns);
    ms_value_info stats = centred ? SHAPE(MS_F32, m.rows, 2) : SHAPE(MS_F32, m.rows);
    kernel_case fused = case_of(op), sum = case_of(MS_OP_add),
                norm = case_of(centred ? MS_OP_layer_norm : MS_OP_rms_norm);
    fused.call.attrs.norm.eps = norm.call.attrs.norm.eps = eps;
    add_input(&fused, x);
    add_input(&fused, x);
    for (int i = 0; i < 1 + centred; i++) add_input(&fused, gain);
    add_output(&fused, x);
    add_output(&fused, stats);
    add_output(&fused, x);
    contract(1);
    run_case(&fused);
    contract(0);

    for (int i = 0; i < 2; i++) {
      add_input(&sum, x);
      memcpy((void *)sum.call.in_data[i], fused.call.in_data[i], (size_t)tensor_bytes(&x));
    }
    add_output(&sum, x);
    run_case(&sum);
    add_input(&norm, x);
    memcpy((void *)norm.call.in_data[0], sum.call.out_data[0], (size_t)tensor_bytes(&x));
    for (int i = 0; i < 1 + centred; i++) {
      add_input(&norm, gain);
      memcpy((void *)norm.call.in_data[1 + i], fused.call.in_data[2 + i], (size_t)tensor_bytes(&gain));
    }
    add_output(&norm, x);
    add_output(&norm, stats);
    run_case(&norm);

    assert_memory_equal(fused.call.out_data[2], sum.call.out_data[0], (size_t)tensor_bytes(&x));
    assert_memory_equal(fused.call.out_data[0], norm.call.out_data[0], (size_t)tensor_bytes(&x));
    assert_memory_equal(fused.call.out_data[1], norm.call.out_data[1], (size_t)tensor_bytes(&stats));
    free_case(&fused);
    free_case(&sum);
    free_case(&norm);
  }
}

static void norm_keeps_nan_in_its_row(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_layer_norm);
  c.call.attrs.norm.eps = eps;
  add_input(&c, SHAPE(MS_F32, 3, 40));
  add_input(&c, SHAPE(MS_F32, 40));
  add_input(&c, SHAPE(MS_F32, 40));
  add_output(&c, SHAPE(MS_F32, 3, 40));
  add_output(&c, SHAPE(MS_F32, 3, 2));
  set_input(&c, 0, 47, NAN);
  run_case(&c);
  for (int i = 0; i < 120; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i >= 40 && i < 80);
  free_case(&c);
}

/* x, gain, stats (from x), dy and, with `more`, a gradient to add; the op's outputs. */
static kernel_case backward_case(int op, int dtype, int gradient_dtype, matrix m, int more) {
  int centred = is_centred(op);
  kernel_case c = case_of(op);
  add_input(&c, SHAPE(dtype, m.rows, m.columns));
  add_input(&c, SHAPE(dtype, m.columns));
  add_input(&c, centred ? SHAPE(MS_F32, m.rows, 2) : SHAPE(MS_F32, m.rows));
  add_input(&c, SHAPE(dtype, m.rows, m.columns));
  if (more) add_input(&c, SHAPE(dtype, m.rows, m.columns));
  add_output(&c, SHAPE(dtype, m.rows, m.columns));
  for (int i = 0; i < 1 + centred; i++) add_output(&c, SHAPE(gradient_dtype, m.columns));
  for (int64_t r = 0; r < m.rows; r++) {
    moments s = moments_of(&c, 0, r, m.columns, centred);
    if (centred) set_input(&c, 2, 2 * r, s.mean);
    set_input(&c, 2, centred ? 2 * r + 1 : r, s.rstd);
  }
  return c;
}

static void norm_gradients_match(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_layer_norm_backward, MS_OP_rms_norm_backward};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(gradient_dtype, dtypes)
  FOR_EACH(m, matrices)
  for (int more = 0; more < 2; more++) {
    int centred = is_centred(op);
    int64_t n = m.columns;
    if (too_large(m.rows * n)) continue;
    if (n == 1) continue; /* the gradient is a difference of equal numbers */
    kernel_case c = backward_case(op, dtype, gradient_dtype, m, more);
    run_case(&c);
    double *dgain = calloc((size_t)n, sizeof *dgain), *dbias = calloc((size_t)n, sizeof *dbias);
    for (int64_t r = 0; r < m.rows; r++) {
      moments s = moments_of(&c, 0, r, n, centred);
      double g_sum = 0.0, gh_sum = 0.0;
      for (int64_t i = 0; i < n; i++) {
        double h = (input_at(&c, 0, r * n + i) - s.mean) * s.rstd, dy = input_at(&c, 3, r * n + i);
        g_sum += dy * input_at(&c, 1, i);
        gh_sum += dy * input_at(&c, 1, i) * h;
        dgain[i] += dy * h;
        dbias[i] += dy;
      }
      for (int64_t i = 0; i < n; i++) {
        double h = (input_at(&c, 0, r * n + i) - s.mean) * s.rstd, g = input_at(&c, 3, r * n + i) * input_at(&c, 1, i);
        double dx = s.rstd * (g - (centred ? g_sum / (double)n : 0.0) - h * gh_sum / (double)n);
        assert_output(&c, 0, r * n + i, dx + (more ? input_at(&c, 4, r * n + i) : 0.0), 2e-5 * (1.0 + s.rstd));
      }
    }
    for (int64_t i = 0; i < n; i++) {
      assert_output(&c, 1, i, dgain[i], 1e-4);
      if (centred) assert_output(&c, 2, i, dbias[i], 1e-4);
    }
    free(dgain);
    free(dbias);
    free_case(&c);
  }
}

static void softmax_matches(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_softmax, MS_OP_log_softmax};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(dtype, m.rows, m.columns));
    add_output(&c, SHAPE(dtype, m.rows, m.columns));
    for (int64_t i = 0; i < m.rows * m.columns; i++) set_input(&c, 0, i, 100.0 + 5.0 * input_at(&c, 0, i));
    if (m.columns > 2) set_input(&c, 0, 1, -INFINITY);
    run_case(&c);
    /* n terms added in sequence, as in builds without vectors, have an error of about sqrt(n) roundings of 2^-24. */
    const double tolerance = 2e-6 + sqrt((double)m.columns) * 0x1p-24;
    for (int64_t r = 0; r < m.rows; r++) {
      double largest = -INFINITY, sum = 0.0;
      for (int64_t i = 0; i < m.columns; i++) largest = fmax(largest, input_at(&c, 0, r * m.columns + i));
      for (int64_t i = 0; i < m.columns; i++) sum += exp(input_at(&c, 0, r * m.columns + i) - largest);
      for (int64_t i = 0; i < m.columns; i++) {
        double x = input_at(&c, 0, r * m.columns + i) - largest;
        assert_output(&c, 0, r * m.columns + i, op == MS_OP_softmax ? exp(x) / sum : x - log(sum), tolerance);
      }
    }
    free_case(&c);
  }
}

static void softmax_keeps_nan_in_its_row(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_softmax, MS_OP_log_softmax};
  FOR_EACH(op, ops) {
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(MS_F32, 3, 40));
    add_output(&c, SHAPE(MS_F32, 3, 40));
    set_input(&c, 0, 50, NAN);
    run_case(&c);
    for (int i = 0; i < 120; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i >= 40 && i < 80);
    free_case(&c);
  }
}

static void softmax_gradients_match(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_softmax_backward, MS_OP_log_softmax_backward};
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(m, matrices) {
    if (too_large(m.rows * m.columns)) continue;
    int log = op == MS_OP_log_softmax_backward;
    int64_t n = m.columns;
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(dtype, m.rows, n));
    add_input(&c, SHAPE(dtype, m.rows, n));
    add_output(&c, SHAPE(dtype, m.rows, n));
    for (int64_t i = 0; i < m.rows * n; i++)
      set_input(&c, 0, i, log ? -fabs(5.0 * input_at(&c, 0, i)) : fabs(input_at(&c, 0, i)) / (double)n);
    run_case(&c);
    for (int64_t r = 0; r < m.rows; r++) {
      double sum = 0.0;
      for (int64_t i = r * n; i < (r + 1) * n; i++) sum += (log ? 1.0 : input_at(&c, 0, i)) * input_at(&c, 1, i);
      for (int64_t i = r * n; i < (r + 1) * n; i++) {
        double y = input_at(&c, 0, i), dy = input_at(&c, 1, i);
        assert_output(&c, 0, i, log ? dy - exp(y) * sum : y * (dy - sum), 2e-5);
      }
    }
    free_case(&c);
  }
}

/* ---- groups of channels ------------------------------------------------------------------------------------------ */

typedef struct grouped {
  int64_t images, groups, channels, pixels; /* channels: of a group */
} grouped;

static const grouped images[] = {{1, 1, 1, 1}, {2, 3, 1, 7}, {3, 2, 4, 35}, {5, 1, 6, 9}, {2, 8, 2, 400}, {0, 2, 2, 3}};

static kernel_case grouped_case(int op, const grouped *g, int dtype, int gain_dtype) {
  kernel_case c = case_of(op);
  c.call.attrs.norm.groups = g->groups;
  c.call.attrs.norm.eps = eps;
  add_input(&c, SHAPE(dtype, g->images, g->groups * g->channels, g->pixels));
  add_input(&c, SHAPE(gain_dtype, g->groups * g->channels));
  return c;
}

static void group_norms_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(gain_dtype, dtypes)
  FOR_EACH(g, images) {
    const int64_t n = g.channels * g.pixels;
    kernel_case c = grouped_case(MS_OP_group_norm, &g, dtype, gain_dtype);
    add_input(&c, SHAPE(gain_dtype, g.groups * g.channels));
    add_output(&c, c.call.in[0]);
    add_output(&c, SHAPE(MS_F32, g.images, g.groups, 2));
    for (int64_t i = 0; i < ms_numel(&c.call.in[0]); i++) set_input(&c, 0, i, 3.0 + 2.0 * input_at(&c, 0, i));
    run_case(&c);
    for (int64_t r = 0; r < g.images * g.groups; r++) {
      const moments m = moments_of(&c, 0, r, n, 1);
      assert_output(&c, 1, 2 * r, m.mean, 1e-5);
      for (int64_t i = 0; i < n; i++) {
        const int64_t channel = r % g.groups * g.channels + i / g.pixels;
        const double h = (input_at(&c, 0, r * n + i) - m.mean) * m.rstd;
        assert_output(&c, 0, r * n + i, h * input_at(&c, 1, channel) + input_at(&c, 2, channel), 2e-4);
      }
    }
    free_case(&c);
  }
}

static void group_norm_gradients_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(gain_dtype, dtypes)
  FOR_EACH(g, images) {
    const int64_t n = g.channels * g.pixels, all = g.groups * g.channels;
    kernel_case c = grouped_case(MS_OP_group_norm_backward, &g, dtype, gain_dtype);
    add_input(&c, SHAPE(MS_F32, g.images, g.groups, 2));
    add_input(&c, c.call.in[0]);
    add_output(&c, c.call.in[0]);
    add_output(&c, SHAPE(MS_F32, all));
    add_output(&c, SHAPE(MS_F32, all));
    double *dgain = calloc((size_t)all, sizeof *dgain), *dbias = calloc((size_t)all, sizeof *dbias);
    for (int64_t r = 0; r < g.images * g.groups; r++) {
      const moments m = moments_of(&c, 0, r, n, 1);
      set_input(&c, 2, 2 * r, m.mean);
      set_input(&c, 2, 2 * r + 1, m.rstd);
    }
    run_case(&c);
    for (int64_t r = 0; r < g.images * g.groups; r++) {
      const double mean = input_at(&c, 2, 2 * r), rstd = input_at(&c, 2, 2 * r + 1);
      double average = 0, average_h = 0;
      for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++) {
          const int64_t channel = r % g.groups * g.channels + i / g.pixels;
          const double h = (input_at(&c, 0, r * n + i) - mean) * rstd, dy = input_at(&c, 3, r * n + i);
          const double of_h = dy * input_at(&c, 1, channel);
          if (pass) assert_output(&c, 0, r * n + i, rstd * (of_h - average - h * average_h), 2e-4 * (1 + rstd));
          else average += of_h / (double)n, average_h += of_h * h / (double)n;
          if (!pass) dgain[channel] += dy * h, dbias[channel] += dy;
        }
    }
    for (int64_t k = 0; k < all; k++) {
      assert_output(&c, 1, k, dgain[k], 1e-4);
      assert_output(&c, 2, k, dbias[k], 1e-4);
    }
    free(dgain);
    free(dbias);
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(group_norms_match),
      TEST(group_norm_gradients_match),
      TEST(norms_match),
      TEST(fused_sum_gives_the_bits_of_both),
      TEST(norm_keeps_nan_in_its_row),
      TEST(norm_gradients_match),
      TEST(softmax_matches),
      TEST(softmax_keeps_nan_in_its_row),
      TEST(softmax_gradients_match),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
