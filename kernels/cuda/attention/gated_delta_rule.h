/* gated_delta_rule.h - what both directions of the gated delta rule share on a GPU: a call's tensors, a chunk's sums of
 * g, M, u and the state after it. A warp has every eighth row of a chunk, and its lanes neighbouring columns.
 */
#ifndef MS_KERNELS_CUDA_GATED_DELTA_RULE_H
#define MS_KERNELS_CUDA_GATED_DELTA_RULE_H

extern "C" {
#include "kernels/cuda/plan/products/gated_delta_rule.h"
}

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

struct ms_cuda_delta {
  ms_delta_rule r;
  ms_delta_places at; /* in floats from the beginning of ws */
  int64_t kept;       /* states of a head that the gradient keeps */
  const void *q, *k, *v, *g, *beta, *dy;
  const float *begin;
  const int32_t *tokens;
  int g_dtype, beta_dtype;
  void *out[5];
  float *state; /* [batch][heads][d][e] */
  float *ws;
};

/* The gradient, once the states before chunks are in the workspace. */
int ms_cuda_delta_backward(const ms_kernel_call *call, const ms_cuda_delta &x);

namespace {

constexpr int C = MS_DELTA_CHUNK, COLUMNS = MS_WARP, ROWS = 8, OWN = C / ROWS, PITCH = COLUMNS + 1;
constexpr int THREADS = COLUMNS * ROWS;

using delta = ms_cuda_delta;

__device__ __forceinline__ float load_number(const void *x, int dtype, int64_t i) {
  return dtype == MS_BF16 ? ms_element_load(static_cast<const ms_b16 *>(x) + i) : static_cast<const float *>(x)[i];
}

__device__ __forceinline__ void store_number(void *x, int dtype, int64_t i, float value) {
  if (dtype == MS_BF16) ms_element_store(static_cast<ms_b16 *>(x) + i, value);
  else static_cast<float *>(x)[i] = value;
}

/* A chunk of a head, the same for all threads of a block: positions [first, first + n). */
struct chunk {
  int64_t b, h, first;
  int n;
};

__device__ __forceinline__ bool begins_document(const delta &x, int64_t b, int64_t position) {
  return x.tokens && x.tokens[b * x.r.t + position] == x.r.start;
}

__device__ __forceinline__ int64_t end_of_chunk(const delta &x, int64_t b, int64_t first) {
  int64_t end = first + 1;
  while (end < x.r.t && end % C && !begins_document(x, b, end)) end++;
  return end;
}

__device__ __forceinline__ int64_t begin_of_chunk(const delta &x, int64_t b, int64_t end) {
  int64_t first = end - 1;
  while (first % C && !begins_document(x, b, first)) first--;
  return first;
}

/* Rows of the chunk: of key heads [d], of value heads [e], of numbers. */
__device__ __forceinline__ int64_t keys_at(const delta &x, const chunk &c) {
  return ((c.b * x.r.t + c.first) * x.r.groups + c.h / (x.r.heads / x.r.groups)) * x.r.d;
}
__device__ __forceinline__ int64_t values_at(const delta &x, const chunk &c) {
  return ((c.b * x.r.t + c.first) * x.r.heads + c.h) * x.r.e;
}
__device__ __forceinline__ int64_t numbers_at(const delta &x, const chunk &c) {
  return (c.b * x.r.t + c.first) * x.r.heads + c.h;
}

/* What a block shares: sums of g and beta of the chunk's positions, M, and pieces of operands. */
struct shared {
  float sum[C], beta[C];
  float m[C][C];
  float a[C][PITCH], b[C][PITCH];
};

__device__ __forceinline__ int own_thread() { return static_cast<int>(threadIdx.y * COLUMNS + threadIdx.x); }
__device__ __forceinline__ int own_row(int r) { return static_cast<int>(threadIdx.y) + ROWS * r; }

__device__ void load_numbers(const delta &x, const chunk &c, shared &s) {
  const int i = own_thread();
  const int64_t at = numbers_at(x, c);
  __syncthreads();
  if (i < c.n) {
    s.sum[i] = load_number(x.g, x.g_dtype, at + i * x.r.heads);
    s.beta[i] = load_number(x.beta, x.beta_dtype, at + i * x.r.heads);
  }
  __syncthreads();
  if (i == 0)
    for (int j = 1; j < c.n; j++) s.sum[j] += s.sum[j - 1];
  __syncthreads();
}

/* piece[i][j] = x[i][first + j] of `rows` rows of `length` elements, `pitch` apart; 0 beyond. */
template <class T>
__device__ void load_piece(float (*piece)[PITCH], const T *x, int64_t pitch, int64_t rows, int64_t first,
                           int64_t length) {
  const int64_t j = first + threadIdx.x;
  for (int r = 0; r < OWN; r++) {
    const int i = own_row(r);
    piece[i][threadIdx.x] = i < rows && j < length ? ms_element_load(x + i * pitch + j) : 0.0f;
  }
}

/* sum[r][s] = a_i' b_j, of rows i = own_row(r) and j = lane + 32 s. */
template <class A, class B>
__device__ void pairs(shared &s, const A *a, int64_t pitch_a, int64_t rows_a, const B *b, int64_t pitch_b,
                      int64_t rows_b, int64_t length, float (&sum)[OWN][2]) {
  for (int r = 0; r < OWN; r++) sum[r][0] = sum[r][1] = 0.0f;
  for (int64_t first = 0; first < length; first += COLUMNS) {
    __syncthreads();
    load_piece(s.a, a, pitch_a, rows_a, first, length);
    load_piece(s.b, b, pitch_b, rows_b, first, length);
    __syncthreads();
    for (int l = 0; l < COLUMNS; l++)
      for (int r = 0; r < OWN; r++) {
        sum[r][0] = fmaf(s.a[own_row(r)][l], s.b[threadIdx.x][l], sum[r][0]);
        sum[r][1] = fmaf(s.a[own_row(r)][l], s.b[threadIdx.x + COLUMNS][l], sum[r][1]);
      }
  }
}

/* sum[r] = row_i' x of the own column of x [length][pitch_x], of rows i = own_row(r). */
template <class A>
__device__ void times_matrix(shared &s, const A *a, int64_t pitch_a, int64_t rows, int64_t length, const float *x,
                             int64_t pitch_x, bool has_column, float (&sum)[OWN]) {
  for (int r = 0; r < OWN; r++) sum[r] = 0.0f;
  for (int64_t first = 0; first < length; first += COLUMNS) {
    __syncthreads();
    load_piece(s.a, a, pitch_a, rows, first, length);
    __syncthreads();
    for (int l = 0; l < COLUMNS && first + l < length; l++) {
      const float own = has_column ? x[(first + l) * pitch_x] : 0.0f;
      for (int r = 0; r < OWN; r++) sum[r] = fmaf(s.a[own_row(r)][l], own, sum[r]);
    }
  }
}

/* M below its diagonal. */
template <class T> __device__ void make_m(const delta &x, const chunk &c, shared &s) {
  const T *k = static_cast<const T *>(x.k) + keys_at(x, c);
  const int64_t pitch = x.r.groups * x.r.d;
  float sum[OWN][2];
  pairs(s, k, pitch, c.n, k, pitch, c.n, x.r.d, sum);
  for (int r = 0; r < OWN; r++)
    for (int half = 0; half < 2; half++) {
      const int i = own_row(r), j = static_cast<int>(threadIdx.x) + half * COLUMNS;
      if (i < c.n && j < i) s.m[i][j] = expf(s.sum[i] - s.sum[j]) * sum[r][half];
    }
  __syncthreads();
}

/* P up to its diagonal, to [C][C]. */
template <class T> __device__ void make_p(const delta &x, const chunk &c, shared &s, float *p) {
  const int64_t pitch = x.r.groups * x.r.d, at = keys_at(x, c);
  float sum[OWN][2];
  pairs(s, static_cast<const T *>(x.q) + at, pitch, c.n, static_cast<const T *>(x.k) + at, pitch, c.n, x.r.d, sum);
  for (int r = 0; r < OWN; r++)
    for (int half = 0; half < 2; half++) {
      const int i = own_row(r), j = static_cast<int>(threadIdx.x) + half * COLUMNS;
      if (i < c.n && j <= i) p[i * C + j] = x.r.scale * expf(s.sum[i] - s.sum[j]) * sum[r][half];
    }
  __syncthreads();
}

/* x of the own column, and u = beta x, of which all rows are in `u`. state: the own column of [d][e]. */
template <class T>
__device__ void solve(const delta &x, const chunk &c, shared &s, int64_t column, const float *state,
                      float (*u)[COLUMNS], float (&residual)[OWN]) {
  const bool has_column = column < x.r.e;
  const T *v = static_cast<const T *>(x.v) + values_at(x, c) + column;
  times_matrix(s, static_cast<const T *>(x.k) + keys_at(x, c), x.r.groups * x.r.d, c.n, x.r.d, state, x.r.e, has_column,
               residual);
  for (int r = 0; r < OWN; r++) {
    const int i = own_row(r);
    if (i < c.n)
      residual[r] = (has_column ? ms_element_load(v + i * x.r.heads * x.r.e) : 0.0f) - expf(s.sum[i]) * residual[r];
  }
  for (int i = 0; i < c.n; i++) {
    if (i % ROWS == static_cast<int>(threadIdx.y)) u[i][threadIdx.x] = s.beta[i] * residual[i / ROWS];
    __syncthreads();
    for (int r = 0; r < OWN; r++)
      if (own_row(r) > i && own_row(r) < c.n) residual[r] = fmaf(-s.m[own_row(r)][i], u[i][threadIdx.x], residual[r]);
  }
}

/* The own column of the state after the chunk. */
template <class T>
__device__ void update_state(const delta &x, const chunk &c, shared &s, int64_t column, float *state,
                             const float (*u)[COLUMNS]) {
  const T *k = static_cast<const T *>(x.k) + keys_at(x, c);
  const float last = s.sum[c.n - 1], kept = expf(last);
  for (int64_t first = 0; first < x.r.d; first += COLUMNS) {
    float sum[COLUMNS / ROWS] = {};
    __syncthreads();
    load_piece(s.a, k, x.r.groups * x.r.d, c.n, first, x.r.d);
    __syncthreads();
    for (int j = 0; j < c.n; j++) {
      const float own = expf(last - s.sum[j]) * u[j][threadIdx.x];
      for (int r = 0; r < COLUMNS / ROWS; r++) sum[r] = fmaf(s.a[j][own_row(r)], own, sum[r]);
    }
    for (int r = 0; r < COLUMNS / ROWS; r++) {
      const int64_t d = first + own_row(r);
      if (d < x.r.d && column < x.r.e) state[d * x.r.e] = fmaf(kept, state[d * x.r.e], sum[r]);
    }
  }
  __syncthreads();
}

} // namespace

#endif
