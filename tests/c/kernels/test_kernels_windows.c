/* test_kernels_windows.c - compares convolutions, pools and their gradients with plain loops in double, over images and
 * windows of odd sizes: with strides that leave elements out, padding, dilation, groups, windows larger than the image,
 * and without images. */
#include "tests/c/support/kernel_case.h"

#include "kernels/window.h"

typedef struct conv_shape {
  int64_t images, channels, features, groups, size[2], window[2], stride[2], pad[2], dilation[2];
} conv_shape;

static const conv_shape convs[] = {
    {1, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},   {2, 3, 5, 1, {7, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {3, 16, 32, 1, {8, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}}, {2, 6, 4, 2, {9, 8}, {3, 2}, {2, 3}, {0, 1}, {1, 1}},
    {5, 4, 4, 4, {10, 7}, {3, 3}, {1, 1}, {2, 2}, {2, 2}},  {2, 8, 12, 4, {6, 11}, {1, 5}, {1, 2}, {0, 3}, {1, 2}},
    {1, 2, 3, 1, {3, 4}, {5, 5}, {1, 1}, {2, 2}, {1, 1}},   {4, 3, 8, 1, {16, 16}, {4, 4}, {4, 4}, {0, 0}, {1, 1}},
    {2, 5, 7, 1, {1, 33}, {1, 4}, {1, 3}, {0, 2}, {1, 1}},  {7, 1, 70, 1, {5, 6}, {2, 3}, {1, 1}, {0, 0}, {1, 1}},
    {2, 70, 3, 1, {4, 4}, {1, 1}, {1, 1}, {0, 0}, {1, 1}},  {9, 2, 2, 1, {12, 12}, {2, 2}, {1, 1}, {0, 0}, {1, 1}},
    {0, 3, 2, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
};

static int64_t outputs_of(const conv_shape *s, int axis) {
  const ms_window w = {.in = s->size[axis],
                       .size = s->window[axis],
                       .stride = s->stride[axis],
                       .pad = s->pad[axis],
                       .dilation = s->dilation[axis]};
  return ms_window_outputs(&w);
}

static ms_value_info images_of(const conv_shape *s, int dtype) {
  return SHAPE(dtype, s->images, s->channels, s->size[0], s->size[1]);
}

static ms_value_info weights_of(const conv_shape *s, int dtype) {
  return SHAPE(dtype, s->features, s->channels / s->groups, s->window[0], s->window[1]);
}

static ms_value_info results_of(const conv_shape *s, int dtype) {
  return SHAPE(dtype, s->images, s->features, outputs_of(s, 0), outputs_of(s, 1));
}

static void set_windows(kernel_case *c, const int64_t *stride, const int64_t *pad) {
  c->call.attrs.windows.stride_h = stride[0], c->call.attrs.windows.stride_w = stride[1];
  c->call.attrs.windows.pad_h = pad[0], c->call.attrs.windows.pad_w = pad[1];
}

/* The sizes of what a gradient is of. */
static void set_sizes(kernel_case *c, const int64_t *size) {
  c->call.attrs.windows.height = size[0], c->call.attrs.windows.width = size[1];
}

static kernel_case conv_case(int op, const conv_shape *s) {
  kernel_case c = case_of(op);
  set_windows(&c, s->stride, s->pad);
  c.call.attrs.windows.dilation_h = s->dilation[0], c.call.attrs.windows.dilation_w = s->dilation[1];
  c.call.attrs.windows.groups = s->groups;
  return c;
}

/* Calls f for every product of a convolution: y[at_y] += w[at_w] x[at_x]. */
typedef void product_fn(void *context, int64_t at_x, int64_t at_w, int64_t at_y);

static void for_products(const conv_shape *s, product_fn *f, void *context) {
  const int64_t channels = s->channels / s->groups, features = s->features / s->groups;
  const int64_t rows = outputs_of(s, 0), columns = outputs_of(s, 1);
  for (int64_t n = 0; n < s->images; n++)
    for (int64_t o = 0; o < s->features; o++)
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
          for (int64_t c = 0; c < channels; c++)
            for (int64_t r = 0; r < s->window[0]; r++)
              for (int64_t t = 0; t < s->window[1]; t++) {
                const int64_t y = i * s->stride[0] - s->pad[0] + r * s->dilation[0];
                const int64_t x = j * s->stride[1] - s->pad[1] + t * s->dilation[1];
                if (y < 0 || y >= s->size[0] || x < 0 || x >= s->size[1]) continue;
                const int64_t plane = n * s->channels + o / features * channels + c;
                f(context, (plane * s->size[0] + y) * s->size[1] + x,
                  ((o * channels + c) * s->window[0] + r) * s->window[1] + t,
                  ((n * s->features + o) * rows + i) * columns + j);
              }
}

typedef struct sums {
  const kernel_case *c;
  double *sum, *magnitude; /* of the result: of the products, and of their absolute values */
} sums;

static void add(const sums *s, int64_t at, double product) {
  s->sum[at] += product;
  s->magnitude[at] += fabs(product);
}

static void to_y(void *context, int64_t at_x, int64_t at_w, int64_t at_y) {
  const sums *s = context;
  add(s, at_y, input_at(s->c, 0, at_x) * input_at(s->c, 1, at_w));
}

static void to_x(void *context, int64_t at_x, int64_t at_w, int64_t at_y) {
  const sums *s = context;
  add(s, at_x, input_at(s->c, 0, at_y) * input_at(s->c, 1, at_w));
}

static void to_w(void *context, int64_t at_x, int64_t at_w, int64_t at_y) {
  const sums *s = context;
  add(s, at_w, input_at(s->c, 0, at_x) * input_at(s->c, 1, at_y));
}

/* Runs the case, and compares it with the sums of products, which begin with the bias, if there is one. */
static void check_conv(kernel_case *c, const conv_shape *s, product_fn *f) {
  const int64_t n = ms_numel(&c->call.out[0]), plane = outputs_of(s, 0) * outputs_of(s, 1);
  sums expected = {c, calloc((size_t)n + 1, sizeof(double)), calloc((size_t)n + 1, sizeof(double))};
  for (int64_t e = 0; e < n && c->call.inputs == 3; e++) add(&expected, e, input_at(c, 2, e / plane % s->features));
  for_products(s, f, &expected);
  run_case(c);
  for (int64_t e = 0; e < n; e++) assert_output(c, 0, e, expected.sum[e], 2e-6 * (1 + expected.magnitude[e]));
  free(expected.sum);
  free(expected.magnitude);
  free_case(c);
}

static void check_results(const conv_shape *s, int dtype, int bias) {
  kernel_case c = conv_case(MS_OP_conv2d, s);
  add_input(&c, images_of(s, dtype));
  add_input(&c, weights_of(s, dtype));
  if (bias) add_input(&c, SHAPE(dtype, s->features));
  add_output(&c, results_of(s, dtype));
  check_conv(&c, s, to_y);
}

static void check_gradient_of_images(const conv_shape *s, int dtype) {
  kernel_case c = conv_case(MS_OP_conv2d_backward_input, s);
  set_sizes(&c, s->size);
  add_input(&c, results_of(s, dtype));
  add_input(&c, weights_of(s, dtype));
  add_output(&c, images_of(s, dtype));
  check_conv(&c, s, to_x);
}

static void check_gradient_of_weights(const conv_shape *s, int dtype, int wide) {
  kernel_case c = conv_case(MS_OP_conv2d_backward_weight, s);
  set_sizes(&c, s->window);
  add_input(&c, images_of(s, dtype));
  add_input(&c, results_of(s, dtype));
  add_output(&c, weights_of(s, wide));
  check_conv(&c, s, to_w);
}

static void convolutions_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, convs)
  for (int bias = 0; bias < 2; bias++) check_results(&s, dtype, bias);
}

static void gradients_of_images_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, convs) check_gradient_of_images(&s, dtype);
}

static void gradients_of_weights_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(wide, dtypes)
  FOR_EACH(s, convs) check_gradient_of_weights(&s, dtype, wide);
}

/* Random windows, most of which have taps that only meet padding, or leave elements of the image out: what no product
 * contributes to is written, too. Results begin as NaN. */
static int64_t one_of(uint32_t *state, int n, const int64_t *list) {
  *state = *state * 1664525u + 1013904223u;
  return list[(*state >> 16) % (uint32_t)n];
}

static void draw_axis(uint32_t *state, conv_shape *s, int d) {
  static const int64_t sizes[] = {1, 1, 2, 3, 7}, windows[] = {1, 2, 3, 3, 5}, strides[] = {1, 2, 2, 3, 7};
  static const int64_t pads[] = {0, 1, 1, 2, 4}, dilations[] = {1, 1, 2, 3, 5};
  do {
    s->size[d] = one_of(state, 5, sizes);
    s->window[d] = one_of(state, 5, windows);
    s->stride[d] = one_of(state, 5, strides);
    s->pad[d] = one_of(state, 5, pads);
    s->dilation[d] = one_of(state, 5, dilations);
  } while (s->size[d] + 2 * s->pad[d] < (s->window[d] - 1) * s->dilation[d] + 1);
}

static void what_no_product_reaches_is_written(void **state) {
  (void)state;
  static const int64_t images[] = {1, 1, 4}, channels[] = {1, 4, 16, 32}, groups[] = {1, 1, 1, 2, 4};
  uint32_t draw = 20;
  for (int i = 0; i < 150; i++) {
    conv_shape s = {.images = one_of(&draw, 3, images), .groups = one_of(&draw, 5, groups)};
    s.channels = s.groups * one_of(&draw, 4, channels);
    s.features = s.groups * one_of(&draw, 4, channels);
    for (int d = 0; d < 2; d++) draw_axis(&draw, &s, d);
    if (s.channels * s.features / s.groups > 256) continue;
    FOR_EACH(dtype, dtypes) {
      check_results(&s, dtype, i % 2);
      check_gradient_of_images(&s, dtype);
      check_gradient_of_weights(&s, dtype, dtypes[i % 2]);
    }
  }
}

/* Many pixels: threads, and parts of a GPU's sum, have some each. */
static void gradients_of_weights_are_summed_in_parts(void **state) {
  (void)state;
  static const conv_shape s = {24, 8, 9, 1, {21, 20}, {3, 3}, {1, 1}, {1, 1}, {1, 1}};
  FOR_EACH(dtype, dtypes) {
    if (too_large(s.images * 8 * 9 * 20 * 20 / 10)) continue;
    kernel_case c = conv_case(MS_OP_conv2d_backward_weight, &s);
    set_sizes(&c, s.window);
    add_input(&c, images_of(&s, dtype));
    add_input(&c, results_of(&s, dtype));
    add_output(&c, weights_of(&s, MS_F32));
    for (int64_t e = 0; e < ms_numel(&c.call.in[0]); e++) set_input(&c, 0, e, input_at(&c, 0, e) / 16);
    check_conv(&c, &s, to_w);
  }
}

static void convolutions_keep_nan(void **state) {
  (void)state;
  static const conv_shape s = {1, 2, 2, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}};
  kernel_case c = conv_case(MS_OP_conv2d, &s);
  add_input(&c, images_of(&s, MS_F32));
  add_input(&c, weights_of(&s, MS_F32));
  add_output(&c, results_of(&s, MS_F32));
  set_input(&c, 0, 12, NAN); /* the middle of the first plane */
  run_case(&c);
  for (int64_t e = 0; e < 50; e++) {
    const int64_t i = e / 5 % 5, j = e % 5;
    assert_true(isnan(output_at(&c, 0, e)) == (i >= 1 && i <= 3 && j >= 1 && j <= 3));
  }
  free_case(&c);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

typedef struct pool_shape {
  int64_t planes, size[2], window[2], stride[2], pad[2];
} pool_shape;

static const pool_shape pools[] = {
    {1, {1, 1}, {1, 1}, {0, 0}, {0, 0}},   {6, {8, 8}, {2, 2}, {0, 0}, {0, 0}}, {5, {9, 7}, {3, 3}, {2, 2}, {1, 1}},
    {3, {7, 10}, {2, 3}, {1, 1}, {1, 1}},  {2, {5, 6}, {5, 6}, {1, 1}, {0, 0}}, {4, {4, 1300}, {2, 3}, {2, 2}, {0, 1}},
    {2, {11, 12}, {2, 2}, {3, 4}, {0, 0}}, {0, {4, 4}, {2, 2}, {0, 0}, {0, 0}},
};

static kernel_case pool_case(int op, const pool_shape *s, int backward) {
  kernel_case c = case_of(op);
  c.call.attrs.windows.kernel_h = s->window[0], c.call.attrs.windows.kernel_w = s->window[1];
  set_windows(&c, s->stride, s->pad);
  if (backward) set_sizes(&c, s->size);
  return c;
}

static int64_t step_of(const pool_shape *s, int d) { return s->stride[d] ? s->stride[d] : s->window[d]; }

static int64_t pooled(const pool_shape *s, int d) {
  return (s->size[d] + 2 * s->pad[d] - s->window[d]) / step_of(s, d) + 1;
}

static ms_value_info planes_of(const pool_shape *s, int dtype) {
  return SHAPE(dtype, s->planes, 1, s->size[0], s->size[1]);
}

static ms_value_info pooled_of(const pool_shape *s, int dtype) {
  return SHAPE(dtype, s->planes, 1, pooled(s, 0), pooled(s, 1));
}

/* A window's elements of its plane that are no padding. */
typedef struct rectangle {
  int64_t top, bottom, left, right;
} rectangle;

static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

static rectangle window_of(const pool_shape *s, int64_t window) {
  const int64_t i = window / pooled(s, 1) % pooled(s, 0), j = window % pooled(s, 1);
  const int64_t y = i * step_of(s, 0) - s->pad[0], x = j * step_of(s, 1) - s->pad[1];
  return (rectangle){at_least(y, 0), at_most(y + s->window[0], s->size[0]), at_least(x, 0),
                     at_most(x + s->window[1], s->size[1])};
}

/* body for every element of a window, `at` counted from the beginning of its plane. */
#define FOR_WINDOW(s, r, at)                           \
  for (int64_t y = (r).top; y < (r).bottom; y++)       \
    for (int64_t x = (r).left, at; x < (r).right; x++) \
      if (at = y * (s).size[1] + x, 1)

static int64_t plane_of(const pool_shape *s, int64_t window) {
  return window / (pooled(s, 0) * pooled(s, 1)) * s->size[0] * s->size[1];
}

/* x is the largest up to now: NaN is larger than numbers, and of equal elements the first stays. */
static int beats(double x, double best) { return isnan(best) ? 0 : isnan(x) || x > best; }

static void maxima_and_their_places_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, pools)
  for (int ties = 0; ties < 2; ties++) {
    kernel_case c = pool_case(MS_OP_max_pool2d, &s, 0);
    add_input(&c, planes_of(&s, dtype));
    add_output(&c, pooled_of(&s, dtype));
    add_output(&c, pooled_of(&s, MS_I32));
    for (int64_t e = 0; ties && e < ms_numel(&c.call.in[0]); e++) {
      const int64_t drawn = e * 2654435761 % 11;
      set_input(&c, 0, e, drawn == 10 ? NAN : drawn < 4 ? -INFINITY : (double)(drawn % 3));
    }
    run_case(&c);
    for (int64_t w = 0; w < ms_numel(&c.call.out[0]); w++) {
      const rectangle r = window_of(&s, w);
      int64_t found = r.top * s.size[1] + r.left;
      FOR_WINDOW(s, r, at)
      if (beats(input_at(&c, 0, plane_of(&s, w) + at), input_at(&c, 0, plane_of(&s, w) + found))) found = at;
      assert_int_equal((int64_t)output_at(&c, 1, w), found);
      const double largest = input_at(&c, 0, plane_of(&s, w) + found);
      assert_true(same_number(output_at(&c, 0, w), largest, 0));
    }
    free_case(&c);
  }
}

static void means_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, pools)
  for (int padding = 0; padding < 2; padding++) {
    kernel_case c = pool_case(MS_OP_avg_pool2d, &s, 0);
    c.call.attrs.windows.count_include_pad = padding;
    add_input(&c, planes_of(&s, dtype));
    add_output(&c, pooled_of(&s, dtype));
    run_case(&c);
    for (int64_t w = 0; w < ms_numel(&c.call.out[0]); w++) {
      const rectangle r = window_of(&s, w);
      double sum = 0, seen = 0;
      FOR_WINDOW(s, r, at) sum += input_at(&c, 0, plane_of(&s, w) + at), seen++;
      assert_output(&c, 0, w, sum / (padding ? (double)(s.window[0] * s.window[1]) : seen), 1e-6);
    }
    free_case(&c);
  }
}

static void compare_with(kernel_case *c, const double *expected) {
  for (int64_t e = 0; e < ms_numel(&c->call.out[0]); e++) assert_output(c, 0, e, expected[e], 2e-6);
}

static void gradients_of_maxima_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, pools) {
    kernel_case c = pool_case(MS_OP_max_pool2d_backward, &s, 1);
    add_input(&c, pooled_of(&s, dtype));
    add_input(&c, pooled_of(&s, MS_I32));
    add_output(&c, planes_of(&s, dtype));
    double *dx = calloc((size_t)ms_numel(&c.call.out[0]) + 1, sizeof *dx);
    for (int64_t w = 0; w < ms_numel(&c.call.in[0]); w++) {
      const rectangle r = window_of(&s, w);
      const int64_t row = r.top + w * 7 % (r.bottom - r.top), column = r.left + w * 5 % (r.right - r.left);
      set_input(&c, 1, w, (double)(row * s.size[1] + column));
      dx[plane_of(&s, w) + row * s.size[1] + column] += input_at(&c, 0, w);
    }
    run_case(&c);
    compare_with(&c, dx);
    free(dx);
    free_case(&c);
  }
}

static void gradients_of_means_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(s, pools)
  for (int padding = 0; padding < 2; padding++) {
    kernel_case c = pool_case(MS_OP_avg_pool2d_backward, &s, 1);
    c.call.attrs.windows.count_include_pad = padding;
    add_input(&c, pooled_of(&s, dtype));
    add_output(&c, planes_of(&s, dtype));
    double *dx = calloc((size_t)ms_numel(&c.call.out[0]) + 1, sizeof *dx);
    for (int64_t w = 0; w < ms_numel(&c.call.in[0]); w++) {
      const rectangle r = window_of(&s, w);
      const double seen = (double)((r.bottom - r.top) * (r.right - r.left));
      const double each = input_at(&c, 0, w) / (padding ? (double)(s.window[0] * s.window[1]) : seen);
      FOR_WINDOW(s, r, at) dx[plane_of(&s, w) + at] += each;
    }
    run_case(&c);
    compare_with(&c, dx);
    free(dx);
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(convolutions_match),
      TEST(gradients_of_images_match),
      TEST(gradients_of_weights_match),
      TEST(gradients_of_weights_are_summed_in_parts),
      TEST(what_no_product_reaches_is_written),
      TEST(convolutions_keep_nan),
      TEST(maxima_and_their_places_match),
      TEST(means_match),
      TEST(gradients_of_maxima_match),
      TEST(gradients_of_means_match),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
