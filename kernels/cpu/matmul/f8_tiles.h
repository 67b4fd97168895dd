/* f8_tiles.h - rounds a matrix to 8 bits with a scale for each tile of it, to the values that the codes then have: what
 * a CPU multiplies (matmul_f8.c, grouped_matmul.c).
 */
#ifndef MS_KERNELS_CPU_F8_TILES_H
#define MS_KERNELS_CPU_F8_TILES_H

#include "kernels/products/matmul_f8.h"

typedef struct ms_f8_matrix {
  const void *x;         /* [rows][columns] */
  int x_dtype;           /* f32 or bf16 */
  int dtype;             /* of the codes */
  int powers, e8m0;      /* of the scales, as ms_f8 has them */
  int64_t rows, columns; /* the last tiles may be shorter */
  ms_f8_tile tile;
  float *scales; /* [ms_f8_tiles] */
  void *values;  /* [rows][columns]: codes divided by their scales; in bf16 if scales are powers of two, or f32 */
} ms_f8_matrix;

/* Fills scales and values, on the threads of the call. */
void ms_f8_round_tiles(const ms_kernel_call *call, const ms_f8_matrix *m);

/* Runs `run` on [0, count) in ranges at multiples of grain, on as many threads as `bytes` are worth. */
void ms_f8_divide(const ms_kernel_call *call, int64_t count, int64_t grain, int64_t bytes,
                  void (*run)(const void *of, int64_t begin, int64_t end), const void *of);

#endif
