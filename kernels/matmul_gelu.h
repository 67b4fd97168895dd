/* matmul_gelu.h - a matrix product with gelu (its tanh form) or gelu's gradient behind it, as two kernels of the same device:
** what computes these ops where no library does both in one. The second works on what the first wrote.
*/
#ifndef MS_KERNELS_MATMUL_GELU_H
#define MS_KERNELS_MATMUL_GELU_H

#include "kernels/op.h"

typedef struct ms_gelu_steps {
  const ms_kernel *kernel[2];
  ms_kernel_call call[2]; /* without pointers */
} ms_gelu_steps;

/* call: of matmul_gelu, matmul_gelu_backward or matmul_gelu_backward_bias. Prepares both, and asks for the larger workspace. On an
** error nothing is left prepared. */
int ms_gelu_steps_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_gelu_steps *steps);
int ms_gelu_steps_bind(const ms_gelu_steps *steps, const ms_kernel_call *call);
int ms_gelu_steps_run(const ms_gelu_steps *steps, const ms_kernel_call *call);
void ms_gelu_steps_release(const ms_gelu_steps *steps);

#endif
