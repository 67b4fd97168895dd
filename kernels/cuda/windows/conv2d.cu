/* conv2d.cu - convolutions and their gradients as products of matrices that are never stored: tiles of 64 x 64 x 16 in
 * shared memory, by 256 threads that compute 4 x 4 results each, in f32 arithmetic (matmul_plain.cu). A group at a
 * time, with k = (channel, tap) or (feature, tap) and pixels of all images:
 *
 *   y  [feature][pixel of y]     = w [feature][k]        x seen by k from that pixel [k][pixel]
 *   dx [channel][pixel of x]     = w [k][channel]        dy that sees that pixel by k [k][pixel]
 *   dw [feature][channel, tap]   = dy [feature][pixel]   x seen from that pixel by the tap [pixel][channel, tap]
 *
 * Arithmetic bounds them, at a fraction of f32 peak. dw is summed in parts of the pixels, which a second launch adds in
 * order; nothing is added atomically. Indices are 32-bit where every tensor has fewer elements than 2^31, because
 * divisions of 64 bits would take longer than the products.
 */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/plan/conv2d.h"
}

namespace {

constexpr int TILE = MS_CONV_TILE, DEPTH = 16, SIDE = 4, THREADS = 256, ACROSS = TILE / SIDE;
enum { TO_Y, TO_X, TO_W };

/* One axis of the windows, and sizes, in indices of type I. */
template <class I> struct axis { I in, out, size, stride, pad, dilation; };

template <class I> struct task {
  I images, channels, features; /* of a group */
  axis<I> down, across;
  I m, n, k, k_each, tiles_across; /* k_each: of a part of the sum */
  int groups;
};

template <class I> axis<I> axis_of(const ms_window &w) {
  return {static_cast<I>(w.in),     static_cast<I>(w.out), static_cast<I>(w.size),
          static_cast<I>(w.stride), static_cast<I>(w.pad), static_cast<I>(w.dilation)};
}

/* The input that output `o` sees by a tap; -1: padding. */
template <class I> __device__ __forceinline__ I seen(const axis<I> &a, I o, I tap) {
  const I at = o * a.stride - a.pad + tap * a.dilation;
  return at >= 0 && at < a.in ? at : I(-1);
}

/* The output that sees input `i` by a tap; -1: none. */
template <class I> __device__ __forceinline__ I seer(const axis<I> &a, I i, I tap) {
  const I at = i + a.pad - tap * a.dilation, o = at / a.stride;
  return at >= 0 && o * a.stride == at && o < a.out ? o : I(-1);
}

/* A pixel of all images: of planes [rows][columns]. */
template <class I> struct pixel { I image, i, j; };

template <class I> __device__ __forceinline__ pixel<I> pixel_of(I at, I rows, I columns) {
  const I row = at / columns, image = row / rows;
  return {image, row - image * rows, at - row * columns};
}

template <class I> struct tap { I plane, r, s; };

template <class I> __device__ __forceinline__ tap<I> tap_of(const task<I> &t, I k) {
  const I row = k / t.across.size, plane = row / t.down.size;
  return {plane, row - plane * t.down.size, k - row * t.across.size};
}

/* Element (i, k) of the left matrix. */
template <int TO, class T, class I>
__device__ __forceinline__ float left(const T *from, const task<I> &t, I group, I i, I k) {
  if constexpr (TO == TO_Y) return ms_element_load(from + (group * t.features + i) * t.k + k);
  if constexpr (TO == TO_X) {
    const I taps = t.down.size * t.across.size, feature = k / taps;
    return ms_element_load(from + ((group * t.features + feature) * t.channels + i) * taps + (k - feature * taps));
  }
  const I size = t.down.out * t.across.out, image = k / size;
  return ms_element_load(from + ((image * t.groups + group) * t.features + i) * size + (k - image * size));
}

/* x at a pixel of y by a tap: 0 in the padding. */
template <class T, class I>
__device__ __forceinline__ float seen_from(const T *x, const task<I> &t, I group, const pixel<I> &p, const tap<I> &by) {
  const I i = seen(t.down, p.i, by.r), j = seen(t.across, p.j, by.s);
  if (i < 0 || j < 0) return 0.0f;
  return ms_element_load(x + (((p.image * t.groups + group) * t.channels + by.plane) * t.down.in + i) * t.across.in +
                         j);
}

/* Element (k, j) of the right matrix. */
template <int TO, class T, class I>
__device__ __forceinline__ float right(const T *from, const task<I> &t, I group, I k, I j) {
  if constexpr (TO == TO_Y) return seen_from(from, t, group, pixel_of(j, t.down.out, t.across.out), tap_of(t, k));
  if constexpr (TO == TO_W) return seen_from(from, t, group, pixel_of(k, t.down.out, t.across.out), tap_of(t, j));
  const pixel<I> p = pixel_of(j, t.down.in, t.across.in);
  const tap<I> by = tap_of(t, k);
  const I y = seer(t.down, p.i, by.r), x = seer(t.across, p.j, by.s);
  if (y < 0 || x < 0) return 0.0f;
  return ms_element_load(from +
                         (((p.image * t.groups + group) * t.features + by.plane) * t.down.out + y) * t.across.out + x);
}

/* Where result (i, j) is in y, dx or dw. */
template <int TO, class I> __device__ __forceinline__ I result_at(const task<I> &t, I group, I i, I j) {
  if constexpr (TO == TO_W) return (group * t.features + i) * t.n + j;
  const I size = TO == TO_Y ? t.down.out * t.across.out : t.down.in * t.across.in, image = j / size;
  return ((image * t.groups + group) * t.m + i) * size + (j - image * size);
}

/* Block: a tile of a group's results; of dw, for one part of the pixels, into to + part * elements. a: w, or dy for dw.
 */
template <int TO, class T, class Y, class I>
__global__ void __launch_bounds__(THREADS)
    convolve(const T *a, const T *b, const T *bias, Y *to, task<I> t, int64_t elements) {
  __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
  const I group = static_cast<I>(blockIdx.y), part = static_cast<I>(blockIdx.z);
  const I column = static_cast<I>(blockIdx.x) % t.tiles_across * TILE;
  const I row = static_cast<I>(blockIdx.x) / t.tiles_across * TILE;
  const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
  const I first = part * t.k_each, end = t.k - first < t.k_each ? t.k : first + t.k_each;
  float sum[SIDE][SIDE] = {};
  for (I depth = first; depth < end; depth += DEPTH) {
    for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
      const I i = row + e / DEPTH, k = depth + e % DEPTH;
      as[e % DEPTH][e / DEPTH] = i < t.m && k < end ? left<TO>(a, t, group, i, k) : 0.0f;
    }
    for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
      const I j = column + e % TILE, k = depth + e / TILE;
      bs[e / TILE][e % TILE] = j < t.n && k < end ? right<TO>(b, t, group, k, j) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
      float p[SIDE], q[SIDE];
#pragma unroll
      for (int i = 0; i < SIDE; i++) p[i] = as[k][y + i * ACROSS], q[i] = bs[k][x + i * ACROSS];
#pragma unroll
      for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int s = 0; s < SIDE; s++) sum[r][s] = fmaf(p[r], q[s], sum[r][s]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const I i = row + y + r * ACROSS, j = column + x + s * ACROSS;
      if (i >= t.m || j >= t.n) continue;
      const float added = TO == TO_Y && bias ? ms_element_load(bias + group * t.features + i) : 0.0f;
      ms_element_store(to + part * elements + result_at<TO>(t, group, i, j), sum[r][s] + added);
    }
}

/* to [n] = the sum of the parts, in order. */
template <class Y>
__global__ void __launch_bounds__(THREADS) add_parts(const float *sums, Y *to, int64_t n, int parts) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= n) return;
  float sum = 0.0f;
  for (int p = 0; p < parts; p++) sum += sums[p * n + at];
  ms_element_store(to + at, sum);
}

template <int TO, class I> task<I> task_of(const ms_conv &c, int64_t parts) {
  const int64_t taps = c.down.size * c.across.size, seen_pixels = c.images * c.down.out * c.across.out;
  const int64_t n = TO == TO_Y ? seen_pixels : TO == TO_X ? c.images * c.down.in * c.across.in : c.channels * taps;
  const int64_t k = TO == TO_Y ? c.channels * taps : TO == TO_X ? c.features * taps : seen_pixels;
  const int64_t m = TO == TO_X ? c.channels : c.features;
  task<I> t = {static_cast<I>(c.images),
               static_cast<I>(c.channels),
               static_cast<I>(c.features),
               axis_of<I>(c.down),
               axis_of<I>(c.across),
               static_cast<I>(m),
               static_cast<I>(n),
               static_cast<I>(k),
               static_cast<I>(ms_cuda_ceil(k, parts)),
               static_cast<I>(ms_cuda_ceil(n, TILE)),
               static_cast<int>(c.groups)};
  return t;
}

template <int TO, class T, class Y, class I>
int launch(const ms_kernel_call *call, const ms_conv &c, int64_t parts, Y *to) {
  const task<I> t = task_of<TO, I>(c, parts);
  const dim3 grid(static_cast<unsigned>(ms_cuda_ceil(t.m, TILE) * t.tiles_across), static_cast<unsigned>(c.groups),
                  static_cast<unsigned>(parts));
  return MS_CUDA_LAUNCH((convolve<TO, T, Y, I>), grid, THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[1]), static_cast<const T *>(call->in_data[0]),
                        call->inputs == 3 ? static_cast<const T *>(call->in_data[2]) : nullptr, to, t,
                        ms_numel(&call->out[0]));
}

/* 1 if every tensor's elements, and what is counted past them, fit 32 bits. */
int is_small(const ms_kernel_call *call, const ms_conv &c) {
  int64_t most = ms_numel(&call->out[0]);
  for (int i = 0; i < call->inputs; i++) most = ms_numel(&call->in[i]) > most ? ms_numel(&call->in[i]) : most;
  const int64_t reach = (c.down.in + c.across.in + c.down.pad + c.across.pad + c.down.size * c.down.dilation +
                         c.across.size * c.across.dilation) *
                        2;
  return most < (int64_t{1} << 30) && reach < (int64_t{1} << 30);
}

template <int TO, class T, class Y> int launch_any(const ms_kernel_call *call, const ms_conv &c, int64_t parts, Y *to) {
  return is_small(call, c) ? launch<TO, T, Y, int32_t>(call, c, parts, to)
                           : launch<TO, T, Y, int64_t>(call, c, parts, to);
}

template <class T, class Y> int run_weight(const ms_kernel_call *call, const ms_conv &c) {
  const int64_t parts = ms_conv_sum_parts(&c), n = ms_numel(&call->out[0]);
  Y *to = static_cast<Y *>(call->out_data[0]);
  if (parts == 1) return launch_any<TO_W, T, Y>(call, c, 1, to);
  float *sums = static_cast<float *>(call->workspace);
  MS_TRY((launch_any<TO_W, T, float>(call, c, parts, sums)));
  return MS_CUDA_LAUNCH(add_parts<Y>, static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const float *>(sums), to, n, static_cast<int>(parts));
}

template <class T> int run_typed(const ms_kernel_call *call) {
  const ms_conv c = ms_conv_of(call);
  T *to = static_cast<T *>(call->out_data[0]);
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (call->op == MS_OP_conv2d) return launch_any<TO_Y, T, T>(call, c, 1, to);
  if (call->op == MS_OP_conv2d_backward_input) return launch_any<TO_X, T, T>(call, c, 1, to);
  return MS_CUDA_FLOATS(call->out[0].dtype, Y, run_weight<T, Y>(call, c));
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_conv2d = {ms_cuda_prepare_conv2d, run, nullptr, MS_CUDA_OVER_conv2d};
