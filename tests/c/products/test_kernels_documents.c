/* test_kernels_documents.c - compares attention within documents with attention on each document alone, and with plain
 * loops in double: results, gradients, the same bits for any number of threads, and isolation between documents. */
#include "tests/c/support/kernel_case.h"

#include "base/error.h"
#include "base/numbers/dtype.h"

enum { Q, K, V, TOKENS, B = 2, T = 150, H = 4, G = 2, D = 40, START = 7 };

/* Documents of 1, 2, 30, 31, 32, 33 and more positions; the first row begins inside a document. */
static void set_tokens(kernel_case *c, int input) {
  static const int first[] = {1, 3, 33, 64}, second[] = {0, 32, 65, 66, 149};
  int32_t *tokens = (int32_t *)c->call.in_data[input];
  for (int i = 0; i < B * T; i++) tokens[i] = i % 5;
  for (size_t i = 0; i < sizeof first / sizeof *first; i++) tokens[first[i]] = START;
  for (size_t i = 0; i < sizeof second / sizeof *second; i++) tokens[T + second[i]] = START;
}

static kernel_case forward_case(int dtype, int64_t window, double softcap) {
  kernel_case c = case_of(MS_OP_document_attention);
  c.call.attrs.attention.start = START;
  c.call.attrs.attention.window = window;
  c.call.attrs.attention.softcap = softcap;
  add_input(&c, SHAPE(dtype, B, T, H, D));
  add_input(&c, SHAPE(dtype, B, T, G, D));
  add_input(&c, SHAPE(dtype, B, T, G, D));
  add_input(&c, SHAPE(MS_I32, B, T));
  set_tokens(&c, TOKENS);
  add_output(&c, SHAPE(dtype, B, T, H, D));
  add_output(&c, SHAPE(MS_F32, B, H, T));
  return c;
}

static kernel_case backward_case(int dtype, int64_t window, double softcap) {
  kernel_case forward = forward_case(dtype, window, softcap), c = case_of(MS_OP_document_attention_backward);
  run_once(&forward, forward.call, 1);
  c.call.attrs = forward.call.attrs;
  for (int i = Q; i <= V; i++) add_input(&c, forward.call.in[i]);
  for (int i = 0; i < 2; i++) add_input(&c, forward.call.out[i]);
  add_input(&c, forward.call.out[0]);
  add_input(&c, forward.call.in[TOKENS]);
  for (int i = Q; i <= V; i++)
    memcpy((void *)c.call.in_data[i], forward.call.in_data[i], (size_t)tensor_bytes(&c.call.in[i]));
  for (int i = 0; i < 2; i++)
    memcpy((void *)c.call.in_data[3 + i], forward.call.out_data[i], (size_t)tensor_bytes(&c.call.in[3 + i]));
  set_tokens(&c, 6);
  for (int i = 0; i < 3; i++) add_output(&c, c.call.in[i]);
  free_case(&forward);
  return c;
}

/* Copies positions [first, first + t) of a row of [B][T][n][D] tensors. */
static void take(kernel_case *to, int input, const kernel_case *from, int from_input, int row, int first, int t) {
  const int64_t bytes = from->call.in[from_input].dims[2] * D * ms_dtype_size(from->call.in[from_input].dtype);
  memcpy((void *)to->call.in_data[input], (const char *)from->call.in_data[from_input] + (row * T + first) * bytes,
         (size_t)(t * bytes));
}

/* Compares a part of an output with the same output of a document's own call, which another implementation may
 * compute. */
static void assert_part(const kernel_case *c, int output, const kernel_case *own, int row, int first, int t) {
  const int64_t n = c->call.out[output].dims[2] * D;
  for (int64_t i = 0; i < t * n; i++) {
    const double x = output_at(c, output, (row * T + first) * n + i), y = output_at(own, output, i);
    if (!(fabs(x - y) <= (c->call.out[output].dtype == MS_BF16 ? 3e-2 : 2e-5) * (1 + fabs(y))))
      fail_msg("row %d, document at %d, output %d, element %d: %g, and alone %g", row, first, output, (int)i, x, y);
  }
}

/* The log-sums [B][H][T] of a document are those of its own call [1][H][t]. */
static void assert_log_sums(const kernel_case *c, const kernel_case *own, int row, int first, int t) {
  for (int h = 0; h < H; h++)
    for (int i = 0; i < t; i++) {
      const double x = output_at(c, 1, (row * H + h) * T + first + i), y = output_at(own, 1, h * t + i);
      if (!(fabs(x - y) <= 2e-5 * (1 + fabs(y))))
        fail_msg("row %d, document at %d, head %d, position %d: log-sum %g, and alone %g", row, first, h, i, x, y);
    }
}

static void check_document(const kernel_case *c, int backward, int row, int first, int t) {
  const int dtype = c->call.in[Q].dtype;
  kernel_case own = case_of(MS_OP_attention);
  own.call.attrs.attention.causal = 1;
  own.call.attrs.attention.window = c->call.attrs.attention.window,
  own.call.attrs.attention.softcap = c->call.attrs.attention.softcap;
  add_input(&own, SHAPE(dtype, 1, t, H, D));
  add_input(&own, SHAPE(dtype, 1, t, G, D));
  add_input(&own, SHAPE(dtype, 1, t, G, D));
  add_output(&own, SHAPE(dtype, 1, t, H, D));
  add_output(&own, SHAPE(MS_F32, 1, H, t));
  for (int i = Q; i <= V; i++) take(&own, i, c, i, row, first, t);
  run_once(&own, own.call, 1);
  if (!backward) assert_part(c, 0, &own, row, first, t), assert_log_sums(c, &own, row, first, t);
  if (backward) {
    kernel_case gradient = case_of(MS_OP_attention_backward);
    gradient.call.attrs.attention.causal = 1;
    gradient.call.attrs.attention.window = c->call.attrs.attention.window,
    gradient.call.attrs.attention.softcap = c->call.attrs.attention.softcap;
    for (int i = Q; i <= V; i++) add_input(&gradient, own.call.in[i]);
    for (int i = 0; i < 2; i++) add_input(&gradient, own.call.out[i]);
    add_input(&gradient, own.call.out[0]);
    for (int i = Q; i <= V; i++) take(&gradient, i, c, i, row, first, t);
    for (int i = 0; i < 2; i++)
      memcpy((void *)gradient.call.in_data[3 + i], own.call.out_data[i], (size_t)tensor_bytes(&own.call.out[i]));
    take(&gradient, 5, c, 5, row, first, t);
    for (int i = 0; i < 3; i++) add_output(&gradient, gradient.call.in[i]);
    run_once(&gradient, gradient.call, 1);
    for (int i = 0; i < 3; i++) assert_part(c, i, &gradient, row, first, t);
    free_case(&gradient);
  }
  free_case(&own);
}

static void documents_are_attentions_of_their_own(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) {
      kernel_case c = backward ? backward_case(dtype, 9, 1.5) : forward_case(dtype, 33, 1.5);
      const int32_t *tokens = c.call.in_data[backward ? 6 : TOKENS];
      run_case(&c);
      for (int row = 0; row < B; row++)
        for (int first = 0, end; first < T; first = end) {
          for (end = first + 1; end < T && tokens[row * T + end] != START;) end++;
          check_document(&c, backward, row, first, end - first);
        }
      free_case(&c);
    }
}

/* The offset of element [row][t][head][0] of a [B][T][heads][D] tensor. */
static int64_t at(int row, int t, int heads, int head) { return ((int64_t)(row * T + t) * heads + head) * D; }

static double dot(const kernel_case *c, int x, int64_t x_at, int y, int64_t y_at) {
  double sum = 0.0;
  for (int d = 0; d < D; d++) sum += input_at(c, x, x_at + d) * input_at(c, y, y_at + d);
  return sum;
}

/* Attention of one query in plain loops: weight[j] of positions `begin`, where its document or its window begins, to
 * the query itself, and the slope of its score if that is capped. */
static void weigh(const kernel_case *c, int row, int head, int i, int begin, double *weight, double *slope) {
  const double cap = c->call.attrs.attention.softcap;
  double largest = -INFINITY, sum = 0.0;
  for (int j = begin; j <= i; j++) {
    weight[j] = dot(c, Q, at(row, i, H, head), K, at(row, j, G, head * G / H)) / sqrt(D);
    if (cap > 0) weight[j] = cap * tanh(weight[j] / cap);
    slope[j] = cap > 0 ? 1 - weight[j] * weight[j] / cap / cap : 1;
    largest = fmax(largest, weight[j]);
  }
  for (int j = begin; j <= i; j++) sum += exp(weight[j] - largest);
  for (int j = begin; j <= i; j++) weight[j] = exp(weight[j] - largest) / sum;
}

/* Adds query i's contribution to dq, dk and dv, with the weights p and dp = do v, ds = p (dp - do o). */
static void add_gradients(const kernel_case *c, int row, int head, int i, int begin, const double *weight,
                          const double *slope, double **sum) {
  enum { O = 3, DO = 5 };
  const int64_t q = at(row, i, H, head);
  const double own = dot(c, DO, q, O, q);
  for (int j = begin; j <= i; j++) {
    const int64_t k = at(row, j, G, head * G / H);
    const double ds = weight[j] * (dot(c, DO, q, V, k) - own) * slope[j] / sqrt(D);
    for (int d = 0; d < D; d++) {
      sum[Q][q + d] += ds * input_at(c, K, k + d);
      sum[K][k + d] += ds * input_at(c, Q, q + d);
      sum[V][k + d] += weight[j] * input_at(c, DO, q + d);
    }
  }
}

/* A kernel chooses the layout of its log-sums, which only backward reads. */
static void check_loops(int dtype, int backward, int window, double softcap) {
  const double tolerance = dtype == MS_F32 ? 2e-5 : backward ? 0.06 : 0.02; /* weights are rounded to bf16 */
  kernel_case c = backward ? backward_case(dtype, window, softcap) : forward_case(dtype, window, softcap);
  const int32_t *tokens = c.call.in_data[backward ? 6 : TOKENS];
  double weight[T], slope[T], *sum[3] = {NULL};
  for (int o = 0; o < 3; o++) sum[o] = calloc((size_t)B * T * H * D, sizeof *sum[o]);
  run_case(&c);
  for (int row = 0; row < B; row++)
    for (int head = 0; head < H; head++)
      for (int i = 0, begin = 0; i < T; i++) {
        if (tokens[row * T + i] == START) begin = i;
        if (window && begin <= i - window) begin = i - window + 1;
        weigh(&c, row, head, i, begin, weight, slope);
        if (backward) add_gradients(&c, row, head, i, begin, weight, slope, sum);
        for (int j = begin; j <= i && !backward; j++)
          for (int d = 0; d < D; d++)
            sum[0][at(row, i, H, head) + d] += weight[j] * input_at(&c, V, at(row, j, G, head * G / H) + d);
      }
  for (int o = 0; o < (backward ? 3 : 1); o++)
    for (int64_t e = 0; e < ms_numel(&c.call.out[o]); e++) assert_output(&c, o, e, sum[o][e], tolerance);
  for (int o = 0; o < 3; o++) free(sum[o]);
  free_case(&c);
}

static const int windows[] = {0, 1, 7, 32, 50};

static void plain_loops_give_the_same(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) FOR_EACH(window, windows) {
        check_loops(dtype, backward, window, 0);
        if (window % 7 == 0) check_loops(dtype, backward, window, 0.6); /* capped: without a window, and in one */
      }
}

static void threads_change_nothing(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) {
      kernel_case c = backward ? backward_case(dtype, 40, 0) : forward_case(dtype, 40, 0);
      ms_kernel_call other = c.call;
      for (int i = 0; i < other.outputs; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
      run_once(&c, c.call, 1);
      run_once(&c, other, TEAM);
      assert_same_outputs(&c, other.out_data, 0, "a team");
      for (int i = 0; i < other.outputs; i++) free(other.out_data[i]);
      free_case(&c);
    }
}

/* Without document borders it equals attention, bit for bit if our own kernels compute both; a library rounds
 * differently. */
static void one_document_is_attention(void **state) {
  (void)state;
  setenv("MOONSHARD_ATTENTION", "flash", 1);
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(dtype, 0, 0), plain = case_of(MS_OP_attention);
    c.call.attrs.attention.start = -1;
    plain.call.attrs.attention.causal = 1;
    for (int i = Q; i <= V; i++) {
      add_input(&plain, c.call.in[i]);
      memcpy((void *)plain.call.in_data[i], c.call.in_data[i], (size_t)tensor_bytes(&c.call.in[i]));
    }
    for (int i = 0; i < 2; i++) add_output(&plain, c.call.out[i]);
    run_once(&c, c.call, 1);
    run_once(&plain, plain.call, 1);
    assert_same_outputs(&c, plain.call.out_data, 0, "attention");
    free_case(&c);
    free_case(&plain);
  }
  unsetenv("MOONSHARD_ATTENTION");
}

/* On GPUs hidden values are multiplied by zero: a NaN may reach rows that are computed together with rows that see
 * it. */
static int computed_together(int64_t i, int64_t first, int64_t last) {
#ifdef MS_TEST_CUDA
  enum { TOGETHER = 32 };
  return i / TOGETHER >= first / TOGETHER && i / TOGETHER <= last / TOGETHER;
#else
  (void)i, (void)first, (void)last;
  return 0;
#endif
}

/* A NaN in one document does not leave it. */
static void documents_are_hidden_from_each_other(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(dtype, 0, 0);
    for (int64_t i = 33 * G * D; i < 64 * G * D; i++) set_input(&c, K, i, NAN), set_input(&c, V, i, NAN);
    run_case(&c);
    for (int64_t i = 0; i < T; i++) {
      const int nan = isnan(output_at(&c, 0, i * H * D)) != 0;
      if (i >= 33 && i < 64) assert_true(nan);
      else if (!computed_together(i, 33, 63)) assert_false(nan);
    }
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(documents_are_attentions_of_their_own),
      cmocka_unit_test(plain_loops_give_the_same),
      cmocka_unit_test(threads_change_nothing),
      cmocka_unit_test(one_document_is_attention),
      cmocka_unit_test(documents_are_hidden_from_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
