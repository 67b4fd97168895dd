/* rounded_operand.h - an operand of a product rounded to 8 bits, in double, from the definitions of the formats and of
 * their scales: the reference of test_kernels_matmul_f8.c.
 */
#ifndef MS_TESTS_ROUNDED_OPERAND_H
#define MS_TESTS_ROUNDED_OPERAND_H

#include "tests/c/products/matmul_case.h"

/* The value of a code, by its sign, exponent and fraction. */
static inline double value_of(int code, int fraction_bits, int bias) {
  const int exponent = (code & 127) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  const double of_one = ldexp(fraction, -fraction_bits);
  const double size = exponent ? ldexp(1 + of_one, exponent - bias) : ldexp(of_one, 1 - bias);
  return code & 128 ? -size : size;
}

/* The values of a format's codes, without signs: E4M3's before its NaN, E5M2's before its infinity. */
static inline const double *values_of(int e4m3, int *codes) {
  static double table[2][128];
  *codes = e4m3 ? 0x7f : 0x7c;
  if (table[e4m3][1] > 0) return table[e4m3];
  for (int code = 0; code < *codes; code++) table[e4m3][code] = value_of(code, e4m3 ? 3 : 2, e4m3 ? 7 : 15);
  return table[e4m3];
}

/* The nearest value of the format, the even code of two that are equally near; beyond the largest, the largest. */
static inline double nearest(double x, int e4m3) {
  int codes;
  const double *values = values_of(e4m3, &codes);
  double best = 0;
  if (isnan(x)) return x;
  for (int code = 0; code < codes; code++) {
    const double apart = fabs(fabs(x) - values[code]), least = fabs(fabs(x) - best);
    if (apart < least || (apart == least && code % 2 == 0)) best = values[code];
  }
  return x < 0 ? -best : best;
}

typedef struct rounded {
  double *value, *scale; /* [rows][k], [rows] */
} rounded;

/* Row i of op(a), or column i of op(b). */
static inline double element(const kernel_case *c, const product *p, int which, int64_t i, int64_t k) {
  if (which) return input_at(c, 1, p->trans_b ? i * p->k + k : k * p->n + i);
  return input_at(c, 0, p->trans_a ? k * p->m + i : i * p->k + k);
}

static inline double scale_from(double amax, double largest, int powers) {
  const float scale = (float)(largest / fmax(amax, 1e-12));
  int exponent;
  if (!powers) return scale;
  (void)frexp(scale, &exponent);
  return ldexp(1, exponent - 1);
}

static inline rounded round_operand(const kernel_case *c, const product *p, int which, int e4m3, int by_rows,
                                    int powers) {
  const int64_t rows = which ? p->n : p->m;
  rounded r = {calloc((size_t)(rows * p->k), sizeof(double)), calloc((size_t)rows, sizeof(double))};
  double of_all = 0;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t k = 0; k < p->k; k++) {
      const double size = fabs(element(c, p, which, i, k));
      of_all = fmax(of_all, size);
      r.scale[i] = fmax(r.scale[i], size);
    }
  for (int64_t i = 0; i < rows; i++) {
    r.scale[i] = scale_from(by_rows ? r.scale[i] : of_all, e4m3 ? 448 : 57344, powers);
    for (int64_t k = 0; k < p->k; k++)
      r.value[i * p->k + k] = nearest((float)element(c, p, which, i, k) * (float)r.scale[i], e4m3);
  }
  return r;
}

/* Tiles of side x block elements, the last ones shorter, with one scale: e8m0, the smallest power of two of at least
 * amax / 448, by which elements are divided; or scale_from, by which they are multiplied. */
typedef struct tile_scales {
  int block, side, e8m0, powers;
} tile_scales;

static inline double tile_factor(double amax, tile_scales by) {
  double scale = 0x1p-127;
  if (!by.e8m0) return scale_from(amax, 448, by.powers);
  while (scale < amax / 448) scale *= 2;
  return 1 / scale;
}

/* The elements of a tile whose first is (top, first): codes over the scale. */
static inline void round_tile(const kernel_case *c, const product *p, int which, tile_scales by, int64_t top,
                              int64_t first, double *value) {
  const int64_t rows = which ? p->n : p->m, bottom = top + by.side < rows ? top + by.side : rows,
                last = first + by.block < p->k ? first + by.block : p->k;
  double amax = 0;
  for (int64_t i = top; i < bottom; i++)
    for (int64_t k = first; k < last; k++) amax = fmax(amax, fabs(element(c, p, which, i, k)));
  const double factor = tile_factor(amax, by);
  for (int64_t i = top; i < bottom; i++)
    for (int64_t k = first; k < last; k++)
      value[i * p->k + k] = nearest((float)element(c, p, which, i, k) * (float)factor, 1) / factor;
}

/* With a scale a tile; scale[] is 1. */
static inline rounded round_blocks(const kernel_case *c, const product *p, int which, tile_scales by) {
  const int64_t rows = which ? p->n : p->m;
  rounded r = {calloc((size_t)(rows * p->k), sizeof(double)), calloc((size_t)rows, sizeof(double))};
  for (int64_t i = 0; i < rows; i++) r.scale[i] = 1;
  for (int64_t top = 0; top < rows; top += by.side)
    for (int64_t first = 0; first < p->k; first += by.block) round_tile(c, p, which, by, top, first, r.value);
  return r;
}

static inline void free_rounded(rounded r) {
  free(r.value);
  free(r.scale);
}

#endif
