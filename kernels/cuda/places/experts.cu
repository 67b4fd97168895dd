/* experts.cu - sorts choices of experts (sort.h), and moves rows of tokens to the experts and back. Memory traffic: 2 s
 * bytes per element of a choice's row that is dispatched; that of the choices' rows and of the tokens' for a sum. A
 * thread has some neighbouring elements of a row, a warp the product of two rows. A sum is in the order of k, and no
 * addition is atomic. An order or place that is not one is recorded as the step's fault, and its row counts as zeros.
 */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/places/sort.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256;

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>(ms_cuda_ceil(threads, THREADS)); }

__device__ __forceinline__ int64_t own_thread() { return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; }

/* ---- expert_order ------------------------------------------------------------------------------------------------ */

/* order [n] and places [n] of sorted choices; offsets [experts + 1]: the first choice of each expert, or of one after
 * it. Thread n ends the last. */
__global__ void __launch_bounds__(THREADS)
    place(ms_sorted sorted, int64_t n, int64_t experts, int32_t *order, int32_t *places, int32_t *offsets) {
  const int64_t i = own_thread();
  if (i > n) return;
  const int64_t before = i ? static_cast<int64_t>(sorted.key[i - 1]) : -1;
  const int64_t own = i < n ? static_cast<int64_t>(sorted.key[i]) : experts;
  for (int64_t e = before + 1; e <= own; e++) offsets[e] = static_cast<int32_t>(i);
  if (i == n) return;
  const uint32_t choice = sorted.position[i];
  order[i] = static_cast<int32_t>(choice);
  places[choice] = static_cast<int32_t>(i);
}

int run_order(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), experts = call->attrs.experts.experts;
  ms_sorted sorted = {nullptr, nullptr};
  if (n > 0)
    MS_TRY(ms_sort_positions(static_cast<const int32_t *>(call->in_data[0]), n, {0, experts, experts}, call->workspace,
                             call->op, call->fault, call->stream, &sorted));
  return MS_CUDA_LAUNCH(place, blocks_of(n + 1), THREADS, 0, call->stream, sorted, n, experts,
                        static_cast<int32_t *>(call->out_data[0]), static_cast<int32_t *>(call->out_data[1]),
                        static_cast<int32_t *>(call->out_data[2]));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* T tokens with `each` choices; rows of `columns` elements. */
struct choices {
  const int32_t *order, *places; /* [tokens each] */
  const void *weights;           /* [tokens][each], or NULL: 1 */
  int weights_dtype, op;
  int64_t tokens, each, columns;
  ms_fault *fault;
  __device__ __forceinline__ float weight(int64_t choice) const {
    if (!weights) return 1.0f;
    if (weights_dtype == MS_BF16) return ms_element_load(static_cast<const ms_b16 *>(weights) + choice);
    return static_cast<const float *>(weights)[choice];
  }
  /* Whether `at` is one of all choices. */
  __device__ __forceinline__ bool has(int64_t at) const {
    if (at >= 0 && at < tokens * each) return true;
    ms_note_fault(fault, op, at, tokens * each);
    return false;
  }
};

choices choices_of(const ms_kernel_call *call) {
  const ms_value_info &places = call->in[2];
  const int weighs = call->inputs == 4;
  return {static_cast<const int32_t *>(call->in_data[1]),
          static_cast<const int32_t *>(call->in_data[2]),
          weighs ? call->in_data[3] : nullptr,
          weighs ? call->in[3].dtype : MS_F32,
          call->op,
          places.dims[0],
          places.dims[1],
          call->in[0].dims[1],
          call->fault};
}

/* y [tokens each][columns] = weighted rows of x [tokens][columns] in sorted order. */
template <int V, class T> __global__ void __launch_bounds__(THREADS) dispatch(const T *x, T *y, choices c) {
  const int64_t at = own_thread() * V, row = at / c.columns;
  if (row >= c.tokens * c.each) return;
  const int64_t choice = c.order[row];
  float element[V] = {};
  if (c.has(choice)) {
    ms_vector_load<V>(x + choice / c.each * c.columns + at % c.columns, element);
    const float weight = c.weight(choice);
#pragma unroll
    for (int l = 0; l < V; l++) element[l] *= weight;
  }
  ms_vector_store<V>(y + at, element);
}

/* y [tokens][columns] = sums of the weighted rows of x [tokens each][columns]. */
template <int V, class T> __global__ void __launch_bounds__(THREADS) combine(const T *x, T *y, choices c) {
  const int64_t at = own_thread() * V, token = at / c.columns;
  if (token >= c.tokens) return;
  float sum[V] = {};
  for (int64_t k = 0; k < c.each; k++) {
    const int64_t choice = token * c.each + k, row = c.places[choice];
    if (!c.has(row)) continue;
    const float weight = c.weight(choice);
    float element[V];
    ms_vector_load<V>(x + row * c.columns + at % c.columns, element);
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] = fmaf(weight, element[l], sum[l]);
  }
  ms_vector_store<V>(y + at, sum);
}

template <int V, class T> int run_vectors(const ms_kernel_call *call) {
  const unsigned blocks = blocks_of(ms_numel(&call->out[0]) / V);
  const T *x = static_cast<const T *>(call->in_data[0]);
  T *y = static_cast<T *>(call->out_data[0]);
  if (call->op == MS_OP_expert_dispatch)
    return MS_CUDA_LAUNCH((dispatch<V, T>), blocks, THREADS, 0, call->stream, x, y, choices_of(call));
  return MS_CUDA_LAUNCH((combine<V, T>), blocks, THREADS, 0, call->stream, x, y, choices_of(call));
}

template <class T> int run_typed(const ms_kernel_call *call) {
  constexpr int V = ms_lanes<T>;
  const int vectors =
      call->in[0].dims[1] % V == 0 && ms_cuda_aligned(call->in_data[0]) && ms_cuda_aligned(call->out_data[0]);
  return vectors ? run_vectors<V, T>(call) : run_vectors<1, T>(call);
}

int run_rows(const ms_kernel_call *call) {
  return ms_numel(&call->out[0]) ? MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)) : MS_OK;
}

/* ---- the gradient of weights ------------------------------------------------------------------------------------- */

/* weights [tokens each] = products of rows of x [tokens][columns] and y [tokens each][columns]; a warp each. */
template <class T>
__global__ void __launch_bounds__(THREADS) multiply(const T *x, const T *y, float *weights, choices c) {
  const int64_t choice = own_thread() / MS_WARP;
  if (choice >= c.tokens * c.each) return;
  const int64_t row = c.places[choice];
  float sum = 0.0f;
  if (c.has(row))
    for (int64_t d = threadIdx.x % MS_WARP; d < c.columns; d += MS_WARP)
      sum = fmaf(ms_element_load(x + choice / c.each * c.columns + d), ms_element_load(y + row * c.columns + d), sum);
  sum = ms_warp_reduce(sum, ms_add());
  if (threadIdx.x % MS_WARP == 0) weights[choice] = sum;
}

template <class T> int run_multiply(const ms_kernel_call *call) {
  return MS_CUDA_LAUNCH(multiply<T>, blocks_of(ms_numel(&call->out[0]) * MS_WARP), THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        static_cast<float *>(call->out_data[0]), choices_of(call));
}

int run_weights_backward(const ms_kernel_call *call) {
  return ms_numel(&call->out[0]) ? MS_CUDA_FLOATS(call->in[0].dtype, T, run_multiply<T>(call)) : MS_OK;
}

} // namespace

extern const ms_kernel ms_cuda_expert_order = {ms_cuda_prepare_expert_order, run_order, nullptr,
                                               MS_CUDA_OVER_expert_order};
extern const ms_kernel ms_cuda_expert_dispatch = {nullptr, run_rows, nullptr, MS_CUDA_OVER_expert_dispatch};
extern const ms_kernel ms_cuda_expert_combine = {nullptr, run_rows, nullptr, MS_CUDA_OVER_expert_combine};
extern const ms_kernel ms_cuda_expert_weights_backward = {nullptr, run_weights_backward, nullptr,
                                                          MS_CUDA_OVER_expert_weights_backward};
