/* table.cu - maps each op to its CUDA kernel, from the rows of ops.def. */
#include "kernels/cuda/launch.h"

/* Several rows can share a kernel; repeated declarations are allowed. */
#define MS_OP(name, min, max, outputs, members, attrs, shape, axes, gradient, flops, work, kernel, ...) \
  extern const ms_kernel ms_cuda_##kernel;
#include "kernels/ops.def"
#undef MS_OP

namespace {

const struct {
  const ms_kernel *kernel;
  int flags;
} table[MS_OP_COUNT] = {
#define MS_OP(name, min, max, outputs, members, attrs, shape, axes, gradient, flops, work, kernel, flags, ...) \
  {&ms_cuda_##kernel, flags},
#include "kernels/ops.def"
#undef MS_OP
};

} // namespace

const ms_kernel *ms_cuda_kernel(int op) {
  if (op < 0 || op >= MS_OP_COUNT || (table[op].flags & MS_OP_ALIAS)) return nullptr;
  return table[op].kernel;
}
