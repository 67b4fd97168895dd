/* split_panel.h - f32 products on the bf16 matrix unit (AMX), as accurate as f32 arithmetic and faster.
 *
 * An f32 number is exactly the sum of three bf16 numbers, x = x0 + x1 + x2, each the remainder rounded to nearest: 8
 * bits of the significand each. A product of two such sums has nine terms, of which six are computed:
 *
 *   x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0)
 *
 * The other three together are below 2^-23 |x y|, and usually far below: no more than an f32 rounding error. Every term
 * is exact in f32, the precision of the unit's sums. There are two differences from f32 arithmetic: infinity (and
 * values within 2^-9 of it) becomes NaN, because its parts do not add up; and the unit treats subnormal parts as 0, so
 * numbers below 2^-110 (1e-33) lose low bits.
 *
 * Operands are packed in panels of 32 rows of a, or 32 columns of b. A panel is a sequence of steps of 32 elements of
 * k. A step has 2 x 3 tiles, [part][half of the panel], of 16 x 16 pairs of bf16; element i of k is paired with element
 * i + 16 of its step.
 */
#ifndef MS_KERNELS_CPU_SPLIT_PANEL_H
#define MS_KERNELS_CPU_SPLIT_PANEL_H

#include <stdint.h>

enum { MS_SPLIT_GRAIN = 32, MS_SPLIT_STEP_BYTES = 6 * 1024 };

/* Whether this processor has the unit, and whether f32 products can use it (MOONSHARD_MATMUL can request f32
 * arithmetic). */
int ms_split_available(void);
int ms_split_enabled(void);

/* Call before and after the products of a thread. */
void ms_split_begin(void);
void ms_split_end(void);

static inline int64_t ms_split_steps(int64_t k) { return (k + MS_SPLIT_GRAIN - 1) / MS_SPLIT_GRAIN; }

static inline int64_t ms_split_panel_bytes(int64_t k) { return ms_split_steps(k) * MS_SPLIT_STEP_BYTES; }

/* An unpacked operand: element (row, i) is data[row * stride + i] if k_inside, otherwise data[i * stride + row]. `row`
 * is a row of a or a column of b, and i is the index along k. */
typedef struct ms_split_operand {
  const float *data;
  int64_t stride;
  int k_inside;
} ms_split_operand;

/* Packs rows [first, first + rows) of elements [k_first, k_first + k), panel by panel, padded with zeros. */
void ms_split_pack_a(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k);
void ms_split_pack_b(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k);

/* c[32][32] = start + a b over `steps` steps. Rows of start are start_stride apart: c itself to accumulate, stride 0 to
 * use one row for all; NULL: zeros. c and start can have any alignment. */
void ms_split_product(float *c, int64_t c_stride, const char *a, const char *b, int64_t steps, const float *start,
                      int64_t start_stride);

#endif
