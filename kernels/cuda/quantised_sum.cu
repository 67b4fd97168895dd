/* quantised_sum.cu - the kernels of sums over ranks in few bits (kernels/quantised_sum.h). Memory traffic per element:
 * that of its codes, and of the f32 or bf16 element that is read, written, or added to.
 *
 * A warp has a block of 256 elements, each lane 8 that follow each other: their codes are one word or two. A product
 * that __fmul_rn rounds is not fused with a sum, so the bits are those of the CPU.
 */
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/quantised_sum.h"
}

#include "kernels/quantise_code.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP, EACH = 8;
static_assert(MS_WARP * EACH == MS_PIECE_BLOCK, "a warp has a block");

/* Where a lane finds its part of a block. */
struct place {
  int64_t scale, codes; /* words from the start of all pieces */
  bool has;             /* false: the block ends before */
};

template <int DTYPE> constexpr int WORDS = ms_code_is_packed(DTYPE) ? 1 : 2; /* of a lane's codes */

/* Of element k of a lane: its word, and its bits there. Two elements share a byte, whose high bits are the first's. */
template <int DTYPE> __device__ __forceinline__ constexpr int word_of(int k) { return WORDS<DTYPE> == 1 ? 0 : k / 4; }
template <int DTYPE> __device__ __forceinline__ constexpr int shift_of(int k) {
  return WORDS<DTYPE> == 1 ? k / 2 * 8 + (k % 2 ? 0 : 4) : k % 4 * 8;
}
template <int DTYPE> constexpr uint32_t MASK = WORDS<DTYPE> == 1 ? 15u : 255u;

template <int DTYPE> __device__ __forceinline__ place place_of(const ms_pieces &of, int64_t piece, int64_t element) {
  const int64_t start = piece * of.words;
  return {start + element / MS_PIECE_BLOCK, start + of.blocks + element / EACH * WORDS<DTYPE>, element < of.elements};
}

template <int DTYPE>
__device__ __forceinline__ void decode(const uint32_t *words, const place &from, float (&x)[EACH]) {
  const float scale = __uint_as_float(words[from.scale]);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t code = words[from.codes + word_of<DTYPE>(k)] >> shift_of<DTYPE>(k) & MASK<DTYPE>;
    x[k] = __fmul_rn(ms_value_of(static_cast<uint8_t>(code), DTYPE), scale);
  }
}

/* All lanes of the warp take part; those without elements have zeros. */
template <int DTYPE>
__device__ __forceinline__ void encode(const float (&x)[EACH], const place &to, int lane, uint32_t *words) {
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) most = ms_larger_bits()(most, ms_magnitude(x[k]));
  const float scale = ms_block_scale(ms_warp_reduce(most, ms_larger_bits()), DTYPE);
  if (lane == 0) words[to.scale] = __float_as_uint(scale);
  if (!to.has) return;
  uint32_t word[WORDS<DTYPE>] = {};
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t code = ms_code_of(ms_block_quotient(x[k], scale), DTYPE) & MASK<DTYPE>;
    word[word_of<DTYPE>(k)] |= code << shift_of<DTYPE>(k);
  }
#pragma unroll
  for (int w = 0; w < WORDS<DTYPE>; w++) words[to.codes + w] = word[w];
}

template <int DTYPE, class X>
__global__ void __launch_bounds__(THREADS)
    quantise_blocks(const X *x, int64_t n, ms_pieces of, int64_t blocks, uint32_t *words) {
  const int lane = threadIdx.x % MS_WARP;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP;
  if (number >= blocks) return;
  const int64_t piece = number / of.blocks, element = number % of.blocks * MS_PIECE_BLOCK + lane * EACH;
  const int64_t first = piece * of.elements + element;
  const place to = place_of<DTYPE>(of, piece, element);
  float own[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) own[k] = to.has && first + k < n ? ms_element_load(x + first + k) : 0.0f;
  encode<DTYPE>(own, to, lane, words);
}

template <int DTYPE>
__global__ void __launch_bounds__(THREADS) sum_blocks(const uint32_t *from, int ranks, ms_pieces of, uint32_t *words) {
  const int lane = threadIdx.x % MS_WARP;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP;
  if (block >= of.blocks) return;
  const int64_t element = block * MS_PIECE_BLOCK + lane * EACH;
  const place to = place_of<DTYPE>(of, 0, element);
  float sum[EACH] = {}, x[EACH];
  if (to.has) decode<DTYPE>(from, to, sum);
  for (int rank = 1; rank < ranks && to.has; rank++) {
    decode<DTYPE>(from, place_of<DTYPE>(of, rank, element), x);
#pragma unroll
    for (int k = 0; k < EACH; k++) sum[k] += x[k];
  }
  encode<DTYPE>(sum, to, lane, words);
}

/* A thread has 8 elements of a vector, which begin at a multiple of 8, or those of them that are asked for. */
template <int DTYPE>
__global__ void __launch_bounds__(THREADS)
    restore_elements(const uint32_t *words, ms_pieces of, int64_t offset, int64_t n, bool adds, float *y) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t first = (offset / EACH + thread) * EACH;
  if (first >= offset + n) return;
  float x[EACH];
  decode<DTYPE>(words, place_of<DTYPE>(of, first / of.elements, first % of.elements), x);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int64_t at = first + k - offset;
    if (at < 0 || at >= n) continue;
    y[at] = adds ? y[at] + x[k] : x[k];
  }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

template <int DTYPE> int quantise_as(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), ranks = call->attrs.i[1];
  const ms_pieces of = ms_pieces_of(DTYPE, n, ranks);
  const int64_t blocks = of.blocks * ranks;
  uint32_t *words = static_cast<uint32_t *>(call->out_data[0]);
  if (blocks == 0) return MS_OK;
  if (call->in[0].dtype == MS_F32)
    return MS_CUDA_LAUNCH((quantise_blocks<DTYPE, float>), grid(blocks, WARPS), THREADS, 0, call->stream,
                          static_cast<const float *>(call->in_data[0]), n, of, blocks, words);
  return MS_CUDA_LAUNCH((quantise_blocks<DTYPE, ms_b16>), grid(blocks, WARPS), THREADS, 0, call->stream,
                        static_cast<const ms_b16 *>(call->in_data[0]), n, of, blocks, words);
}

template <int DTYPE> int sum_as(const ms_kernel_call *call) {
  const int64_t ranks = call->attrs.i[1];
  const ms_pieces of = ms_pieces_of(DTYPE, call->attrs.i[2], ranks);
  if (of.blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((sum_blocks<DTYPE>), grid(of.blocks, WARPS), THREADS, 0, call->stream,
                        static_cast<const uint32_t *>(call->in_data[0]), static_cast<int>(ranks), of,
                        static_cast<uint32_t *>(call->out_data[0]));
}

template <int DTYPE> int restore_as(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]), offset = call->attrs.i[4];
  const ms_pieces of = ms_pieces_of(DTYPE, call->attrs.i[3], call->attrs.i[2]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((restore_elements<DTYPE>), grid(n + offset % EACH, THREADS * EACH), THREADS, 0, call->stream,
                        static_cast<const uint32_t *>(call->in_data[0]), of, offset, n, call->attrs.i[0] != 0,
                        static_cast<float *>(call->out_data[0]));
}

int quantise(const ms_kernel_call *call) {
  return call->attrs.i[0] == MS_I8 ? quantise_as<MS_I8>(call) : quantise_as<MS_I4>(call);
}

int sum(const ms_kernel_call *call) { return call->attrs.i[0] == MS_I8 ? sum_as<MS_I8>(call) : sum_as<MS_I4>(call); }

int restore(const ms_kernel_call *call) {
  return call->attrs.i[1] == MS_I8 ? restore_as<MS_I8>(call) : restore_as<MS_I4>(call);
}

} // namespace

extern const ms_kernel ms_cuda_quantise_pieces = {nullptr, quantise, nullptr, MS_CUDA_OVER_quantise_pieces};
extern const ms_kernel ms_cuda_sum_pieces = {nullptr, sum, nullptr, MS_CUDA_OVER_sum_pieces};
extern const ms_kernel ms_cuda_restore_pieces = {nullptr, restore, nullptr, MS_CUDA_OVER_restore_pieces};
