/* compare.c - less and equal, which make u8 masks, and where, which uses one. All broadcast; an input that stands still
** along a run is spread over a block first, so that one loop serves every combination.
*/
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* Input i of the run at `from`, n elements of f32. */
MS_INLINE const float *operand(const ms_kernel_call *call, const ms_broadcast *broadcast, int i, int64_t from,
                               int64_t n, float *buffer) {
  if (broadcast->strides[i][broadcast->ndim - 1] == 1)
    return ms_block_in(call->in_data[i], call->in[i].dtype, from, n, buffer);
  ms_block_fill(buffer, ms_scalar_at(call->in_data[i], call->in[i].dtype, from), n);
  return buffer;
}

#define COMPARE(name, operator)                                                                         \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                         \
    ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 2, call->in);                               \
    MS_BLOCK_BUFFER(a_buffer);                                                                          \
    MS_BLOCK_BUFFER(b_buffer);                                                                          \
    int64_t from[2], n;                                                                                 \
    for (int64_t first = begin; first < end; first += n) {                                              \
      n = ms_broadcast_run(&broadcast, 2, first, first + ms_block_length(first, end), from);            \
      const float *a = operand(call, &broadcast, 0, from[0], n, a_buffer);                              \
      const float *b = operand(call, &broadcast, 1, from[1], n, b_buffer);                              \
      uint8_t *mask = (uint8_t *)call->out_data[0] + first;                                             \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) mask[i] = a[i] operator b[i] ? 1 : 0;         \
    }                                                                                                   \
  }

COMPARE(less, <)
COMPARE(equal, ==)

MS_CLONES static void where_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 3, call->in);
  const int mask_walks = broadcast.strides[0][broadcast.ndim - 1] == 1;
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  uint8_t mask_buffer[MS_BLOCK];
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, 3, first, first + ms_block_length(first, end), from);
    const uint8_t *mask = (const uint8_t *)call->in_data[0] + from[0];
    if (!mask_walks) mask = memset(mask_buffer, *mask, (size_t)n);
    const float *a = operand(call, &broadcast, 1, from[1], n, a_buffer);
    const float *b = operand(call, &broadcast, 2, from[2], n, b_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? a[i] : b[i];
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

static int run_compare(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->out[0]), call->op == MS_OP_less ? less_part : equal_part);
}

static int run_where(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), where_part); }

const ms_kernel ms_cpu_compare = {.run = run_compare};
const ms_kernel ms_cpu_where = {.run = run_where};
