/* test_kernels_pow.c - compares powers and their gradients with formulas in double, with broadcasting, mixed dtypes,
 * and PyTorch's conventions at zero, infinity and NaN. */
#include "tests/c/support/kernel_case.h"

static double slope_of_base(double a, double b) { return b == 0 ? 0 : b * pow(a, b - 1); }
static double slope_of_exponent(double a, double b) { return a == 0 && b >= 0 ? 0 : pow(a, b) * log(a); }

static double reference(int op, double a, double b, double dy) {
  if (op == MS_OP_pow) return pow(a, b);
  return dy * (op == MS_OP_pow_backward_base ? slope_of_base(a, b) : slope_of_exponent(a, b));
}

static const int ops[] = {MS_OP_pow, MS_OP_pow_backward_base, MS_OP_pow_backward_exponent};

static int joined(int a, int b) { return a == b ? a : MS_F32; }

/* Exponents from -1.5 to 1.5, which keep the powers of bf16 away from overflow. */
static void draw(kernel_case *c) {
  for (int64_t i = 0; i < ms_numel(&c->call.in[0]); i++) set_input(c, 0, i, fabs(input_at(c, 0, i)) + 0.05);
  for (int64_t i = 0; i < ms_numel(&c->call.in[1]); i++) set_input(c, 1, i, (double)(i * 37 % 61) / 20 - 1.5);
}

static void powers_match(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 3, 17, 1000, 20001};
  FOR_EACH(op, ops)
  FOR_EACH(a, dtypes)
  FOR_EACH(b, dtypes)
  FOR_EACH(n, sizes)
  for (int scalar = 0; scalar < 2; scalar++) {
    kernel_case c = case_of(op);
    const int y = joined(a, b);
    add_input(&c, SHAPE(a, n));
    add_input(&c, scalar ? SCALAR(b) : SHAPE(b, n));
    if (op != MS_OP_pow) add_input(&c, SHAPE(y, n));
    add_output(&c, SHAPE(y, n));
    draw(&c);
    run_case(&c);
    for (int64_t i = 0; i < n; i++)
      assert_output(
          &c, 0, i,
          reference(op, input_at(&c, 0, i), input_at(&c, 1, scalar ? 0 : i), op == MS_OP_pow ? 1 : input_at(&c, 2, i)),
          2e-6);
    free_case(&c);
  }
}

static void powers_broadcast(void **state) {
  (void)state;
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(op);
    add_input(&c, SHAPE(dtype, 5, 1, 7));
    add_input(&c, SHAPE(dtype, 3, 1));
    if (op != MS_OP_pow) add_input(&c, SHAPE(dtype, 5, 3, 7));
    add_output(&c, SHAPE(dtype, 5, 3, 7));
    draw(&c);
    run_case(&c);
    for (int64_t i = 0; i < 105; i++)
      assert_output(&c, 0, i,
                    reference(op, input_at(&c, 0, i / 21 * 7 + i % 7), input_at(&c, 1, i / 7 % 3),
                              op == MS_OP_pow ? 1 : input_at(&c, 2, i)),
                    2e-6);
    free_case(&c);
  }
}

/* A base and an exponent, and what PyTorch gives: the power, and its gradients for dy = 1. */
typedef struct special {
  double a, b, power, base, exponent;
} special;

static const special specials[] = {
    {0, 0, 1, 0, 0},
    {0, 2, 0, 0, 0},
    {0, 1, 0, 1, 0},
    {0, -1, INFINITY, -INFINITY, -INFINITY},
    {-2, 3, -8, 12, NAN},
    {-2, 0.5, NAN, NAN, NAN},
    {-2, 0, 1, 0, NAN},
    {NAN, 0, 1, 0, NAN},
    {NAN, 2, NAN, NAN, NAN},
    {2, NAN, NAN, NAN, NAN},
    {1, INFINITY, 1, INFINITY, 0},
    {INFINITY, 2, INFINITY, INFINITY, INFINITY},
    {0, 0.5, 0, INFINITY, 0},
};
enum { SPECIALS = sizeof specials / sizeof *specials };

static void special_values_are_those_of_pytorch(void **state) {
  (void)state;
  FOR_EACH(op, ops)
  FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(op);
    for (int i = 0; i < (op == MS_OP_pow ? 2 : 3); i++) add_input(&c, SHAPE(dtype, SPECIALS));
    add_output(&c, SHAPE(dtype, SPECIALS));
    for (int i = 0; i < SPECIALS; i++) {
      set_input(&c, 0, i, specials[i].a);
      set_input(&c, 1, i, specials[i].b);
      if (op != MS_OP_pow) set_input(&c, 2, i, 1);
    }
    run_case(&c);
    for (int i = 0; i < SPECIALS; i++) {
      const special *s = &specials[i];
      assert_output(&c, 0, i, op == MS_OP_pow ? s->power : op == MS_OP_pow_backward_base ? s->base : s->exponent, 1e-6);
    }
    free_case(&c);
  }
}

/* Over all of f32: tiny and huge bases, exponents from 1e-6 to 1e6, results that overflow, are subnormal or vanish. */
static void powers_reach_over_the_whole_range(void **state) {
  (void)state;
  enum { N = 20000 };
  kernel_case c = case_of(MS_OP_pow);
  add_input(&c, SHAPE(MS_F32, N));
  add_input(&c, SHAPE(MS_F32, N));
  add_output(&c, SHAPE(MS_F32, N));
  for (int i = 0; i < N; i++) {
    set_input(&c, 0, i, pow(2, fmod(i * 0.6180339887, 1) * 276 - 149));
    set_input(&c, 1, i, (i % 2 ? 1 : -1) * pow(10, fmod(i * 0.7548776662, 1) * 12 - 6));
    if (i % 5 == 0) set_input(&c, 0, i, 1 + (i % 100 - 50) * 0x1p-20);
  }
  run_case(&c);
  for (int i = 0; i < N; i++) {
    const double expected = pow(input_at(&c, 0, i), input_at(&c, 1, i)), found = output_at(&c, 0, i);
    if (expected > 3.4028235e38 || isinf(found)) assert_true(isinf((float)expected) || expected > 3.4028230e38);
    else if (!(fabs(found - expected) <= 3e-7 * expected + 0x1p-149))
      fail_msg("%g^%g: %.9g instead of %.9g", input_at(&c, 0, i), input_at(&c, 1, i), found, expected);
  }
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(powers_match), TEST(powers_broadcast),
                                     TEST(special_values_are_those_of_pytorch),
                                     TEST(powers_reach_over_the_whole_range)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
