/* bf16_block.h - products of small bf16 blocks with f32 sums, on the matrix unit (AMX) or with AVX512_BF16, and the
 * layouts that they need.
 *
 * The right operand is stored in pairs: elements (k, n) and (k + 1, n), k even, share 32 bits, because one instruction
 * multiplies two steps of k. Blocks are padded with zeros to multiples of 32 in every dimension.
 */
#ifndef MS_KERNELS_CPU_BF16_BLOCK_H
#define MS_KERNELS_CPU_BF16_BLOCK_H

#include <stdint.h>

#include "base/numbers/bf16.h"

enum { MS_BF16_GRAIN = 32 };

/* c[m][n] = (add ? c : 0) + sum_k a[m][k] b[k][n]. a and c are row-major, b is [k/2][n] pairs. Strides are in elements,
 * for b in pairs. */
typedef void ms_bf16_product(float *c, int64_t c_stride, const ms_bf16 *a, int64_t a_stride, const uint32_t *b,
                             int64_t b_stride, int64_t m, int64_t n, int64_t k, int add);

typedef struct ms_bf16_unit {
  void (*begin)(void); /* called before and after a thread's products; NULL if there is nothing to set up */
  void (*end)(void);
  ms_bf16_product *product;
} ms_bf16_unit;

/* The fastest unit of this processor; NULL if none is faster than f32 arithmetic. */
const ms_bf16_unit *ms_bf16_unit_of_cpu(void);
/* Each specific unit; NULL if the processor lacks it. */
const ms_bf16_unit *ms_bf16_tiles_of_cpu(void);
const ms_bf16_unit *ms_bf16_dots_of_cpu(void);

/* y[k/2][n] = pairs of rows k, k + 1 of x [rows][columns]; rows even, columns a multiple of 32. */
void ms_bf16_pair_rows(uint32_t *y, int64_t y_stride, const ms_bf16 *x, int64_t x_stride, int64_t rows,
                       int64_t columns);
/* y[c][r] = x[r][c]; rows and columns are multiples of 16. To transpose a bf16 matrix into pairs, transpose its rows
 * viewed as 32-bit words. */
void ms_transpose_32_bits(uint32_t *y, int64_t y_stride, const uint32_t *x, int64_t x_stride, int64_t rows,
                          int64_t columns);

#endif
