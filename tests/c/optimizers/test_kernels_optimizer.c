/* test_kernels_optimizer.c - compares the small kernels of a step and several steps of the optimizers with PyTorch's
 * formulas, written out in double. */
#include "tests/c/support/optimizer_case.h"

static void adamw_matches_when(int coupled) {
  const double lr = 0.02, lr_scale = 0.5, decay = 0.1, beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
  FOR_EACH(n, sizes)
  for (int threads = 1; threads <= TEAM; threads += 2) {
    kernel_case c = optimizer_case(MS_OP_adamw, n, 2, n);
    c.call.attrs = (ms_op_attrs){
        .update = {.coupled = coupled, .lr_scale = lr_scale, .weight_decay = decay, .beta1 = beta1, .beta2 = beta2}};
    c.call.attrs.update.eps = eps;
    double *p = calloc((size_t)(3 * n + 1), sizeof *p), *m = p + n, *v = m + n;
    for (int64_t i = 0; i < n; i++) p[i] = output_at(&c, 0, i);
    for (int step = 1; step <= STEPS; step++) {
      new_gradient(&c, step);
      c.scalars.lr = lr / step;
      set_input(&c, 2, 0, step);
      run_once(&c, c.call, threads);
      double rate = lr / step * lr_scale;
      for (int64_t i = 0; i < n; i++) {
        double g = 0.5 * input_at(&c, 0, i);
        if (coupled) g += decay * p[i];
        else p[i] *= 1.0 - rate * decay;
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        p[i] -= rate / (1.0 - pow(beta1, step)) * m[i] / (sqrt(v[i]) / sqrt(1.0 - pow(beta2, step)) + eps);
        assert_output(&c, 0, i, p[i], 1e-6);
        assert_output(&c, 1, i, m[i], 1e-6);
        assert_output(&c, 2, i, v[i], 1e-6);
      }
    }
    free(p);
    free_case(&c);
  }
}

static void adamw_matches(void **state) {
  (void)state;
  adamw_matches_when(0);
}

static void adam_matches(void **state) {
  (void)state;
  adamw_matches_when(1);
}

/* ---- moments in bf16 ---- */

/* Elements from `first` on of a parameter: gradient [n], weights, and moments that all equal m and v. */
static kernel_case rounded_case(int64_t n, int64_t first, double beta1, double beta2, double m, double v) {
  kernel_case c = optimizer_case(MS_OP_adamw, n, 0, 0);
  const double eps = 1e-8;
  c.call.attrs = (ms_op_attrs){
      .update = {.stream = 77, .first = first, .moments = 1, .lr_scale = 1, .beta1 = beta1, .beta2 = beta2}};
  c.call.attrs.update.eps = eps;
  for (int i = 1; i <= 2; i++) {
    add_output(&c, SHAPE(MS_BF16, n));
    for (int64_t e = 0; e < n; e++) set_element(c.call.out_data[i], MS_BF16, e, i == 1 ? m : v);
  }
  set_input(&c, 1, 2, 1.0);
  return c;
}

/* x rounded with the element's random bits, as the op's documentation defines it. */
static double rounded(float x, const kernel_case *c, int64_t element, int shift) {
  uint32_t words[4], bits;
  ms_philox4x32((uint64_t)c->call.attrs.update.stream, (uint64_t)input_at(c, 2, 0), (uint64_t)element / 4, words);
  memcpy(&bits, &x, sizeof bits);
  return ms_bf16_to_f32((ms_bf16)((bits + (words[element % 4] >> shift & 0xffff)) >> 16));
}

/* Gradients and decays of few bits, so that f32 is exact and every bit is known, wherever the chunk begins. */
static void moments_are_rounded_by_their_own_bits(void **state) {
  (void)state;
  static const int64_t firsts[] = {0, 1, 6, 1000003};
  static const int64_t counts[] = {1, 5, 300, 2051};
  FOR_EACH(first, firsts)
  FOR_EACH(n, counts)
  for (int threads = 1; threads <= TEAM; threads += 2) {
    kernel_case c = rounded_case(n, first, 0.5, 0.5, 1.0, 1.0);
    set_input(&c, 2, 0, 3);
    for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, (double)(i % 97 + 1) / 512);
    run_once(&c, c.call, threads);
    for (int64_t i = 0; i < n; i++) {
      const float g = (float)input_at(&c, 0, i), m = 0.5f + 0.5f * g, v = 0.5f + 0.5f * (g * g);
      assert_true(output_at(&c, 1, i) == rounded(m, &c, first + i, 0));
      assert_true(output_at(&c, 2, i) == rounded(v, &c, first + i, 16));
    }
    free_case(&c);
  }
}

static void means(const kernel_case *c, double mean[2]) {
  const int64_t n = ms_numel(&c->call.in[0]);
  mean[0] = mean[1] = 0;
  for (int64_t i = 0; i < n; i++)
    for (int k = 0; k < 2; k++) mean[k] += output_at(c, 1 + k, i) / (double)n;
}

/* 1 + 1/1024 is 1/8 of the gap (1/128) above 1: an eighth of the elements is rounded up, and the mean is preserved. */
static void rounding_has_no_bias(void **state) {
  (void)state;
  enum { N = 20000 };
  kernel_case c = rounded_case(N, 0, 0.5, 0.5, 1.0, 1.0);
  for (int64_t i = 0; i < N; i++) set_input(&c, 0, i, 1.0 + 1.0 / 512);
  run_once(&c, c.call, 1);
  double mean[2], ups = 0;
  for (int64_t i = 0; i < N; i++) {
    const double m = output_at(&c, 1, i);
    assert_true(m == 1.0 || m == 1.0 + 1.0 / 128);
    ups += m > 1.0;
  }
  const double g = 1.0 + 1.0 / 512, deviation = 1.0 / 128 * sqrt(0.25 / N);
  means(&c, mean);
  assert_true(fabs(ups / N - 1.0 / 8) < 5 * sqrt(0.11 / N));
  assert_true(fabs(mean[0] - (0.5 + 0.5 * g)) < 5 * deviation);
  assert_true(fabs(mean[1] - (0.5 + 0.5 * g * g)) < 5 * deviation);
  free_case(&c);
}

/* A second moment that approaches 2 from 1 by a thousandth of the difference per step; rounding to nearest would turn
 * 1.001 into 1 forever. */
static void updates_below_the_precision_of_bf16_accumulate(void **state) {
  (void)state;
  enum { N = 1024, MANY = 60 };
  kernel_case c = rounded_case(N, 0, 0.9, 0.999, 0.0, 1.0);
  assert_true(ms_bf16_to_f32(ms_f32_to_bf16(1.001f)) == 1.0f);
  for (int64_t i = 0; i < N; i++) set_input(&c, 0, i, sqrt(2.0));
  for (int step = 1; step <= MANY; step++) {
    set_input(&c, 2, 0, step);
    run_once(&c, c.call, 1);
  }
  double mean[2];
  means(&c, mean);
  assert_true(fabs(mean[1] - (2.0 - pow(0.999, MANY))) < 0.005);
  assert_true(fabs(mean[0] - sqrt(2.0) * (1.0 - pow(0.9, MANY))) < 0.005);
  free_case(&c);
}

static void values_that_are_not_finite_stay(void **state) {
  (void)state;
  kernel_case c = rounded_case(64, 0, 0.9, 0.99, 0.0, 0.0);
  for (int64_t i = 0; i < 64; i++) set_input(&c, 0, i, i % 2 ? NAN : -INFINITY);
  run_once(&c, c.call, 1);
  for (int64_t i = 0; i < 64; i++) {
    assert_true(i % 2 ? isnan(output_at(&c, 1, i)) : output_at(&c, 1, i) == -INFINITY);
    assert_true(i % 2 ? isnan(output_at(&c, 2, i)) : output_at(&c, 2, i) == INFINITY);
  }
  free_case(&c);
}

static void sgd_matches(void **state) {
  (void)state;
  static const double momenta[] = {0.0, 0.9}, dampenings[] = {0.0, 0.3}, begins[] = {0, 3};
  const double lr = 0.02, lr_scale = 2.0, decay = 0.1;
  FOR_EACH(n, sizes)
  FOR_EACH(momentum, momenta)
  FOR_EACH(dampening, dampenings)
  FOR_EACH(from, begins)
  for (int nesterov = 0; nesterov < 2; nesterov++) {
    kernel_case c = optimizer_case(MS_OP_sgd, n, 1, momentum == 0.0 ? 0 : n);
    c.call.attrs = (ms_op_attrs){.update = {.nesterov = nesterov,
                                            .lr_scale = lr_scale,
                                            .weight_decay = decay,
                                            .momentum = momentum,
                                            .momentum_from = from,
                                            .dampening = dampening}};
    const int first = from == 0 ? 1 : (int)from;
    /* The first step must write the buffer without reading it. */
    for (int64_t i = 0; i < ms_numel(&c.call.out[1]); i++) ((float *)c.call.out_data[1])[i] = NAN;
    double *p = calloc((size_t)(2 * n + 1), sizeof *p), *b = p + n;
    for (int64_t i = 0; i < n; i++) p[i] = output_at(&c, 0, i);
    for (int step = first; step < first + STEPS; step++) {
      new_gradient(&c, step);
      c.scalars.lr = lr;
      set_input(&c, 2, 0, step);
      run_once(&c, c.call, TEAM);
      for (int64_t i = 0; i < n; i++) {
        double g = 0.5 * input_at(&c, 0, i) + decay * p[i];
        if (momentum != 0.0) {
          b[i] = step == first ? g : momentum * b[i] + (1.0 - dampening) * g;
          g = nesterov ? g + momentum * b[i] : b[i];
          assert_output(&c, 1, i, b[i], 1e-6);
        }
        p[i] -= lr * lr_scale * g;
        assert_output(&c, 0, i, p[i], 1e-6);
      }
    }
    free(p);
    free_case(&c);
  }
}

static void outer_sgd_matches(void **state) {
  (void)state;
  static const double momenta[] = {0.0, 0.9}, alphas[] = {0.0, 0.25, 1.0};
  const double lr = 0.7, share = 0.25;
  FOR_EACH(n, sizes)
  FOR_EACH(momentum, momenta)
  FOR_EACH(alpha, alphas)
  for (int nesterov = 0; nesterov < (momentum == 0.0 ? 1 : 2); nesterov++) {
    kernel_case c = case_of(MS_OP_outer_sgd);
    c.call.attrs =
        (ms_op_attrs){.outer_sgd = {.nesterov = nesterov, .momentum = momentum, .alpha = alpha, .share = share}};
    add_input(&c, SHAPE(MS_F32, n));
    for (int o = 0; o < 3; o++) add_output(&c, SHAPE(MS_F32, o == 2 && momentum == 0.0 ? 0 : n));
    double *local = calloc((size_t)(3 * n + 1), sizeof *local), *synced = local + n, *b = synced + n;
    for (int64_t i = 0; i < n; i++) {
      ((float *)c.call.out_data[0])[i] = (float)(local[i] = 0.5 - 0.125 * (double)(i % 9));
      ((float *)c.call.out_data[1])[i] = (float)(synced[i] = 0.25 * (double)(i % 5) - 0.5);
      if (momentum != 0.0) ((float *)c.call.out_data[2])[i] = 0.0f;
    }
    for (int step = 1; step <= STEPS; step++) {
      new_gradient(&c, step);
      c.scalars.lr = lr;
      run_once(&c, c.call, TEAM);
      for (int64_t i = 0; i < n; i++) {
        const double g = share * input_at(&c, 0, i);
        b[i] = momentum * b[i] + g;
        synced[i] -= lr * (nesterov ? g + momentum * b[i] : b[i]);
        local[i] = synced[i] + alpha * (local[i] - synced[i]);
        assert_output(&c, 0, i, local[i], 1e-5);
        assert_output(&c, 1, i, synced[i], 1e-5);
        if (momentum != 0.0) assert_output(&c, 2, i, b[i], 1e-5);
        if (alpha == 0.0) assert_true(output_at(&c, 0, i) == output_at(&c, 1, i));
      }
    }
    free(local);
    free_case(&c);
  }
}

static void ema_matches(void **state) {
  (void)state;
  const double decay = 0.9;
  FOR_EACH(n, sizes)
  for (int warmup = 0; warmup < 2; warmup++) {
    kernel_case c = case_of(MS_OP_ema);
    c.call.attrs = (ms_op_attrs){.ema = {.warmup = warmup, .decay = decay}};
    add_input(&c, SHAPE(MS_F32, n));
    add_output(&c, SHAPE(MS_F32, n));
    /* The first step must write the average without reading it. */
    for (int64_t i = 0; i < n; i++) ((float *)c.call.out_data[0])[i] = NAN;
    double *average = calloc((size_t)n + 1, sizeof *average);
    for (int step = 1; step <= STEPS; step++) {
      new_gradient(&c, step);
      c.scalars.step = step;
      run_once(&c, c.call, TEAM);
      double now = warmup && (1.0 + step) / (10.0 + step) < decay ? (1.0 + step) / (10.0 + step) : decay;
      for (int64_t i = 0; i < n; i++) {
        average[i] = step == 1 ? input_at(&c, 0, i) : now * average[i] + (1.0 - now) * input_at(&c, 0, i);
        assert_output(&c, 0, i, average[i], 1e-6);
      }
    }
    free(average);
    free_case(&c);
  }
}

static void totals_count_replicas_once(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_step_totals);
  c.call.attrs.step.replicas = 4;
  add_input(&c, SHAPE(MS_F32, 5));
  add_input(&c, SHAPE(MS_F32, 2));
  add_output(&c, SHAPE(MS_F32, 3));
  double sum = 0.0;
  for (int i = 0; i < 5; i++) {
    set_input(&c, 0, i, i + 0.5);
    sum += i + 0.5;
  }
  run_case(&c);
  assert_output(&c, 0, 0, sum / 4.0, 1e-7);
  assert_output(&c, 0, 1, input_at(&c, 1, 0), 0.0);
  assert_output(&c, 0, 2, input_at(&c, 1, 1), 0.0);
  free_case(&c);
}

/* Totals of 6 ranks and 3 micro-batches: squares 81, so the mean gradient's norm is 9 / 18. */
static kernel_case norm_case(double squares, double max_norm) {
  kernel_case c = case_of(MS_OP_step_norm);
  c.call.attrs = (ms_op_attrs){.step = {.ranks = 6, .max_norm = max_norm}};
  c.scalars.micro_batches = 3;
  add_input(&c, SHAPE(MS_F32, 2));
  add_output(&c, SHAPE(MS_F32, 4));
  set_input(&c, 0, 0, squares);
  set_input(&c, 0, 1, 36.0);
  run_case(&c);
  return c;
}

static void norm_clips_above_the_limit(void **state) {
  (void)state;
  static const double limits[] = {0.0, 0.25, 1.0};
  FOR_EACH(limit, limits) {
    kernel_case c = norm_case(81.0, limit);
    assert_output(&c, 0, 0, 2.0, 1e-7);
    assert_output(&c, 0, 1, 0.5, 1e-7);
    assert_true(fabs(output_at(&c, 0, 2) * 18.0 - (limit == 0.25 ? 0.25 / (0.5 + 1e-6) : 1.0)) < 1e-6);
    assert_true(output_at(&c, 0, 3) == 18.0);
    free_case(&c);
  }
}

static void norm_divides_by_weights(void **state) {
  (void)state;
  static const double weights[] = {0.0, 4.5};
  FOR_EACH(weight, weights) {
    kernel_case c = case_of(MS_OP_step_norm);
    c.call.attrs = (ms_op_attrs){.step = {.max_norm = 1.0}};
    add_input(&c, SHAPE(MS_F32, 3));
    add_output(&c, SHAPE(MS_F32, 4));
    set_input(&c, 0, 0, weight == 0.0 ? 0.0 : 81.0);
    set_input(&c, 0, 1, weight == 0.0 ? 0.0 : 36.0);
    set_input(&c, 0, 2, weight);
    run_case(&c);
    assert_output(&c, 0, 0, weight == 0.0 ? 0.0 : 8.0, 1e-7);
    assert_output(&c, 0, 1, weight == 0.0 ? 0.0 : 2.0, 1e-7);
    assert_output(&c, 0, 2, weight == 0.0 ? 0.0 : 1.0 / (2.0 + 1e-6) / 4.5, 1e-7);
    assert_output(&c, 0, 3, weight, 0.0);
    free_case(&c);
  }
}

static void norm_shows_nonfinite_gradients(void **state) {
  (void)state;
  kernel_case nan = norm_case(NAN, 1.0), infinite = norm_case(INFINITY, 1.0);
  assert_true(isnan(output_at(&nan, 0, 1)));
  assert_true(isinf(output_at(&infinite, 0, 1)));
  free_case(&nan);
  free_case(&infinite);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(adamw_matches),
      TEST(adam_matches),
      TEST(moments_are_rounded_by_their_own_bits),
      TEST(rounding_has_no_bias),
      TEST(updates_below_the_precision_of_bf16_accumulate),
      TEST(values_that_are_not_finite_stay),
      TEST(sgd_matches),
      TEST(outer_sgd_matches),
      TEST(ema_matches),
      TEST(totals_count_replicas_once),
      TEST(norm_clips_above_the_limit),
      TEST(norm_divides_by_weights),
      TEST(norm_shows_nonfinite_gradients),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
