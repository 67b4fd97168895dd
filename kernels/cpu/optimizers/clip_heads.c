/* clip_heads.c - scales the rows of heads whose largest attention score is above a threshold (QK-clip). */
#include "kernels/clip_heads.h"
#include "kernels/cpu/parallel.h"

static void clip_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_clip_heads c = ms_clip_heads_of(&call->attrs);
  float *p = call->out_data[0];
  for (int64_t i = begin; i < end;) {
    const int64_t left = c.columns - (c.first + i) % c.columns, stop = left < end - i ? i + left : end;
    const float factor = ms_clip_heads_factor(&c, call->in_data[0], (c.first + i) / c.columns);
    for (; i < stop; i++) p[i] *= factor;
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), clip_part); }

const ms_kernel ms_cpu_clip_heads = {.run = run};
