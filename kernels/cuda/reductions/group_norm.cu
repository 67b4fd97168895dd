/* group_norm.cu - group norm (Wu & He 2018) and its gradient; kernels/cpu/reductions/group_norm.c has the formulas. A
 * block has a group of an image and reads it three times, mostly from cache. The gradient first sums over the pixels of
 * each channel of an image, into the workspace f32 [images][channels][2]; these sums give dx, and in the order of the
 * images the gradients of gain and bias, so the bits are the same in every run. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256;

/* channels: of a group; n: elements of a group. */
struct sizes {
  int64_t images, groups, channels, pixels, n;
};

__device__ __forceinline__ float row_sum(float x) { return ms_row_reduce(x, 0.0f, ms_add()); }

template <class T, class G>
__global__ void __launch_bounds__(THREADS)
    forward(const T *x, const G *gain, const G *bias, T *y, float *stats, sizes s, float eps) {
  const int64_t at = blockIdx.x, first = at * s.n, channels = at % s.groups * s.channels;
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = threadIdx.x; i < s.n; i += THREADS) sum += ms_element_load(x + first + i);
  const float mean = row_sum(sum) / static_cast<float>(s.n);
  for (int64_t i = threadIdx.x; i < s.n; i += THREADS) {
    const float distance = ms_element_load(x + first + i) - mean;
    squares = fmaf(distance, distance, squares);
  }
  const float rstd = 1.0f / sqrtf(row_sum(squares) / static_cast<float>(s.n) + eps);
  for (int64_t i = threadIdx.x; i < s.n; i += THREADS) {
    const int64_t channel = channels + i / s.pixels;
    const float h = (ms_element_load(x + first + i) - mean) * rstd;
    ms_element_store(y + first + i, fmaf(h, ms_element_load(gain + channel), ms_element_load(bias + channel)));
  }
  if (threadIdx.x == 0) stats[2 * at] = mean, stats[2 * at + 1] = rstd;
}

/* sums [images][channels of all groups][2] = of dy, and of dy h. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    sum_channels(const T *x, const float *stats, const T *dy, float *sums, sizes s) {
  const int64_t at = blockIdx.x, first = at * s.pixels, group = at / s.channels;
  const float mean = stats[2 * group], rstd = stats[2 * group + 1];
  float of_dy = 0.0f, of_dy_h = 0.0f;
  for (int64_t i = threadIdx.x; i < s.pixels; i += THREADS) {
    const float d = ms_element_load(dy + first + i);
    of_dy += d;
    of_dy_h = fmaf(d, (ms_element_load(x + first + i) - mean) * rstd, of_dy_h);
  }
  const float2 both = ms_row_sums(of_dy, of_dy_h);
  if (threadIdx.x == 0) sums[2 * at] = both.x, sums[2 * at + 1] = both.y;
}

/* dx can share memory with x or dy. */
template <class T, class G>
__global__ void __launch_bounds__(THREADS)
    backward(const T *x, const G *gain, const float *stats, const T *dy, const float *sums, T *dx, sizes s) {
  const int64_t at = blockIdx.x, first = at * s.n, channels = at % s.groups * s.channels;
  const float mean = stats[2 * at], rstd = stats[2 * at + 1];
  float of_dy = 0.0f, of_dy_h = 0.0f;
  for (int64_t c = threadIdx.x; c < s.channels; c += THREADS) {
    const float g = ms_element_load(gain + channels + c);
    of_dy = fmaf(g, sums[2 * (at * s.channels + c)], of_dy);
    of_dy_h = fmaf(g, sums[2 * (at * s.channels + c) + 1], of_dy_h);
  }
  const float2 both = ms_row_sums(of_dy, of_dy_h);
  const float average = both.x / static_cast<float>(s.n), average_h = both.y / static_cast<float>(s.n);
  for (int64_t i = threadIdx.x; i < s.n; i += THREADS) {
    const float h = (ms_element_load(x + first + i) - mean) * rstd;
    const float g = ms_element_load(dy + first + i) * ms_element_load(gain + channels + i / s.pixels);
    ms_element_store(dx + first + i, rstd * (g - average - h * average_h));
  }
}

/* Gradients of gain and bias: the images' sums, in order. */
template <class Y>
__global__ void __launch_bounds__(THREADS) add_images(const float *sums, Y *dgain, Y *dbias, sizes s) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, all = s.groups * s.channels;
  if (channel >= all) return;
  float of_dy = 0.0f, of_dy_h = 0.0f;
  for (int64_t image = 0; image < s.images; image++) {
    of_dy += sums[2 * (image * all + channel)];
    of_dy_h += sums[2 * (image * all + channel) + 1];
  }
  ms_element_store(dgain + channel, of_dy_h);
  ms_element_store(dbias + channel, of_dy);
}

sizes sizes_of(const ms_kernel_call *call) {
  const ms_value_info &x = call->in[0];
  const int64_t groups = call->attrs.norm.groups, channels = x.dims[1] / groups;
  return {x.dims[0], groups, channels, x.dims[2], channels * x.dims[2]};
}

template <class T, class G> int run_forward(const ms_kernel_call *call) {
  const sizes s = sizes_of(call);
  if (s.images * s.n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((forward<T, G>), static_cast<unsigned>(s.images * s.groups), THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[0]), static_cast<const G *>(call->in_data[1]),
                        static_cast<const G *>(call->in_data[2]), static_cast<T *>(call->out_data[0]),
                        static_cast<float *>(call->out_data[1]), s, static_cast<float>(call->attrs.norm.eps));
}

template <class Y> int run_images(const ms_kernel_call *call, const sizes &s) {
  return MS_CUDA_LAUNCH(add_images<Y>, static_cast<unsigned>(ms_cuda_ceil(s.groups * s.channels, THREADS)), THREADS, 0,
                        call->stream, static_cast<const float *>(call->workspace), static_cast<Y *>(call->out_data[1]),
                        static_cast<Y *>(call->out_data[2]), s);
}

template <class T, class G> int run_backward(const ms_kernel_call *call) {
  const sizes s = sizes_of(call);
  const T *x = static_cast<const T *>(call->in_data[0]), *dy = static_cast<const T *>(call->in_data[3]);
  const float *stats = static_cast<const float *>(call->in_data[2]);
  float *sums = static_cast<float *>(call->workspace);
  if (s.groups * s.channels == 0) return MS_OK;
  if (s.images * s.n > 0) {
    MS_TRY(MS_CUDA_LAUNCH(sum_channels<T>, static_cast<unsigned>(s.images * s.groups * s.channels), THREADS, 0,
                          call->stream, x, stats, dy, sums, s));
    MS_TRY(MS_CUDA_LAUNCH((backward<T, G>), static_cast<unsigned>(s.images * s.groups), THREADS, 0, call->stream, x,
                          static_cast<const G *>(call->in_data[1]), stats, dy, static_cast<const float *>(sums),
                          static_cast<T *>(call->out_data[0]), s));
  }
  return MS_CUDA_FLOATS(call->out[1].dtype, Y, run_images<Y>(call, s));
}

int run(const ms_kernel_call *call) {
  const int back = call->op == MS_OP_group_norm_backward;
  return MS_CUDA_FLOATS(
      call->in[0].dtype, T,
      MS_CUDA_FLOATS(call->in[1].dtype, G, back ? run_backward<T, G>(call) : run_forward<T, G>(call)));
}

} // namespace

extern const ms_kernel ms_cuda_group_norm = {ms_cuda_prepare_group_norm, run, nullptr, MS_CUDA_OVER_group_norm};
