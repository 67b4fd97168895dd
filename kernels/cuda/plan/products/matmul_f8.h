/* matmul_f8.h - the workspace of a product of operands rounded to 8 bits on CUDA: for each operand the magnitudes from
 * which its scales follow, the scales, their inverses, which the product is multiplied by, and the codes with the
 * summed axis last, and the scales of blocks, e8m0 or the inverses of f32; then the library's. Offsets in bytes from
 * its first address that a library can use (workspace.h).
 */
#ifndef MS_KERNELS_CUDA_PLAN_MATMUL_F8_H
#define MS_KERNELS_CUDA_PLAN_MATMUL_F8_H

#include "kernels/products/matmul_f8.h"

typedef struct ms_f8_places {
  int64_t magnitudes[2], scales[2], inverses[2], codes[2], blocks[2], library, total;
} ms_f8_places;

/* The scales of blocks as tensor cores read them: tiles of 128 rows and 4 blocks, 512 bytes one after the other; rows
 * i, i + 32, i + 64 and i + 96 of a tile are neighbours, each with its 4 blocks. */
enum { MS_F8_TILE_ROWS = 128, MS_F8_TILE_BLOCKS = 4, MS_F8_TILE_BYTES = 512 };

/* f32 scales as the library reads them: [blocks][rows] of tiles, [rows / side][blocks] of squares, in which the last
 * size is rounded up to 4 (TransformerEngine's tests/pytorch/references/blockwise_quantizer_reference.py). */
static inline int64_t ms_f8_scale_pitch(const ms_f8_operand *operand, int64_t k) {
  const int64_t n = operand->side > 1 ? (k + operand->block - 1) / operand->block : operand->rows;
  return (n + 3) / 4 * 4;
}

/* 1 when b comes as codes with the summed axis last: the product reads them where they are. */
static inline int ms_f8_reads_codes(const ms_f8 *f8) { return f8->coded && !f8->b.turned; }

/* Reads a call, and requests the workspace. */
int ms_f8_plan(ms_kernel_call *call, ms_f8 *f8, ms_f8_places *places);

#endif
