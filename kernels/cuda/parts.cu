/* parts.cu - see parts.h. Bytes an element: of both dtypes, and 4 more to add. Blocks of 256 threads have 4096 elements of
** one part each; a block finds its part in a list of up to 32 that comes with the launch.
*/
#include "kernels/cuda/parts.h"

#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256, PARTS = 32;
constexpr int64_t TILE = 4096;

struct part_list {
  ms_cuda_part part[PARTS];
  int64_t first_block[PARTS]; /* of each part */
  int parts;
};

template <int V, class X, class Y> __device__ __forceinline__ void move(const X *from, Y *to, int add) {
  float x[V];
  ms_load<V>(from, x);
  if (add) {
    float y[V];
    ms_load<V>(to, y);
#pragma unroll
    for (int l = 0; l < V; l++) x[l] += y[l];
  }
  ms_store<V>(to, x);
}

template <class X, class Y> __global__ void __launch_bounds__(THREADS) move_parts(part_list list, int add) {
  constexpr int V = ms_lanes<X, Y>;
  int p = 0;
  while (p + 1 < list.parts && list.first_block[p + 1] <= blockIdx.x) p++;
  const X *from = static_cast<const X *>(list.part[p].from);
  Y *to = static_cast<Y *>(list.part[p].to);
  const int64_t begin = (blockIdx.x - list.first_block[p]) * TILE, end = min(list.part[p].n, begin + TILE);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const int64_t whole = aligned ? begin + (end - begin) / V * V : begin;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * V; i < whole; i += THREADS * V) move<V>(from + i, to + i, add);
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) move<1>(from + i, to + i, add);
}

template <class X, class Y> int launch_parts(const part_list &list, int64_t blocks, int add, void *stream) {
  return MS_CUDA_LAUNCH((move_parts<X, Y>), static_cast<unsigned>(blocks), THREADS, 0, stream, list, add);
}

int run_cast(const ms_kernel_call *call) {
  const ms_cuda_part part = {call->in_data[0], call->out_data[0], ms_numel(&call->out[0])};
  return ms_cuda_run_parts(&part, 1, call->in[0].dtype, call->out[0].dtype, 0, call->stream);
}

int run_accumulate(const ms_kernel_call *call) {
  const ms_cuda_part part = {call->in_data[0], call->out_data[0], ms_numel(&call->out[0])};
  return ms_cuda_run_parts(&part, 1, call->in[0].dtype, MS_F32, call->attrs.i[0] != 0, call->stream);
}

} // namespace

int ms_cuda_run_parts(const ms_cuda_part *part, int parts, int from_dtype, int to_dtype, int add, void *stream) {
  if (add && to_dtype != MS_F32)
    return MS_FAIL(MS_EDTYPE, "cuda: parts are added in f32, not in %s", ms_dtype_name(to_dtype));
  for (int next = 0; next < parts;) {
    part_list list = {};
    int64_t blocks = 0;
    for (; next < parts && list.parts < PARTS; next++) {
      if (part[next].n == 0) continue;
      list.part[list.parts] = part[next];
      list.first_block[list.parts++] = blocks;
      blocks += ms_cuda_ceil(part[next].n, TILE);
    }
    if (blocks)
      MS_TRY(MS_CUDA_FLOATS(from_dtype, X, MS_CUDA_FLOATS(to_dtype, Y, launch_parts<X, Y>(list, blocks, add, stream))));
  }
  return MS_OK;
}

extern const ms_kernel ms_cuda_cast = {nullptr, run_cast, nullptr, 0};
extern const ms_kernel ms_cuda_accumulate = {nullptr, run_accumulate, nullptr, 0};
