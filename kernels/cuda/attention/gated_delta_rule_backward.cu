/* gated_delta_rule_backward.cu - the gradient of the gated delta rule;
 * kernels/cpu/delta_rule/gated_delta_rule_backward.c has the formulas. A block has a head, from its last chunk to its
 * first; then the gradients of the value heads that share a key head are added. Memory traffic of a chunk: its inputs
 * and the state before it some four times, mostly in caches.
 */
#include "kernels/cuda/attention/gated_delta_rule.h"

namespace {

/* What a block shares besides, of the gradient. */
struct shared_back {
  float dc[C], dbeta[C], through[C], of_warp[ROWS];
  float u[C][COLUMNS], z[C][COLUMNS];
};

/* The arrays of a head in the workspace. */
struct places {
  float *x, *u, *z, *p, *dm, *dp, *state, *dstate, *dq, *dk;
};

__device__ __forceinline__ places places_of(const delta &x, int64_t head) {
  const int64_t values = C * x.r.e, whole = x.r.d * x.r.e, keys = x.r.t * x.r.d;
  float *of_chunk = x.ws + x.at.chunks + head * (3 * values + 3 * C * C);
  return {of_chunk,
          of_chunk + values,
          of_chunk + 2 * values,
          of_chunk + 3 * values,
          of_chunk + 3 * values + C * C,
          of_chunk + 3 * values + 2 * C * C,
          x.ws + x.at.states + head * x.kept * whole,
          x.ws + x.at.state + head * whole,
          x.ws + x.at.keys + 2 * head * keys,
          x.ws + x.at.keys + (2 * head + 1) * keys};
}

/* z of the own column, from what reaches u: z_j = beta_j (du_j - sum over i > j of M_ij z_i); dbeta_j of these columns.
 */
template <class T>
__device__ void solve_back(const delta &x, const chunk &c, shared &s, shared_back &back, const places &w,
                           int64_t column, const float (&residual)[OWN]) {
  const bool has_column = column < x.r.e;
  const T *dy = static_cast<const T *>(x.dy) + values_at(x, c) + column;
  const float last = s.sum[c.n - 1];
  float sum[OWN];
  times_matrix(s, static_cast<const T *>(x.k) + keys_at(x, c), x.r.groups * x.r.d, c.n, x.r.d, w.dstate + column, x.r.e,
               has_column, sum);
  for (int r = 0; r < OWN; r++)
    if (own_row(r) < c.n) sum[r] *= expf(last - s.sum[own_row(r)]);
  for (int i = 0; i < c.n; i++) {
    const float own = has_column ? ms_element_load(dy + i * x.r.heads * x.r.e) : 0.0f;
    for (int r = 0; r < OWN; r++)
      if (own_row(r) <= i) sum[r] = fmaf(w.p[i * C + own_row(r)], own, sum[r]);
  }
  for (int i = c.n - 1; i >= 0; i--) {
    if (i % ROWS == static_cast<int>(threadIdx.y)) back.z[i][threadIdx.x] = s.beta[i] * sum[i / ROWS];
    __syncthreads();
    for (int r = 0; r < OWN; r++)
      if (own_row(r) < i) sum[r] = fmaf(-s.m[i][own_row(r)], back.z[i][threadIdx.x], sum[r]);
  }
  for (int r = 0; r < OWN; r++) {
    const int i = own_row(r);
    if (i >= c.n) continue;
    const float dbeta = ms_warp_reduce(has_column ? sum[r] * residual[r] : 0.0f, ms_add());
    if (threadIdx.x == 0) back.dbeta[i] += dbeta;
  }
}

/* x, u, z and dv of all columns. */
template <class T>
__device__ void columns_back(const delta &x, const chunk &c, shared &s, shared_back &back, const places &w,
                             const float *state) {
  float residual[OWN];
  T *dv = static_cast<T *>(x.out[MS_DELTA_V]) + values_at(x, c);
  for (int64_t first = 0; first < x.r.e; first += COLUMNS) {
    const int64_t column = first + threadIdx.x;
    __syncthreads();
    solve<T>(x, c, s, column, state + column, back.u, residual);
    solve_back<T>(x, c, s, back, w, column, residual);
    __syncthreads();
    for (int r = 0; r < OWN; r++) {
      const int i = own_row(r);
      if (i >= c.n || column >= x.r.e) continue;
      w.u[i * x.r.e + column] = back.u[i][threadIdx.x];
      w.z[i * x.r.e + column] = back.z[i][threadIdx.x];
      ms_element_store(dv + i * x.r.heads * x.r.e + column, back.z[i][threadIdx.x]);
    }
  }
  __syncthreads();
}

/* The gradients of the products in M and P, and what the sums of g have through their decay, for which each thread
 * puts its elements in the place of M. */
template <class T>
__device__ void products_back(const delta &x, const chunk &c, shared &s, shared_back &back, const places &w) {
  const T *dy = static_cast<const T *>(x.dy) + values_at(x, c);
  float dm[OWN][2], dp[OWN][2];
  pairs(s, w.z, x.r.e, c.n, w.u, x.r.e, c.n, x.r.e, dm);
  pairs(s, dy, x.r.heads * x.r.e, c.n, w.u, x.r.e, c.n, x.r.e, dp);
  for (int r = 0; r < OWN; r++)
    for (int half = 0; half < 2; half++) {
      const int i = own_row(r), j = static_cast<int>(threadIdx.x) + half * COLUMNS;
      if (i >= c.n || j > i) continue;
      const float decay = expf(s.sum[i] - s.sum[j]);
      float through = dp[r][half] * w.p[i * C + j];
      if (j < i) through -= dm[r][half] * s.m[i][j];
      s.m[i][j] = through;
      w.dm[i * C + j] = j < i ? -dm[r][half] * decay : 0.0f;
      w.dp[i * C + j] = dp[r][half] * decay * x.r.scale;
    }
  __syncthreads();
  const int own = own_thread();
  if (own < c.n) {
    float sum = 0.0f;
    for (int j = 0; j < own; j++) sum += s.m[own][j];
    for (int i = own + 1; i < c.n; i++) sum -= s.m[i][own];
    back.dc[own] += sum;
  }
  __syncthreads();
}

/* Adds factor[i] a_i' x_d to `to` [n][d] of rows d of x [d][e], and this times `with` to total[i]. */
template <class A, class T, class Factor>
__device__ void add_columns(const delta &x, const chunk &c, shared &s, const A *a, int64_t pitch, const float *matrix,
                            int64_t first, const T *with, Factor factor, float (&to)[OWN][2], float *total) {
  float sum[OWN][2];
  pairs(s, a, pitch, c.n, matrix + first * x.r.e, x.r.e, x.r.d - first, x.r.e, sum);
  for (int r = 0; r < OWN; r++) {
    const int i = own_row(r);
    if (i >= c.n) continue;
    float own = 0.0f;
    for (int half = 0; half < 2; half++) {
      const int64_t d = first + threadIdx.x + half * COLUMNS;
      if (d >= x.r.d) continue;
      const float added = factor(i) * sum[r][half];
      to[r][half] += added;
      own = fmaf(added, ms_element_load(with + i * x.r.groups * x.r.d + d), own);
    }
    own = ms_warp_reduce(own, ms_add());
    if (threadIdx.x == 0) total[i] += own;
  }
}

/* to[r][half] += weight[i][j] x_j for j in [begin(i), end(i)), or weight[j][i] if turned. */
template <class T>
__device__ void add_rows(const delta &x, const T *rows, int64_t first, const float *weight, bool turned, int i,
                         int begin, int end, float (&to)[2]) {
  for (int j = begin; j < end; j++)
    for (int half = 0; half < 2; half++) {
      const int64_t d = first + threadIdx.x + half * COLUMNS;
      if (d < x.r.d)
        to[half] = fmaf(turned ? weight[j * C + i] : weight[i * C + j],
                        ms_element_load(rows + j * x.r.groups * x.r.d + d), to[half]);
    }
}

template <class T>
__device__ void keys_back(const delta &x, const chunk &c, shared &s, shared_back &back, const places &w,
                          const float *state) {
  const T *q = static_cast<const T *>(x.q) + keys_at(x, c), *k = static_cast<const T *>(x.k) + keys_at(x, c);
  const T *dy = static_cast<const T *>(x.dy) + values_at(x, c);
  const float last = s.sum[c.n - 1], scale = x.r.scale;
  for (int64_t first = 0; first < x.r.d; first += C) {
    float dq[OWN][2] = {}, dk[OWN][2] = {};
    add_columns(
        x, c, s, dy, x.r.heads * x.r.e, state, first, q, [&](int i) { return scale * expf(s.sum[i]); }, dq, back.dc);
    add_columns(
        x, c, s, w.z, x.r.e, state, first, k, [&](int i) { return -expf(s.sum[i]); }, dk, back.dc);
    add_columns(
        x, c, s, w.u, x.r.e, w.dstate, first, k, [&](int i) { return expf(last - s.sum[i]); }, dk, back.through);
    for (int r = 0; r < OWN; r++) {
      const int i = own_row(r);
      if (i >= c.n) continue;
      add_rows(x, k, first, w.dp, false, i, 0, i + 1, dq[r]);
      add_rows(x, k, first, w.dm, false, i, 0, i, dk[r]);
      add_rows(x, k, first, w.dm, true, i, i + 1, c.n, dk[r]);
      add_rows(x, q, first, w.dp, true, i, i, c.n, dk[r]);
      for (int half = 0; half < 2; half++) {
        const int64_t d = first + threadIdx.x + half * COLUMNS;
        if (d >= x.r.d) continue;
        w.dq[(c.first + i) * x.r.d + d] = dq[r][half];
        w.dk[(c.first + i) * x.r.d + d] = dk[r][half];
      }
    }
  }
  __syncthreads();
}

/* The gradient of the state before the chunk, in place of that of the state after it. */
template <class T>
__device__ void state_back(const delta &x, const chunk &c, shared &s, shared_back &back, const places &w,
                           const float *state) {
  const T *q = static_cast<const T *>(x.q) + keys_at(x, c), *k = static_cast<const T *>(x.k) + keys_at(x, c);
  const T *dy = static_cast<const T *>(x.dy) + values_at(x, c);
  const float kept = expf(s.sum[c.n - 1]);
  float both = 0.0f;
  for (int64_t first = 0; first < x.r.d; first += COLUMNS) {
    __syncthreads();
    load_piece(s.a, q, x.r.groups * x.r.d, c.n, first, x.r.d);
    load_piece(s.b, k, x.r.groups * x.r.d, c.n, first, x.r.d);
    __syncthreads();
    for (int64_t column = threadIdx.x; column < x.r.e; column += COLUMNS) {
      float sum[COLUMNS / ROWS] = {};
      for (int i = 0; i < c.n; i++) {
        const float grown = expf(s.sum[i]),
                    of_q = x.r.scale * grown * ms_element_load(dy + i * x.r.heads * x.r.e + column),
                    of_k = grown * w.z[i * x.r.e + column];
        for (int r = 0; r < COLUMNS / ROWS; r++) sum[r] += s.a[i][own_row(r)] * of_q - s.b[i][own_row(r)] * of_k;
      }
      for (int r = 0; r < COLUMNS / ROWS; r++) {
        const int64_t d = first + own_row(r), at = d * x.r.e + column;
        if (d >= x.r.d) continue;
        both = fmaf(kept * w.dstate[at], state[at], both);
        w.dstate[at] = fmaf(kept, w.dstate[at], sum[r]);
      }
    }
  }
  both = ms_warp_reduce(both, ms_add());
  if (threadIdx.x == 0) back.of_warp[threadIdx.y] = both;
  __syncthreads();
  if (own_thread() == 0)
    for (int i = 0; i < ROWS; i++) back.dc[c.n - 1] += back.of_warp[i];
  __syncthreads();
}

/* dg and dbeta; g is in the sums of all positions from its own on. */
__device__ void write_numbers(const delta &x, const chunk &c, shared_back &back) {
  const int64_t at = numbers_at(x, c);
  if (own_thread() == 0) {
    for (int i = 0; i < c.n; i++) back.dc[c.n - 1] += back.through[i], back.dc[i] -= back.through[i];
    for (int i = c.n - 2; i >= 0; i--) back.dc[i] += back.dc[i + 1];
  }
  __syncthreads();
  const int i = own_thread();
  if (i < c.n) {
    store_number(x.out[MS_DELTA_G], x.g_dtype, at + i * x.r.heads, back.dc[i]);
    store_number(x.out[MS_DELTA_BETA], x.beta_dtype, at + i * x.r.heads, back.dbeta[i]);
  }
}

template <class T> __global__ void __launch_bounds__(THREADS) backward(delta x) {
  MS_CUDA_DYNAMIC_SHARED(char, memory);
  shared &s = *reinterpret_cast<shared *>(memory);
  shared_back &back = *reinterpret_cast<shared_back *>(memory + sizeof(shared));
  const int64_t b = blockIdx.y, h = blockIdx.x, whole = x.r.d * x.r.e, head = b * x.r.heads + h;
  const places w = places_of(x, head);
  float *zeros = x.state + head * whole; /* the state where a document begins: no other is in use */
  for (int64_t i = own_thread(); i < whole; i += THREADS) w.dstate[i] = zeros[i] = 0.0f;
  for (int64_t end = x.r.t, first; end > 0; end = first) {
    first = begin_of_chunk(x, b, end);
    const chunk c = {b, h, first, static_cast<int>(end - first)};
    const bool begins = begins_document(x, b, first);
    const float *state = begins ? zeros : w.state + first / C * whole;
    __syncthreads();
    if (own_thread() < C) back.dc[own_thread()] = back.dbeta[own_thread()] = back.through[own_thread()] = 0.0f;
    load_numbers(x, c, s);
    make_m<T>(x, c, s);
    make_p<T>(x, c, s, w.p);
    columns_back<T>(x, c, s, back, w, state);
    products_back<T>(x, c, s, back, w);
    keys_back<T>(x, c, s, back, w, state);
    state_back<T>(x, c, s, back, w, state);
    write_numbers(x, c, back);
    for (int64_t i = own_thread(); i < whole && begins; i += THREADS) w.dstate[i] = 0.0f;
  }
}

/* dq and dk of a key head: those of its value heads, added in order. */
template <class T> __global__ void __launch_bounds__(THREADS) add_heads(delta x) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, d = i % x.r.d,
                group = i / x.r.d % x.r.groups;
  const int64_t position = i / x.r.d / x.r.groups, t = position % x.r.t, b = position / x.r.t;
  const int64_t each = x.r.heads / x.r.groups, keys = x.r.t * x.r.d;
  if (b >= x.r.batch) return;
  for (int output = 0; output < 2; output++) {
    float sum = 0.0f;
    for (int64_t h = group * each; h < (group + 1) * each; h++)
      sum += x.ws[x.at.keys + (2 * (b * x.r.heads + h) + output) * keys + t * x.r.d + d];
    ms_element_store(static_cast<T *>(x.out[output]) + i, sum);
  }
}

template <class T> int run(const ms_kernel_call *call, const delta &x) {
  const dim3 block(COLUMNS, ROWS), heads(static_cast<unsigned>(x.r.heads), static_cast<unsigned>(x.r.batch));
  const int64_t keys = x.r.batch * x.r.t * x.r.groups * x.r.d;
  MS_TRY(MS_CUDA_LAUNCH_SHARED(backward<T>, heads, block, sizeof(shared) + sizeof(shared_back), call->stream, x));
  return MS_CUDA_LAUNCH(add_heads<T>, static_cast<unsigned>(ms_cuda_ceil(keys, THREADS)), THREADS, 0, call->stream, x);
}

} // namespace

int ms_cuda_delta_backward(const ms_kernel_call *call, const ms_cuda_delta &x) {
  return MS_CUDA_FLOATS(call->in[MS_DELTA_Q].dtype, T, run<T>(call, x));
}
