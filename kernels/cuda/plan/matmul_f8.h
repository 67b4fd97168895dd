/* matmul_f8.h - the workspace of a product of operands rounded to 8 bits on CUDA: for each operand the magnitudes from
 * which its scales follow, the scales, their inverses, which the product is multiplied by, and the codes with the
 * summed axis last; then the library's. Offsets in bytes from its first address that a library can use (workspace.h).
 */
#ifndef MS_KERNELS_CUDA_PLAN_MATMUL_F8_H
#define MS_KERNELS_CUDA_PLAN_MATMUL_F8_H

#include "kernels/matmul_f8.h"

typedef struct ms_f8_places {
  int64_t magnitudes[2], scales[2], inverses[2], codes[2], library, total;
} ms_f8_places;

/* Reads a call, and requests the workspace. */
int ms_f8_plan(ms_kernel_call *call, ms_f8 *f8, ms_f8_places *places);

#endif
