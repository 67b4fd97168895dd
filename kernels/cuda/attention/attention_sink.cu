/* attention_sink.cu - a term of each head that belongs to no key in the softmax of attention, and its gradient;
 * kernels/cpu/attention/attention_sink.c has the formulas. A warp has a row of o forward; a block has a head backward.
 * Memory traffic: o twice forward, o and do once backward. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int WARPS = 8, THREADS = 256;
enum { O = 3, LSE, SINKS };
enum { O_BACK, LSE_BACK, DO_BACK, SINKS_BACK };

/* o [batch][t][heads][d], lse [batch][heads][t] */
struct sizes {
  int64_t batch, t, heads, d;
};

template <class T, class S>
__global__ void __launch_bounds__(MS_WARP *WARPS)
    forward(const T *o, const float *lse, const S *sinks, T *to, float *to_lse, sizes s) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y;
  if (row >= s.batch * s.t * s.heads) return;
  const int64_t h = row % s.heads, i = row / s.heads % s.t, b = row / s.heads / s.t;
  const int64_t at = (b * s.heads + h) * s.t + i;
  const float sink = ms_element_load(sinks + h), before = lse[at], p = 1.0f / (1.0f + expf(sink - before));
  for (int64_t d = threadIdx.x; d < s.d; d += MS_WARP)
    ms_element_store(to + row * s.d + d, p * ms_element_load(o + row * s.d + d));
  if (threadIdx.x) return;
  const float larger = sink > before ? sink : before;
  to_lse[at] = larger == -INFINITY ? larger : larger + log1pf(expf(-fabsf(before - sink)));
}

/* Each thread adds whole rows, in order; the threads' sums are then added. */
template <class T, class S>
__global__ void __launch_bounds__(THREADS)
    backward(const T *o, const float *lse, const T *dout, const S *sinks, S *dsinks, sizes s) {
  const int64_t h = blockIdx.x;
  const float sink = ms_element_load(sinks + h);
  double sum = 0.0;
  for (int64_t q = threadIdx.x; q < s.batch * s.t; q += THREADS) {
    const int64_t b = q / s.t, i = q % s.t, first = (q * s.heads + h) * s.d;
    float dot = 0.0f;
    for (int64_t d = 0; d < s.d; d++)
      dot = fmaf(ms_element_load(o + first + d), ms_element_load(dout + first + d), dot);
    sum -= static_cast<double>(expf(sink - lse[(b * s.heads + h) * s.t + i]) * dot);
  }
  sum = ms_row_reduce(sum, 0.0, ms_add());
  if (threadIdx.x == 0) ms_element_store(dsinks + h, static_cast<float>(sum));
}

sizes sizes_of(const ms_value_info &o) { return {o.dims[0], o.dims[1], o.dims[2], o.dims[3]}; }

template <class T, class S> int run_forward(const ms_kernel_call *call) {
  const sizes s = sizes_of(call->in[O]);
  const int64_t rows = s.batch * s.t * s.heads;
  if (rows * s.d == 0) return MS_OK;
  return MS_CUDA_LAUNCH((forward<T, S>), static_cast<unsigned>(ms_cuda_ceil(rows, WARPS)), dim3(MS_WARP, WARPS), 0,
                        call->stream, static_cast<const T *>(call->in_data[O]),
                        static_cast<const float *>(call->in_data[LSE]), static_cast<const S *>(call->in_data[SINKS]),
                        static_cast<T *>(call->out_data[0]), static_cast<float *>(call->out_data[1]), s);
}

template <class T, class S> int run_backward(const ms_kernel_call *call) {
  const sizes s = sizes_of(call->in[O_BACK]);
  if (s.heads == 0) return MS_OK;
  return MS_CUDA_LAUNCH((backward<T, S>), static_cast<unsigned>(s.heads), THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[O_BACK]),
                        static_cast<const float *>(call->in_data[LSE_BACK]),
                        static_cast<const T *>(call->in_data[DO_BACK]),
                        static_cast<const S *>(call->in_data[SINKS_BACK]), static_cast<S *>(call->out_data[0]), s);
}

int run(const ms_kernel_call *call) {
  if (call->op == MS_OP_attention_sink_backward)
    return MS_CUDA_FLOATS(call->in[O_BACK].dtype, T,
                          MS_CUDA_FLOATS(call->in[SINKS_BACK].dtype, S, run_backward<T, S>(call)));
  return MS_CUDA_FLOATS(call->in[O].dtype, T, MS_CUDA_FLOATS(call->in[SINKS].dtype, S, run_forward<T, S>(call)));
}

} // namespace

extern const ms_kernel ms_cuda_attention_sink = {nullptr, run, nullptr, MS_CUDA_OVER_attention_sink};
