/* test_float8.c - the 8-bit floats and the 4-bit types, against ml_dtypes: every code, every tie and its neighbours,
 * and what does not fit (tests/fixtures/low_precision). */
#include "base/numbers/float8.h"

#include <math.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "base/numbers/packed4.h"
#include "kernels/formats/quantise_code.h"
#include "tests/c/support/check.h"
#include "tests/c/support/fixture_file.h"

#define CASTS "tests/fixtures/low_precision/casts.safetensors"

static const int formats[] = {MS_F8E4M3, MS_F8E5M2, MS_E8M0};
enum { FORMATS = sizeof formats / sizeof *formats };

static ms_safetensors *casts(void) {
  ms_safetensors *file;
  must(ms_safetensors_open(CASTS, &file, NULL));
  return file;
}

static void Q1_every_code_has_the_value_of_ml_dtypes(void **state) {
  (void)state;
  ms_safetensors *file = casts();
  for (int t = 0; t < FORMATS; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(formats[t]);
    int64_t n;
    const float *expected = fixture_part(file, row->info.name, ".values", &n);
    uint8_t code[256];
    float value[256];
    assert_int_equal(n, 256);
    for (int i = 0; i < 256; i++) code[i] = (uint8_t)i;
    row->widen(code, 256, value);
    for (int i = 0; i < 256; i++) {
      if (isnan(expected[i])) assert_true(isnan(value[i]));
      else if (memcmp(&value[i], &expected[i], sizeof *value))
        fail_msg("%s 0x%02x is %a, not %a", row->info.name, i, (double)value[i], (double)expected[i]);
    }
  }
  ms_free(file);
}

static void Q1_every_code_survives_a_round_trip(void **state) {
  (void)state;
  for (int t = 0; t < FORMATS; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(formats[t]);
    for (int i = 0; i < 256; i++) {
      uint8_t code = (uint8_t)i, again;
      float value;
      row->widen(&code, 1, &value);
      row->narrow(&value, 1, &again);
      /* All NaNs become one, and infinities the largest number. */
      const uint8_t nan = formats[t] == MS_E8M0 ? 0xff : 0x7f;
      const float largest = (float)row->info.largest;
      if (isnan(value)) assert_int_equal(again, nan);
      else if (isinf(value)) {
        row->widen(&again, 1, &value);
        assert_true(value == (code & 0x80 ? -largest : largest));
      } else assert_int_equal(again, code);
    }
  }
}

static void Q1_numbers_ties_and_what_is_beyond_round_as_in_ml_dtypes(void **state) {
  (void)state;
  ms_safetensors *file = casts();
  for (int t = 0; t < FORMATS; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(formats[t]);
    int64_t n, codes;
    const float *x = fixture_part(file, row->info.name, ".inputs", &n);
    const uint8_t *expected = fixture_part(file, row->info.name, ".codes", &codes);
    assert_true(n == codes && n > 3000);
    for (int64_t i = 0; i < n; i++) {
      uint8_t code;
      row->narrow(&x[i], 1, &code);
      if (code != expected[i])
        fail_msg("%s of %a is 0x%02x, not 0x%02x", row->info.name, (double)x[i], code, expected[i]);
    }
  }
  ms_free(file);
}

/* Rounding a bf16 through f32 is one rounding: f32 holds it exactly. So the nearest of all codes must come out. */
static void Q1_every_bf16_gets_the_nearest_code(void **state) {
  (void)state;
  for (int t = 0; t < 2; t++) {
    const ms_dtype_row *row = ms_dtype_row_of(formats[t]);
    for (int bits = 0; bits < 1 << 16; bits++) {
      const float x = ms_bf16_to_f32((ms_bf16)bits);
      uint8_t code, near[2];
      float value[2], got;
      row->narrow(&x, 1, &code);
      row->widen(&code, 1, &got);
      if (isnan(x)) {
        assert_int_equal(code, 0x7f);
        continue;
      }
      assert_true(isfinite(got) && !signbit(got) == !signbit(x));
      if (fabsf(x) >= (float)row->info.largest) {
        assert_true(fabsf(got) == (float)row->info.largest);
        continue;
      }
      near[0] = (uint8_t)(code - 1), near[1] = (uint8_t)(code + 1);
      row->widen(near, 2, value);
      for (int k = 0; k < 2; k++) {
        if (!isfinite(value[k]) || !signbit(value[k]) != !signbit(got)) continue;
        const double own = fabs((double)x - (double)got), other = fabs((double)x - (double)value[k]);
        if (!(own < other || (own == other && code % 2 == 0)))
          fail_msg("%s of %a is %a; %a is as near", row->info.name, (double)x, (double)got, (double)value[k]);
      }
    }
  }
}

static void Q1_nf4_has_the_codebook_and_the_ties_of_bitsandbytes(void **state) {
  (void)state;
  ms_safetensors *file = casts();
  int64_t n, codes;
  const float *values = fixture_tensor(file, "nf4.values", &n);
  assert_int_equal(n, 16);
  for (int i = 0; i < 16; i++) assert_memory_equal(&(float){ms_nf4_to_f32((uint8_t)i)}, &values[i], sizeof *values);
  assert_true(ms_nf4_to_f32(MS_NF4_ZERO) == 0);
  const float *x = fixture_tensor(file, "nf4.inputs", &n);
  const uint8_t *expected = fixture_tensor(file, "nf4.codes", &codes);
  assert_true(n == codes && n > 1000);
  for (int64_t i = 0; i < n; i++)
    if (ms_f32_to_nf4(x[i]) != expected[i])
      fail_msg("nf4 of %a is %d, not %d", (double)x[i], ms_f32_to_nf4(x[i]), expected[i]);
  ms_free(file);
}

static void Q1_the_first_of_two_codes_is_in_the_high_bits(void **state) {
  (void)state;
  for (int first = 0; first < 16; first++)
    for (int second = 0; second < 16; second++) {
      const uint8_t byte = ms_pack4((uint8_t)first, (uint8_t)second);
      assert_int_equal(byte, 16 * first + second);
      assert_int_equal(ms_first4(byte), first);
      assert_int_equal(ms_second4(byte), second);
    }
  for (int i = -8; i < 8; i++) assert_int_equal(ms_i4_to_int((uint8_t)(i & 15)), i);
}

/* What a row of MS_CODES says; returns 1. */
static int codes_are_whole(int dtype, float largest, int top, uint8_t (*encode)(float), float (*decode)(uint8_t)) {
  int found = 0;
  assert_true(ms_dtype_may(dtype, MS_DTYPE_BLOCKS));
  assert_int_equal(ms_dtype_may(dtype, MS_DTYPE_SCALED), top != 0);
  for (int code = 0; code < 1 << ms_dtype_row_of(dtype)->info.bits; code++) {
    const float value = decode((uint8_t)code);
    if (!(fabsf(value) <= largest)) continue; /* NaN, infinity, and what has no negative */
    if (decode(encode(value)) != value) fail_msg("%s: code %d reads as %a", ms_dtype_name(dtype), code, (double)value);
    found |= value == largest;
  }
  assert_true(found);
  return 1;
}

static void Q1_every_row_of_codes_reads_back_what_it_makes(void **state) {
  (void)state;
  int rows = 0, dtypes = 0;
#define MS_CODES(NAME, largest, top, encode, decode) rows += codes_are_whole(MS_##NAME, largest, top, encode, decode);
#include "base/numbers/formats.def"
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) dtypes += ms_dtype_may(dtype, MS_DTYPE_BLOCKS);
  assert_int_equal(rows, dtypes);
}

static void Q1_bytes_of_packed_elements(void **state) {
  (void)state;
  static const struct {
    int dtype;
    int64_t n, bytes;
  } sizes[] = {{MS_F32, 3, 12}, {MS_BF16, 3, 6}, {MS_F8E4M3, 3, 3}, {MS_I8, 0, 0},
               {MS_I4, 0, 0},   {MS_I4, 6, 3},   {MS_NF4, 2, 1},    {MS_NF4, INT64_C(1) << 40, INT64_C(1) << 39}};
  int64_t bytes = -1;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    must(ms_dtype_bytes(sizes[i].dtype, sizes[i].n, &bytes));
    assert_int_equal(bytes, sizes[i].bytes);
  }
  assert_int_equal(ms_dtype_size(MS_I4), 0);
  assert_int_equal(ms_dtype_size(MS_NF4), 0);
  assert_fails(ms_dtype_bytes(MS_NF4, 3, &bytes), MS_ESHAPE, "3 elements of nf4 | whole bytes | multiple of 2");
  assert_fails(ms_dtype_bytes(MS_I8, -1, &bytes), MS_ESHAPE, "-1 elements of i8");
  assert_fails(ms_dtype_bytes(MS_DTYPES, 1, &bytes), MS_EDTYPE, "unknown element type");
  assert_fails(ms_dtype_bytes(MS_F32, 1, NULL), MS_EINVAL, "bytes is NULL");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q1_every_code_has_the_value_of_ml_dtypes),
      TEST(Q1_every_code_survives_a_round_trip),
      TEST(Q1_numbers_ties_and_what_is_beyond_round_as_in_ml_dtypes),
      TEST(Q1_every_bf16_gets_the_nearest_code),
      TEST(Q1_nf4_has_the_codebook_and_the_ties_of_bitsandbytes),
      TEST(Q1_the_first_of_two_codes_is_in_the_high_bits),
      TEST(Q1_every_row_of_codes_reads_back_what_it_makes),
      TEST(Q1_bytes_of_packed_elements),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
