/* attention.h - the sizes of an attention call, the keys that a query sees, and the implementations:
 *
 *   plan/products/attention.c  chooses an implementation
 *   attention.cu               reads the call and runs it
 *   attention_cudnn.c          cuDNN, if available (cudnn_graph.h)
 *   attention_flash.cu         our own kernels for all other calls (flash.h, tiles.h)
 *   attention_flash_backward.cu
 *   document_attention.cu      finds the document boundaries, then uses attention.cu
 */
#ifndef MS_KERNELS_CUDA_ATTENTION_H
#define MS_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/attention_options.h"
}

/* q [batch][t][heads][d], o [batch][t][heads][e]; k [batch][s][groups][d], v [batch][s][groups][e]; lse
 * [batch][heads][t]. */
struct ms_cuda_attention : ms_attention_options {
  int64_t batch, t, s, heads, groups, d, e;
  /* For document_attention: begin and end of the document of each key, i32 [batch][s] each. NULL: each row of
   * the batch is one document. */
  const int32_t *begin, *end;
};

/* Input indices of attention_backward, the first three also of attention; document_attention appends tokens to them. */
enum { MS_ATTENTION_Q, MS_ATTENTION_K, MS_ATTENTION_V, MS_ATTENTION_O, MS_ATTENTION_LSE, MS_ATTENTION_DO };

static inline ms_cuda_attention ms_cuda_attention_of(const ms_kernel_call *call) {
  const int64_t *q = call->in[0].dims, *k = call->in[1].dims, e = call->in[2].dims[3]; /* e: where there are values */
  return {ms_attention_options_of(call->op, &call->attrs, call->in),
          q[0],
          q[1],
          k[1],
          q[2],
          k[2],
          q[3],
          e,
          nullptr,
          nullptr};
}

struct ms_cuda_range {
  int64_t begin, end; /* empty if end <= begin */
};

/* Where query i is among the keys, and the first query that is at key j or after it. */
static __device__ __forceinline__ int64_t ms_cuda_query_at(const ms_cuda_attention &a, int64_t i) {
  return a.part.ranks ? ms_part_index(&a.part, i) + a.s - a.t * a.part.ranks : i + a.s - a.t;
}
static __device__ __forceinline__ int64_t ms_cuda_query_from(const ms_cuda_attention &a, int64_t j) {
  const int64_t zero = 0;
  return max(a.part.ranks ? ms_part_before(&a.part, j - a.s + a.t * a.part.ranks) : j + a.t - a.s, zero);
}

/* The keys that query i < t of a row of the batch sees; neither end decreases with i. LIMITED: there can be a
 * window or a prefix. */
template <bool LIMITED>
static __device__ __forceinline__ ms_cuda_range ms_cuda_seen(const ms_cuda_attention &a, int64_t row, int64_t i) {
  if (!a.causal && !(LIMITED && a.window)) return {0, a.s};
  const int64_t at = ms_cuda_query_at(a, i), zero = 0;
  ms_cuda_range seen = {a.begin ? a.begin[row * a.s + at] : zero, min(at + 1, a.s)};
  if (LIMITED && a.window) seen.begin = max(seen.begin, at + 1 - a.window);
  if (LIMITED) seen.end = max(a.causal ? seen.end : min(at + a.window, a.s), a.prefix);
  return seen;
}

/* The queries that see key j < s. */
template <bool LIMITED>
static __device__ __forceinline__ ms_cuda_range ms_cuda_seeing(const ms_cuda_attention &a, int64_t row, int64_t j) {
  if (!a.causal && !(LIMITED && a.window)) return {0, a.t};
  ms_cuda_range seeing = {ms_cuda_query_from(a, j), a.end ? ms_cuda_query_from(a, a.end[row * a.s + j]) : a.t};
  if (LIMITED && a.window) seeing.end = min(seeing.end, ms_cuda_query_from(a, j + a.window));
  if (LIMITED && !a.causal) seeing.begin = ms_cuda_query_from(a, j + 1 - a.window);
  if (LIMITED && j < a.prefix) seeing.begin = 0;
  return seeing;
}

/* Forward writes o and lse. Backward reads delta [batch][heads][t] = sum over d of do o, which the gradient of the
 * softmax subtracts. tf32: round f32 operands of products to TF32. whole: tensors and heads are aligned to 16 bytes. */
int ms_cuda_attention_flash(const ms_kernel_call *call, const ms_cuda_attention &a, int tf32, int whole);
int ms_cuda_attention_flash_backward(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta,
                                     int tf32, int whole);

/* The largest score of each query (attention_max.cu). */
int ms_cuda_attention_largest(const ms_kernel_call *call, const ms_cuda_attention &a);

/* Shared by both ops. prepare plans the call (plan/products/attention.h) and keeps the choice; release frees that.
 * run's `workspace` begins after the bounds of documents. */
int ms_cuda_attention_prepare(ms_kernel_call *call);
int ms_cuda_attention_run(const ms_kernel_call *call, const ms_cuda_attention &a, void *workspace);
void ms_cuda_attention_release(void *prepared);
ms_computed ms_cuda_attention_computed(const ms_kernel_call *call);

#endif
