/* dropout.c - y = x mask / (1 - p). Element i is kept when the uniform number that Philox gives for (step seed, stream, i)
** is at least p. Backward is the same kernel on dy: it draws the same mask, which so is never stored.
*/
#include "kernels/cpu/block.h"

#include "kernels/cpu/draw.h"
#include "kernels/cpu/parallel.h"

/* y = x scale where the word is at least limit, else 0; all [n] */
MS_INLINE void mask_block(const float *x, const uint32_t *words, uint32_t limit, float scale, float *y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = words[i] < limit ? 0.0f : x[i] * scale;
}

/* begin is a multiple of 4: parts are cut at whole cache lines. */
MS_CLONES static void dropout_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float p = (float)call->attrs.f[0], scale = (float)(1.0 / (1.0 - call->attrs.f[0]));
  const uint32_t limit = (uint32_t)__builtin_ceilf(p * 16777216.0f) << 8;
  const uint64_t seed = call->scalars->seed, stream = (uint64_t)call->attrs.i[0];
  ms_draw_fn *draw = ms_pick_draw();
  MS_BLOCK_BUFFER(x_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  uint32_t words[MS_BLOCK] __attribute__((aligned(64)));
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    int64_t n = ms_block_length(first, end);
    const float *x = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, x_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
    draw(seed, stream, (uint64_t)first / 4, words);
    mask_block(x, words, limit, scale, y, n);
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), dropout_part); }

const ms_kernel ms_cpu_dropout = {.run = run, .in_place = MS_OVER(0, 0)};
