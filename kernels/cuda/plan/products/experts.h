/* experts.h - how the blocks of grouped_matmul number the tiles of a product, which bounds its sizes. */
#ifndef MS_KERNELS_CUDA_PLAN_EXPERTS_H
#define MS_KERNELS_CUDA_PLAN_EXPERTS_H

/* The least side of a tile; and that of a square, in tiles, whose blocks follow each other and find in the cache what
 * they share. */
enum { MS_GROUPED_TILE = 64, MS_GROUPED_SQUARE = 16 };

#endif
