/* attention_sink.c - attention whose softmax has one more term per head, e^sink, that belongs to no key (sinks as
 * parameters, as in gpt-oss). The term only enters the denominator, so the attention without it is scaled:
 *   o' = o p    lse' = ln(e^lse + e^sink)    p = e^(lse - lse') = 1 / (1 + e^(sink - lse))
 * With o' and lse' in place of o and lse, attention_backward is the gradient of q, k and v. The sink's own:
 *   dsink = - sum over queries of e^(sink - lse') (sum over d of do o')
 * Rows are divided among threads forward, heads backward, where the order of every sum is fixed.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

enum { O = 3, LSE, SINKS }; /* inputs; q, k and v come first, and only the gradient reads them */
enum { O_BACK, LSE_BACK, DO_BACK, SINKS_BACK };

/* o [batch][t][heads][d], lse [batch][heads][t] */
typedef struct sizes {
  int64_t batch, t, heads, d;
} sizes;

static sizes sizes_of(const ms_value_info *o) { return (sizes){o->dims[0], o->dims[1], o->dims[2], o->dims[3]}; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* of: lse and sink. NaN in either gives NaN. */
static float sum_of_exponentials(float lse, float sink) {
  const float larger = sink > lse ? sink : lse;
  return larger == -INFINITY ? larger : larger + log1pf(expf(-fabsf(lse - sink)));
}

MS_INLINE void scale_rows(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const sizes s = sizes_of(&call->in[O]);
  const float *lse = call->in_data[LSE];
  float *to_lse = call->out_data[1];
  for (int64_t row = begin; row < end; row++) {
    const int64_t h = row % s.heads, i = row / s.heads % s.t, b = row / s.heads / s.t;
    const int64_t at = (b * s.heads + h) * s.t + i;
    const float sink = ms_scalar_at(call->in_data[SINKS], call->in[SINKS].dtype, h);
    to_lse[at] = sum_of_exponentials(lse[at], sink);
    const float p = 1.0f / (1.0f + expf(sink - lse[at]));
#pragma omp simd
    for (int64_t d = 0; d < s.d; d++)
      ms_simd_store(call->out_data[0], row * s.d + d, p * ms_simd_load(call->in_data[O], row * s.d + d, bf16), bf16);
  }
}

MS_CLONES static void forward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[O].dtype == MS_BF16) scale_rows(call, begin, end, 1);
  else scale_rows(call, begin, end, 0);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

MS_INLINE float gradient_of_head(const ms_kernel_call *call, const sizes *s, int64_t h, int bf16) {
  const float *lse = call->in_data[LSE_BACK];
  const float sink = ms_scalar_at(call->in_data[SINKS_BACK], call->in[SINKS_BACK].dtype, h);
  double sum = 0.0;
  for (int64_t b = 0; b < s->batch; b++)
    for (int64_t i = 0; i < s->t; i++) {
      const int64_t first = ((b * s->t + i) * s->heads + h) * s->d;
      float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < s->d; d++)
        dot += ms_simd_load(call->in_data[O_BACK], first + d, bf16) *
               ms_simd_load(call->in_data[DO_BACK], first + d, bf16);
      sum -= (double)(expf(sink - lse[(b * s->heads + h) * s->t + i]) * dot);
    }
  return (float)sum;
}

MS_CLONES static void backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const sizes s = sizes_of(&call->in[O_BACK]);
  const int bf16 = call->in[O_BACK].dtype == MS_BF16;
  (void)part;
  for (int64_t h = begin; h < end; h++) {
    const float sum = bf16 ? gradient_of_head(call, &s, h, 1) : gradient_of_head(call, &s, h, 0);
    ms_simd_store(call->out_data[0], h, sum, call->out[0].dtype == MS_BF16);
  }
}

static int run(const ms_kernel_call *call) {
  const int back = call->op == MS_OP_attention_sink_backward;
  const sizes s = sizes_of(&call->in[back ? O_BACK : O]);
  const int64_t items = back ? s.heads : s.batch * s.t * s.heads;
  ms_run_parts(call, ms_part_count(call, items, ms_call_bytes(call)), items, 1, back ? backward_part : forward_part);
  return MS_OK;
}

const ms_kernel ms_cpu_attention_sink = {.run = run, .in_place = MS_OVER(0, O)};
