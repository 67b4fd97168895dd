/* test_kernels_attention_max.c - the largest score of each query compared with a loop over all keys in double: causal,
 * with a window, a prefix, grouped heads, later queries and documents; and what QK-clip scales by. */
#include "base/numbers/dtype.h"
#include "tests/c/support/kernel_case.h"

enum { START = 2 };

static const struct {
  int64_t b, t, s, h, g, d;
  int causal;
  int64_t window, prefix;
  double scale;
  int documents;
} shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0},    {2, 7, 9, 4, 2, 8, 1, 0, 0, 0, 0},   {1, 70, 70, 2, 1, 24, 1, 0, 0, 0.3, 0},
    {1, 40, 67, 2, 2, 16, 0, 0, 0, 0, 0}, {1, 67, 67, 2, 1, 9, 1, 5, 0, 0, 0}, {1, 40, 45, 1, 1, 8, 0, 7, 0, 0, 0},
    {1, 40, 45, 2, 2, 8, 1, 0, 13, 0, 0}, {2, 67, 67, 2, 1, 8, 1, 0, 0, 0, 1}, {2, 40, 40, 2, 1, 8, 1, 6, 0, 0, 1}};

static int sees(const kernel_case *c, size_t k, int64_t b, int64_t i, int64_t j) {
  const int64_t at = i + shapes[k].s - shapes[k].t, window = shapes[k].window;
  if (j < shapes[k].prefix && shapes[k].causal) return 1;
  if (shapes[k].causal && j > at) return 0;
  if (window && (j <= at - window || j >= at + window)) return 0;
  for (int64_t n = j + 1; n <= at && shapes[k].documents; n++)
    if (((const int32_t *)c->call.in_data[2])[b * shapes[k].s + n] == START) return 0;
  return 1;
}

static double score(const kernel_case *c, size_t k, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t g = h / (shapes[k].h / shapes[k].g), d = shapes[k].d;
  double sum = 0;
  for (int64_t n = 0; n < d; n++)
    sum += input_at(c, 0, ((b * shapes[k].t + i) * shapes[k].h + h) * d + n) *
           input_at(c, 1, ((b * shapes[k].s + j) * shapes[k].g + g) * d + n);
  return sum * (shapes[k].scale != 0 ? shapes[k].scale : 1 / sqrt((double)d));
}

static kernel_case case_at(size_t k, int dtype) {
  kernel_case c = case_of(shapes[k].documents ? MS_OP_document_attention_max : MS_OP_attention_max);
  c.call.attrs = (ms_op_attrs){.attention = {.causal = shapes[k].causal,
                                             .start = START,
                                             .window = shapes[k].window,
                                             .prefix = shapes[k].prefix,
                                             .scale = shapes[k].scale}};
  add_input(&c, SHAPE(dtype, shapes[k].b, shapes[k].t, shapes[k].h, shapes[k].d));
  add_input(&c, SHAPE(dtype, shapes[k].b, shapes[k].s, shapes[k].g, shapes[k].d));
  if (shapes[k].documents) {
    add_input(&c, SHAPE(MS_I32, shapes[k].b, shapes[k].s));
    int32_t *tokens = (int32_t *)(uintptr_t)c.call.in_data[2];
    for (int64_t i = 0; i < shapes[k].b * shapes[k].s; i++) tokens[i] = (int32_t)(i * i % 11);
  }
  add_output(&c, SHAPE(MS_F32, shapes[k].b, shapes[k].h, shapes[k].t));
  return c;
}

static void largest_scores_match(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
      kernel_case c = case_at(k, dtype);
      run_case(&c);
      for (int64_t row = 0; row < shapes[k].b * shapes[k].h * shapes[k].t; row++) {
        const int64_t b = row / shapes[k].t / shapes[k].h, h = row / shapes[k].t % shapes[k].h, i = row % shapes[k].t;
        double most = -INFINITY;
        for (int64_t j = 0; j < shapes[k].s; j++)
          if (sees(&c, k, b, i, j)) most = fmax(most, score(&c, k, b, h, i, j));
        assert_output(&c, 0, row, most, 1e-5);
      }
      free_case(&c);
    }
}

static void nan_shows(void **state) {
  (void)state;
  kernel_case c = case_at(1, MS_F32);
  set_input(&c, 1, 3, NAN);
  run_once(&c, c.call, 1);
  assert_true(isnan(output_at(&c, 0, shapes[1].t - 1)));
  free_case(&c);
}

/* Three heads of 4 rows of 5, of which 2 share scores each: the second has none above the threshold. */
static void heads_are_scaled(void **state) {
  (void)state;
  enum { FIRST = 7, ELEMENTS = 50, COLUMNS = 5, HEAD = 4, SHARED = 2 };
  const float largest[] = {8, 2, 1, 2, -3, 32};
  const double factor[] = {2.0 / 8, 1, 2.0 / 32};
  kernel_case c = case_of(MS_OP_clip_heads);
  c.call.attrs = (ms_op_attrs){.heads = {.first = FIRST,
                                         .elements = ELEMENTS,
                                         .columns = COLUMNS,
                                         .head = HEAD,
                                         .from = 1,
                                         .middle = 2,
                                         .to = 3,
                                         .shared = SHARED,
                                         .threshold = 2,
                                         .power = 0.5,
                                         .rest_power = 1}};
  add_input(&c, SHAPE(MS_F32, 6));
  add_output(&c, SHAPE(MS_F32, ELEMENTS));
  for (int i = 0; i < 6; i++) set_input(&c, 0, i, largest[i]);
  for (int64_t i = 0; i < ELEMENTS; i++) ((float *)c.call.out_data[0])[i] = (float)(i + 1);
  run_once(&c, c.call, TEAM);
  for (int64_t i = 0; i < ELEMENTS; i++) {
    const int64_t row = (FIRST + i) / COLUMNS, within = row % HEAD;
    const double by = within == 1 ? sqrt(factor[row / HEAD]) : within == 2 ? factor[row / HEAD] : 1;
    assert_output(&c, 0, i, by * (double)(i + 1), 1e-6);
  }
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(largest_scores_match), TEST(nan_shows), TEST(heads_are_scaled)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
