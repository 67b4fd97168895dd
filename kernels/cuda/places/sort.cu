/* sort.cu - the kernels of the radix sort; see sort.h. */
#include "kernels/cuda/places/sort.h"

#include "kernels/cuda/reductions/reduce.h"

namespace {

constexpr int CHUNK = MS_SORT_CHUNK, BITS = MS_SORT_BITS, DIGITS = MS_SORT_DIGITS, WARPS = CHUNK / MS_WARP;

/* key[i] = tokens[i] - first, or `rows` for a token that does not count; position[i] = i; all [n]. */
__global__ void __launch_bounds__(CHUNK) make_keys(const int32_t *tokens, int64_t n, ms_sorted_rows rows, uint32_t *key,
                                                   uint32_t *position, int op, ms_fault *fault) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * CHUNK + threadIdx.x;
  if (i >= n) return;
  const int64_t token = tokens[i], row = token - rows.first;
  const bool real = token >= 0 && token < rows.all;
  if (!real) ms_note_fault(fault, op, token, rows.all);
  key[i] = static_cast<uint32_t>(real && row >= 0 && row < rows.rows ? row : rows.rows);
  position[i] = static_cast<uint32_t>(i);
}

/* counts [DIGITS][chunks]: how often each digit occurs in each chunk of key [n]. */
__global__ void __launch_bounds__(CHUNK) count_digits(const uint32_t *key, int64_t n, int shift, uint32_t *counts) {
  __shared__ unsigned count[DIGITS];
  if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
  __syncthreads();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * CHUNK + threadIdx.x;
  if (i < n) atomicAdd(&count[key[i] >> shift & (DIGITS - 1)], 1u);
  __syncthreads();
  if (threadIdx.x < DIGITS) counts[static_cast<int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

__device__ __forceinline__ unsigned warp_prefix(unsigned value) {
  const int lane = threadIdx.x % MS_WARP;
#pragma unroll
  for (int by = 1; by < MS_WARP; by *= 2) {
    const unsigned other = __shfl_up_sync(0xffffffffu, value, by);
    if (lane >= by) value += other;
  }
  return value;
}

/* Replaces counts [n] by their exclusive prefix sums. One block. */
__global__ void __launch_bounds__(CHUNK) begin_digits(uint32_t *counts, int64_t n) {
  __shared__ unsigned of_warp[WARPS];
  const int warp = threadIdx.x / MS_WARP, lane = threadIdx.x % MS_WARP;
  const int64_t each = ms_cuda_ceil(n, CHUNK), begin = min(n, threadIdx.x * each), end = min(n, begin + each);
  unsigned own = 0;
  for (int64_t i = begin; i < end; i++) own += counts[i];
  const unsigned within = warp_prefix(own);
  if (lane == MS_WARP - 1) of_warp[warp] = within;
  __syncthreads();
  unsigned before = warp_prefix(of_warp[lane]); /* every warp computes the sums of all */
  before = warp > 0 ? __shfl_sync(0xffffffffu, before, warp - 1) : 0;
  unsigned at = before + within - own;
  for (int64_t i = begin; i < end; i++) {
    const unsigned count = counts[i];
    counts[i] = at;
    at += count;
  }
}

/* Moves key and position [n] to their places in digit order; counts [DIGITS][chunks] are the prefix sums. */
__global__ void __launch_bounds__(CHUNK) scatter(const uint32_t *key, const uint32_t *position, uint32_t *to_key,
                                                 uint32_t *to_position, int64_t n, int shift, const uint32_t *counts) {
  __shared__ unsigned short before[WARPS][DIGITS]; /* a warp's count of a digit, then the count in earlier warps */
  const int warp = threadIdx.x / MS_WARP, lane = threadIdx.x % MS_WARP;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * CHUNK + threadIdx.x;
  for (int d = lane; d < DIGITS; d += MS_WARP) before[warp][d] = 0;
  __syncwarp();
  const uint32_t own = i < n ? key[i] : 0;
  const int digit = i < n ? static_cast<int>(own >> shift & (DIGITS - 1)) : DIGITS;
  const unsigned equal = __match_any_sync(0xffffffffu, digit);
  const int rank = __popc(equal & ((1u << lane) - 1u));
  if (rank == 0 && i < n) before[warp][digit] = static_cast<unsigned short>(__popc(equal));
  __syncthreads();
  if (threadIdx.x < DIGITS) {
    unsigned sum = 0;
    for (int w = 0; w < WARPS; w++) {
      const unsigned count = before[w][threadIdx.x];
      before[w][threadIdx.x] = static_cast<unsigned short>(sum);
      sum += count;
    }
  }
  __syncthreads();
  if (i >= n) return;
  const int64_t at =
      static_cast<int64_t>(counts[static_cast<int64_t>(digit) * gridDim.x + blockIdx.x]) + before[warp][digit] + rank;
  to_key[at] = own;
  to_position[at] = position[i];
}

} // namespace

int ms_sort_positions(const int32_t *tokens, int64_t n, ms_sorted_rows rows, void *workspace, int op, ms_fault *fault,
                      void *stream, ms_sorted *sorted) {
  const int64_t buffer = ms_sort_buffer_bytes(n);
  const unsigned chunks = static_cast<unsigned>(ms_sort_chunks(n));
  uint32_t *array[5];
  for (int i = 0; i < 5; i++) array[i] = reinterpret_cast<uint32_t *>(static_cast<char *>(workspace) + i * buffer);
  uint32_t *key = array[0], *position = array[1], *to_key = array[2], *to_position = array[3], *counts = array[4];
  MS_TRY(MS_CUDA_LAUNCH(make_keys, chunks, CHUNK, 0, stream, tokens, n, rows, key, position, op, fault));
  for (int shift = 0; rows.rows >> shift > 0; shift += BITS) {
    uint32_t *const old_key = key, *const old_position = position;
    MS_TRY(MS_CUDA_LAUNCH(count_digits, chunks, CHUNK, 0, stream, key, n, shift, counts));
    MS_TRY(MS_CUDA_LAUNCH(begin_digits, 1, CHUNK, 0, stream, counts, static_cast<int64_t>(chunks) * DIGITS));
    MS_TRY(MS_CUDA_LAUNCH(scatter, chunks, CHUNK, 0, stream, key, position, to_key, to_position, n, shift, counts));
    key = to_key, position = to_position;
    to_key = old_key, to_position = old_position;
  }
  sorted->key = key;
  sorted->position = position;
  return MS_OK;
}
