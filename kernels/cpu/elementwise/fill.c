/* fill.c - fills a tensor [n] of any dtype with a constant. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

MS_CLONES static void fill_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const double value = call->attrs.shape.value;
  switch (call->out[0].dtype) {
    case MS_F32: {
      float *y = call->out_data[0], x = (float)value;
      for (int64_t i = begin; i < end; i++) y[i] = x;
      break;
    }
    case MS_BF16: {
      ms_bf16 *y = call->out_data[0], x = ms_to_bf16((float)value);
      for (int64_t i = begin; i < end; i++) y[i] = x;
      break;
    }
    case MS_I32: {
      int32_t *y = call->out_data[0], x = (int32_t)value;
      for (int64_t i = begin; i < end; i++) y[i] = x;
      break;
    }
    default: {
      uint8_t *y = call->out_data[0], x = (uint8_t)value;
      for (int64_t i = begin; i < end; i++) y[i] = x;
      break;
    }
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), fill_part); }

const ms_kernel ms_cpu_fill = {.run = run};
