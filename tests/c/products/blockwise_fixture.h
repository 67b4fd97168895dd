/* blockwise_fixture.h - blockwise.safetensors of tests/fixtures/low_precision: its operands, by the formula of
 * make_blockwise.py, and the elements of results that it has.
 */
#ifndef MS_TESTS_BLOCKWISE_FIXTURE_H
#define MS_TESTS_BLOCKWISE_FIXTURE_H

#include "tests/c/support/fixture_file.h"
#include "tests/c/support/kernel_case.h"

#define BLOCKWISE "tests/fixtures/low_precision/blockwise.safetensors"
enum { BLOCKWISE_ROWS = 144, BLOCKWISE_INPUTS = 160, BLOCKWISE_OUTPUTS = 144, BLOCKWISE_EXPERTS = 3 };
enum blockwise_operand { BLOCKWISE_X = 1, BLOCKWISE_DY = 2, BLOCKWISE_W = 3 };
static const int32_t blockwise_offsets[] = {2, 7, 7, 140};

static inline double blockwise_number(int64_t i, int64_t j, int64_t salt) {
  const int64_t number = (i * 131 + j * 29 + salt * 17) % 509 - 254;
  return ldexp((double)number / 256, (int)((i * 7 + j / 40 * 3 + salt) % 9 - 4));
}

/* Fills an input, whose last axis is that of the formula's columns. */
static inline void blockwise_fill(kernel_case *c, int input, int operand) {
  const ms_value_info *x = &c->call.in[input];
  const int64_t columns = x->dims[x->ndim - 1];
  for (int64_t i = 0; i < ms_numel(x); i++) set_input(c, input, i, blockwise_number(i / columns, i % columns, operand));
}

/* "experts." or "layer.", a recipe, ".y", ".dx" or ".dw": every 97th element. Numbers of bf16 whose largest sums have
 * some 100 terms: `unit` is what they are rounded by, of the largest. */
static inline void blockwise_compare(const ms_safetensors *file, const kernel_case *c, const char *kind,
                                     const char *recipe, const char *result, double unit) {
  enum { EVERY = 97 };
  char name[96];
  int64_t n;
  double largest = 0;
  snprintf(name, sizeof name, "%s%s", kind, recipe);
  const float *expected = fixture_part(file, name, result, &n);
  assert_int_equal(n, (ms_numel(&c->call.out[0]) + EVERY - 1) / EVERY);
  for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)expected[i]));
  for (int64_t i = 0; i < n; i++) assert_output(c, 0, i * EVERY, (double)expected[i], unit * largest);
}

#endif
