/* cast.cu - converts x [n] to another dtype. Memory traffic: the bytes of both tensors. Between f32 and bf16 it is a
 * move of one part (parts.h); if i32 or u8 is read, or i32 written, each thread converts one element. */
#include "kernels/cuda/parts.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256;

__device__ __forceinline__ float as_float(const float *x) { return *x; }
__device__ __forceinline__ float as_float(const ms_b16 *x) { return ms_element_load(x); }
__device__ __forceinline__ float as_float(const int32_t *x) { return static_cast<float>(*x); }
__device__ __forceinline__ float as_float(const unsigned char *x) { return static_cast<float>(*x); }

__device__ __forceinline__ void put(float *y, float x) { *y = x; }
__device__ __forceinline__ void put(ms_b16 *y, float x) { ms_element_store(y, x); }
/* Truncates towards zero; saturates beyond the range of i32, and gives 0 for NaN. */
__device__ __forceinline__ void put(int32_t *y, float x) {
  *y = x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : static_cast<int32_t>(x);
}

template <class X, class Y> __device__ __forceinline__ void convert(const X *x, Y *y) { put(y, as_float(x)); }
/* Directly, because f32 would round it. */
__device__ __forceinline__ void convert(const int32_t *x, int32_t *y) { *y = *x; }

template <class X, class Y> __global__ void __launch_bounds__(THREADS) convert_all(const X *x, Y *y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < n) convert(x + i, y + i);
}

template <class X, class Y> int launch(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((convert_all<X, Y>), static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const X *>(call->in_data[0]), static_cast<Y *>(call->out_data[0]), n);
}

template <class X> int run_from_integers(const ms_kernel_call *call) {
  if (call->out[0].dtype == MS_I32) return launch<X, int32_t>(call);
  return MS_CUDA_FLOATS(call->out[0].dtype, Y, (launch<X, Y>(call)));
}

int run(const ms_kernel_call *call) {
  const int from = call->in[0].dtype;
  if (from == MS_I32) return run_from_integers<int32_t>(call);
  if (from == MS_U8) return run_from_integers<unsigned char>(call);
  if (call->out[0].dtype == MS_I32) return MS_CUDA_FLOATS(from, X, (launch<X, int32_t>(call)));
  const ms_move part = {call->in_data[0], call->out_data[0], ms_numel(&call->out[0]), from, call->out[0].dtype, 0};
  return ms_cuda_move(&part, 1, call->stream);
}

} // namespace

extern const ms_kernel ms_cuda_cast = {nullptr, run, nullptr, MS_CUDA_OVER_cast};
