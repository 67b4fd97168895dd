/* adamw.cu - AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as PyTorch computes it, in one pass over a
 * chunk.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd)
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *
 * Adam (Kingma & Ba 2015) is the same, but that the decay is in the gradient: g = g + wd p, and p = p.
 *
 * gradient, p [n] f32; m, v [n] f32 or bf16; step counts the updates of the parameter, including this one. Memory
 * traffic: 28 bytes per element (gradient, p, m and v are read; p, m and v are written), 20 with bf16 moments.
 *
 * Learning rate and step are read on the device, so that a captured graph sees new values. One thread per block
 * computes the factors in double while the block's first loads are in flight.
 *
 * One launch updates the chunks of up to 40 parameters, because most parameters are short vectors, which take no longer
 * than a launch: a block of 256 threads updates 8192 elements of one chunk, which it finds in a list that is an
 * argument of the launch. Parameters with other betas or eps are in another launch.
 *
 * bf16 moments are rounded stochastically with the Philox words of kernels/cpu/adamw.c. Chunks that begin inside a
 * group of four elements, or that are not aligned, are processed element by element. Moments in 8 bits:
 * adamw_records.cu.
 */
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/random_rounding.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/moments.h"
}

namespace {

constexpr int THREADS = 256, V = 4, PARTS = MS_LAUNCH_CALLS;
constexpr int64_t TILE = 8192;

/* A chunk: all [n], and the attributes in which chunks differ. */
struct part {
  const float *gradient;
  float *p;
  void *m, *v;
  const float *norm, *updates; /* f32 [4], f32 [1] */
  int64_t n;
  double lr_scale, weight_decay;
  uint64_t stream;
  int64_t first;
};

/* The argument of a launch, at most 4 KiB. */
struct part_list {
  part of[PARTS];
  uint32_t first_block[PARTS]; /* the first block of each part */
  int parts;
  double beta1, beta2, eps;
  float most;
  int coupled;
};

/* The arrays of a chunk, with their moments' type. */
template <class M> struct arrays {
  const float *gradient;
  float *p;
  M *m, *v;
};

/* The Philox stream, and the index in the parameter of the chunk's first element. */
struct rounding {
  uint64_t stream;
  int64_t first;
};

__device__ __forceinline__ void round_moments(const float *, float &, float &, unsigned) {}
__device__ __forceinline__ void round_moments(const ms_b16 *, float &m, float &v, unsigned word) {
  m = ms_round_at_random(m, word & 0xffffu);
  v = ms_round_at_random(v, word >> 16);
}

__device__ __forceinline__ ms_words draw_for(const float *, const rounding &, const float *, int64_t) { return {}; }
__device__ __forceinline__ ms_words draw_for(const ms_b16 *, const rounding &r, const float *updates, int64_t i) {
  return ms_draw(r.stream, static_cast<uint64_t>(*updates), static_cast<uint64_t>(r.first + i) / 4);
}

/* One vector of V elements per array, in a thread's registers. */
template <class M> struct vectors_of {
  float g[V], p[V], m[V], v[V];
  __device__ __forceinline__ void load(const arrays<M> &a, int64_t i) {
    ms_vector_load<V>(a.gradient + i, g);
    ms_vector_load<V>(a.p + i, p);
    ms_vector_load<V>(a.m + i, m);
    ms_vector_load<V>(a.v + i, v);
  }
  __device__ __forceinline__ void store(const arrays<M> &a, int64_t i) const {
    ms_vector_store<V>(a.p + i, p);
    ms_vector_store<V>(a.m + i, m);
    ms_vector_store<V>(a.v + i, v);
  }
};

__device__ __forceinline__ bool aligned(const void *data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/* Whether the chunk's vectors are aligned, and are groups of the Philox stream. */
template <class M> __device__ __forceinline__ bool has_vectors(const arrays<M> &a, int64_t first) {
  return aligned(a.gradient) && aligned(a.p) && aligned(a.m) && aligned(a.v) && first % V == 0;
}

/* Updates a tile of one chunk. With four blocks per SM nvcc has 64 registers, and saves none of them for its call of
 * pow.
 */
template <class M> __global__ void __launch_bounds__(THREADS, 4) adamw(part_list list, const ms_scalars *now) {
  __shared__ ms_adamw_factors made;
  int k = 0;
  while (k + 1 < list.parts && list.first_block[k + 1] <= blockIdx.x) k++;
  const part &own = list.of[k];
  const arrays<M> a = {own.gradient, own.p, static_cast<M *>(own.m), static_cast<M *>(own.v)};
  const rounding r = {own.stream, own.first};
  const float *updates = own.updates;
  const int64_t begin = (blockIdx.x - list.first_block[k]) * TILE, end = min(own.n, begin + TILE);
  const int64_t whole = has_vectors(a, r.first) ? begin + (end - begin) / V * V : begin;
  const int64_t own_first = begin + threadIdx.x * V;
  const ms_adamw_setting s = {own.lr_scale, own.weight_decay, list.beta1,  list.beta2,
                              list.eps,     list.most,        list.coupled};
  vectors_of<M> x;
  if (own_first < whole) x.load(a, own_first);
  if (threadIdx.x == 0) made = ms_adamw_factors_of(s, now, own.norm, updates);
  __syncthreads();
  const ms_adamw update_of = ms_adamw_of(s, made);
  for (int64_t i = own_first; i < whole; i += THREADS * V) {
    if (i != own_first) x.load(a, i);
    const ms_words w = draw_for(a.m, r, updates, i);
#pragma unroll
    for (int l = 0; l < V; l++) {
      update_of(x.g[l], x.p[l], x.m[l], x.v[l]);
      round_moments(a.m, x.m[l], x.v[l], w.word[l]);
    }
    x.store(a, i);
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) {
    float m = ms_element_load(a.m + i), v = ms_element_load(a.v + i);
    update_of(a.gradient[i], a.p[i], m, v);
    round_moments(a.m, m, v, ms_word_of(draw_for(a.m, r, updates, i), r.first + i));
    ms_element_store(a.m + i, m);
    ms_element_store(a.v + i, v);
  }
}

/* ---- lists ---- */

/* A launch: of calls with one setting and one dtype of moments. */
struct pending {
  part_list list;
  int64_t blocks;
  const ms_kernel_call *call; /* one of them */
};

int launch(pending *p) {
  if (!p->list.parts) return MS_OK;
  const int rc = MS_CUDA_FLOATS(p->call->out[1].dtype, M,
                                MS_CUDA_LAUNCH(adamw<M>, static_cast<unsigned>(p->blocks), THREADS, 0, p->call->stream,
                                               p->list, p->call->scalars));
  p->list.parts = 0;
  p->blocks = 0;
  return rc;
}

int add(pending *p, const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), blocks = ms_cuda_ceil(n, TILE);
  const ms_adamw_setting s = ms_adamw_setting_of(call);
  if (n == 0) return MS_OK;
  if (p->list.parts == PARTS || p->blocks + blocks > INT32_MAX) MS_TRY(launch(p));
  part_list *l = &p->list;
  l->beta1 = s.beta1, l->beta2 = s.beta2, l->eps = s.eps, l->most = s.most, l->coupled = s.coupled;
  l->of[l->parts] = {static_cast<const float *>(call->in_data[0]),
                     static_cast<float *>(call->out_data[0]),
                     call->out_data[1],
                     call->out_data[2],
                     static_cast<const float *>(call->in_data[1]),
                     static_cast<const float *>(call->in_data[2]),
                     n,
                     s.lr_scale,
                     s.weight_decay,
                     static_cast<uint64_t>(call->attrs.i[1]),
                     call->attrs.i[2]};
  l->first_block[l->parts++] = static_cast<uint32_t>(p->blocks);
  p->blocks += blocks;
  p->call = call;
  return MS_OK;
}

/* Groups of parameters can have betas and eps of their own, and take turns. */
int run_together(const ms_kernel_call *const *call, int calls) {
  bool done[MS_RUN_TOGETHER] = {};
  for (int first = 0; first < calls; first++) {
    pending p = {};
    if (done[first]) continue;
    if (call[first]->attrs.i[3] == MS_ADAMW_I8) {
      MS_TRY(ms_cuda_adamw_records(call[first]));
      continue;
    }
    for (int i = first; i < calls; i++) {
      if (done[i] || !ms_cuda_adamw_joins(call[first], call[i])) continue;
      MS_TRY(add(&p, call[i]));
      done[i] = true;
    }
    MS_TRY(launch(&p));
  }
  return MS_OK;
}

int run(const ms_kernel_call *call) { return run_together(&call, 1); }

} // namespace

extern const ms_kernel ms_cuda_adamw = {nullptr, run,     nullptr,      MS_CUDA_OVER_adamw,
                                        nullptr, nullptr, run_together, ms_cuda_adamw_joins};
