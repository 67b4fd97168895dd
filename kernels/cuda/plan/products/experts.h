/* experts.h - how the blocks of grouped_matmul number the tiles of a product, which bounds its sizes; and the workspace
 * of one whose operands are rounded to 8 bits. */
#ifndef MS_KERNELS_CUDA_PLAN_EXPERTS_H
#define MS_KERNELS_CUDA_PLAN_EXPERTS_H

#include "kernels/products/matmul_f8.h"

/* The least side of a tile; and that of a square, in tiles, whose blocks follow each other and find in the cache what
 * they share. */
enum { MS_GROUPED_TILE = 64, MS_GROUPED_SQUARE = 16 };

/* Such a product: what its codes are worth, of each operand, in a dtype that holds it exactly, in bytes from the
 * workspace's first address. */
typedef struct ms_grouped_f8 {
  ms_f8 f8;
  int dtype;
  int64_t values[2], total;
} ms_grouped_f8;

int ms_grouped_rounds(const ms_kernel_call *call);
int ms_grouped_f8_of(const ms_kernel_call *call, ms_grouped_f8 *f8);

/* A block that rounds has a band of rows and so many columns, unless it has all. */
enum { MS_GROUPED_ROUND_COLUMNS = 128 };

#endif
