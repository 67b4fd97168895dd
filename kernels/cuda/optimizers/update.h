/* update.h - one launch of an optimizer updates the chunks of up to 40 parameters, because most parameters are short
 * vectors, which take no longer than a launch: a block of 256 threads updates 8192 elements of one chunk, which it
 * finds in a list that is an argument of the launch.
 *
 * An optimizer is a type U with
 *
 *   MOMENTS                             how many there are: 0, 1 or 2
 *   setting, setting_of(call)           what calls of a launch have in common, with their lr_scale and weight_decay
 *   factors, factors_of(setting, now, norm, updates)   what one thread of a block computes of it, in double
 *   element_of(setting, factors)        updates an element: (gradient, p, moments[MOMENTS])
 *
 * Learning rate and step are read on the device, so that a captured graph sees new values. One thread per block
 * computes the factors while the block's first loads are in flight. Moments [n] are f32, or bf16 that is rounded
 * stochastically with the Philox words of kernels/cpu/optimizers/adamw.c. A call with one output more has the new
 * weights there, rounded to bf16. Chunks that begin inside a group of four elements, or that are not aligned, are
 * processed element by element.
 */
#ifndef MS_KERNELS_CUDA_UPDATE_H
#define MS_KERNELS_CUDA_UPDATE_H

#include "kernels/cuda/elementwise/philox.h"
#include "kernels/cuda/optimizers/random_rounding.h"
#include "kernels/cuda/vector.h"

constexpr int MS_UPDATE_THREADS = 256, MS_UPDATE_V = 4, MS_UPDATE_MOMENTS = 2;
constexpr int64_t MS_UPDATE_TILE = 8192;

/* A chunk: all [n], and the attributes in which chunks differ. */
struct ms_update_part {
  const float *gradient;
  float *p;
  void *moment[MS_UPDATE_MOMENTS];
  ms_b16 *copy;                /* bf16 [n], or NULL */
  const float *norm, *updates; /* f32 [4], f32 [1] */
  int64_t n;
  double lr_scale, weight_decay;
  uint64_t stream;
  int64_t first;
};

/* The argument of a launch, at most 4 KiB. */
template <class U> struct ms_update_list {
  ms_update_part of[MS_LAUNCH_CALLS];
  uint32_t first_block[MS_LAUNCH_CALLS]; /* the first block of each part */
  int parts;
  typename U::setting setting;
};

/* The arrays of a chunk, with their moments' type. */
template <int MOMENTS, class M> struct ms_update_arrays {
  const float *gradient;
  float *p;
  M *moment[MOMENTS ? MOMENTS : 1];
  ms_b16 *copy;
};

/* The Philox stream, and the index in the parameter of the chunk's first element. */
struct ms_update_rounding {
  uint64_t stream;
  int64_t first;
};

/* Moment k of an element as it is stored: the low half of the element's word rounds the first, the high half the
 * second.
 */
static __device__ __forceinline__ float ms_update_rounded(const float *, int, float m, unsigned) { return m; }
static __device__ __forceinline__ float ms_update_rounded(const ms_b16 *, int k, float m, unsigned word) {
  return ms_round_at_random(m, k ? word >> 16 : word & 0xffffu);
}

static __device__ __forceinline__ ms_words ms_update_draw(const float *, const ms_update_rounding &, const float *,
                                                          int64_t) {
  return {};
}
static __device__ __forceinline__ ms_words ms_update_draw(const ms_b16 *, const ms_update_rounding &r,
                                                          const float *updates, int64_t i) {
  return ms_draw(r.stream, static_cast<uint64_t>(*updates), static_cast<uint64_t>(r.first + i) / 4);
}

/* One vector of V elements per array, in a thread's registers. */
template <int MOMENTS, class M> struct ms_update_vectors {
  float g[MS_UPDATE_V], p[MS_UPDATE_V], m[MOMENTS ? MOMENTS : 1][MS_UPDATE_V];
  __device__ __forceinline__ void load(const ms_update_arrays<MOMENTS, M> &a, int64_t i) {
    ms_vector_load<MS_UPDATE_V>(a.gradient + i, g);
    ms_vector_load<MS_UPDATE_V>(a.p + i, p);
#pragma unroll
    for (int k = 0; k < MOMENTS; k++) ms_vector_load<MS_UPDATE_V>(a.moment[k] + i, m[k]);
  }
  __device__ __forceinline__ void store(const ms_update_arrays<MOMENTS, M> &a, int64_t i) const {
    ms_vector_store<MS_UPDATE_V>(a.p + i, p);
#pragma unroll
    for (int k = 0; k < MOMENTS; k++) ms_vector_store<MS_UPDATE_V>(a.moment[k] + i, m[k]);
    if (a.copy) ms_vector_store<MS_UPDATE_V>(a.copy + i, p);
  }
};

static __device__ __forceinline__ bool ms_update_aligned(const void *data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}
static __device__ __forceinline__ bool ms_update_aligned(const ms_b16 *data) {
  return reinterpret_cast<uintptr_t>(data) % 8 == 0;
}

/* Whether the chunk's vectors are aligned, and are groups of the Philox stream. */
template <int MOMENTS, class M>
__device__ __forceinline__ bool ms_update_has_vectors(const ms_update_arrays<MOMENTS, M> &a, int64_t first) {
  bool aligned =
      ms_update_aligned(a.gradient) && ms_update_aligned(a.p) && ms_update_aligned(a.copy) && first % MS_UPDATE_V == 0;
#pragma unroll
  for (int k = 0; k < MOMENTS; k++) aligned = aligned && ms_update_aligned(a.moment[k]);
  return aligned;
}

/* Updates a tile of one chunk. With four blocks per SM nvcc has 64 registers, and saves none of them for adamw's call
 * of pow. */
template <class U, class M>
__global__ void __launch_bounds__(MS_UPDATE_THREADS, 4) ms_update(ms_update_list<U> list, const ms_scalars *now) {
  constexpr int MOMENTS = U::MOMENTS, V = MS_UPDATE_V;
  __shared__ typename U::factors made;
  int part = 0;
  while (part + 1 < list.parts && list.first_block[part + 1] <= blockIdx.x) part++;
  const ms_update_part &own = list.of[part];
  ms_update_arrays<MOMENTS, M> a = {own.gradient, own.p, {}, own.copy};
#pragma unroll
  for (int k = 0; k < MOMENTS; k++) a.moment[k] = static_cast<M *>(own.moment[k]);
  const ms_update_rounding r = {own.stream, own.first};
  const float *updates = own.updates;
  const int64_t begin = (blockIdx.x - list.first_block[part]) * MS_UPDATE_TILE,
                end = min(own.n, begin + MS_UPDATE_TILE);
  const int64_t whole = ms_update_has_vectors(a, r.first) ? begin + (end - begin) / V * V : begin;
  const int64_t own_first = begin + threadIdx.x * V;
  typename U::setting s = list.setting;
  s.lr_scale = own.lr_scale, s.weight_decay = own.weight_decay;
  ms_update_vectors<MOMENTS, M> x;
  if (own_first < whole) x.load(a, own_first);
  if (threadIdx.x == 0) made = U::factors_of(s, now, own.norm, updates);
  __syncthreads();
  const auto update_of = U::element_of(s, made);
  for (int64_t i = own_first; i < whole; i += MS_UPDATE_THREADS * V) {
    if (i != own_first) x.load(a, i);
    const ms_words w = ms_update_draw(a.moment[0], r, updates, i);
#pragma unroll
    for (int l = 0; l < V; l++) {
      float m[MOMENTS ? MOMENTS : 1];
#pragma unroll
      for (int k = 0; k < MOMENTS; k++) m[k] = x.m[k][l];
      update_of(x.g[l], x.p[l], m);
#pragma unroll
      for (int k = 0; k < MOMENTS; k++) x.m[k][l] = ms_update_rounded(a.moment[0], k, m[k], w.word[l]);
    }
    x.store(a, i);
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += MS_UPDATE_THREADS) {
    float m[MOMENTS ? MOMENTS : 1];
#pragma unroll
    for (int k = 0; k < MOMENTS; k++) m[k] = ms_element_load(a.moment[k] + i);
    update_of(a.gradient[i], a.p[i], m);
    if (a.copy) ms_element_store(a.copy + i, a.p[i]);
    const unsigned word = ms_word_of(ms_update_draw(a.moment[0], r, updates, i), r.first + i);
#pragma unroll
    for (int k = 0; k < MOMENTS; k++) ms_element_store(a.moment[k] + i, ms_update_rounded(a.moment[0], k, m[k], word));
  }
}

/* ---- lists ---- */

/* Runs calls that go into one launch, but for their number: of one setting, and one dtype of moments. */
template <class U, class M> int ms_update_launches(const ms_kernel_call *const *call, int calls) {
  ms_update_list<U> list;
  int64_t blocks = 0;
  list.parts = 0;
  list.setting = U::setting_of(call[0]);
  const auto launch = [&] {
    const int rc = list.parts ? MS_CUDA_LAUNCH((ms_update<U, M>), static_cast<unsigned>(blocks), MS_UPDATE_THREADS, 0,
                                               call[0]->stream, list, call[0]->scalars)
                              : MS_OK;
    list.parts = 0;
    blocks = 0;
    return rc;
  };
  for (int i = 0; i < calls; i++) {
    const ms_kernel_call *c = call[i];
    const int64_t n = ms_numel(&c->in[0]), own = ms_cuda_ceil(n, MS_UPDATE_TILE);
    if (n == 0) continue;
    if (list.parts == MS_LAUNCH_CALLS || blocks + own > INT32_MAX) MS_TRY(launch());
    const typename U::setting s = U::setting_of(c);
    ms_update_part part = {static_cast<const float *>(c->in_data[0]),
                           static_cast<float *>(c->out_data[0]),
                           {},
                           static_cast<ms_b16 *>(ms_call_copy(c)),
                           static_cast<const float *>(c->in_data[1]),
                           static_cast<const float *>(c->in_data[2]),
                           n,
                           s.lr_scale,
                           s.weight_decay,
                           static_cast<uint64_t>(c->attrs.update.stream),
                           c->attrs.update.first};
    for (int k = 0; k < U::MOMENTS; k++) part.moment[k] = c->out_data[1 + k];
    list.of[list.parts] = part;
    list.first_block[list.parts++] = static_cast<uint32_t>(blocks);
    blocks += own;
  }
  return launch();
}

/* Gives `launches` what joins, in turn: groups of parameters can have settings of their own. Others are alone. */
static inline int ms_update_together(const ms_kernel_call *const *call, int calls,
                                     int (*launches)(const ms_kernel_call *const *joined, int n)) {
  bool done[MS_RUN_TOGETHER] = {};
  for (int first = 0; first < calls; first++) {
    const ms_kernel_call *joined[MS_RUN_TOGETHER] = {call[first]};
    int n = 1;
    if (done[first]) continue;
    for (int i = first + 1; i < calls; i++) {
      if (done[i] || !ms_cuda_update_joins(call[first], call[i])) continue;
      joined[n++] = call[i];
      done[i] = true;
    }
    MS_TRY(launches(joined, n));
  }
  return MS_OK;
}

#endif
