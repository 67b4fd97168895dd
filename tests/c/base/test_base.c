/* test_base.c - the ground floor: memory, text, hash, environment, element types. */
#include "base/numbers/bf16.h"
#include "base/env.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "base/text/hash.h"
#include "base/text/text.h"
#include "tests/c/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void memory_is_zeroed_and_failures_are_recorded(void **state) {
  (void)state;
  int *zeros = ms_calloc(3, sizeof *zeros);
  assert_non_null(zeros);
  assert_true(zeros[0] == 0 && zeros[2] == 0);
  free(zeros);
  void *empty = ms_calloc(0, 8);
  assert_non_null(empty);
  free(empty);
  assert_null(ms_calloc(-1, 8));
  assert_int_equal(ms_error_code(), MS_ENOMEM);
  assert_has(ms_error_message(), "-1 | 8 bytes");
}

static void memory_grows_and_keeps(void **state) {
  (void)state;
  int64_t *items = NULL;
  int capacity = 0;
  for (int i = 0; i < 1000; i++) {
    assert_int_equal(ms_grow((void **)&items, &capacity, i + 1, sizeof *items), MS_OK);
    items[i] = i;
  }
  assert_true(capacity >= 1000 && capacity < 2000);
  for (int i = 0; i < 1000; i++) assert_int_equal(items[i], i);
  int64_t *before = items;
  assert_int_equal(ms_grow((void **)&items, &capacity, INT32_MAX, INT64_MAX / 4), MS_ENOMEM);
  assert_ptr_equal(items, before);
  assert_true(capacity < 2000);
  free(items);
  char *copy = ms_strdup("layers.0");
  assert_string_equal(copy, "layers.0");
  free(copy);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void text_appends_past_its_first_room(void **state) {
  (void)state;
  ms_text text = {0};
  assert_null(text.data);
  ms_text_append(&text, "%s", "");
  assert_string_equal(text.data, "");
  char line[400];
  memset(line, 'a', 399);
  line[399] = '\0';
  for (int i = 0; i < 50; i++) ms_text_append(&text, "%d:%s\n", i, line);
  assert_int_equal(ms_text_status(&text), MS_OK);
  assert_int_equal(text.length, strlen(text.data));
  assert_int_equal(text.length, 50 * 401 + 10 + 40 * 2);
  ms_text_free(&text);
  assert_null(text.data);
  text.failed = 1;
  assert_int_equal(ms_text_status(&text), MS_ENOMEM);
}

static void text_integers_and_strings_equal_printf(void **state) {
  (void)state;
  static const int64_t values[] = {0, 7, -7, 10, 1234567890123, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    char expected[64];
    ms_text text = {0};
    ms_text_string(&text, "<");
    ms_text_integer(&text, values[i]);
    ms_text_string(&text, "");
    ms_text_string(&text, " bytes>");
    snprintf(expected, sizeof expected, "<%lld bytes>", (long long)values[i]);
    assert_int_equal(ms_text_status(&text), MS_OK);
    assert_string_equal(text.data, expected);
    ms_text_free(&text);
  }
}

static void text_json_strings_are_valid(void **state) {
  (void)state;
  ms_text text = {0};
  ms_text_json_string(&text, "a\"b\\c\n\t\x01 \xc3\xa9 \xf0\x9f\x98\x80");
  assert_string_equal(text.data, "\"a\\\"b\\\\c\\n\\t\\u0001 \xc3\xa9 \xf0\x9f\x98\x80\"");
  ms_text_free(&text);
  ms_text_json_string(&text, "\xff \xc3 \xed\xa0\x80 \xc0\xaf \xf0\x9f");
  assert_string_equal(text.data,
                      "\"\xef\xbf\xbd \xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd "
                      "\xef\xbf\xbd\xef\xbf\xbd\"");
  ms_text_free(&text);
}

static void text_bytes_have_three_digits(void **state) {
  (void)state;
  static const struct {
    double bytes;
    const char *text;
  } cases[] = {{0, "0 B"},
               {1, "1 B"},
               {1023, "1023 B"},
               {1024, "1.00 KiB"},
               {1536, "1.50 KiB"},
               {10240, "10.0 KiB"},
               {22439526.4, "21.4 MiB"},
               {999.4 * 1024, "999 KiB"},
               {1000.0 * 1024, "0.977 MiB"},
               {1024.0 * 1024 * 1024 - 1, "1.00 GiB"},
               {1099511627776.0, "1.00 TiB"},
               {-2048, "-2.00 KiB"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ms_text text = {0};
    ms_text_bytes(&text, cases[i].bytes);
    assert_string_equal(text.data, cases[i].text);
    ms_text_free(&text);
  }
}

/* ---- hash ------------------------------------------------------------------------------------------------------- */

static void hash_is_stable_and_separates(void **state) {
  (void)state;
  uint64_t h = MS_HASH_INIT;
  assert_true(ms_hash_string(ms_hash_string(h, "ab"), "c") != ms_hash_string(ms_hash_string(h, "a"), "bc"));
  assert_true(ms_hash_string(h, "") != h);
  assert_true(ms_hash_bytes(h, "a\0", 2) != ms_hash_bytes(h, "a", 1));
  assert_true(ms_hash_int(h, 0) != ms_hash_int(h, 1));
  assert_true(ms_hash_int(h, -1) != ms_hash_int(h, 0xffffffffll));
  assert_int_equal(ms_hash_string(h, "layers.3.attn.wq.weight"), 0x0a40f4b57ded35dfull);
  enum { NAMES = 20000 };
  uint64_t *seen = ms_calloc(NAMES, sizeof *seen);
  int low_bits[256] = {0};
  for (int i = 0; i < NAMES; i++) {
    char name[32];
    snprintf(name, sizeof name, "layers.%d.weight", i);
    seen[i] = ms_hash_string(h, name);
    low_bits[seen[i] & 255]++;
  }
  for (int i = 1; i < NAMES; i++) assert_true(seen[i] != seen[i - 1]);
  for (int i = 0; i < 256; i++) assert_true(low_bits[i] > 30 && low_bits[i] < 140);
  free(seen);
}

/* ---- environment ------------------------------------------------------------------------------------------------ */

static void env_values_are_typed(void **state) {
  (void)state;
  const char *name = "MOONSHARD_TEST_VALUE";
  int i;
  double d;
  unsetenv(name);
  assert_int_equal(ms_env_int(name, 7, 0, 9, &i), MS_OK);
  assert_int_equal(i, 7);
  assert_int_equal(ms_env_double(name, 0.5, &d), MS_OK);
  assert_true(d == 0.5);
  assert_string_equal(ms_env_string(name, "none"), "none");
  setenv(name, "", 1);
  assert_string_equal(ms_env_string(name, "none"), "none");
  setenv(name, "3", 1);
  assert_int_equal(ms_env_int(name, 7, 0, 9, &i), MS_OK);
  assert_int_equal(i, 3);
  setenv(name, "2.5e1", 1);
  assert_int_equal(ms_env_double(name, 0.5, &d), MS_OK);
  assert_true(d == 25);
  unsetenv(name);
}

static void env_bad_values_name_the_variable(void **state) {
  (void)state;
  const char *name = "MOONSHARD_TEST_VALUE";
  static const char *const bad_ints[] = {"10", "-1", "x", "3x", "3.5", "99999999999999999999"};
  static const char *const bad_doubles[] = {"x", "1s", "nan", "inf", "1e999"};
  int i;
  double d;
  for (size_t k = 0; k < sizeof bad_ints / sizeof *bad_ints; k++) {
    setenv(name, bad_ints[k], 1);
    assert_int_equal(ms_env_int(name, 7, 0, 9, &i), MS_EINVAL);
    assert_has(ms_error_message(), bad_ints[k]);
    assert_fails(ms_error_code(), MS_EINVAL, "MOONSHARD_TEST_VALUE");
  }
  for (size_t k = 0; k < sizeof bad_doubles / sizeof *bad_doubles; k++) {
    setenv(name, bad_doubles[k], 1);
    assert_fails(ms_env_double(name, 1, &d), MS_EINVAL, "finite");
  }
  setenv(name, "10", 1);
  assert_fails(ms_env_int(name, 7, 0, 9, &i), MS_EINVAL, "integer | 0 | 9");
  unsetenv(name);
}

/* ---- element types ---------------------------------------------------------------------------------------------- */

static void dtype_table(void **state) {
  (void)state;
  static const int sizes[MS_DTYPES] = {4, 2, 4, 1, 1, 1, 1, 1, 0, 0};
  for (int t = 0; t < MS_DTYPES; t++) assert_int_equal(ms_dtype_size(t), sizes[t]);
  assert_int_equal(ms_dtype_size(-1), 0);
  assert_int_equal(ms_dtype_size(MS_DTYPES), 0);
  assert_string_equal(ms_dtype_name(MS_DTYPES), "unknown type");
}

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static void bf16_rounds_to_nearest_even(void **state) {
  (void)state;
  static const struct {
    uint32_t from;
    uint16_t to;
  } cases[] = {
      {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80}, {0xbf800000, 0xbf80},
      {0x3f808000, 0x3f80},                                             /* tie, even below */
      {0x3f818000, 0x3f82},                                             /* tie, even above */
      {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0x3fffffff, 0x4000}, /* carries into the exponent */
      {0x7f7fffff, 0x7f80},                                             /* the largest float rounds to infinity */
      {0x7f7f7fff, 0x7f7f}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
      {0x00000001, 0x0000}, {0x00008001, 0x0001}, {0x00018000, 0x0002}, {0x007fffff, 0x0080}, /* subnormals */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(ms_f32_to_bf16(float_of(cases[i].from)), cases[i].to);
  static const uint32_t nans[] = {0x7fc00000, 0x7f800001, 0x7fffffff, 0xffc00000, 0xff800001, 0xffffffff, 0x7f80ffff};
  for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
    ms_bf16 b = ms_f32_to_bf16(float_of(nans[i]));
    assert_true((b & 0x7f80) == 0x7f80 && (b & 0x7f) != 0);
    assert_int_equal(b >> 15, nans[i] >> 31);
    assert_true(isnan(ms_bf16_to_f32(b)));
  }
  for (uint32_t b = 0; b < 0x10000; b++) {
    int is_nan = (b & 0x7fff) > 0x7f80;
    uint16_t back = ms_f32_to_bf16(ms_bf16_to_f32((ms_bf16)b));
    assert_int_equal(back, is_nan ? (b | 0x40) : b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(memory_is_zeroed_and_failures_are_recorded),
      TEST(memory_grows_and_keeps),
      TEST(text_appends_past_its_first_room),
      TEST(text_integers_and_strings_equal_printf),
      TEST(text_json_strings_are_valid),
      TEST(text_bytes_have_three_digits),
      TEST(hash_is_stable_and_separates),
      TEST(env_values_are_typed),
      TEST(env_bad_values_name_the_variable),
      TEST(dtype_table),
      TEST(bf16_rounds_to_nearest_even),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
