/* cast.cu - converts x [n] to another dtype (moonshard/base.h has the rules). Memory traffic: the bytes of both
 * tensors. Between f32 and bf16 it is a move of one part (parts.h), to the same dtype a copy; for other pairs each
 * thread converts one element, through f32. */
#include "kernels/cuda/reductions/parts.h"
#include "kernels/cuda/vector.h"

#include "base/numbers/float8.h"

namespace {

constexpr int THREADS = 256;

/* An element of a type of 8 bits. */
template <int DTYPE> struct byte_of { uint8_t bits; };

__device__ __forceinline__ float as_float(const float *x) { return *x; }
__device__ __forceinline__ float as_float(const ms_b16 *x) { return ms_element_load(x); }
__device__ __forceinline__ float as_float(const int32_t *x) { return static_cast<float>(*x); }
template <int DTYPE> __device__ __forceinline__ float as_float(const byte_of<DTYPE> *x) {
  if constexpr (DTYPE == MS_U8) return static_cast<float>(x->bits);
  else if constexpr (DTYPE == MS_I8) return static_cast<float>(static_cast<int8_t>(x->bits));
  else if constexpr (DTYPE == MS_F8E4M3) return ms_f8e4m3_to_f32(x->bits);
  else if constexpr (DTYPE == MS_F8E5M2) return ms_f8e5m2_to_f32(x->bits);
  else return ms_e8m0_to_f32(x->bits);
}

/* Integers truncate towards zero, saturate beyond their range, and are 0 for NaN. */
__device__ __forceinline__ void put(float *y, float x) { *y = x; }
__device__ __forceinline__ void put(ms_b16 *y, float x) { ms_element_store(y, x); }
__device__ __forceinline__ void put(int32_t *y, float x) {
  *y = x != x ? 0 : x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : static_cast<int32_t>(x);
}
template <int DTYPE> __device__ __forceinline__ void put(byte_of<DTYPE> *y, float x) {
  if constexpr (DTYPE == MS_I8)
    y->bits = static_cast<uint8_t>(x != x ? 0 : x >= 127.0f ? 127 : x <= -128.0f ? -128 : static_cast<int32_t>(x));
  else if constexpr (DTYPE == MS_F8E4M3) y->bits = ms_f32_to_f8e4m3(x);
  else if constexpr (DTYPE == MS_F8E5M2) y->bits = ms_f32_to_f8e5m2(x);
  else y->bits = ms_f32_to_e8m0(x);
}

template <class X, class Y> __global__ void __launch_bounds__(THREADS) convert_all(const X *x, Y *y, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < n) put(y + i, as_float(x + i));
}

template <class X, class Y> int launch(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((convert_all<X, Y>), static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const X *>(call->in_data[0]), static_cast<Y *>(call->out_data[0]), n);
}

template <class X> int run_from(const ms_kernel_call *call) {
  switch (call->out[0].dtype) {
    case MS_F32: return launch<X, float>(call);
    case MS_BF16: return launch<X, ms_b16>(call);
    case MS_I32: return launch<X, int32_t>(call);
    case MS_F8E4M3: return launch<X, byte_of<MS_F8E4M3>>(call);
    case MS_F8E5M2: return launch<X, byte_of<MS_F8E5M2>>(call);
    case MS_E8M0: return launch<X, byte_of<MS_E8M0>>(call);
    default: return launch<X, byte_of<MS_I8>>(call);
  }
}

int copy(const ms_kernel_call *call) {
  const size_t bytes = static_cast<size_t>(ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype));
  if (bytes == 0) return MS_OK;
  return ms_cuda_status(cudaMemcpyAsync(call->out_data[0], call->in_data[0], bytes, cudaMemcpyDeviceToDevice,
                                        static_cast<cudaStream_t>(call->stream)),
                        "cast: cudaMemcpyAsync");
}

bool is_float(int dtype) { return dtype == MS_F32 || dtype == MS_BF16; }

int run(const ms_kernel_call *call) {
  const int from = call->in[0].dtype, to = call->out[0].dtype;
  const ms_move part = {call->in_data[0], call->out_data[0], ms_numel(&call->out[0]), from, to, 0, nullptr};
  if (is_float(from) && is_float(to)) return ms_cuda_move(&part, 1, call->stream);
  if (from == to) return copy(call);
  switch (from) {
    case MS_F32: return run_from<float>(call);
    case MS_BF16: return run_from<ms_b16>(call);
    case MS_I32: return run_from<int32_t>(call);
    case MS_U8: return run_from<byte_of<MS_U8>>(call);
    case MS_F8E4M3: return run_from<byte_of<MS_F8E4M3>>(call);
    case MS_F8E5M2: return run_from<byte_of<MS_F8E5M2>>(call);
    case MS_E8M0: return run_from<byte_of<MS_E8M0>>(call);
    default: return run_from<byte_of<MS_I8>>(call);
  }
}

} // namespace

extern const ms_kernel ms_cuda_cast = {nullptr, run, nullptr, MS_CUDA_OVER_cast};
