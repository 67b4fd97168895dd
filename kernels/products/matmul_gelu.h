/* matmul_gelu.h - a matrix product followed by gelu (tanh form) or by gelu's gradient, as two kernels of one device,
 * for devices without a library that fuses both. The second kernel reads the first one's output. */
#ifndef MS_KERNELS_MATMUL_GELU_H
#define MS_KERNELS_MATMUL_GELU_H

#include "kernels/op.h"

typedef struct ms_gelu_steps {
  const ms_kernel *kernel[2];
  ms_kernel_call call[2]; /* pointers are not set */
} ms_gelu_steps;

/* call: a matmul_gelu, matmul_gelu_backward or matmul_gelu_backward_bias. Prepares both kernels and requests the larger
 * of their two workspaces. If it fails, nothing stays prepared. */
int ms_gelu_steps_prepare(ms_kernel_call *call, const ms_kernel *(*kernel_of)(int op), ms_gelu_steps *steps);
int ms_gelu_steps_bind(const ms_gelu_steps *steps, const ms_kernel_call *call);
int ms_gelu_steps_run(const ms_gelu_steps *steps, const ms_kernel_call *call);
void ms_gelu_steps_release(const ms_gelu_steps *steps);

#endif
