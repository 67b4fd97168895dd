/* matmul_f8.h - matrix products of operands rounded to 8 bits: the format and the scales of each operand, by recipe.
 *
 * A linear layer has three products: its output x w', the gradient dx = dy w, and the gradient dw = dy' x. Each of them
 * rounds its own two operands just before it multiplies them, with scales of their present contents (torchao's dynamic
 * scaling), and adds the products of the codes in f32:
 *
 *   c[i][j] = sum over k of code(a)[i][k] code(b)[k][j], times 1 / (scale of a, scale of b)
 *
 *   recipe              output           dx                   dw
 *   tensorwise          x e4m3, w e4m3   dy e5m2, w e4m3      dy e5m2, x e4m3    one scale a tensor
 *   rowwise             e4m3, e4m3       e4m3, e4m3           e4m3, e4m3         one a row of op(a), a column of op(b)
 *   rowwise_with_gw_hp  as rowwise       dy as rowwise, w     matmul, without    of w in dx: one for all
 *                                        with one scale       rounding
 *   mxfp8               e4m3, e4m3       e4m3, e4m3           e4m3, e4m3         one for 32 elements that are summed
 *
 * Scales by rows are rounded down to powers of two, so dividing by them is exact; those of mxfp8 are the e8m0 of
 * MS_MX_RCEIL in quantise.h. A scale is otherwise largest / max(amax, 1e-12), as there, and NaN and infinity are
 * treated as there: a broken step stays visible.
 *
 * The op matmul_f8_codes takes w as codes that were made before, of the whole tensor with one scale (kernels/ops.def):
 * a tensorwise weight is gathered so, and only the other operand is rounded.
 */
#ifndef MS_KERNELS_MATMUL_F8_H
#define MS_KERNELS_MATMUL_F8_H

#include "kernels/products/product.h"

/* The attribute `product`. The weight's gradient has dy as its first operand, or, with w stored as [in][out], as its
 * second. */
enum ms_f8_product { MS_F8_OUTPUT = 0, MS_F8_DX = 1, MS_F8_DW = 2, MS_F8_DW_TURNED = 3, MS_F8_PRODUCTS = 4 };

typedef struct ms_f8_operand {
  int dtype;     /* of the codes */
  int by_rows;   /* 1: each row of op(a), or column of op(b), has its scale; 0: one for all */
  int by_blocks; /* 1: each 32 elements along the summed axis have an e8m0 */
  int turned;    /* 1: stored with the summed axis first */
  int64_t rows;  /* of op(a), or columns of op(b) */
} ms_f8_operand;

typedef struct ms_f8 {
  ms_product product; /* its dtype is that of the operands in memory */
  ms_f8_operand a, b;
  int by_rows;   /* 1: at least one operand has a scale a row; the other's one scale is then repeated */
  int powers;    /* 1: scales are powers of two */
  int fast_sums; /* 1: tensor cores may keep sums in fewer bits between promotions to f32 */
  int coded;     /* 1: b comes as codes, with its scale */
} ms_f8;

/* Inputs of a call with coded operands: a, the codes, their scale, and optionally a bias. */
enum { MS_F8_CODES_INPUT = 1, MS_F8_SCALE_INPUT = 2, MS_F8_CODED_BIAS_INPUT = 3 };

/* Reads and checks a matmul_f8 or matmul_f8_codes. */
int ms_f8_of(const ms_kernel_call *call, ms_f8 *f8);
/* Its matrix product, whose operands both have the dtype of a. */
int ms_f8_product_of(const ms_kernel_call *call, ms_product *product);
/* Its bias, or NULL. */
const void *ms_f8_bias(const ms_kernel_call *call, const ms_f8 *f8);
/* The number of f32 scales of an operand: as many as rows if any operand has them. */
int64_t ms_f8_scales(const ms_f8 *f8, const ms_f8_operand *operand);

/* Sizes of weights, and of summed axes, are multiples of this. */
int ms_f8_multiple(int recipe);
/* 1 when the recipe rounds the operands of this product (enum ms_fp8, enum ms_f8_product). */
int ms_f8_rounds(int recipe, int product);
/* How often an operand (0: a, 1: b) is read for its codes: twice if no scale is known before most of it is read. */
int ms_f8_passes(int recipe, int product, int operand, int turned);
/* "rowwise"; NULL when there is no such recipe. */
const char *ms_f8_recipe_name(int recipe);

#endif
