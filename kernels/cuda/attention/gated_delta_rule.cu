/* gated_delta_rule.cu - the gated delta rule in f32 arithmetic, chunk by chunk; kernels/gated_delta_rule.h has the
 * formulas. Columns of v do not depend on each other: a block has 32 of a head, whose state it keeps in the output. The
 * gradient (gated_delta_rule_backward.cu) first makes the states again in the same way. Memory traffic of a chunk: its
 * inputs once for every 32 columns, and its state twice.
 */
#include "kernels/cuda/attention/gated_delta_rule.h"

namespace {

/* y of the own column: of the state before the chunk, and of the chunk's own positions; P takes the place of M. */
template <class T>
__device__ void write_results(const delta &x, const chunk &c, shared &s, int64_t column, const float *state,
                              const float (*u)[COLUMNS]) {
  T *y = static_cast<T *>(x.out[0]) + values_at(x, c) + column;
  float sum[OWN];
  __syncthreads();
  make_p<T>(x, c, s, &s.m[0][0]);
  times_matrix(s, static_cast<const T *>(x.q) + keys_at(x, c), x.r.groups * x.r.d, c.n, x.r.d, state, x.r.e,
               column < x.r.e, sum);
  for (int r = 0; r < OWN; r++) {
    const int i = own_row(r);
    if (i >= c.n || column >= x.r.e) continue;
    float own = x.r.scale * expf(s.sum[i]) * sum[r];
    for (int j = 0; j <= i; j++) own = fmaf(s.m[i][j], u[j][threadIdx.x], own);
    ms_element_store(y + i * x.r.heads * x.r.e, own);
  }
}

/* KEEPS: the states before chunks at multiples of C, for the gradient, and no results. */
template <class T, bool KEEPS> __global__ void __launch_bounds__(THREADS) forward(delta x) {
  __shared__ shared s;
  __shared__ float u[C][COLUMNS];
  const int64_t b = blockIdx.z, h = blockIdx.y, column = static_cast<int64_t>(blockIdx.x) * COLUMNS + threadIdx.x;
  const int64_t whole = x.r.d * x.r.e, head = b * x.r.heads + h;
  float *state = x.state + head * whole + column, residual[OWN];
  const bool has_column = column < x.r.e;
  for (int64_t d = threadIdx.y; d < x.r.d && has_column; d += ROWS)
    state[d * x.r.e] = x.begin ? x.begin[head * whole + d * x.r.e + column] : 0.0f;
  for (int64_t first = 0, end; first < x.r.t; first = end) {
    end = end_of_chunk(x, b, first);
    const chunk c = {b, h, first, static_cast<int>(end - first)};
    __syncthreads();
    if (KEEPS && first % C == 0)
      for (int64_t d = threadIdx.y; d < x.r.d && has_column; d += ROWS)
        x.ws[x.at.states + (head * x.kept + first / C) * whole + d * x.r.e + column] = state[d * x.r.e];
    if (begins_document(x, b, first))
      for (int64_t d = threadIdx.y; d < x.r.d && has_column; d += ROWS) state[d * x.r.e] = 0.0f;
    load_numbers(x, c, s);
    make_m<T>(x, c, s);
    solve<T>(x, c, s, column, state, u, residual);
    if (!KEEPS) write_results<T>(x, c, s, column, state, u);
    update_state<T>(x, c, s, column, state, u);
  }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

delta delta_of(const ms_kernel_call *call) {
  delta x = {};
  x.r = ms_delta_rule_of(call->op, &call->attrs, call->inputs, call->in);
  x.at = ms_delta_places_of(&x.r);
  x.kept = ms_delta_chunks(&x.r);
  x.q = call->in_data[MS_DELTA_Q], x.k = call->in_data[MS_DELTA_K], x.v = call->in_data[MS_DELTA_V];
  x.g = call->in_data[MS_DELTA_G], x.beta = call->in_data[MS_DELTA_BETA];
  x.g_dtype = call->in[MS_DELTA_G].dtype, x.beta_dtype = call->in[MS_DELTA_BETA].dtype;
  x.dy = x.r.backward ? call->in_data[MS_DELTA_DY] : nullptr;
  x.begin = x.r.begins >= 0 ? static_cast<const float *>(call->in_data[x.r.begins]) : nullptr;
  x.tokens = x.r.tokens >= 0 ? static_cast<const int32_t *>(call->in_data[x.r.tokens]) : nullptr;
  for (int o = 0; o < call->outputs; o++) x.out[o] = call->out_data[o];
  x.ws = static_cast<float *>(call->workspace);
  x.state = x.r.backward ? x.ws + x.at.begin : static_cast<float *>(call->out_data[1]);
  return x;
}

template <class T> int run_typed(const ms_kernel_call *call, const delta &x) {
  const dim3 columns(static_cast<unsigned>(ms_cuda_ceil(x.r.e, COLUMNS)), static_cast<unsigned>(x.r.heads),
                     static_cast<unsigned>(x.r.batch));
  if (!x.r.backward) return MS_CUDA_LAUNCH((forward<T, false>), columns, dim3(COLUMNS, ROWS), 0, call->stream, x);
  if (x.r.t == 0) return MS_OK;
  MS_TRY(MS_CUDA_LAUNCH((forward<T, true>), columns, dim3(COLUMNS, ROWS), 0, call->stream, x));
  return ms_cuda_delta_backward(call, x);
}

int run(const ms_kernel_call *call) {
  const delta x = delta_of(call);
  if (x.r.batch * x.r.heads * x.r.e * x.r.d == 0) return MS_OK;
  return MS_CUDA_FLOATS(call->in[MS_DELTA_Q].dtype, T, run_typed<T>(call, x));
}

} // namespace

extern const ms_kernel ms_cuda_gated_delta_rule = {ms_cuda_prepare_gated_delta_rule, run, nullptr,
                                                   MS_CUDA_OVER_gated_delta_rule};
