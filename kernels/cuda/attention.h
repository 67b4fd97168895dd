/* attention.h - the shape of an attention's call, and what implementations on CUDA share. */
#ifndef MS_KERNELS_CUDA_ATTENTION_H
#define MS_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launch.h"

/* q, o [batch,t,heads,d]; k, v [batch,s,groups,d]; lse [batch,heads,t] */
struct ms_cuda_attention {
  int64_t batch, t, s, heads, groups, d;
  int causal; /* query i sees keys 0 to i + s - t */
  float scale;
};

static inline ms_cuda_attention ms_cuda_attention_of(const ms_kernel_call *call) {
  const int64_t *q = call->in[0].dims, *k = call->in[1].dims;
  const float scale = call->attrs.f[0] != 0.0 ? static_cast<float>(call->attrs.f[0])
                                              : static_cast<float>(1.0 / sqrt(static_cast<double>(q[3])));
  return {q[0], q[1], k[1], q[2], k[2], q[3], call->attrs.i[0] != 0, scale};
}

/* Keys that query i sees. */
static __host__ __device__ inline int64_t ms_cuda_visible(const ms_cuda_attention &a, int64_t i) {
  const int64_t keys = a.causal ? i + a.s - a.t + 1 : a.s;
  return keys < a.s ? keys : a.s;
}

#endif
