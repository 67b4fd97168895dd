/* attention.h - the shape of an attention's call, what a query sees, and the implementations:
**
**   attention.cu           reads the call and chooses
**   attention_cudnn.c      cuDNN's, where it is found (cudnn_graph.h)
**   attention_flash.cu     everything else (flash.h, tiles.h)
**   attention_flash_backward.cu
**   document_attention.cu  finds the borders of documents, then as attention.cu
*/
#ifndef MS_KERNELS_CUDA_ATTENTION_H
#define MS_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launch.h"

/* q, o [batch,t,heads,d]; k, v [batch,s,groups,d]; lse [batch,heads,t] */
struct ms_cuda_attention {
  int64_t batch, t, s, heads, groups, d;
  int causal; /* query i sees keys 0 to i + s - t */
  float scale;
  /* Documents, with causal and t = s: where that of a position begins and ends, [batch,t] each; NULL: one a row. */
  const int32_t *begin, *end;
};

/* Operands of both directions; document_attention has tokens behind them. */
enum { MS_ATTENTION_Q, MS_ATTENTION_K, MS_ATTENTION_V, MS_ATTENTION_O, MS_ATTENTION_LSE, MS_ATTENTION_DO };

static inline ms_cuda_attention ms_cuda_attention_of(const ms_kernel_call *call) {
  const int64_t *q = call->in[0].dims, *k = call->in[1].dims;
  const float scale = call->attrs.f[0] != 0.0 ? static_cast<float>(call->attrs.f[0])
                                              : static_cast<float>(1.0 / sqrt(static_cast<double>(q[3])));
  return {q[0], q[1], k[1], q[2], k[2], q[3], call->attrs.i[0] != 0, scale, nullptr, nullptr};
}

struct ms_cuda_range {
  int64_t begin, end; /* empty when end <= begin */
};

/* The keys that query i < t of a row of the batch sees; neither end moves back as i grows. */
static __device__ __forceinline__ ms_cuda_range ms_cuda_seen(const ms_cuda_attention &a, int64_t row, int64_t i) {
  return {a.begin ? a.begin[row * a.t + i] : 0, a.causal ? min(i + a.s - a.t + 1, a.s) : a.s};
}

/* The queries that see key j < s. */
static __device__ __forceinline__ ms_cuda_range ms_cuda_seeing(const ms_cuda_attention &a, int64_t row, int64_t j) {
  const int64_t zero = 0;
  return {a.causal ? max(j + a.t - a.s, zero) : zero, a.end ? a.end[row * a.t + j] : a.t};
}

/* Forward writes o and lse. Backward reads delta[b,h,i] = sum over d of o do, what the softmax's gradient takes off. f32 operands of
** products are rounded to TF32 where that is allowed; whole: tensors are aligned to 16 bytes, and so are heads. */
int ms_cuda_attention_flash(const ms_kernel_call *call, const ms_cuda_attention &a, int tf32, int whole);
int ms_cuda_attention_flash_backward(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta,
                                     int tf32, int whole);

/* What both ops do with own kernels: the checks, the workspace and what is prepared, with `own` bytes of the workspace for the op
** itself, and why cuDNN is not asked (NULL: it is); the run, whose `workspace` begins behind those; and the end. */
int ms_cuda_attention_prepare(ms_kernel_call *call, int backward, int64_t own, const char *because);
int ms_cuda_attention_run(const ms_kernel_call *call, const ms_cuda_attention &a, int backward, void *workspace);
void ms_cuda_attention_release(void *prepared);
ms_computed ms_cuda_attention_computed(const ms_kernel_call *call);

#endif
