/* document_attention.cu - causal attention in which no query sees keys before the beginning of its document, and its
 * gradients. It first finds the begin and end of the document of each position and then runs attention.cu with them.
 * Memory traffic of the search: 16 bytes per position. */
extern "C" {
#include "kernels/cuda/plan/products/attention.h"
}

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/reductions/reduce.h"

namespace {

constexpr int THREADS = 256;
enum { TOKENS_FORWARD = 3, TOKENS_BACKWARD = 6, TOKENS_MAX = 2 };

/* begin[i], end[i] = the bounds of the document of position i; tokens, begin, end i32 [batch][s]. A block processes one
 * row of the batch, and each thread a part of it, which it reads twice: first for the first and last start token in it,
 * then, with those of all parts, to store the bounds of each position. */
__global__ void __launch_bounds__(THREADS)
    find_borders(const int32_t *tokens, int32_t start, int64_t s, int32_t *begin, int32_t *end) {
  __shared__ int last_of[THREADS], first_of[THREADS]; /* -1 and s: no start token in the part */
  const int length = static_cast<int>(s), own = static_cast<int>(threadIdx.x);
  const int part = (length + THREADS - 1) / THREADS, from = min(own * part, length), to = min(from + part, length);
  tokens += blockIdx.x * s, begin += blockIdx.x * s, end += blockIdx.x * s;
  int first = length, last = -1;
  for (int i = from; i < to; i++)
    if (tokens[i] == start) last = i, first = min(first, i);
  first_of[own] = first, last_of[own] = last;
  __syncthreads();
  int begins = 0, ends = length; /* of documents that extend into this part from before and beyond it */
  for (int i = 0; i < own; i++) begins = max(begins, last_of[i]);
  for (int i = own + 1; i < THREADS; i++) ends = min(ends, first_of[i]);
  for (int i = from; i < to; i++) {
    if (tokens[i] == start) begins = i;
    begin[i] = begins;
  }
  for (int i = to - 1; i >= from; i--) {
    end[i] = ends;
    if (tokens[i] == start) ends = i;
  }
}

/* The sizes of a call with the bounds of documents, which are at the beginning of its workspace. */
int find(const ms_kernel_call *call, int tokens, ms_cuda_attention *a) {
  int32_t *begin = static_cast<int32_t *>(call->workspace), *end = begin + a->batch * a->s;
  if (a->batch * a->s == 0) return MS_OK;
  MS_TRY(MS_CUDA_LAUNCH(find_borders, static_cast<unsigned>(a->batch), THREADS, 0, call->stream,
                        static_cast<const int32_t *>(call->in_data[tokens]), a->start, a->s, begin, end));
  a->begin = begin;
  a->end = end;
  return MS_OK;
}

int run(const ms_kernel_call *call) {
  ms_cuda_attention a = ms_cuda_attention_of(call);
  if (a.batch * a.s == 0) return MS_OK;
  MS_TRY(find(call, a.backward ? TOKENS_BACKWARD : TOKENS_FORWARD, &a));
  return ms_cuda_attention_run(call, a, static_cast<char *>(call->workspace) + ms_attention_borders_bytes(call));
}

int run_max(const ms_kernel_call *call) {
  ms_cuda_attention a = ms_cuda_attention_of(call);
  if (a.documents) MS_TRY(find(call, TOKENS_MAX, &a));
  return ms_cuda_attention_largest(call, a);
}

} // namespace

extern const ms_kernel ms_cuda_attention_max = {ms_cuda_prepare_attention_max, run_max, nullptr,
                                                MS_CUDA_OVER_attention_max};
extern const ms_kernel ms_cuda_document_attention = {
    ms_cuda_attention_prepare,       run,     ms_cuda_attention_release,
    MS_CUDA_OVER_document_attention, nullptr, ms_cuda_attention_computed};
