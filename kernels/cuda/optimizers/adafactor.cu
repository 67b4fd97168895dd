/* adafactor.cu - Adafactor on the elements of a parameter that a rank has (kernels/adafactor.h, cpu/adafactor.c), in
 * four ops. Memory traffic: 8 bytes per element for the sums, which read the gradient along rows and down columns, 4
 * for the norm of the update, and 12 for the step.
 *
 * Rows are summed by a warp each; columns in parts, which a second launch adds in order. The learning rate is read on
 * the device, so that a captured graph sees new values.
 */
extern "C" {
#include "kernels/adafactor.h"
#include "kernels/clip.h"
#include "kernels/cuda/plan/partial_sums.h"
}

#include "kernels/cuda/reductions/reduce.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP, LAST_THREADS = 512, EACH = 4;
constexpr int64_t MAX_BLOCKS = 65535;

/* A rank's elements of a gradient. */
struct gradients {
  const float *at, *norm;
  int64_t count;
  float most;
  ms_factored f;
  __device__ __forceinline__ float of(int64_t i) const { return ms_clipped(at[i] * norm[2], most); }
  __device__ __forceinline__ double square(int64_t i) const {
    const double g = static_cast<double>(of(i));
    return g * g;
  }
};

gradients gradients_of(const ms_kernel_call *call) {
  return {static_cast<const float *>(call->in_data[0]), static_cast<const float *>(call->in_data[1]),
          ms_numel(&call->in[0]), ms_clip_of(call->attrs.factored.clip), ms_factored_of(&call->attrs)};
}

unsigned blocks_for(int64_t items, int64_t each) {
  const int64_t blocks = ms_cuda_ceil(items, each);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

/* ---- sums ---- */

/* sums [rows of the whole]. */
__global__ void __launch_bounds__(THREADS) sum_rows(gradients g, float *sums, int64_t rows) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * WARPS;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP; row < rows; row += step) {
    const int64_t t = ms_factored_part_row(&g.f, row);
    const int64_t from = t * g.f.part_columns - g.f.first;
    const int64_t begin = max(from, static_cast<int64_t>(0)), end = min(from + g.f.part_columns, g.count);
    double sum = 0.0;
    if (t >= 0)
      for (int64_t i = begin + threadIdx.x % MS_WARP; i < end; i += MS_WARP) sum += g.square(i);
    sum = ms_warp_reduce(sum, ms_add());
    if (threadIdx.x % MS_WARP == 0) sums[row] = static_cast<float>(sum);
  }
}

/* partial [matrices][parts][columns of the whole]: the sums down each part of a matrix' rows. A block has 32 columns.
 */
__global__ void __launch_bounds__(THREADS) sum_columns(gradients g, float *partial, int64_t parts, int64_t each) {
  __shared__ double of_warp[WARPS][MS_WARP];
  const ms_factored &f = g.f;
  const int lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * MS_WARP + lane;
  const int64_t own = column - ms_factored_first_column(&f); /* of the rank's part */
  for (int64_t b = blockIdx.y; b < f.matrices * parts; b += gridDim.y) {
    const int64_t matrix = ms_factored_part_matrix(&f, b / parts), before = matrix * f.part_rows;
    const int64_t begin = max(b % parts * each, f.first / f.part_columns - before);
    const int64_t last = ms_cuda_ceil(f.first + g.count, f.part_columns) - before;
    const int64_t end = min(min(b % parts * each + each, f.part_rows), last);
    double sum = 0.0;
    if (own >= 0 && own < f.part_columns && matrix >= 0)
      for (int64_t r = begin + warp; r < end; r += WARPS) {
        const int64_t i = (before + r) * f.part_columns + own - f.first;
        if (i >= 0 && i < g.count) sum += g.square(i);
      }
    of_warp[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < f.columns) {
      sum = 0.0;
      for (int w = 0; w < WARPS; w++) sum += of_warp[w][lane];
      partial[b * f.columns + column] = static_cast<float>(sum);
    }
    __syncthreads();
  }
}

/* sums [matrices][columns]. */
__global__ void __launch_bounds__(THREADS)
    add_columns(const float *partial, float *sums, int64_t n, int64_t columns, int64_t parts) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
    const float *from = partial + i / columns * parts * columns + i % columns;
    double sum = 0.0;
    for (int64_t p = 0; p < parts; p++) sum += static_cast<double>(from[p * columns]);
    sums[i] = static_cast<float>(sum);
  }
}

int run_sums(const ms_kernel_call *call) {
  const gradients g = gradients_of(call);
  const int64_t rows = ms_numel(&call->out[0]), columns = ms_numel(&call->out[1]);
  float *partial = static_cast<float *>(call->workspace);
  MS_TRY(MS_CUDA_LAUNCH(sum_rows, blocks_for(rows, WARPS), THREADS, 0, call->stream, g,
                        static_cast<float *>(call->out_data[0]), rows));
  if (columns == 0) return MS_OK;
  const ms_columns c = ms_adafactor_columns(call);
  const dim3 grid(static_cast<unsigned>(c.strips), blocks_for(c.outer * c.parts, 1));
  MS_TRY(MS_CUDA_LAUNCH(sum_columns, grid, THREADS, 0, call->stream, g, partial, c.parts,
                        ms_cuda_ceil(g.f.part_rows, c.parts)));
  return MS_CUDA_LAUNCH(add_columns, blocks_for(columns, THREADS), THREADS, 0, call->stream, partial,
                        static_cast<float *>(call->out_data[1]), columns, g.f.columns, c.parts);
}

/* ---- averages ---- */

__global__ void __launch_bounds__(THREADS)
    average(const float *row_sums, const float *column_sums, const float *updates, float *rows, float *columns,
            int64_t n_rows, int64_t n, double beta2_decay, double of_row, double of_column) {
  const float rest = ms_factor_rest(*updates, beta2_decay);
  const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += step) {
    const bool is_row = i < n_rows;
    const int64_t at = is_row ? i : i - n_rows;
    const double mean = is_row ? row_sums[at] / of_row : column_sums[at] / of_column;
    float *averages = is_row ? rows : columns;
    averages[at] = ms_factor_average(averages[at], static_cast<float>(mean), rest);
  }
}

int run_average(const ms_kernel_call *call) {
  const ms_factored f = ms_factored_of(&call->attrs);
  const int64_t rows = ms_numel(&call->out[0]), n = rows + ms_numel(&call->out[1]);
  return MS_CUDA_LAUNCH(average, blocks_for(n, THREADS), THREADS, 0, call->stream,
                        static_cast<const float *>(call->in_data[0]), static_cast<const float *>(call->in_data[1]),
                        static_cast<const float *>(call->in_data[2]), static_cast<float *>(call->out_data[0]),
                        static_cast<float *>(call->out_data[1]), rows, n, call->attrs.factored.beta2_decay,
                        static_cast<double>(f.columns), static_cast<double>(f.rows));
}

/* ---- updates ---- */

struct averages {
  const float *rows, *columns, *means;
  float eps1;
};

/* Calls with_update(i, update) for elements [begin, end). */
template <class Use>
__device__ __forceinline__ void for_updates(const gradients &g, const averages &a, int64_t begin, int64_t end,
                                            Use with_update) {
  const ms_factored &f = g.f;
  int64_t t = (f.first + begin) / f.part_columns, column = (f.first + begin) % f.part_columns;
  const int64_t skipped = ms_factored_first_column(&f);
  for (int64_t i = begin; i < end; t++, column = 0) {
    const float row = a.rows[ms_factored_row(&f, t)];
    const int64_t matrix = ms_factored_matrix(&f, t), stop = min(end, i + f.part_columns - column);
    const float mean = f.matrices ? a.means[matrix] : 1.0f;
    const float *columns = a.columns + matrix * f.columns + skipped;
    for (; i < stop; i++, column++) {
      const float variance = f.matrices ? row * columns[column] / mean : row;
      with_update(i, ms_factor_update(g.of(i), variance, a.eps1));
    }
  }
}

/* means [matrices + 1]: a block for each; the first one's first thread finds the size of the step. */
__global__ void __launch_bounds__(THREADS)
    find_means(ms_factored f, const float *rows, const float *squares, const float *updates, float *means,
               const ms_scalars *now, double eps1, double eps2, double lr_scale, double elements) {
  for (int64_t m = blockIdx.x; m < f.matrices; m += gridDim.x) {
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < f.rows; i += THREADS) sum += static_cast<double>(rows[m * f.rows + i]);
    sum = ms_row_reduce(sum, 0.0, ms_add());
    if (threadIdx.x == 0) means[m] = static_cast<float>(ms_factor_at_least(sum / static_cast<double>(f.rows), eps1));
  }
  if (blockIdx.x == 0 && threadIdx.x == 0)
    means[f.matrices] = static_cast<float>(ms_factor_step(*squares, elements, eps2, now->lr * lr_scale, *updates));
}

/* sums [gridDim.x] = the sum of squares of each block's updates. */
__global__ void __launch_bounds__(THREADS) square_updates(gradients g, averages a, double *sums) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * THREADS * EACH;
  double sum = 0.0;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * EACH; i < g.count; i += step)
    for_updates(g, a, i, min(i + EACH, g.count),
                [&](int64_t, float u) { sum += static_cast<double>(u) * static_cast<double>(u); });
  sum = ms_row_reduce(sum, 0.0, ms_add());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

averages averages_of(const ms_kernel_call *call, const void *means, double eps1) {
  return {static_cast<const float *>(call->in_data[2]), static_cast<const float *>(call->in_data[3]),
          static_cast<const float *>(means), static_cast<float>(eps1)};
}

int run_norm(const ms_kernel_call *call) {
  const gradients g = gradients_of(call);
  const auto &by = call->attrs.factored;
  const int64_t parts = ms_square_parts(call);
  double *sums = static_cast<double *>(call->workspace);
  MS_TRY(MS_CUDA_LAUNCH(find_means, blocks_for(g.f.matrices, 1), THREADS, 0, call->stream, g.f,
                        static_cast<const float *>(call->in_data[2]), static_cast<const float *>(call->in_data[4]),
                        static_cast<const float *>(call->in_data[5]), static_cast<float *>(call->out_data[1]),
                        call->scalars, by.eps1, by.eps2, by.lr_scale, static_cast<double>(ms_factored_elements(&g.f))));
  if (parts)
    MS_TRY(MS_CUDA_LAUNCH(square_updates, static_cast<unsigned>(parts), THREADS, 0, call->stream, g,
                          averages_of(call, call->out_data[1], by.eps1), sums));
  return MS_CUDA_LAUNCH(ms_add_parts<LAST_THREADS>, 1, LAST_THREADS, 0, call->stream, sums, parts,
                        static_cast<float *>(call->out_data[0]));
}

__global__ void __launch_bounds__(THREADS)
    take_step(gradients g, averages a, float *p, const float *squares, const ms_scalars *now, double lr_scale,
              double weight_decay, double d, double elements) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * EACH;
  if (begin >= g.count) return;
  const float kept = static_cast<float>(1.0 - now->lr * lr_scale * weight_decay);
  const double rms = sqrt(static_cast<double>(*squares) / elements);
  const float by = static_cast<float>(a.means[g.f.matrices] / ms_factor_at_least(rms / d, 1.0));
  for_updates(g, a, begin, min(begin + EACH, g.count), [&](int64_t i, float u) { p[i] = p[i] * kept - by * u; });
}

int run_step(const ms_kernel_call *call) {
  const gradients g = gradients_of(call);
  const auto &by = call->attrs.factored;
  if (g.count == 0) return MS_OK;
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(g.count, THREADS * EACH));
  return MS_CUDA_LAUNCH(take_step, blocks, THREADS, 0, call->stream, g, averages_of(call, call->in_data[4], by.eps1),
                        static_cast<float *>(call->out_data[0]), static_cast<const float *>(call->in_data[5]),
                        call->scalars, by.lr_scale, by.weight_decay, by.d,
                        static_cast<double>(ms_factored_elements(&g.f)));
}

int run(const ms_kernel_call *call) {
  switch (call->op) {
    case MS_OP_adafactor_sums: return run_sums(call);
    case MS_OP_adafactor_average: return run_average(call);
    case MS_OP_adafactor_norm: return run_norm(call);
    default: return run_step(call);
  }
}

} // namespace

extern const ms_kernel ms_cuda_adafactor = {ms_cuda_prepare_adafactor, run, nullptr, MS_CUDA_OVER_adafactor};
