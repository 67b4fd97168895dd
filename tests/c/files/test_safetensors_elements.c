/* test_safetensors_elements.c - stored tensors as f32: every floating type, rows, columns and transposed views, both
 * ways. */
#include "base/numbers/bf16.h"
#include "tests/c/support/check.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 37, COLUMNS = 29, ELEMENTS = ROWS * COLUMNS };

static char path[] = "/tmp/moonshard-elements-XXXXXX";

static int make_path(void **state) {
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 || close(fd) ? -1 : 0;
}

static int remove_path(void **state) {
  (void)state;
  return unlink(path);
}

static const ms_safetensors_view whole = {.struct_size = sizeof whole, .column_stride = 1};

/* A file with one tensor [n] of a type, from its bytes, opened. */
static ms_safetensors *file_of(const char *dtype, int64_t n, const void *data, int64_t bytes) {
  ms_safetensors_writer *w;
  ms_safetensors *st;
  must(ms_safetensors_create(path, 1, &(ms_safetensors_tensor){.name = "t", .dtype = dtype, .ndim = 1, .dims = &n},
                             sizeof(ms_safetensors_tensor), NULL, &w));
  must(ms_safetensors_write(w, 0, NULL, 0, bytes, data));
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st, NULL));
  return st;
}

static void K5_every_f16_is_read_and_written(void **state) {
  (void)state;
  enum { ALL = 1 << 16 };
  static uint16_t stored[ALL], again[ALL];
  static float wide[ALL];
  int64_t bytes;
  for (int i = 0; i < ALL; i++) stored[i] = (uint16_t)i;
  ms_safetensors *st = file_of("F16", ALL, stored, sizeof stored);
  must(ms_safetensors_read(st, 0, &whole, 0, ALL, wide, &bytes));
  assert_true(bytes == sizeof stored);
  ms_free(st);
  for (int i = 0; i < ALL; i++) {
    _Float16 half;
    memcpy(&half, &stored[i], sizeof half);
    if (isnan((float)half)) assert_true(isnan(wide[i]));
    else assert_true(wide[i] == (float)half);
  }
  ms_safetensors_writer *w;
  must(ms_safetensors_create(path, 1,
                             &(ms_safetensors_tensor){.name = "t", .dtype = "F16", .ndim = 1, .dims = &(int64_t){ALL}},
                             sizeof(ms_safetensors_tensor), NULL, &w));
  must(ms_safetensors_write(w, 0, &whole, 0, ALL, wide));
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st, NULL));
  must(ms_safetensors_read(st, 0, NULL, 0, sizeof again, again, NULL));
  ms_free(st);
  for (int i = 0; i < ALL; i++)
    if (!isnan(wide[i])) assert_int_equal(again[i], stored[i]);
}

/* What lies between two f16 numbers, and beyond all: the compiler's own rounding. */
static void K5_f16_is_rounded_to_nearest_even(void **state) {
  (void)state;
  static const float values[] = {1.00048828125f, 1.0005f,       1.00146484375f, 65519.0f,       65520.0f, 1e9f,
                                 -1e9f,          6.1e-5f,       6e-8f,          2.98023224e-8f, 2.9e-8f,  3.1e-8f,
                                 -5.9e-8f,       8.9406967e-8f, 6.103e-5f,      FLT_MIN,        -0.0f};
  enum { N = sizeof values / sizeof *values };
  uint16_t stored[N];
  ms_safetensors *st;
  ms_safetensors_writer *w;
  must(ms_safetensors_create(path, 1,
                             &(ms_safetensors_tensor){.name = "t", .dtype = "F16", .ndim = 1, .dims = &(int64_t){N}},
                             sizeof(ms_safetensors_tensor), NULL, &w));
  must(ms_safetensors_write(w, 0, &whole, 0, N, values));
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st, NULL));
  must(ms_safetensors_read(st, 0, NULL, 0, sizeof stored, stored, NULL));
  ms_free(st);
  for (int i = 0; i < N; i++) {
    _Float16 half = (_Float16)values[i];
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    assert_int_equal(stored[i], bits);
  }
}

static void K5_bf16_and_f64_are_read(void **state) {
  (void)state;
  static const double twice[] = {1.5, -3.25e300, 1e-300, 0.1};
  static const uint16_t brain[] = {0x3fc0, 0xff80, 0x0001, 0x7fc0};
  float wide[4];
  ms_safetensors *st = file_of("F64", 4, twice, sizeof twice);
  must(ms_safetensors_read(st, 0, &whole, 0, 4, wide, NULL));
  ms_free(st);
  assert_true(wide[0] == 1.5f && wide[1] == -INFINITY && wide[2] == 0.0f && wide[3] == 0.1f);
  st = file_of("BF16", 4, brain, sizeof brain);
  must(ms_safetensors_read(st, 0, &whole, 1, 3, wide, NULL));
  ms_free(st);
  assert_true(wide[0] == -INFINITY && wide[1] == ms_bf16_to_f32(1) && isnan(wide[2]));
}

static int64_t place(const ms_safetensors_view *v, int64_t i) {
  return v->first + i / v->columns * v->row_stride + i % v->columns * v->column_stride;
}

#define VIEW(...) \
  { sizeof(ms_safetensors_view), __VA_ARGS__ }

/* The whole, some columns, rows, transposed, and transposed columns of [ROWS, COLUMNS]. */
static const ms_safetensors_view views[] = {
    VIEW(1, ELEMENTS, 0, 1, 1),       VIEW(ROWS, COLUMNS, 0, COLUMNS, 1), VIEW(ROWS, 7, 5, COLUMNS, 1),
    VIEW(3, COLUMNS, 58, COLUMNS, 1), VIEW(COLUMNS, ROWS, 0, 1, COLUMNS), VIEW(7, ROWS, 5, 1, COLUMNS),
    VIEW(1, ROWS, 28, 1, COLUMNS),
};
enum { VIEWS = sizeof views / sizeof *views };

/* Spans of a view that begin and end anywhere, as ragged chunks do. */
static int64_t span_of(int64_t n, int which, int64_t *count) {
  const int64_t first[] = {0, 0, n / 3, n - 1, n / 2, n}, end[] = {n, n / 2 + 1, 2 * n / 3, n, n / 2 + 1, n};
  *count = end[which] - first[which];
  return first[which];
}

static void K5_views_read_the_requested_elements(void **state) {
  (void)state;
  static float stored[ELEMENTS];
  static uint16_t brain[ELEMENTS];
  for (int i = 0; i < ELEMENTS; i++) {
    stored[i] = (float)i;
    brain[i] = ms_f32_to_bf16((float)i);
  }
  for (int half = 0; half < 2; half++) {
    ms_safetensors *st =
        half ? file_of("BF16", ELEMENTS, brain, sizeof brain) : file_of("F32", ELEMENTS, stored, sizeof stored);
    for (int i = 0; i < VIEWS; i++)
      for (int which = 0; which < 6; which++) {
        int64_t count, first = span_of(views[i].rows * views[i].columns, which, &count);
        float *out = malloc((size_t)count * sizeof *out + 1); /* exactly as long: the sanitizer sees a step beyond */
        int64_t bytes = 0;
        assert_non_null(out);
        must(ms_safetensors_read(st, 0, &views[i], first, count, out, &bytes));
        for (int64_t k = 0; k < count; k++) {
          const int64_t at = place(&views[i], first + k);
          assert_true(out[k] == (half ? ms_bf16_to_f32(brain[at]) : stored[at]));
        }
        assert_true(bytes == (double)(count * (half ? 2 : 4)));
        free(out);
      }
    ms_free(st);
  }
}

/* Three transposed views side by side, each in two spans, are the tensor. */
static void K5_views_write_where_they_read(void **state) {
  (void)state;
  static float memory[ELEMENTS], again[ELEMENTS];
  static const int64_t parts[] = {0, 11, 20, COLUMNS};
  ms_safetensors_writer *w;
  ms_safetensors *st;
  must(ms_safetensors_create(
      path, 1, &(ms_safetensors_tensor){.name = "t", .dtype = "F32", .ndim = 2, .dims = (int64_t[]){ROWS, COLUMNS}},
      sizeof(ms_safetensors_tensor), NULL, &w));
  for (int p = 0; p < 3; p++) {
    const ms_safetensors_view v = VIEW(parts[p + 1] - parts[p], ROWS, parts[p], 1, COLUMNS);
    const int64_t n = v.rows * v.columns, cut = n / 2 + 5;
    for (int64_t i = 0; i < n; i++) memory[i] = (float)place(&v, i);
    must(ms_safetensors_write(w, 0, &v, cut, n - cut, memory + cut));
    must(ms_safetensors_write(w, 0, &v, 0, cut, memory));
  }
  assert_fails(ms_safetensors_write(w, 0, &views[1], 0, 1, memory), MS_EINVAL, "once");
  must(ms_safetensors_finish(w));
  must(ms_safetensors_open(path, &st, NULL));
  must(ms_safetensors_read(st, 0, &whole, 0, ELEMENTS, again, NULL));
  ms_free(st);
  for (int i = 0; i < ELEMENTS; i++) assert_true(again[i] == (float)i);
}

static void K5_views_that_do_not_fit_are_refused(void **state) {
  (void)state;
  static const float stored[12] = {0};
  float out[12];
  ms_safetensors *st = file_of("F32", 12, stored, sizeof stored);
  static const struct {
    ms_safetensors_view view;
    int code;
    const char *text;
  } cases[] = {
      {VIEW(3, 5, 0, 5, 1), MS_ESHAPE, "3 x 5 | element 0 | 12"},
      {VIEW(3, 4, 1, 4, 1), MS_ESHAPE, "outside"},
      {VIEW(INT64_MAX, 4, 0, INT64_MAX, 1), MS_ESHAPE, "outside"},
      {VIEW(0, 4, 0, 4, 1), MS_EINVAL, "sizes | strides | 1"},
      {VIEW(3, 4, -1, 4, 1), MS_EINVAL, "sizes | strides"},
      {VIEW(2, 2, 0, 4, 2), MS_EUNSUPPORTED, "4, 2 | 1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_fails(ms_safetensors_read(st, 0, &cases[i].view, 0, 1, out, NULL), cases[i].code, cases[i].text);
  assert_fails(ms_safetensors_read(st, 0, &whole, 10, 3, out, NULL), MS_EINVAL, "3 | element 10 | 12");
  assert_fails(ms_safetensors_read(st, 1, &whole, 0, 1, out, NULL), MS_EINVAL, "tensor number 1");
  ms_free(st);
  st = file_of("I32", 12, stored, sizeof stored);
  assert_fails(ms_safetensors_read(st, 0, &whole, 0, 1, out, NULL), MS_EDTYPE, "\"t\" | I32");
  ms_free(st);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(K5_every_f16_is_read_and_written), TEST(K5_f16_is_rounded_to_nearest_even),
      TEST(K5_bf16_and_f64_are_read),         TEST(K5_views_read_the_requested_elements),
      TEST(K5_views_write_where_they_read),   TEST(K5_views_that_do_not_fit_are_refused),
  };
  return cmocka_run_group_tests(tests, make_path, remove_path);
}
