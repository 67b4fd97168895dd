/* accumulate.c - writes a gradient x [n] (f32 or bf16) to its f32 accumulator y [n], or adds it: y = x, or y += x. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

MS_CLONES static void store_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (begin < end)
    ms_widen(call->in_data[0], call->in[0].dtype, begin, end - begin, (float *)call->out_data[0] + begin);
}

MS_CLONES static void add_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  MS_BLOCK_BUFFER(x_buffer);
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    int64_t n = ms_block_length(first, end);
    const float *x = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, x_buffer);
    float *y = (float *)call->out_data[0] + first;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
  }
}

static int run(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->out[0]), call->attrs.add ? add_part : store_part);
}

const ms_kernel ms_cpu_accumulate = {.run = run};
