/* f8_weights.c - weights that are gathered as codes: the largest magnitude of a rank's chunk, the scales that follow
 * from those of all ranks, and the codes of a chunk. */
#include "kernels/cpu/simd.h"

#include "kernels/cpu/parallel.h"
#include "kernels/formats/quantise_code.h"

/* Elements of a part; a maximum has no order, so the bits do not depend on the parts. */
enum { RUN = 1 << 14 };

MS_INLINE uint32_t largest_of(const float *x, int64_t n) {
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; i++) most = ms_magnitude(x[i]) > most ? ms_magnitude(x[i]) : most;
  return most;
}

MS_CLONES static void largest_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int64_t n = ms_numel(&call->in[0]);
  uint32_t *most = call->workspace;
  for (int64_t r = begin; r < end; r++)
    most[r] = largest_of((const float *)call->in_data[0] + r * RUN, n - r * RUN < RUN ? n - r * RUN : RUN);
}

static int64_t runs_of(const ms_kernel_call *call) { return (ms_numel(&call->in[0]) + RUN - 1) / RUN; }

static int prepare_largest(ms_kernel_call *call) {
  call->workspace_bytes = runs_of(call) * (int64_t)sizeof(uint32_t);
  return MS_OK;
}

static int run_largest(const ms_kernel_call *call) {
  const int64_t runs = runs_of(call);
  const uint32_t *of_run = call->workspace;
  uint32_t most = 0;
  ms_run_parts(call, ms_part_count(call, runs, ms_call_bytes(call)), runs, 1, largest_part);
  for (int64_t r = 0; r < runs; r++) most = of_run[r] > most ? of_run[r] : most;
  *(float *)call->out_data[0] = ms_float8_value(most);
  return MS_OK;
}

static int run_scales(const ms_kernel_call *call) {
  const float *amax = call->in_data[0];
  float *scale = call->out_data[0];
  for (int64_t i = 0, n = ms_numel(&call->in[0]); i < n; i++)
    scale[i] = ms_tensor_scale(ms_magnitude(amax[i]), MS_F8E4M3);
  return MS_OK;
}

MS_CLONES static void codes_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float *restrict x = call->in_data[0], scale = *(const float *)call->in_data[1];
  uint8_t *restrict codes = call->out_data[0];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) codes[i] = ms_code_of(x[i] * scale, MS_F8E4M3);
}

static int run_codes(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), codes_part); }

const ms_kernel ms_cpu_largest_magnitude = {.prepare = prepare_largest, .run = run_largest};
const ms_kernel ms_cpu_f8_scales = {.run = run_scales};
const ms_kernel ms_cpu_f8_codes = {.run = run_codes};
