/* test_kernels_cast.c - casts: between f32 and bf16, and between all dtypes of 8 bits and those that kernels compute
 * in, bit for bit. */
#include "base/numbers/dtype.h"
#include "base/numbers/float8.h"
#include "tests/c/support/kernel_case.h"

static const int64_t sizes[] = {1, 3, 17, 1000, 70001};

static void cast_rounds_to_nearest_even(void **state) {
  (void)state;
  static const float special[] = {0.0f, -0.0f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f, INFINITY, -INFINITY, NAN};
  FOR_EACH(from, dtypes)
  FOR_EACH(to, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_cast);
    add_input(&c, SHAPE(from, n));
    add_output(&c, SHAPE(to, n));
    for (int64_t i = 0; i < n && i < (int64_t)(sizeof special / sizeof *special); i++) set_input(&c, 0, i, special[i]);
    run_case(&c);
    for (int64_t i = 0; i < n; i++) {
      float x = (float)input_at(&c, 0, i);
      double expected = to == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16(x)) : x;
      if (!same_number(output_at(&c, 0, i), expected, 0.0)) fail_msg("%g became %g", x, output_at(&c, 0, i));
    }
    free_case(&c);
  }
}

/* Bits of the result of a cast, by base/numbers/float8.h, which test_float8.c compares with ml_dtypes. */
static int64_t cast_bits(double value, int to) {
  const float x = (float)value;
  switch (to) {
    case MS_F8E4M3: return ms_f32_to_f8e4m3(x);
    case MS_F8E5M2: return ms_f32_to_f8e5m2(x);
    case MS_E8M0: return ms_f32_to_e8m0(x);
    case MS_I8: return x != x ? 0 : (uint8_t)(int8_t)fmin(fmax(trunc(x), -128), 127);
    case MS_BF16: return ms_f32_to_bf16(x);
    case MS_I32: return x != x ? 0 : (uint32_t)(int32_t)fmin(fmax(trunc(x), INT32_MIN), INT32_MAX);
    default: return (int64_t)ms_float8_bits(x);
  }
}

static double value_of_bits(const void *data, int dtype, int64_t i) {
  const uint8_t byte = ((const uint8_t *)data)[i];
  switch (dtype) {
    case MS_F8E4M3: return (double)ms_f8e4m3_to_f32(byte);
    case MS_F8E5M2: return (double)ms_f8e5m2_to_f32(byte);
    case MS_E8M0: return (double)ms_e8m0_to_f32(byte);
    case MS_I8: return (int8_t)byte;
    default: return element_of(data, dtype, i);
  }
}

static int64_t bits_at(const void *data, int dtype, int64_t i) {
  switch (dtype == MS_BF16 ? 2 : dtype == MS_F32 || dtype == MS_I32 ? 4 : 1) {
    case 1: return ((const uint8_t *)data)[i];
    case 2: return ((const uint16_t *)data)[i];
    default: return ((const uint32_t *)data)[i];
  }
}

/* From every code of 8 bits, and from f32, bf16 and i32, to every dtype that a cast gives. */
static void Q1_casts_between_all_dtypes(void **state) {
  (void)state;
  static const int from_dtypes[] = {MS_F32, MS_BF16, MS_I32, MS_U8, MS_F8E4M3, MS_F8E5M2, MS_E8M0, MS_I8},
                   to_dtypes[] = {MS_F32, MS_BF16, MS_I32, MS_F8E4M3, MS_F8E5M2, MS_E8M0, MS_I8};
  static const float special[] = {0.0f,    -0.0f, 448.0f,   465.0f, 57344.0f, 1e9f,      127.5f,
                                  -128.9f, 1e-9f, 0x1p-10f, 3e38f,  INFINITY, -INFINITY, NAN};
  enum { N = 1027 };
  FOR_EACH(from, from_dtypes)
  FOR_EACH(to, to_dtypes) {
    kernel_case c = case_of(MS_OP_cast);
    add_input(&c, SHAPE(from, N));
    add_output(&c, SHAPE(to, N));
    const int floats = from == MS_F32 || from == MS_BF16;
    for (int i = 0; i < N; i++) {
      if (floats) set_input(&c, 0, i, i < 14 ? (double)special[i] : input_at(&c, 0, i) * pow(2, i % 40 - 20));
      else if (from == MS_I32) set_input(&c, 0, i, (i - N / 2) * (i % 3 ? 1 : 100));
      else ((uint8_t *)c.call.in_data[0])[i] = (uint8_t)i;
    }
    run_case(&c);
    for (int i = 0; i < N; i++) {
      const double x = value_of_bits(c.call.in_data[0], from, i);
      const int64_t got = bits_at(c.call.out_data[0], to, i),
                    wanted = from == to ? bits_at(c.call.in_data[0], from, i) : cast_bits(x, to);
      if (isnan(x) && (to == MS_F32 || to == MS_BF16)) assert_true(isnan(output_at(&c, 0, i)));
      else if (got != wanted)
        fail_msg("%s %g to %s: 0x%x, not 0x%x", ms_dtype_name(from), x, ms_dtype_name(to), (unsigned)got,
                 (unsigned)wanted);
    }
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(cast_rounds_to_nearest_even),
      TEST(Q1_casts_between_all_dtypes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
