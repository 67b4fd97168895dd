/* step.cu - three small kernels between gradients and optimizer. sum_squares: the sum of squares of each chunk, in
 * double, by up to 512 blocks whose sums one more block adds in order; memory traffic: 4 bytes per element.
 * step_totals: the totals of a rank. step_norm: from the totals of all ranks the mean loss, the gradient norm, and the
 * factor that the optimizer applies to gradients. */
extern "C" {
#include "kernels/cuda/plan/partial_sums.h"
}

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256, V = 4, LAST_THREADS = 512;

__device__ __forceinline__ double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

/* sums [gridDim.x] = the sum of squares of each block's part of x [n]. */
__global__ void __launch_bounds__(THREADS) squares_of_parts(const float *x, double *sums, int64_t n, int aligned) {
  const int64_t per_block = ms_cuda_ceil(ms_cuda_ceil(n, gridDim.x), V) * V;
  const int64_t begin = min(n, blockIdx.x * per_block), end = min(n, begin + per_block);
  const int64_t whole = aligned ? begin + (end - begin) / V * V : begin;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * V; i < whole; i += THREADS * V) {
    float v[V];
    ms_vector_load<V>(x + i, v);
    sum += (square(v[0]) + square(v[1])) + (square(v[2]) + square(v[3]));
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) sum += square(x[i]);
  sum = ms_row_reduce(sum, 0.0, ms_add());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/* totals [groups + numbers] = each group's sum of squares [groups, n] / replicas, then loss [numbers]. One warp. */
__global__ void totals_of(const float *squares, int64_t groups, int64_t n, const float *loss, int64_t numbers,
                          float *totals, double replicas) {
  for (int64_t g = 0; g < groups; g++) {
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += MS_WARP) sum += static_cast<double>(squares[g * n + i]);
    sum = ms_warp_reduce(sum, ms_add());
    if (threadIdx.x == 0) totals[g] = static_cast<float>(sum / replicas);
  }
  if (threadIdx.x != 0) return;
  for (int64_t i = 0; i < numbers; i++) totals[groups + i] = loss[i];
}

/* to [4] = mean loss, gradient norm, factor for gradients, divisor; totals [groups + 1], or one more if weighted. The
 * norm is that of a group from 1, or with 0 of all of them. One thread. */
__global__ void norm_of(const float *totals, int groups, int group, int weighted, float *to, double ranks,
                        double max_norm, const ms_scalars *scalars) {
  double squares = 0.0;
  for (int g = group ? group - 1 : 0; g < (group ? group : groups); g++) squares += static_cast<double>(totals[g]);
  const double divisor = weighted ? static_cast<double>(totals[groups + 1]) : ranks * scalars->micro_batches;
  const double share = divisor == 0.0 ? 0.0 : 1.0 / divisor, norm = sqrt(squares) * share;
  double factor = share;
  if (max_norm > 0.0 && max_norm < norm + 1e-6) factor *= max_norm / (norm + 1e-6);
  to[0] = static_cast<float>(static_cast<double>(totals[groups]) * share);
  to[1] = static_cast<float>(norm);
  to[2] = static_cast<float>(factor);
  to[3] = static_cast<float>(divisor);
}

int run_squares(const ms_kernel_call *call) {
  const int64_t parts = ms_square_parts(call);
  const float *x = static_cast<const float *>(call->in_data[0]);
  double *sums = static_cast<double *>(call->workspace);
  if (parts)
    MS_TRY(MS_CUDA_LAUNCH(squares_of_parts, static_cast<unsigned>(parts), THREADS, 0, call->stream, x, sums,
                          ms_numel(&call->in[0]), ms_cuda_aligned(x)));
  return MS_CUDA_LAUNCH(ms_add_parts<LAST_THREADS>, 1, LAST_THREADS, 0, call->stream, sums, parts,
                        static_cast<float *>(call->out_data[0]));
}

int run_totals(const ms_kernel_call *call) {
  const int64_t groups = ms_step_groups(&call->attrs);
  return MS_CUDA_LAUNCH(totals_of, 1, MS_WARP, 0, call->stream, static_cast<const float *>(call->in_data[0]), groups,
                        ms_numel(&call->in[0]) / groups, static_cast<const float *>(call->in_data[1]),
                        ms_numel(&call->in[1]), static_cast<float *>(call->out_data[0]),
                        static_cast<double>(call->attrs.step.replicas));
}

int run_norm(const ms_kernel_call *call) {
  const int groups = static_cast<int>(ms_step_groups(&call->attrs));
  return MS_CUDA_LAUNCH(norm_of, 1, 1, 0, call->stream, static_cast<const float *>(call->in_data[0]), groups,
                        static_cast<int>(call->attrs.step.group), ms_numel(&call->in[0]) == groups + 2,
                        static_cast<float *>(call->out_data[0]), static_cast<double>(call->attrs.step.ranks),
                        call->attrs.step.max_norm, call->scalars);
}

} // namespace

extern const ms_kernel ms_cuda_sum_squares = {ms_cuda_prepare_sum_squares, run_squares, nullptr,
                                              MS_CUDA_OVER_sum_squares};
extern const ms_kernel ms_cuda_step_totals = {nullptr, run_totals, nullptr, MS_CUDA_OVER_step_totals};
extern const ms_kernel ms_cuda_step_norm = {nullptr, run_norm, nullptr, MS_CUDA_OVER_step_norm};
