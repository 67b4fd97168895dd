/* quantised_sum.cu - the kernels of numbers that travel in few bits (kernels/formats/quantised_sum.h). Memory traffic
 * per element: that of its codes, and of the f32 or bf16 element that is read, written, or added to.
 *
 * A warp has a block of 256 elements, each lane 8 that follow each other: their codes are one word or two. A product
 * that __fmul_rn rounds is not fused with a sum, so the bits are those of the CPU.
 */
#include <type_traits>

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/formats/quantised_sum.h"
}

#include "kernels/formats/quantise_code.h"

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

/* All lanes of the warp take part; those without elements have zeros. Returns the scale. */
template <int DTYPE>
__device__ __forceinline__ float encode(const float (&x)[EACH], const place &to, int lane, uint32_t *words) {
  uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) most = ms_larger_bits()(most, ms_magnitude(x[k]));
  const float scale = ms_block_scale(ms_warp_reduce(most, ms_larger_bits()), DTYPE);
  if (lane == 0) words[to.scale] = __float_as_uint(scale);
  if (!to.has) return scale;
  uint32_t word[WORDS<DTYPE>] = {};
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint32_t code = ms_code_of(ms_block_quotient(x[k], scale), DTYPE) & MASK<DTYPE>;
    word[word_of<DTYPE>(k)] |= code << shift_of<DTYPE>(k);
  }
#pragma unroll
  for (int w = 0; w < WORDS<DTYPE>; w++) words[to.codes + w] = word[w];
  return scale;
}

/* With the residuals of the lane's first `here` elements, which are added before and replaced. rest nullptr: none. */
template <int DTYPE>
__device__ __forceinline__ void encode_kept(float (&x)[EACH], const place &to, int here, int lane, uint32_t *words,
                                            float *rest) {
#pragma unroll
  for (int k = 0; k < EACH; k++) x[k] = rest && k < here ? x[k] + rest[k] : x[k];
  const float scale = encode<DTYPE>(x, to, lane, words);
  if (!rest) return;
  const bool finite = ms_magnitude(scale) < 0x7f800000u;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const uint8_t code = ms_code_of(ms_block_quotient(x[k], scale), DTYPE);
    if (k < here) rest[k] = finite ? x[k] - __fmul_rn(ms_value_of(code, DTYPE), scale) : 0.0f;
  }
}

template <int DTYPE, class X>
__global__ void __launch_bounds__(THREADS)
    quantise_blocks(const X *x, int64_t n, ms_pieces of, int64_t ranks, int64_t group, uint32_t *words, float *rest) {
  const int lane = threadIdx.x % MS_WARP;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP;
  if (number >= of.blocks * ranks) return;
  const int64_t piece = number / of.blocks, element = number % of.blocks * MS_PIECE_BLOCK + lane * EACH;
  const int64_t first = piece * of.stride + element, stop = (piece + 1) * of.stride;
  const int64_t left = (n < stop ? n : stop) - first;
  const place to = place_of<DTYPE>(of, ms_piece_place(piece, ranks, group), element);
  const int here = static_cast<int>(left < 0 ? 0 : left < EACH ? left : EACH);
  float own[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) own[k] = k < here ? ms_element_load(x + first + k) : 0.0f;
  encode_kept<DTYPE>(own, to, here, lane, words, rest ? rest + first : nullptr);
}

/* Sums a block of the piece `piece`, over the ranks, which have `each` pieces each. */
template <int DTYPE>
__device__ __forceinline__ void sum_of(const uint32_t *from, int ranks, int64_t each, const ms_pieces &of,
                                       int64_t piece, int64_t element, float (&sum)[EACH]) {
  float x[EACH];
  decode<DTYPE>(from, place_of<DTYPE>(of, piece, element), sum);
  for (int rank = 1; rank < ranks; rank++) {
    decode<DTYPE>(from, place_of<DTYPE>(of, rank * each + piece, element), x);
#pragma unroll
    for (int k = 0; k < EACH; k++) sum[k] += x[k];
  }
}

template <int DTYPE>
__global__ void __launch_bounds__(THREADS)
    sum_blocks(const uint32_t *from, int ranks, int64_t each, ms_pieces of, uint32_t *words, float *rest) {
  const int lane = threadIdx.x % MS_WARP;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP;
  if (number >= each * of.blocks) return;
  const int64_t piece = number / of.blocks, element = number % of.blocks * MS_PIECE_BLOCK + lane * EACH;
  const place to = place_of<DTYPE>(of, piece, element);
  float sum[EACH] = {};
  if (to.has) sum_of<DTYPE>(from, ranks, each, of, piece, element, sum);
  encode_kept<DTYPE>(sum, to, to.has ? EACH : 0, lane, words, rest ? rest + piece * of.elements + element : nullptr);
}

/* A thread has 8 elements of a piece. */
template <int DTYPE>
__global__ void __launch_bounds__(THREADS)
    total_elements(const uint32_t *from, int ranks, ms_pieces of, bool adds, float *y) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * EACH;
  if (first >= of.stride) return;
  float sum[EACH];
  sum_of<DTYPE>(from, ranks, 1, of, 0, first, sum);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k < of.stride) y[first + k] = adds ? y[first + k] + sum[k] : sum[k];
}

/* A thread has 8 elements of a vector, which begin at a multiple of 8, or those of them that are asked for. */
template <int DTYPE, class Y>
__global__ void __launch_bounds__(THREADS)
    restore_elements(const uint32_t *words, ms_pieces of, int64_t offset, int64_t n, bool adds, Y *y) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t first = (offset / EACH + thread) * EACH;
  if (first >= offset + n) return;
  float x[EACH];
  decode<DTYPE>(words, place_of<DTYPE>(of, first / of.stride, first % of.stride), x);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int64_t at = first + k - offset;
    if (at < 0 || at >= n) continue;
    ms_element_store(y + at, adds ? ms_element_load(y + at) + x[k] : x[k]);
  }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

float *rest_of(const ms_kernel_call *call) {
  return call->outputs == 2 ? static_cast<float *>(call->out_data[1]) : nullptr;
}

template <int DTYPE, class X> int quantise_from(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), ranks = call->attrs.pieces.pieces;
  const ms_pieces of = ms_pieces_asked(DTYPE, n, ranks, call->attrs.pieces.stride);
  const int64_t blocks = of.blocks * ranks;
  if (blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((quantise_blocks<DTYPE, X>), grid(blocks, WARPS), THREADS, 0, call->stream,
                        static_cast<const X *>(call->in_data[0]), n, of, ranks, call->attrs.pieces.group,
                        static_cast<uint32_t *>(call->out_data[0]), rest_of(call));
}

template <int DTYPE> int quantise_as(const ms_kernel_call *call) {
  return call->in[0].dtype == MS_F32 ? quantise_from<DTYPE, float>(call) : quantise_from<DTYPE, ms_b16>(call);
}

template <int DTYPE> int sum_as(const ms_kernel_call *call) {
  const int64_t ranks = call->attrs.pieces.pieces;
  int64_t each;
  const ms_pieces of = ms_pieces_to_sum(DTYPE, call->attrs.pieces.elements, ranks, call->attrs.pieces.each, &each);
  if (of.blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((sum_blocks<DTYPE>), grid(each * of.blocks, WARPS), THREADS, 0, call->stream,
                        static_cast<const uint32_t *>(call->in_data[0]), static_cast<int>(ranks), each, of,
                        static_cast<uint32_t *>(call->out_data[0]), rest_of(call));
}

template <int DTYPE> int total_as(const ms_kernel_call *call) {
  const ms_pieces of = ms_pieces_each(DTYPE, call->attrs.pieces.elements);
  if (of.blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((total_elements<DTYPE>), grid(of.elements, THREADS * EACH), THREADS, 0, call->stream,
                        static_cast<const uint32_t *>(call->in_data[0]), static_cast<int>(call->attrs.pieces.pieces),
                        of, call->attrs.add != 0, static_cast<float *>(call->out_data[0]));
}

template <int DTYPE, class Y> int restore_to(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]), offset = call->attrs.pieces.first;
  const ms_pieces of =
      ms_pieces_asked(DTYPE, call->attrs.pieces.elements, call->attrs.pieces.pieces, call->attrs.pieces.stride);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((restore_elements<DTYPE, Y>), grid(n + offset % EACH, THREADS * EACH), THREADS, 0, call->stream,
                        static_cast<const uint32_t *>(call->in_data[0]), of, offset, n, call->attrs.add != 0,
                        static_cast<Y *>(call->out_data[0]));
}

template <int DTYPE> int restore_as(const ms_kernel_call *call) {
  return call->out[0].dtype == MS_F32 ? restore_to<DTYPE, float>(call) : restore_to<DTYPE, ms_b16>(call);
}

/* Runs what is compiled for the dtype of the pieces, one of those in which ranks send sums. */
template <class F> int of_dtype(const ms_kernel_call *call, F run) {
#define MS_DTYPE(NAME, name, long_name, c_type, stored, bits, is_float, lowest, largest, casts, uses, ...) \
  if constexpr (((uses)&MS_DTYPE_PIECES) != 0)                                                             \
    if (call->attrs.pieces.dtype == MS_##NAME) return run(std::integral_constant<int, MS_##NAME>());
#include "base/numbers/formats.def"
  return MS_FAIL(MS_EINTERNAL, "no kernel makes or reads pieces of %s",
                 ms_dtype_name(static_cast<int>(call->attrs.pieces.dtype)));
}

int quantise(const ms_kernel_call *call) {
  return of_dtype(call, [=](auto dtype) { return quantise_as<decltype(dtype)::value>(call); });
}

int sum(const ms_kernel_call *call) {
  return of_dtype(call, [=](auto dtype) { return sum_as<decltype(dtype)::value>(call); });
}

int total(const ms_kernel_call *call) {
  return of_dtype(call, [=](auto dtype) { return total_as<decltype(dtype)::value>(call); });
}

int restore(const ms_kernel_call *call) {
  return of_dtype(call, [=](auto dtype) { return restore_as<decltype(dtype)::value>(call); });
}

} // namespace

extern const ms_kernel ms_cuda_quantise_pieces = {nullptr, quantise, nullptr, MS_CUDA_OVER_quantise_pieces};
extern const ms_kernel ms_cuda_sum_pieces = {nullptr, sum, nullptr, MS_CUDA_OVER_sum_pieces};
extern const ms_kernel ms_cuda_total_pieces = {nullptr, total, nullptr, MS_CUDA_OVER_total_pieces};
extern const ms_kernel ms_cuda_restore_pieces = {nullptr, restore, nullptr, MS_CUDA_OVER_restore_pieces};
