/* test_philox.c - the generator: known answers, independence of splits and machines, and the laws drawn from it. */
#include "base/error.h"
#include "base/text/hash.h"
#include "base/numbers/philox.h"
#include "tests/c/support/check.h"

#include <math.h>
#include <stdlib.h>

/* The vectors that the authors publish with their reference implementation (Random123, kat_vectors, philox4x32 10). */
static void philox_known_answers(void **state) {
  (void)state;
  static const struct {
    uint64_t seed, stream, block;
    uint32_t words[4];
  } cases[] = {
      {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {0x299f31d0a4093822ull,
       0x0370734413198a2eull,
       0x85a308d3243f6a88ull,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint32_t words[4];
    ms_philox4x32(cases[i].seed, cases[i].stream, cases[i].block, words);
    assert_memory_equal(words, cases[i].words, sizeof words);
  }
}

enum { DRAWS = 1 << 20 };

typedef void draw_function(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out);

/* Every split of a range gives the bits of the whole, also far out and with an odd start. */
static void check_splits(draw_function *draw, int64_t base) {
  enum { N = 5003 };
  float *whole = ms_calloc(N, sizeof *whole), *parts = ms_calloc(N + 1, sizeof *parts);
  draw(42, 7, base, N, whole);
  static const int steps[] = {1, 2, 3, 5, 64, 255, 256, 257, 1000, 4999};
  for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
    memset(parts, 0xff, (N + 1) * sizeof *parts);
    for (int at = 0; at < N; at += steps[s]) {
      int take = N - at < steps[s] ? N - at : steps[s];
      draw(42, 7, base + at, take, parts + at);
    }
    assert_memory_equal(whole, parts, N * sizeof *whole);
    uint32_t beyond;
    memcpy(&beyond, parts + N, 4);
    assert_int_equal(beyond, 0xffffffffu);
  }
  free(whole);
  free(parts);
}

static void philox_bits_do_not_depend_on_the_split(void **state) {
  (void)state;
  static const int64_t bases[] = {0, 1, 2, 3, 255, (1ll << 34) - 1001, (1ll << 40) + 3};
  for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
    check_splits(ms_philox_normal, bases[i]);
    check_splits(ms_philox_uniform, bases[i]);
  }
}

/* Against Box-Muller in double precision with the C library's functions. */
static void philox_normal_follows_its_formula(void **state) {
  (void)state;
  float *z = ms_calloc(DRAWS, sizeof *z);
  const double turn = 6.283185307179586 / 4294967296.0;
  ms_philox_normal(3, 9, 0, DRAWS, z);
  for (int i = 0; i < DRAWS; i += 2) {
    uint32_t words[4];
    ms_philox4x32(3, 9, (uint64_t)i / 4, words);
    const uint32_t *pair = words + i % 4;
    double radius = sqrt(-2 * log(((double)(pair[0] >> 1) + 0.5) / 2147483648.0));
    double x = radius * cos(turn * pair[1]), y = radius * sin(turn * pair[1]);
    if (fabs(z[i] - x) > 2e-4 || fabs(z[i + 1] - y) > 2e-4)
      fail_msg("element %d: %g, %g for %g, %g", i, z[i], z[i + 1], x, y);
  }
  free(z);
}

static void philox_normal_is_normal(void **state) {
  (void)state;
  float *z = ms_calloc(DRAWS, sizeof *z);
  ms_philox_normal(1234, 5, 0, DRAWS, z);
  double sum = 0, square = 0, cube = 0, fourth = 0, lag = 0;
  int within[4] = {0};
  for (int i = 0; i < DRAWS; i++) {
    double x = z[i];
    assert_true(isfinite(x));
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    if (i) lag += x * z[i - 1];
    for (int k = 1; k < 4; k++) within[k] += fabs(x) < k;
  }
  const double n = DRAWS, five = 5 / sqrt(n); /* five standard errors of a mean of unit variance */
  assert_true(fabs(sum / n) < five);
  assert_true(fabs(square / n - 1) < five * sqrt(2));
  assert_true(fabs(cube / n) < five * sqrt(15));
  assert_true(fabs(fourth / n - 3) < five * sqrt(96));
  assert_true(fabs(lag / n) < five);
  assert_true(fabs(within[1] / n - 0.682689492137) < five * 0.47);
  assert_true(fabs(within[2] / n - 0.954499736104) < five * 0.21);
  assert_true(fabs(within[3] / n - 0.997300203937) < five * 0.06);
  free(z);
}

static void philox_uniform_is_uniform(void **state) {
  (void)state;
  float *u = ms_calloc(DRAWS, sizeof *u);
  ms_philox_uniform(99, 0, 0, DRAWS, u);
  double sum = 0, square = 0;
  int bins[64] = {0};
  for (int i = 0; i < DRAWS; i++) {
    assert_true(u[i] >= 0 && u[i] < 1);
    sum += u[i];
    square += (double)u[i] * u[i];
    bins[(int)(u[i] * 64)]++;
  }
  assert_true(fabs(sum / DRAWS - 0.5) < 0.0015);
  assert_true(fabs(square / DRAWS - 1.0 / 3) < 0.0015);
  double chi = 0, expected = DRAWS / 64.0;
  for (int b = 0; b < 64; b++) chi += (bins[b] - expected) * (bins[b] - expected) / expected;
  assert_true(chi < 63 + 5 * sqrt(2 * 63));
  free(u);
}

/* The bits are part of the contract: a model's initial weights are the same on every machine and in every build. */
static void philox_bits_are_the_same_everywhere(void **state) {
  (void)state;
  float *x = ms_calloc(DRAWS, sizeof *x);
  ms_philox_normal(2024, 11, 3, DRAWS, x);
  assert_int_equal(ms_hash_bytes(MS_HASH_INIT, x, DRAWS * sizeof *x), 0x226d314d8f6b0fb7ull);
  ms_philox_uniform(2024, 11, 3, DRAWS, x);
  assert_int_equal(ms_hash_bytes(MS_HASH_INIT, x, DRAWS * sizeof *x), 0x17ff75b0a43321a5ull);
  float other[4], same[4];
  ms_philox_normal(2024, 12, 3, 4, other);
  ms_philox_normal(2024, 11, 3, 4, same);
  assert_memory_not_equal(other, same, sizeof same);
  ms_philox_normal(2025, 11, 3, 4, other);
  assert_memory_not_equal(other, same, sizeof same);
  free(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(philox_known_answers),
      TEST(philox_bits_do_not_depend_on_the_split),
      TEST(philox_normal_follows_its_formula),
      TEST(philox_normal_is_normal),
      TEST(philox_uniform_is_uniform),
      TEST(philox_bits_are_the_same_everywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
