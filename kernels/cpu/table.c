/* table.c - maps each op to its CPU kernel, from the rows of ops.def. */
#include "kernels/op.h"

#include <stddef.h>

/* Several rows can share a kernel; C allows the repeated declarations. */
#define MS_OP(name, min, max, outputs, members, attrs, shape, axes, gradient, flops, work, kernel, ...) \
  extern const ms_kernel ms_cpu_##kernel;
#include "kernels/ops.def"
#undef MS_OP

static const struct {
  const ms_kernel *kernel;
  int flags;
} table[MS_OP_COUNT] = {
#define MS_OP(name, min, max, outputs, members, attrs, shape, axes, gradient, flops, work, kernel, flags, ...) \
  {&ms_cpu_##kernel, flags},
#include "kernels/ops.def"
#undef MS_OP
};

const ms_kernel *ms_cpu_kernel(int op) {
  if (op < 0 || op >= MS_OP_COUNT || (table[op].flags & MS_OP_ALIAS)) return NULL;
  return table[op].kernel;
}
