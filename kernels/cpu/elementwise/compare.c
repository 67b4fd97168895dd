/* compare.c - comparisons, which give u8 masks, `where`, which reads one, and the gradient of maximum and minimum. All
 * broadcast (operand.h). Floats are compared as f32, integers (i32, u8) as i32. */
#include "kernels/cpu/matmul/operand.h"

#include "kernels/cpu/parallel.h"

/* n elements of an input of integers from element `from`, as i32 [n]: a pointer into the tensor or to buffer. */
MS_INLINE const int32_t *integers(const ms_kernel_call *call, const ms_broadcast *broadcast, int i, int64_t from,
                                  int64_t n, int32_t *buffer) {
  const int64_t walk = broadcast->strides[i][broadcast->ndim - 1];
  const uint8_t *bytes = (const uint8_t *)call->in_data[i] + from;
  const int32_t *words = (const int32_t *)call->in_data[i] + from;
  if (call->in[i].dtype == MS_I32 && walk) return words;
  for (int64_t k = 0; k < n; k++) buffer[k] = call->in[i].dtype == MS_I32 ? words[k * walk] : bytes[k * walk];
  return buffer;
}

/* Defines the loop of one comparison for f32 or int32_t; `load` fetches an input. */
#define COMPARE(name, type, load, relation)                                                             \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                         \
    ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 2, call->in);                               \
    type a_buffer[MS_BLOCK], b_buffer[MS_BLOCK];                                                        \
    int64_t from[2], n;                                                                                 \
    for (int64_t first = begin; first < end; first += n) {                                              \
      n = ms_broadcast_run(&broadcast, 2, first, first + ms_block_length(first, end), from);            \
      const type *a = load(call, &broadcast, 0, from[0], n, a_buffer);                                  \
      const type *b = load(call, &broadcast, 1, from[1], n, b_buffer);                                  \
      uint8_t *mask = (uint8_t *)call->out_data[0] + first;                                             \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) mask[i] = a[i] relation b[i] ? 1 : 0;         \
    }                                                                                                   \
  }

COMPARE(less, float, ms_operand, <)
COMPARE(less_equal, float, ms_operand, <=)
COMPARE(equal, float, ms_operand, ==)
COMPARE(not_equal, float, ms_operand, !=)
COMPARE(less_integers, int32_t, integers, <)
COMPARE(less_equal_integers, int32_t, integers, <=)
COMPARE(equal_integers, int32_t, integers, ==)
COMPARE(not_equal_integers, int32_t, integers, !=)

/* n elements of the mask from element `from`: u8 [n], a pointer into the tensor or to buffer. */
MS_INLINE const uint8_t *mask_of(const ms_kernel_call *call, const ms_broadcast *broadcast, int64_t from, int64_t n,
                                 uint8_t *buffer) {
  const uint8_t *mask = (const uint8_t *)call->in_data[0] + from;
  return broadcast->strides[0][broadcast->ndim - 1] == 1 ? mask : memset(buffer, *mask, (size_t)n);
}

MS_CLONES static void where_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 3, call->in);
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  uint8_t mask_buffer[MS_BLOCK];
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, 3, first, first + ms_block_length(first, end), from);
    const uint8_t *mask = mask_of(call, &broadcast, from[0], n, mask_buffer);
    const float *a = ms_operand(call, &broadcast, 1, from[1], n, a_buffer);
    const float *b = ms_operand(call, &broadcast, 2, from[2], n, b_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? a[i] : b[i];
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

MS_CLONES static void where_integers_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 3, call->in);
  int32_t a_buffer[MS_BLOCK], b_buffer[MS_BLOCK];
  uint8_t mask_buffer[MS_BLOCK];
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, 3, first, first + ms_block_length(first, end), from);
    const uint8_t *mask = mask_of(call, &broadcast, from[0], n, mask_buffer);
    const int32_t *a = integers(call, &broadcast, 1, from[1], n, a_buffer);
    const int32_t *b = integers(call, &broadcast, 2, from[2], n, b_buffer);
    if (call->out[0].dtype == MS_I32) {
      int32_t *y = (int32_t *)call->out_data[0] + first;
      for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? a[i] : b[i];
    } else {
      uint8_t *y = (uint8_t *)call->out_data[0] + first;
      for (int64_t i = 0; i < n; i++) y[i] = (uint8_t)(mask[i] ? a[i] : b[i]);
    }
  }
}

/* dx = dy where a > b (or either is NaN), half of dy where a == b, else 0; a and b broadcast to dy's shape. */
MS_CLONES static void maximum_backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 3, call->in);
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(dy_buffer);
  MS_BLOCK_BUFFER(dx_buffer);
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, 3, first, first + ms_block_length(first, end), from);
    const float *a = ms_operand(call, &broadcast, 0, from[0], n, a_buffer);
    const float *b = ms_operand(call, &broadcast, 1, from[1], n, b_buffer);
    const float *dy = ms_operand(call, &broadcast, 2, from[2], n, dy_buffer);
    float *dx = ms_block_out(call->out_data[0], call->out[0].dtype, first, dx_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dx[i] = a[i] < b[i] ? 0.0f : a[i] == b[i] ? 0.5f * dy[i] : dy[i];
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, dx_buffer);
  }
}

static int is_float(int dtype) { return dtype == MS_F32 || dtype == MS_BF16; }

static int run_compare(const ms_kernel_call *call) {
  const int floats = is_float(call->in[0].dtype);
  ms_part_fn *part = floats ? less_part : less_integers_part;
  switch (call->op) {
    case MS_OP_less_equal: part = floats ? less_equal_part : less_equal_integers_part; break;
    case MS_OP_equal: part = floats ? equal_part : equal_integers_part; break;
    case MS_OP_not_equal: part = floats ? not_equal_part : not_equal_integers_part; break;
  }
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

static int run_where(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->out[0]),
                         is_float(call->out[0].dtype) ? where_part : where_integers_part);
}

static int run_maximum_backward(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->out[0]), maximum_backward_part);
}

const ms_kernel ms_cpu_compare = {.run = run_compare};
const ms_kernel ms_cpu_where = {.run = run_where};
const ms_kernel ms_cpu_maximum_backward = {.run = run_maximum_backward, .in_place = MS_OVER(0, 2)};
