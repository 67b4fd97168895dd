/* table.c - maps each op to what plans need of its CUDA kernel (kernels.def), from the rows of ops.def. */
#include <stddef.h>

#include "kernels/cuda/plan/plan.h"

enum kernel {
#define MS_CUDA_KERNEL(kernel, prepare, in_place, ...) KERNEL_##kernel,
#include "kernels/cuda/plan/kernels.def"
#undef MS_CUDA_KERNEL
};

static const ms_kernel kernels[] = {
#define MS_CUDA_KERNEL(kernel, its_prepare, its_in_place, ...) \
  [KERNEL_##kernel] = {.prepare = its_prepare, .in_place = its_in_place, __VA_ARGS__},
#include "kernels/cuda/plan/kernels.def"
#undef MS_CUDA_KERNEL
};

static const struct {
  enum kernel kernel;
  int flags;
} table[MS_OP_COUNT] = {
#define MS_OP(name, min, max, outputs, members, attrs, shape, axes, gradient, flops, work, kernel, flags, ...) \
  {KERNEL_##kernel, flags},
#include "kernels/ops.def"
#undef MS_OP
};

const ms_kernel *ms_cuda_planned_kernel(int op) {
  if (op < 0 || op >= MS_OP_COUNT || (table[op].flags & MS_OP_ALIAS)) return NULL;
  return &kernels[table[op].kernel];
}
