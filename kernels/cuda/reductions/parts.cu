/* parts.cu - copies, casts or adds several tensors in one launch (see parts.h). Memory traffic per element: the sizes
 * of both dtypes, and 4 bytes more to add. A block of 256 threads processes 4096 elements of one part; it finds its
 * part and the operation in a list that is an argument of the launch, so a unit whose segments differ in dtype needs
 * only one launch. */
#include "kernels/cuda/reductions/parts.h"

#include "kernels/cuda/vector.h"

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256;
constexpr int64_t TILE = 4096;

struct part_list {
  ms_move part[MS_CUDA_PARTS];
  uint32_t first_block[MS_CUDA_PARTS]; /* the first block of each part */
  int parts;
};

template <int V, class X, class Y> __device__ __forceinline__ void move(const X *from, Y *to, int add) {
  float x[V];
  ms_vector_load<V>(from, x);
  if (add) {
    float y[V];
    ms_vector_load<V>(to, y);
#pragma unroll
    for (int l = 0; l < V; l++) x[l] += y[l];
  }
  ms_vector_store<V>(to, x);
}

template <class X, class Y> __device__ void move_tile(const ms_move &part, int64_t begin, int64_t end) {
  constexpr int V = ms_lanes<X, Y>;
  const X *from = static_cast<const X *>(part.from);
  Y *to = static_cast<Y *>(part.to);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const int64_t whole = aligned ? begin + (end - begin) / V * V : begin;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * V; i < whole; i += THREADS * V) move<V>(from + i, to + i, part.add);
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) move<1>(from + i, to + i, part.add);
}

/* Four codes a thread where both tensors are aligned to them. */
__device__ void encode_tile(const ms_move &part, int64_t begin, int64_t end) {
  constexpr int V = 4;
  const float *from = static_cast<const float *>(part.from), scale = *part.scale;
  uint8_t *to = static_cast<uint8_t *>(part.to);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % V == 0;
  const int64_t whole = aligned ? begin + (end - begin) / V * V : begin;
  for (int64_t i = begin + threadIdx.x * V; i < whole; i += THREADS * V) {
    float x[V];
    ms_vector_load<V>(from + i, x);
    uint32_t four = 0;
#pragma unroll
    for (int l = 0; l < V; l++) four |= static_cast<uint32_t>(ms_code_of(x[l] * scale, MS_F8E4M3)) << 8 * l;
    *reinterpret_cast<uint32_t *>(to + i) = four;
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) to[i] = ms_code_of(from[i] * scale, MS_F8E4M3);
}

__device__ void copy_bytes(const ms_move &part, int64_t begin, int64_t end) {
  const uint8_t *from = static_cast<const uint8_t *>(part.from);
  uint8_t *to = static_cast<uint8_t *>(part.to);
  for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) to[i] = from[i];
}

__global__ void __launch_bounds__(THREADS) move_parts(part_list list) {
  int p = 0;
  while (p + 1 < list.parts && list.first_block[p + 1] <= blockIdx.x) p++;
  const ms_move &part = list.part[p];
  const int64_t begin = (blockIdx.x - list.first_block[p]) * TILE, end = min(part.n, begin + TILE);
  if (part.from_dtype == MS_F8E4M3) copy_bytes(part, begin, end);
  else if (part.to_dtype == MS_F8E4M3) encode_tile(part, begin, end);
  else if (part.from_dtype == MS_BF16 && part.to_dtype == MS_BF16) move_tile<ms_b16, ms_b16>(part, begin, end);
  else if (part.from_dtype == MS_BF16) move_tile<ms_b16, float>(part, begin, end);
  else if (part.to_dtype == MS_BF16) move_tile<float, ms_b16>(part, begin, end);
  else move_tile<float, float>(part, begin, end);
}

/* Tokens have the size of a float, and are copied bit for bit as one. */
int check_dtypes(const ms_move &move) {
  const bool from_codes = move.from_dtype == MS_F8E4M3, encodes = move.from_dtype == MS_F32 && move.scale;
  if (move.to_dtype == MS_F8E4M3 && !move.add && (from_codes || encodes)) return MS_OK;
  const bool copies = move.from_dtype == move.to_dtype && !move.add && ms_dtype_size(move.to_dtype) == sizeof(float);
  const int dtypes[] = {move.from_dtype, move.to_dtype};
  for (const int dtype : dtypes)
    if (!copies) MS_TRY(ms_dtype_check(dtype, MS_DTYPE_FLOAT | MS_DTYPE_LOOPS, "cuda: a part"));
  return MS_OK;
}

int run_accumulate(const ms_kernel_call *call) {
  const ms_move part = {
      call->in_data[0], call->out_data[0], ms_numel(&call->out[0]), call->in[0].dtype, MS_F32, call->attrs.add != 0,
      nullptr};
  return ms_cuda_move(&part, 1, call->stream);
}

int run_codes(const ms_kernel_call *call) {
  const ms_move part = {call->in_data[0],
                        call->out_data[0],
                        ms_numel(&call->out[0]),
                        MS_F32,
                        MS_F8E4M3,
                        0,
                        static_cast<const float *>(call->in_data[1])};
  return ms_cuda_move(&part, 1, call->stream);
}

} // namespace

int ms_cuda_move(const ms_move *move, int moves, void *stream) {
  for (int next = 0; next < moves;) {
    part_list list = {};
    int64_t blocks = 0;
    for (; next < moves && list.parts < MS_CUDA_PARTS; next++) {
      const int64_t more = ms_cuda_ceil(move[next].n, TILE);
      if (!more) continue;
      if (blocks && blocks + more > INT32_MAX) break; /* the limit of a grid */
      MS_TRY(check_dtypes(move[next]));
      if (move[next].add && move[next].to_dtype != MS_F32)
        return MS_FAIL(MS_EDTYPE, "cuda: parts are added in f32, not in %s", ms_dtype_name(move[next].to_dtype));
      list.part[list.parts] = move[next];
      list.first_block[list.parts++] = static_cast<uint32_t>(blocks);
      blocks += more;
    }
    if (blocks) MS_TRY(MS_CUDA_LAUNCH(move_parts, static_cast<unsigned>(blocks), THREADS, 0, stream, list));
  }
  return MS_OK;
}

extern const ms_kernel ms_cuda_f8_codes = {nullptr, run_codes, nullptr, MS_CUDA_OVER_f8_codes};
extern const ms_kernel ms_cuda_accumulate = {nullptr, run_accumulate, nullptr, MS_CUDA_OVER_accumulate};
