/* operand.h - operands of broadcasting kernels as blocks of f32: one that repeats an element along a run is spread over
 * the block, so one loop serves every combination. */
#ifndef MS_KERNELS_CPU_OPERAND_H
#define MS_KERNELS_CPU_OPERAND_H

#include "kernels/cpu/block.h"

#include "kernels/shape.h"

/* n elements of input i from element `from`, as f32 [n]: a pointer into the tensor or to buffer. */
MS_INLINE const float *ms_operand(const ms_kernel_call *call, const ms_broadcast *broadcast, int i, int64_t from,
                                  int64_t n, float *buffer) {
  if (broadcast->strides[i][broadcast->ndim - 1] == 1)
    return ms_block_in(call->in_data[i], call->in[i].dtype, from, n, buffer);
  ms_block_fill(buffer, ms_scalar_at(call->in_data[i], call->in[i].dtype, from), n);
  return buffer;
}

#endif
