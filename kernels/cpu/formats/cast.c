/* cast.c - converts x [n] to another dtype (moonshard/base.h has the rules). Between f32 and bf16 directly; other pairs
 * in blocks that pass through f32, which represents all dtypes exactly but i32, which it rounds above 2^24. */
#include "kernels/cpu/block.h"

#include "base/numbers/dtype.h"
#include "base/numbers/float8.h"
#include "kernels/cpu/parallel.h"

/* Between f32 and bf16. */
MS_CLONES static void floats_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  int to = call->out[0].dtype;
  if (begin == end) return;
  if (to == MS_F32) ms_widen(call->in_data[0], MS_BF16, begin, end - begin, (float *)call->out_data[0] + begin);
  else ms_narrow((ms_bf16 *)call->out_data[0] + begin, (const float *)call->in_data[0] + begin, end - begin);
}

/* ---- through f32 ------------------------------------------------------------------------------------------------- */

/* Truncate x towards zero; saturate beyond the range of the type, and give 0 for NaN. */
MS_INLINE int32_t to_i32(float x) {
  return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x <= -0x1p31f ? INT32_MIN : (int32_t)x;
}

MS_INLINE int8_t to_i8(float x) {
  const float low = x < -128.0f ? -128.0f : x, kept = low > 127.0f ? 127.0f : low;
  return (int8_t)(x != x ? 0 : (int32_t)kept);
}

/* Loops over a block of n elements; `value` is an expression of the element x. */
#define EACH(type, data, first, value)                  \
  _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { \
    const type x = ((const type *)(data))[(first) + i]; \
    out[i] = value;                                     \
  }

/* data[first .. first + n) as f32: a pointer into data, or to buffer after conversion. */
MS_INLINE const float *as_f32(const void *data, int dtype, int64_t first, int64_t n, float *buffer) {
  float *out = buffer;
  switch (dtype) {
    case MS_I32: EACH(int32_t, data, first, (float)x) return buffer;
    case MS_U8: EACH(uint8_t, data, first, (float)x) return buffer;
    case MS_I8: EACH(int8_t, data, first, (float)x) return buffer;
    case MS_F8E4M3: EACH(uint8_t, data, first, ms_f8e4m3_to_f32(x)) return buffer;
    case MS_F8E5M2: EACH(uint8_t, data, first, ms_f8e5m2_to_f32(x)) return buffer;
    case MS_E8M0: EACH(uint8_t, data, first, ms_e8m0_to_f32(x)) return buffer;
    default: return ms_block_in(data, dtype, first, n, buffer);
  }
}

#define EACH_TO(type, value)          \
  {                                   \
    type *out = (type *)data + first; \
    EACH(float, from, 0, value)       \
    return;                           \
  }

/* data[first .. first + n) = from[0 .. n), converted. */
MS_INLINE void from_f32(const float *from, int dtype, int64_t first, int64_t n, void *data) {
  switch (dtype) {
    case MS_I32: EACH_TO(int32_t, to_i32(x))
    case MS_I8: EACH_TO(int8_t, to_i8(x))
    case MS_F8E4M3: EACH_TO(uint8_t, ms_f32_to_f8e4m3(x))
    case MS_F8E5M2: EACH_TO(uint8_t, ms_f32_to_f8e5m2(x))
    case MS_E8M0: EACH_TO(uint8_t, ms_f32_to_e8m0(x))
    case MS_BF16: ms_narrow((ms_bf16 *)data + first, from, n); return;
    default: memcpy((float *)data + first, from, (size_t)n * sizeof *from);
  }
}

MS_CLONES static void through_f32_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  MS_BLOCK_BUFFER(buffer);
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    const int64_t n = ms_block_length(first, end);
    const float *x = as_f32(call->in_data[0], call->in[0].dtype, first, n, buffer);
    from_f32(x, call->out[0].dtype, first, n, call->out_data[0]);
  }
}

/* To the dtype that x has, without the rounding of f32. */
static void copy_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int64_t size = ms_dtype_size(call->in[0].dtype);
  if (begin == end) return;
  memcpy((char *)call->out_data[0] + begin * size, (const char *)call->in_data[0] + begin * size,
         (size_t)((end - begin) * size));
}

static int is_float(int dtype) { return dtype == MS_F32 || dtype == MS_BF16; }

static int run(const ms_kernel_call *call) {
  const int from = call->in[0].dtype, to = call->out[0].dtype;
  ms_part_fn *part = from == to ? copy_part : is_float(from) && is_float(to) ? floats_part : through_f32_part;
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

const ms_kernel ms_cpu_cast = {.run = run};
