/* embedding.c - see the header; and the workspace of embedding_backward. */
#include "kernels/cuda/plan/embedding.h"

#include "base/error.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"

int64_t ms_sort_chunks(int64_t n) { return ms_cuda_ceil(n, MS_SORT_CHUNK); }

int64_t ms_sort_buffer_bytes(int64_t n) { return ms_cuda_align(n * (int64_t)sizeof(uint32_t)); }

int64_t ms_sort_bytes(int64_t n) {
  const int64_t counts = ms_sort_chunks(n) * MS_SORT_DIGITS * (int64_t)sizeof(uint32_t);
  return 4 * ms_sort_buffer_bytes(n) + ms_cuda_align(counts);
}

int64_t ms_embedding_blocks(int64_t n) { return ms_cuda_ceil(n, MS_EMBEDDING_RUN); }

/* After the sort's workspace, f32 [blocks][2][columns]. */
int ms_cuda_prepare_embedding_backward(ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), rows = call->out[0].dims[0], columns = call->out[0].dims[1];
  if (n >= INT64_C(4294967296) || rows >= INT64_C(4294967295))
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: embedding_backward of %lld tokens and %lld rows; both must be below 2^32",
                   (long long)n, (long long)rows);
  call->workspace_bytes = ms_sort_bytes(n) + ms_embedding_blocks(n) * 2 * columns * (int64_t)sizeof(float);
  return MS_OK;
}
