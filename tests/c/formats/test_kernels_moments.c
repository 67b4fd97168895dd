/* test_kernels_moments.c - AdamW's moments in 8 bits: the dynamic maps, records, and the updates, which are those of
 * torchao's algorithm in PyTorch but for signs of scales, on the CPU and on (emulated) CUDA. */
#include "kernels/formats/moments.h"

#include <float.h>

#include "kernels/formats/moment_code.h"
#include "tests/c/support/fixture_file.h"
#include "tests/c/support/kernel_case.h"

#define MOMENTS "tests/fixtures/low_precision/moments.safetensors"

enum { BYTES = MS_MOMENT_WORDS * 4 };

static const int maps[] = {MS_MOMENT_FIRST, MS_MOMENT_SECOND};

static float scale_of(const uint8_t *record) {
  float scale;
  memcpy(&scale, record + MS_MOMENT_BLOCK, sizeof scale);
  return scale;
}

static void Q9_maps_are_those_of_pytorch(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n;
  must(ms_safetensors_open(MOMENTS, &file, NULL));
  FOR_EACH(map, maps) {
    const float *expected = fixture_tensor(file, map == MS_MOMENT_FIRST ? "map.first" : "map.second", &n);
    assert_int_equal(n, 256);
    for (int code = 0; code < 256; code++) {
      const float number = ms_moment_number(map, code);
      assert_memory_equal(&number, &expected[code], sizeof number);
    }
  }
  ms_free(file);
}

/* Numbers of five decades; those of the second moment are not negative. */
static void draw(int map, uint64_t key, int64_t n, float *x) {
  ms_philox_normal(31, key, 0, n, x);
  for (int64_t i = 0; i < n; i++) {
    x[i] *= powf(10.0f, (float)(i * 7 % 5) - 6.0f);
    if (map == MS_MOMENT_SECOND) x[i] = fabsf(x[i]);
  }
}

static void Q9_codes_are_the_nearest(void **state) {
  (void)state;
  float x[MS_MOMENT_BLOCK], read[MS_MOMENT_BLOCK];
  uint8_t record[BYTES];
  FOR_EACH(map, maps)
  for (uint64_t key = 0; key < 20; key++) {
    draw(map, key, MS_MOMENT_BLOCK, x);
    ms_moment_encode((enum ms_moment_map)map, x, MS_MOMENT_BLOCK, record);
    ms_moment_decode((enum ms_moment_map)map, record, 0, MS_MOMENT_BLOCK, read);
    const double scale = scale_of(record);
    for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
      double least = INFINITY;
      for (int code = map == MS_MOMENT_SECOND; code < 256; code++)
        least = fmin(least, fabs((double)ms_moment_number(map, code) * scale - (double)x[i]));
      assert_true(fabs((double)read[i] - (double)x[i]) <= least + 1e-6 * fabs((double)x[i]));
    }
  }
}

/* However a device finds them. */
static void Q9_codes_change_at_their_borders(void **state) {
  (void)state;
  uint8_t record[BYTES];
  FOR_EACH(map, maps)
  for (int code = 1; code < 256; code++) {
    const float border = ms_moment_border(map, code), x[3] = {1.0f, border, nextafterf(border, -1.0f)};
    ms_moment_encode((enum ms_moment_map)map, x, 3, record);
    assert_int_equal(record[0], 255);
    assert_int_equal(record[1], code);
    assert_int_equal(record[2], code - 1);
  }
}

/* So f32 in a checkpoint is a record, bit for bit. */
static void Q9_records_of_what_records_mean_are_the_same(void **state) {
  (void)state;
  enum { N = 4 * MS_MOMENT_BLOCK - 5 };
  float x[N], read[N], again[N];
  uint8_t records[4 * BYTES], second[4 * BYTES];
  FOR_EACH(map, maps)
  for (uint64_t key = 0; key < 50; key++) {
    draw(map, key, N, x);
    ms_moment_encode((enum ms_moment_map)map, x, N, records);
    ms_moment_decode((enum ms_moment_map)map, records, 0, N, read);
    ms_moment_encode((enum ms_moment_map)map, read, N, second);
    assert_memory_equal(records, second, sizeof records);
    for (int at = 0; at < N; at += 97) {
      ms_moment_decode((enum ms_moment_map)map, records, at, N - at, again);
      assert_memory_equal(again, read + at, (size_t)(N - at) * sizeof *read);
    }
  }
}

static void Q9_the_largest_magnitude_is_exact_with_either_sign(void **state) {
  (void)state;
  for (int sign = -1; sign <= 1; sign += 2) {
    float x[3] = {0.25f, (float)sign * 0.7f, 0.1f}, read[3];
    uint8_t record[BYTES];
    ms_moment_encode(MS_MOMENT_FIRST, x, 3, record);
    ms_moment_decode(MS_MOMENT_FIRST, record, 0, 3, read);
    assert_true(read[1] == x[1] && scale_of(record) == x[1]);
  }
  float both[2] = {-0.5f, 0.5f};
  uint8_t record[BYTES];
  ms_moment_encode(MS_MOMENT_FIRST, both, 2, record);
  assert_true(scale_of(record) == 0.5f);
}

static void Q9_a_second_moment_above_0_stays_above_0(void **state) {
  (void)state;
  float x[4] = {1.0f, 1e-9f, 0.0f, FLT_MIN}, read[4];
  uint8_t record[BYTES];
  ms_moment_encode(MS_MOMENT_SECOND, x, 4, record);
  ms_moment_decode(MS_MOMENT_SECOND, record, 0, 4, read);
  assert_true(read[0] == 1.0f && read[1] == ms_moment_number(MS_MOMENT_SECOND, 1) && read[2] == 0 && read[3] > 0);
}

static void Q9_records_without_a_scale(void **state) {
  (void)state;
  FOR_EACH(map, maps) {
    float x[2] = {0x1p-101f, 0}, read[2] = {1, 1};
    uint8_t record[BYTES] = {0};
    ms_moment_decode((enum ms_moment_map)map, record, 0, 2, read);
    assert_true(read[0] == 0 && read[1] == 0);
    ms_moment_encode((enum ms_moment_map)map, x, 2, record);
    ms_moment_decode((enum ms_moment_map)map, record, 0, 2, read);
    assert_true(read[0] == 0 && read[1] == 0);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    FOR_EACH(not_finite, bad) {
      x[0] = not_finite;
      ms_moment_encode((enum ms_moment_map)map, x, 2, record);
      ms_moment_decode((enum ms_moment_map)map, record, 0, 2, read);
      assert_true(isnan(read[0]) && isnan(read[1]));
    }
  }
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

static kernel_case adamw_case(int64_t n, double beta2, double decay) {
  kernel_case c = case_of(MS_OP_adamw);
  const double eps = 1e-8;
  c.call.attrs = (ms_op_attrs){
      .update = {.moments = MS_ADAMW_I8, .lr_scale = 1, .weight_decay = decay, .beta1 = 0.9, .beta2 = beta2}};
  c.call.attrs.update.eps = eps;
  add_input(&c, SHAPE(MS_F32, n));
  add_input(&c, SHAPE(MS_F32, 4));
  set_input(&c, 1, 2, 1.0);
  add_input(&c, SCALAR(MS_F32));
  add_output(&c, SHAPE(MS_F32, n));
  for (int o = 1; o <= 2; o++) {
    add_output(&c, SHAPE(MS_I32, ms_moment_words(n)));
    memset(c.call.out_data[o], 0, (size_t)tensor_bytes(&c.call.out[o]));
  }
  return c;
}

static double norm_of_difference(const float *a, const float *b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
  return sqrt(sum);
}

/* The fixture has the updates of torchao's algorithm, of the same with signed scales, and of exact moments. */
static void Q9_updates_are_those_of_torchao_with_signed_scales(void **state) {
  (void)state;
  ms_safetensors *file;
  int64_t n, all;
  must(ms_safetensors_open(MOMENTS, &file, NULL));
  const float *p = fixture_tensor(file, "p", &n), *gradients = fixture_tensor(file, "gradients", &all);
  const float *same = fixture_tensor(file, "signed", &all), *torchao = fixture_tensor(file, "torchao", &all);
  const float *exact = fixture_tensor(file, "exact", &all);
  kernel_case c = adamw_case(n, 0.99, 0.1);
  memcpy(c.call.out_data[0], p, (size_t)n * sizeof *p);
  float *moved = malloc((size_t)n * sizeof *moved), *zeros = calloc((size_t)n, sizeof *zeros);
  for (int64_t at = 0; at < all; at += n) {
    for (int64_t i = 0; i < n; i++) {
      set_input(&c, 0, i, (double)gradients[at + i]);
      moved[i] = (float)output_at(&c, 0, i);
    }
    set_input(&c, 2, 0, (double)(at / n + 1));
    run_once(&c, c.call, TEAM);
    for (int64_t i = 0; i < n; i++) moved[i] = (float)output_at(&c, 0, i) - moved[i];
    const double size = norm_of_difference(exact + at, zeros, n);
    assert_true(norm_of_difference(moved, same + at, n) < 2e-3 * size);
    assert_true(norm_of_difference(moved, exact + at, n) <
                1.05 * norm_of_difference(torchao + at, exact + at, n) + 1e-5 * size);
  }
  free(moved);
  free(zeros);
  free_case(&c);
  ms_free(file);
}

/* Steps of pieces that begin with a record have the bits of those of the whole, on any number of threads. */
static void Q9_pieces_of_whole_records_have_the_bits_of_the_whole(void **state) {
  (void)state;
  enum { N = 41 * MS_MOMENT_BLOCK + 3, CUT = 13 * MS_MOMENT_BLOCK };
  static const int64_t cuts[] = {0, CUT, N};
  kernel_case whole = adamw_case(N, 0.999, 0.0);
  for (int64_t i = 0; i < N; i++) ((float *)whole.call.out_data[0])[i] = 1.0f;
  for (int step = 1; step <= 3; step++) {
    set_input(&whole, 2, 0, step);
    run_once(&whole, whole.call, 1);
  }
  for (int k = 0; k < 2; k++) {
    const int64_t first = cuts[k], n = cuts[k + 1] - first;
    kernel_case piece = adamw_case(n, 0.999, 0.0);
    for (int64_t i = 0; i < n; i++) {
      ((float *)piece.call.out_data[0])[i] = 1.0f;
      set_input(&piece, 0, i, input_at(&whole, 0, first + i));
    }
    for (int step = 1; step <= 3; step++) {
      set_input(&piece, 2, 0, step);
      run_once(&piece, piece.call, TEAM);
    }
    assert_memory_equal(piece.call.out_data[0], (float *)whole.call.out_data[0] + first, (size_t)n * sizeof(float));
    for (int o = 1; o <= 2; o++)
      assert_memory_equal(piece.call.out_data[o], (char *)whole.call.out_data[o] + first / MS_MOMENT_BLOCK * BYTES,
                          (size_t)tensor_bytes(&piece.call.out[o]));
    free_case(&piece);
  }
  free_case(&whole);
}

static void Q9_what_is_behind_a_parameter_stays_0(void **state) {
  (void)state;
  kernel_case c = adamw_case(300, 0.99, 0.0);
  float rest[2 * MS_MOMENT_BLOCK - 300];
  for (int64_t i = 0; i < 300; i++) ((float *)c.call.out_data[0])[i] = 0;
  set_input(&c, 2, 0, 1);
  run_once(&c, c.call, 1);
  for (int o = 1; o <= 2; o++) {
    ms_moment_decode(o == 1 ? MS_MOMENT_FIRST : MS_MOMENT_SECOND, c.call.out_data[o], 300, 2 * MS_MOMENT_BLOCK - 300,
                     rest);
    for (int i = 0; i < 2 * MS_MOMENT_BLOCK - 300; i++) assert_true(rest[i] == 0);
  }
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q9_maps_are_those_of_pytorch),
      TEST(Q9_codes_are_the_nearest),
      TEST(Q9_codes_change_at_their_borders),
      TEST(Q9_records_of_what_records_mean_are_the_same),
      TEST(Q9_the_largest_magnitude_is_exact_with_either_sign),
      TEST(Q9_a_second_moment_above_0_stays_above_0),
      TEST(Q9_records_without_a_scale),
      TEST(Q9_updates_are_those_of_torchao_with_signed_scales),
      TEST(Q9_pieces_of_whole_records_have_the_bits_of_the_whole),
      TEST(Q9_what_is_behind_a_parameter_stays_0),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
