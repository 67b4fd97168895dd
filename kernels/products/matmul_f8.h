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
 *   blockwise           e4m3, e4m3       e4m3, e4m3           e4m3, e4m3         one for 128 elements that are summed;
 *                                                                                of w, for 128 x 128 elements
 *   blockwise_power_2_scale              as blockwise, with scales that are powers of two
 *
 * Scales by rows are rounded down to powers of two, so dividing by them is exact; those of mxfp8 are the e8m0 of
 * MS_MX_RCEIL in quantise.h. A scale is otherwise largest / max(amax, 1e-12), as there, and NaN and infinity are
 * treated as there: a broken step stays visible.
 *
 * blockwise is the recipe of DeepSeek-V3 (arXiv:2412.19437, 3.3.2), Megatron-LM's --fp8-recipe blockwise,
 * TransformerEngine's Float8BlockScaling (by default with power_2_scale) and torchao's blockwise_fp8_training: tiles of
 * 1 x 128 along the summed axis, and squares of w, whose codes are therefore the same in both products. Where a size is
 * no multiple of 128, the last tile is shorter, as if zeros followed.
 *
 * Products of groups of rows (grouped_matmul_f8) have scales of each group: what "all" or "one" means above is then a
 * group's rows, or an expert's weight, and the blocks of a weight's gradient begin where its group's rows begin. So an
 * expert's products are those of a linear layer that reads its rows.
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

enum { MS_F8_SIDE = 128 }; /* of the tiles and squares of blockwise */

typedef struct ms_f8_operand {
  int dtype;    /* of the codes */
  int by_rows;  /* 1: each row of op(a), or column of op(b), has its scale; 0: one for all */
  int block;    /* so many elements along the summed axis have a scale; 0: all of them */
  int side;     /* and so many rows have it together */
  int turned;   /* 1: stored with the summed axis first */
  int64_t rows; /* of op(a), or columns of op(b) */
} ms_f8_operand;

/* The elements that share a scale, of an operand as it is stored. */
typedef struct ms_f8_tile {
  int64_t rows, columns;
} ms_f8_tile;

typedef struct ms_f8 {
  ms_product product; /* its dtype is that of the operands in memory */
  ms_f8_operand a, b;
  int by_rows;   /* 1: at least one operand has a scale a row; the other's one scale is then repeated */
  int powers;    /* 1: scales are powers of two */
  int e8m0;      /* 1: those of blocks are kept as e8m0 */
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

/* Reads and checks a grouped_matmul_f8 or its gradient: only the operands, whose rows differ from group to group. */
int ms_f8_grouped_of(const ms_kernel_call *call, ms_f8 *f8);

/* The tile of an operand that is stored as [rows][columns], and how many there are. */
ms_f8_tile ms_f8_tile_of(const ms_f8_operand *operand, int64_t rows, int64_t columns);
int64_t ms_f8_tiles(ms_f8_tile tile, int64_t rows, int64_t columns);
/* The dtype that holds the values of codes exactly: bf16; or, scaled: divided by their scales, f32 unless these are
 * powers of two. */
int ms_f8_values_dtype(int recipe, int scaled);
/* 1 when a weight of so many axes is gathered as codes, with one scale. */
int ms_f8_gathers(int recipe, int ndim);

/* Sizes of weights, and of summed axes, are multiples of this. */
int ms_f8_multiple(int recipe);
/* 1 when the recipe rounds the operands of this product (enum ms_fp8, enum ms_f8_product). */
int ms_f8_rounds(int recipe, int product);
/* How often an operand (0: a, 1: b) is read for its codes: twice if no scale is known before most of it is read. */
int ms_f8_passes(int recipe, int product, int operand, int turned);
/* "rowwise"; NULL when there is no such recipe. */
const char *ms_f8_recipe_name(int recipe);

#endif
