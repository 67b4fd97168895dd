/* binary.c - a + b, a - b, a b, a / b, maximum and minimum, with broadcasting: processes runs in which each input
 * either advances or repeats one element. The result can overwrite a or b if that has the output's size, because each
 * element is read before it is written. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* Defines the loop of one op: `value` is an expression of p and q, an element of a and of b. The loop computes one run
 * of n elements: a and b are f32 [n], or one number where walk is 0; y is f32 [n]. */
#define BINARY(name, value)                                                                                    \
  MS_INLINE void name##_block(const float *a, int a_walks, const float *b, int b_walks, float *y, int64_t n) { \
    if (a_walks && b_walks) {                                                                                  \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                    \
        const float p = a[i], q = b[i];                                                                        \
        y[i] = value;                                                                                          \
      }                                                                                                        \
    } else if (a_walks) {                                                                                      \
      const float q = b[0];                                                                                    \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                    \
        const float p = a[i];                                                                                  \
        y[i] = value;                                                                                          \
      }                                                                                                        \
    } else {                                                                                                   \
      const float p = a[0];                                                                                    \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                    \
        const float q = b[i];                                                                                  \
        y[i] = value;                                                                                          \
      }                                                                                                        \
    }                                                                                                          \
  }                                                                                                            \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {        \
    (void)part;                                                                                                \
    ms_broadcast broadcast = ms_broadcast_of(&call->out[0], 2, call->in);                                      \
    const int a_walks = broadcast.strides[0][broadcast.ndim - 1] == 1;                                         \
    const int b_walks = broadcast.strides[1][broadcast.ndim - 1] == 1;                                         \
    MS_BLOCK_BUFFER(a_buffer);                                                                                 \
    MS_BLOCK_BUFFER(b_buffer);                                                                                 \
    MS_BLOCK_BUFFER(y_buffer);                                                                                 \
    int64_t from[2], n;                                                                                        \
    for (int64_t first = begin; first < end; first += n) {                                                     \
      n = ms_broadcast_run(&broadcast, 2, first, first + ms_block_length(first, end), from);                   \
      const float *a = ms_block_in(call->in_data[0], call->in[0].dtype, from[0], a_walks ? n : 1, a_buffer);   \
      const float *b = ms_block_in(call->in_data[1], call->in[1].dtype, from[1], b_walks ? n : 1, b_buffer);   \
      float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);                         \
      name##_block(a, a_walks, b, b_walks, y, n);                                                              \
      ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);                                \
    }                                                                                                          \
  }

BINARY(add, p + q)
BINARY(sub, p - q)
BINARY(mul, p *q)
BINARY(div, p / q)
BINARY(maximum, q > p || q != q ? q : p)
BINARY(minimum, q < p || q != q ? q : p)

static int run(const ms_kernel_call *call) {
  ms_part_fn *part = add_part;
  switch (call->op) {
    case MS_OP_sub: part = sub_part; break;
    case MS_OP_mul: part = mul_part; break;
    case MS_OP_div: part = div_part; break;
    case MS_OP_maximum: part = maximum_part; break;
    case MS_OP_minimum: part = minimum_part; break;
  }
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

const ms_kernel ms_cpu_binary = {.run = run, .in_place = MS_OVER(0, 0) | MS_OVER(0, 1)};
