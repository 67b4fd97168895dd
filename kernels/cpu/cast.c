/* cast.c - converts x [n] from f32, bf16, i32 or u8 (masks) to f32, bf16 or i32. Between floats and integers, blocks
 * pass through f32, which represents bf16 and u8 exactly and rounds i32 above 2^24. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

/* Between f32 and bf16. */
MS_CLONES static void floats_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  int from = call->in[0].dtype, to = call->out[0].dtype;
  if (begin == end) return;
  if (to == MS_F32) ms_widen(call->in_data[0], from, begin, end - begin, (float *)call->out_data[0] + begin);
  else if (from == MS_F32)
    ms_narrow((ms_bf16 *)call->out_data[0] + begin, (const float *)call->in_data[0] + begin, end - begin);
  else
    memcpy((ms_bf16 *)call->out_data[0] + begin, (const ms_bf16 *)call->in_data[0] + begin,
           (size_t)(end - begin) * sizeof(ms_bf16));
}

/* Truncates x towards zero; saturates beyond the range of i32, and gives 0 for NaN. */
MS_INLINE int32_t integer_of(float x) {
  return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x <= -0x1p31f ? INT32_MIN : (int32_t)x;
}

/* data[first .. first + n) as f32: a pointer into data, or to buffer after conversion. */
MS_INLINE const float *block_as_f32(const void *data, int dtype, int64_t first, int64_t n, float *buffer) {
  if (dtype != MS_I32 && dtype != MS_U8) return ms_block_in(data, dtype, first, n, buffer);
  for (int64_t i = 0; i < n; i++)
    buffer[i] = dtype == MS_I32 ? (float)((const int32_t *)data)[first + i] : (float)((const uint8_t *)data)[first + i];
  return buffer;
}

MS_CLONES static void integers_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int to = call->out[0].dtype;
  MS_BLOCK_BUFFER(x_buffer);
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    const int64_t n = ms_block_length(first, end);
    const float *x = block_as_f32(call->in_data[0], call->in[0].dtype, first, n, x_buffer);
    if (to == MS_I32) {
      int32_t *y = (int32_t *)call->out_data[0] + first;
      for (int64_t i = 0; i < n; i++) y[i] = integer_of(x[i]);
    } else if (to == MS_F32) {
      memcpy((float *)call->out_data[0] + first, x, (size_t)n * sizeof *x);
    } else {
      ms_narrow((ms_bf16 *)call->out_data[0] + first, x, n);
    }
  }
}

/* i32 to i32 without the rounding of f32. */
static void copy_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int32_t *x = call->in_data[0];
  int32_t *y = call->out_data[0];
  for (int64_t i = begin; i < end; i++) y[i] = x[i];
}

static int is_integer(int dtype) { return dtype == MS_I32 || dtype == MS_U8; }

static int run(const ms_kernel_call *call) {
  const int from = call->in[0].dtype, to = call->out[0].dtype;
  ms_part_fn *part = is_integer(from) || is_integer(to) ? integers_part : floats_part;
  return ms_run_elements(call, ms_numel(&call->out[0]), from == MS_I32 && to == MS_I32 ? copy_part : part);
}

const ms_kernel ms_cpu_cast = {.run = run};
