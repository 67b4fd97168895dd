/* matmul_f8.h - the kernels around a product of operands rounded to 8 bits on CUDA (matmul_f8_codes.cu,
 * matmul_f8_plain.cu). */
#ifndef MS_KERNELS_CUDA_MATMUL_F8_H
#define MS_KERNELS_CUDA_MATMUL_F8_H

#include "kernels/cuda/plan/products/matmul_f8.h"

/* An operand's part of the workspace: floats [ms_f8_scales], codes [rows][k], and scales of blocks: e8m0 in tiles, or
 * inverses in f32 (ms_f8_scale_pitch). */
typedef struct ms_f8_memory {
  float *magnitudes, *scales, *inverses;
  uint8_t *codes;
  void *blocks;
} ms_f8_memory;

/* Rounds input `which` of the call: 0 is a, 1 is b. */
int ms_f8_round_run(const ms_kernel_call *call, const ms_f8 *f8, int which, const ms_f8_memory *to);
/* The same of a b that comes as codes: turns them if the product does not read them where they are, and inverts their
 * scale. */
int ms_f8_take_codes_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory *to);
/* c = act(c times the inverse scales + bias), in place: where the library leaves it. */
int ms_f8_scale_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory memory[2]);
/* The whole product of the codes by tiles in f32 arithmetic, without tensor cores. */
int ms_f8_plain_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory memory[2]);

#endif
