/* rope.cu - rotary positions (Su et al. 2021): rotates pair p of a head at position t by the angle t theta^(-2p / D).
 * Pairs are (p, p + D/2), or (2p, 2p + 1) if interleaved; the gradient is the inverse rotation. Memory traffic: 2 s
 * bytes per element of s bytes. A block processes one position of several sequences: it computes the cosines and sines
 * of that position once, in shared memory, from the frequencies that all devices share, or those of the second input,
 * and rotates all heads by them. y can overwrite x. */
#include "kernels/cuda/vector.h"
#include "kernels/part.h"
#include "kernels/rope_frequencies.h"

namespace {

enum { BATCH, TIME, HEAD, DEPTH }; /* axes of x and y [B][T][H][D] */
constexpr int THREADS = 256;
constexpr int64_t BLOCKS = 2112;

struct rotation {
  int64_t batch, times, heads, depth, half, offset, per_block; /* half: rotated pairs; per_block: sequences per block */
  const float *turns;                                          /* [2][half], or NULL: by the attributes */
  double sign;
  ms_op_attrs attrs;
  ms_part part; /* which of the positions these are */
};

/* Turns the pair (u, w) by an angle of this cosine and sine. */
__device__ __forceinline__ void turn_pair(float &u, float &w, float cosine, float sine) {
  const float from = u;
  u = fmaf(from, cosine, -(w * sine));
  w = fmaf(from, sine, w * cosine);
}

/* x, y [batch][times][heads][depth]. Rotates V elements at a time: of both halves of the first 2 half of a head, or of
 * their interleaved pairs. The other elements stay. */
template <int V, class T, bool INTERLEAVED>
__global__ void __launch_bounds__(THREADS) turn(const T *x, T *y, rotation r) {
  MS_CUDA_DYNAMIC_SHARED(float, cosine); /* [half], followed by the sines [half] */
  float *sine = cosine + r.half;
  const int64_t t = blockIdx.x;
  for (int64_t p = threadIdx.x; p < r.half; p += THREADS) {
    const float frequency = r.turns ? r.turns[p] : ms_rope_frequency(&r.attrs, p, r.half);
    const float factor = r.turns ? r.turns[r.half + p] : 1.0f;
    const float angle = static_cast<float>(ms_part_index(&r.part, t) + r.offset) * frequency;
    double s, c;
    sincos(static_cast<double>(angle), &s, &c);
    cosine[p] = factor * static_cast<float>(c);
    sine[p] = factor * static_cast<float>(r.sign * s);
  }
  __syncthreads();
  constexpr int PAIRS = INTERLEAVED ? (V + 1) / 2 : V;
  const int64_t in_head = r.half / PAIRS, in_sequence = r.heads * in_head;
  const int64_t first = blockIdx.y * r.per_block, sequences = min(r.per_block, r.batch - first);
  for (int64_t i = threadIdx.x; i < sequences * in_sequence; i += THREADS) {
    const int64_t b = first + i / in_sequence, rest = i % in_sequence, p = rest % in_head * PAIRS;
    const int64_t head = ((b * r.times + t) * r.heads + rest / in_head) * r.depth;
    if constexpr (INTERLEAVED && V > 1) {
      float v[V];
      ms_vector_load<V>(x + head + 2 * p, v);
#pragma unroll
      for (int l = 0; l < PAIRS; l++) turn_pair(v[2 * l], v[2 * l + 1], cosine[p + l], sine[p + l]);
      ms_vector_store<V>(y + head + 2 * p, v);
    } else {
      const int64_t low = head + (INTERLEAVED ? 2 * p : p), high = INTERLEAVED ? low + 1 : low + r.half;
      float a[V], b_[V];
      ms_vector_load<V>(x + low, a);
      ms_vector_load<V>(x + high, b_);
#pragma unroll
      for (int l = 0; l < V; l++) turn_pair(a[l], b_[l], cosine[p + l], sine[p + l]);
      ms_vector_store<V>(y + low, a);
      ms_vector_store<V>(y + high, b_);
    }
  }
  if (x == y) return;
  const int64_t stay = r.depth - 2 * r.half, row = r.heads * stay;
  for (int64_t i = threadIdx.x; i < sequences * row; i += THREADS) {
    const int64_t b = first + i / row, rest = i % row;
    const int64_t at = ((b * r.times + t) * r.heads + rest / stay) * r.depth + 2 * r.half + rest % stay;
    y[at] = x[at];
  }
}

template <int V, class T, bool INTERLEAVED> int launch_turn(const ms_kernel_call *call, const rotation &r) {
  const dim3 grid(static_cast<unsigned>(r.times), static_cast<unsigned>(ms_cuda_ceil(r.batch, r.per_block)));
  return MS_CUDA_LAUNCH((turn<V, T, INTERLEAVED>), grid, THREADS, 2 * r.half * static_cast<int64_t>(sizeof(float)),
                        call->stream, static_cast<const T *>(call->in_data[0]), static_cast<T *>(call->out_data[0]), r);
}

template <class T> int run_typed(const ms_kernel_call *call, const rotation &r) {
  constexpr int V = ms_lanes<T>;
  const int interleaved = call->attrs.rope.interleaved != 0, width = interleaved ? 2 : 1;
  const int vectors = r.half * width % V == 0 && r.depth % V == 0 && ms_cuda_aligned(call->in_data[0]) &&
                      ms_cuda_aligned(call->out_data[0]);
  if (vectors) return interleaved ? launch_turn<V, T, true>(call, r) : launch_turn<V, T, false>(call, r);
  return interleaved ? launch_turn<1, T, true>(call, r) : launch_turn<1, T, false>(call, r);
}

int run(const ms_kernel_call *call) {
  const int64_t *dims = call->in[0].dims;
  rotation r = {dims[BATCH],
                dims[TIME],
                dims[HEAD],
                dims[DEPTH],
                call->inputs == 2 ? call->in[1].dims[1] : dims[DEPTH] / 2,
                call->attrs.rope.offset,
                1,
                call->inputs == 2 ? static_cast<const float *>(call->in_data[1]) : nullptr,
                call->attrs.rope.inverse ? -1.0 : 1.0,
                call->attrs,
                ms_part_of(call->attrs.rope.part)};
  if (ms_numel(&call->in[0]) == 0) return MS_OK;
  const int64_t slices = ms_cuda_ceil(BLOCKS, r.times);
  r.per_block = ms_cuda_ceil(r.batch, slices < r.batch ? slices : r.batch);
  return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call, r));
}

} // namespace

extern const ms_kernel ms_cuda_rope = {nullptr, run, nullptr, MS_CUDA_OVER_rope};
