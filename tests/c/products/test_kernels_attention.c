/* test_kernels_attention.c - compares attention, forward and backward, with its definition in double: causal or not,
 * grouped heads, more keys than queries, windows, capped scores, values of another width, ragged edges, both dtypes. */
#include "attention_case.h"

#include "base/error.h"

static const attention_shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},      {1, 1, 1, 1, 1, 64, 0, 0, 0, 0, 0, 0},
    {2, 5, 5, 3, 3, 8, 1, 0, 0, 0, 0, 0},      {1, 33, 33, 2, 1, 16, 1, 0, 0, 0, 0, 0},
    {2, 64, 64, 2, 2, 64, 1, 0, 0, 0, 0, 0},   {1, 70, 70, 4, 2, 32, 0, 0, 0, 0, 0, 0},
    {1, 31, 97, 2, 1, 20, 1, 0.3, 0, 0, 0, 0}, {1, 200, 200, 1, 1, 64, 1, 0, 0, 0, 0, 0},
    {1, 1, 150, 2, 2, 80, 1, 0, 0, 0, 0, 0},   {1, 40, 300, 3, 1, 64, 0, 0, 0, 0, 0, 0},
    {1, 65, 129, 2, 2, 128, 1, 0, 0, 0, 0, 0}, {1, 34, 34, 1, 1, 256, 1, 0.05, 0, 0, 0, 0},
    {2, 257, 257, 2, 1, 64, 1, 0, 0, 0, 0, 0}, {1, 130, 130, 2, 2, 33, 1, 0, 0, 0, 0, 0},
    {1, 96, 64, 2, 2, 48, 0, 0, 0, 0, 0, 0},   {1, 133, 133, 2, 1, 8, 1, 0, 0, 0, 0, 0},
    {1, 70, 150, 2, 1, 16, 0, 0, 0, 0, 0, 0},  {1, 70, 40, 1, 1, 8, 0, 0, 0, 0, 0, 0},
    {1, 1, 1, 2, 1, 128, 1, 0, 0, 0, 0, 0},    {1, 70, 66, 2, 1, 128, 0, 0, 0, 0, 0, 0},
    {1, 37, 70, 2, 1, 200, 1, 0, 0, 0, 0, 0},  {1, 21, 21, 1, 1, 64, 1, -.2, 0, 0, 0, 0},
    {1, 30, 20, 2, 2, 132, 0, 0, 0, 0, 0, 0},
};

/* Windows of 1, below a block of queries or keys, of whole blocks, of more keys than there are. */
static const attention_shape windows[] = {
    {1, 1, 1, 1, 1, 64, 1, 0, 1, 0, 0, 0},       {1, 70, 70, 2, 1, 32, 1, 0, 1, 0, 0, 0},
    {2, 150, 150, 2, 1, 40, 1, 0, 5, 0, 0, 0},   {1, 200, 200, 1, 1, 64, 1, 0, 32, 0, 0, 0},
    {1, 130, 300, 2, 2, 33, 1, 0, 33, 0, 0, 0},  {1, 333, 333, 2, 1, 64, 1, 0, 100, 0, 0, 0},
    {1, 290, 290, 4, 2, 20, 1, .3, 64, 0, 0, 0}, {1, 700, 700, 1, 1, 32, 1, 0, 131, 0, 0, 0},
    {1, 90, 90, 1, 1, 128, 1, 0, 89, 0, 0, 0},   {1, 90, 90, 1, 1, 16, 1, 0, 90, 0, 0, 0},
    {1, 75, 75, 1, 1, 200, 1, 0, 17, 0, 0, 0},   {1, 40, 70, 2, 1, 64, 1, 0, 1000, 0, 0, 0},
    {1, 1, 150, 2, 1, 64, 1, 0, 40, 0, 0, 0},    {1, 600, 600, 1, 1, 8, 1, 0, 513, 0, 0, 0},
    {1, 45, 1100, 1, 1, 32, 1, 0, 30, 0, 0, 0},
};

static double scale_of(const attention_shape *a) { return a->scale != 0 ? a->scale : 1 / sqrt((double)a->d); }

static int64_t products_of(const attention_shape *a) { return a->b * a->h * a->t * a->s * a->d; }

static int64_t query_at(const attention_shape *a, int64_t b, int64_t i, int64_t h) {
  return ((b * a->t + i) * a->h + h) * a->d;
}

static int64_t result_at(const attention_shape *a, int64_t b, int64_t i, int64_t h) {
  return ((b * a->t + i) * a->h + h) * value_columns(a);
}

static int64_t value_at(const attention_shape *a, int64_t b, int64_t j, int64_t h) {
  return ((b * a->s + j) * a->g + h / (a->h / a->g)) * value_columns(a);
}

static int64_t key_at(const attention_shape *a, int64_t b, int64_t j, int64_t h) {
  return ((b * a->s + j) * a->g + h / (a->h / a->g)) * a->d;
}

/* Scores that are capped at 0.4 to 50, alone and within windows, with scales of both signs. */
static const attention_shape caps[] = {
    {1, 1, 1, 1, 1, 64, 1, 0, 0, 3, 0, 0},      {2, 70, 70, 2, 1, 32, 1, 0, 0, 0.4, 0, 0},
    {1, 90, 150, 4, 2, 40, 1, .3, 0, 1, 0, 0},  {1, 150, 150, 1, 1, 128, 0, 0, 0, 2, 0, 0},
    {1, 200, 200, 2, 1, 64, 1, 0, 50, 2, 0, 0}, {1, 333, 333, 1, 1, 20, 1, 0, 100, .7, 0, 0},
    {1, 66, 66, 2, 2, 256, 1, .1, 0, 50, 0, 0}, {1, 45, 45, 1, 1, 16, 1, -.7, 9, 1, 0, 0},
    {1, 33, 33, 1, 1, 8, 0, -3, 0, 5, 0, 0},
};

/* Windows on both sides of a query. */
static const attention_shape around[] = {
    {1, 1, 1, 1, 1, 64, 0, 0, 1, 0, 0, 0},      {1, 70, 70, 2, 1, 32, 0, 0, 1, 0, 0, 0},
    {2, 150, 150, 2, 1, 40, 0, 0, 5, 0, 0, 0},  {1, 200, 200, 1, 1, 64, 0, 0, 32, 0, 0, 0},
    {1, 130, 300, 2, 2, 33, 0, 0, 33, 2, 0, 0}, {1, 333, 333, 2, 1, 64, 0, 0, 100, 0, 0, 0},
    {1, 90, 90, 1, 1, 128, 0, 0, 89, 0, 0, 0},  {1, 700, 700, 1, 1, 8, 0, 0, 513, 0, 0, 0},
    {1, 75, 75, 1, 1, 200, 0, .1, 17, 0, 0, 0},
};

/* First keys that every query sees. */
static const attention_shape prefixes[] = {
    {1, 1, 1, 1, 1, 8, 1, 0, 0, 0, 0, 1},         {1, 70, 70, 2, 1, 32, 1, 0, 0, 0, 0, 1},
    {2, 150, 150, 2, 1, 40, 1, 0, 0, 0, 0, 33},   {1, 200, 200, 1, 1, 64, 1, 0, 0, 0, 48, 130},
    {1, 130, 300, 2, 2, 33, 1, .3, 0, 2, 0, 200}, {1, 90, 90, 1, 1, 128, 1, 0, 0, 0, 0, 1000},
};

/* Values that are narrower than keys, as in latent attention, or wider. */
static const attention_shape widths[] = {
    {1, 1, 1, 1, 1, 8, 1, 0, 0, 0, 3, 0},        {2, 70, 70, 4, 2, 48, 1, 0, 0, 0, 32, 0},
    {1, 65, 129, 2, 1, 24, 0, .2, 0, 0, 64, 0},  {1, 100, 100, 2, 2, 64, 1, 0, 0, 0, 128, 0},
    {1, 200, 200, 1, 1, 96, 1, 0, 50, 2, 64, 0}, {1, 40, 1100, 2, 1, 192, 1, 0, 0, 0, 128, 0},
    {1, 33, 33, 2, 2, 33, 1, 0, 0, 0, 5, 0},     {1, 64, 64, 1, 1, 16, 1, 0, 0, 0, 200, 0},
};

/* Computes p[j], the softmax over the keys that query i sees, and the slope of their capped scores; returns the log of
 * its denominator. */
static double probabilities(const kernel_case *c, const attention_shape *a, int64_t b, int64_t i, int64_t h, double *p,
                            double *slope) {
  double largest = -INFINITY, sum = 0;
  const int64_t at = i + a->s - a->t, from = a->window ? at + 1 - a->window : 0;
  int64_t seen = a->causal ? at + 1 : a->window ? at + a->window : a->s;
  if (seen < a->prefix) seen = a->prefix;
  for (int64_t j = 0; j < a->s; j++) {
    p[j] = -INFINITY;
    if (j < from || j >= seen) continue;
    p[j] = 0;
    for (int64_t d = 0; d < a->d; d++)
      p[j] += input_at(c, Q, query_at(a, b, i, h) + d) * input_at(c, K, key_at(a, b, j, h) + d);
    p[j] *= scale_of(a);
    if (a->softcap > 0) p[j] = a->softcap * tanh(p[j] / a->softcap);
    if (slope) slope[j] = a->softcap > 0 ? 1 - p[j] * p[j] / a->softcap / a->softcap : 1;
    largest = fmax(largest, p[j]);
  }
  for (int64_t j = 0; j < a->s; j++) sum += p[j] = exp(p[j] - largest);
  for (int64_t j = 0; j < a->s; j++) p[j] /= sum;
  return largest + log(sum);
}

/* Relative error |x - reference| / |reference|, with norms over the whole tensor. For a tensor that should be 0, the
 * error is relative to elements of 0.2. */
static void assert_close(const kernel_case *c, int output, const double *reference, double tolerance,
                         const char *what) {
  double difference = 0, size = 0;
  int64_t n = ms_numel(&c->call.out[output]);
  for (int64_t i = 0; i < n; i++) {
    double x = output_at(c, output, i);
    if (!(fabs(x) < 1e30)) fail_msg("%s, element %d is %g", what, (int)i, x);
    difference += (x - reference[i]) * (x - reference[i]);
    size += reference[i] * reference[i];
  }
  if (sqrt(difference) > tolerance * (sqrt(size) + 0.2 * sqrt((double)n)))
    fail_msg("%s: relative error %g", what, sqrt(difference / size));
}

static double *doubles(int64_t n) {
  double *x = calloc((size_t)n, sizeof *x);
  assert_non_null(x);
  return x;
}

static double tolerance_of(int dtype) { return dtype == MS_BF16 ? 6e-3 : 2e-6; }

static void check_forward(const attention_shape *a, int dtype) {
  kernel_case c = forward_case(a, dtype);
  double *o = doubles(ms_numel(&c.call.out[0])), *lse = doubles(a->b * a->h * a->t), *p = doubles(a->s);
  for (int64_t b = 0; b < a->b; b++)
    for (int64_t h = 0; h < a->h; h++)
      for (int64_t i = 0; i < a->t; i++) {
        lse[(b * a->h + h) * a->t + i] = probabilities(&c, a, b, i, h, p, NULL);
        for (int64_t j = 0; j < a->s; j++)
          for (int64_t e = 0; e < value_columns(a); e++)
            o[result_at(a, b, i, h) + e] += p[j] * input_at(&c, V, value_at(a, b, j, h) + e);
      }
  run_case(&c);
  assert_close(&c, 0, o, tolerance_of(dtype), "o");
  assert_close(&c, 1, lse, 2e-6, "lse");
  free(o), free(lse), free(p);
  free_case(&c);
}

static void forward_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (!too_large(products_of(&shapes[i]) / 10)) check_forward(&shapes[i], dtype);
}

/* dv += p do; ds = p (dp - sum_j p dp); dq += ds k scale, dk += ds q scale */
static void add_gradients(const kernel_case *c, const attention_shape *a, int64_t b, int64_t i, int64_t h, double *p,
                          double *dp, double *slope, double *dq, double *dk, double *dv) {
  const int64_t q = query_at(a, b, i, h), o = result_at(a, b, i, h);
  double mean = 0;
  probabilities(c, a, b, i, h, p, slope);
  for (int64_t j = 0; j < a->s; j++) {
    const int64_t v = value_at(a, b, j, h);
    dp[j] = 0;
    for (int64_t e = 0; e < value_columns(a); e++) {
      dp[j] += input_at(c, DO, o + e) * input_at(c, V, v + e);
      dv[v + e] += p[j] * input_at(c, DO, o + e);
    }
    mean += p[j] * dp[j];
  }
  for (int64_t j = 0; j < a->s; j++)
    for (int64_t d = 0; d < a->d; d++) {
      double ds = p[j] * (dp[j] - mean) * slope[j] * scale_of(a);
      dq[q + d] += ds * input_at(c, K, key_at(a, b, j, h) + d);
      dk[key_at(a, b, j, h) + d] += ds * input_at(c, Q, q + d);
    }
}

static void check_backward(const attention_shape *a, int dtype) {
  kernel_case c = backward_case(a, dtype);
  double *gradient[3], *p = doubles(a->s), *dp = doubles(a->s), *slope = doubles(a->s);
  for (int i = 0; i < 3; i++) gradient[i] = doubles(ms_numel(&c.call.out[i]));
  for (int64_t b = 0; b < a->b; b++)
    for (int64_t h = 0; h < a->h; h++)
      for (int64_t i = 0; i < a->t; i++)
        add_gradients(&c, a, b, i, h, p, dp, slope, gradient[0], gradient[1], gradient[2]);
  run_case(&c);
  const char *names[] = {"dq", "dk", "dv"};
  for (int i = 0; i < 3; i++) {
    assert_close(&c, i, gradient[i], 2 * tolerance_of(dtype), names[i]);
    free(gradient[i]);
  }
  free(p), free(dp), free(slope);
  free_case(&c);
}

static void backward_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (!too_large(products_of(&shapes[i]) / 10)) check_backward(&shapes[i], dtype);
}

static void windows_match(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, windows)
  if (!too_large(products_of(&a) / 10)) check_forward(&a, dtype), check_backward(&a, dtype);
}

static void capped_scores_match(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, caps)
  if (!too_large(products_of(&a) / 10)) check_forward(&a, dtype), check_backward(&a, dtype);
}

static void windows_on_both_sides_match(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, around)
  if (!too_large(products_of(&a) / 10)) check_forward(&a, dtype), check_backward(&a, dtype);
}

static void prefixes_match(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, prefixes)
  if (!too_large(products_of(&a) / 10)) check_forward(&a, dtype), check_backward(&a, dtype);
}

static void values_of_another_width_match(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, widths)
  if (!too_large(products_of(&a) / 10)) check_forward(&a, dtype), check_backward(&a, dtype);
}

/* The softmax over keys and one more term, e^sink of the head, which has no value. */
static void check_sinks(const attention_shape *a, int dtype) {
  kernel_case before = forward_case(a, dtype), c = case_of(MS_OP_attention_sink);
  double *p = doubles(a->s), *o = doubles(ms_numel(&before.call.out[0])), *lse = doubles(a->b * a->h * a->t);
  run_once(&before, before.call, 1);
  add_qkv(&c, a, dtype);
  for (int i = 0; i < 2; i++) {
    add_input(&c, before.call.out[i]);
    memcpy((void *)c.call.in_data[O + i], before.call.out_data[i], (size_t)tensor_bytes(&before.call.out[i]));
  }
  const int sinks = add_input(&c, SHAPE(dtype, a->h));
  for (int64_t h = 0; h < a->h; h++) set_input(&c, sinks, h, h % 3 == 0 ? 1.5 : h % 3 == 1 ? -40 : 6);
  for (int i = 0; i < 2; i++) add_output(&c, before.call.out[i]);
  for (int64_t b = 0; b < a->b; b++)
    for (int64_t h = 0; h < a->h; h++)
      for (int64_t i = 0; i < a->t; i++) {
        const double alone = probabilities(&before, a, b, i, h, p, NULL), sink = input_at(&c, sinks, h);
        lse[(b * a->h + h) * a->t + i] = fmax(alone, sink) + log1p(exp(-fabs(alone - sink)));
        for (int64_t j = 0; j < a->s; j++)
          for (int64_t e = 0; e < value_columns(a); e++)
            o[result_at(a, b, i, h) + e] +=
                p[j] / (1 + exp(sink - alone)) * input_at(&before, V, value_at(a, b, j, h) + e);
      }
  run_case(&c);
  assert_close(&c, 0, o, tolerance_of(dtype), "o with sinks");
  assert_close(&c, 1, lse, 2e-6, "lse with sinks");
  free(p), free(o), free(lse);
  free_case(&before);
  free_case(&c);
}

static void sinks_match(void **state) {
  (void)state;
  const attention_shape with_sinks[] = {{1, 1, 1, 1, 1, 8, 1, 0, 0, 0, 0, 0},
                                        {2, 40, 40, 3, 1, 20, 1, 0, 0, 0, 0, 0},
                                        {1, 70, 90, 4, 2, 33, 1, .3, 9, 2, 12, 0}};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_ENDS(a, with_sinks) check_sinks(&a, dtype);
}

/* Keys before the window are read by no query: a NaN in them stays in its block. */
static void the_past_is_hidden(void **state) {
  (void)state;
  attention_shape a = {1, 300, 300, 1, 1, 64, 1, 0, 50, 0, 0, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(&a, dtype);
    for (int64_t i = 0; i < 64 * a.d; i++) set_input(&c, K, i, NAN), set_input(&c, V, i, NAN);
    run_case(&c);
    for (int64_t i = 256 * a.d; i < a.t * a.d; i++) assert_false(isnan(output_at(&c, 0, i)));
    free_case(&c);
  }
}

/* Keys that a query does not see do not affect it, whether they are NaN in a later block or any number in its own
 * block. */
static void the_future_is_hidden(void **state) {
  (void)state;
  attention_shape a = {1, 128, 128, 1, 1, 64, 1, 0, 0, 0, 0, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(&a, dtype);
    run_case(&c);
    ms_kernel_call other = c.call;
    for (int i = 0; i < 2; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
    for (int64_t j = 40; j < a.s; j++)
      for (int64_t d = 0; d < a.d; d++)
        for (int input = K; input <= V; input++) set_input(&c, input, j * a.d + d, j < 96 ? 100.0 : NAN);
    run_once(&c, other, 1);
    for (int64_t i = 0; i < 40 * a.d; i++) assert_true(output_at(&c, 0, i) == element_of(other.out_data[0], dtype, i));
    for (int64_t i = 40 * a.d; i < 96 * a.d; i++) assert_false(isnan(element_of(other.out_data[0], dtype, i)));
    for (int i = 0; i < 2; i++) free(other.out_data[i]);
    free_case(&c);
  }
}

/* Widely spaced scores: one key gets all the weight, and nothing overflows. */
static void large_scores(void **state) {
  (void)state;
  attention_shape a = {1, 50, 50, 1, 1, 32, 1, 0, 0, 0, 0, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(&a, dtype);
    for (int64_t i = 0; i < a.t * a.d; i++)
      set_input(&c, Q, i, 30 * input_at(&c, Q, i)), set_input(&c, K, i, 30 * input_at(&c, K, i));
    double *p = doubles(a.s), *o = doubles(a.t * a.d);
    for (int64_t i = 0; i < a.t; i++) {
      probabilities(&c, &a, 0, i, 0, p, NULL);
      for (int64_t j = 0; j < a.s; j++)
        for (int64_t d = 0; d < a.d; d++) o[i * a.d + d] += p[j] * input_at(&c, V, j * a.d + d);
    }
    run_case(&c);
    assert_close(&c, 0, o, dtype == MS_BF16 ? 6e-3 : 3e-4, "o");
    free(p), free(o);
    free_case(&c);
  }
}

static void nan_propagates(void **state) {
  (void)state;
  attention_shape a = {1, 70, 70, 2, 1, 64, 1, 0, 0, 0, 0, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int input = Q; input <= V; input++) {
      kernel_case c = forward_case(&a, dtype);
      set_input(&c, input, (input == Q ? query_at(&a, 0, 37, 1) : key_at(&a, 0, 37, 1)) + 5, NAN);
      run_case(&c);
      for (int64_t i = 0; i < a.t; i++) {
        int nan = isnan(output_at(&c, 0, query_at(&a, 0, i, 1) + 5)) != 0;
        if (i < 32) assert_false(nan); /* blocks before the one with the NaN */
        if (i == 37 || (input != Q && i > 37)) assert_true(nan);
      }
      free_case(&c);
    }
}

static void dtypes_are_checked(void **state) {
  (void)state;
  attention_shape a = {1, 4, 4, 1, 1, 8, 1, 0, 0, 0, 0, 0};
  kernel_case c = forward_case(&a, MS_F32);
  c.call.in[0].dtype = MS_I32;
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EDTYPE, "q | i32 | f32 | bf16");
  free_case(&c);
}

int main(void) {
#ifdef MS_TEST_CUDA
  setenv("MOONSHARD_ATTENTION", "flash", 1);
#endif
  const struct CMUnitTest tests[] = {
      TEST(forward_matches),
      TEST(backward_matches),
      TEST(the_future_is_hidden),
      TEST(large_scores),
      TEST(nan_propagates),
      TEST(dtypes_are_checked),
      TEST(capped_scores_match),
      TEST(windows_match),
      TEST(the_past_is_hidden),
      TEST(sinks_match),
      TEST(prefixes_match),
      TEST(windows_on_both_sides_match),
      TEST(values_of_another_width_match),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
