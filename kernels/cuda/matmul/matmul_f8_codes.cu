/* matmul_f8_codes.cu - rounds the operands of products to 8 bits.
 *
 * An operand x is stored as [rows][k], or turned, as [k][rows]; the library multiplies codes [rows][k]. What is read:
 *
 *   a scale a row, x as it is    x once from memory, and once more from cache: a block has a row
 *   a scale a row, x turned      x twice: magnitudes of columns, then codes by tiles, through shared memory
 *   one scale                    x twice: the largest magnitude, then codes
 *   a scale a block, or square   x once
 *   codes, turned                codes once, through shared memory
 *
 * and one byte an element is written. Magnitudes are joined as the bits of |x| by atomicMax, which gives the same
 * result in any order, and keeps NaN.
 */
#include "kernels/cuda/matmul/matmul_f8_blocks.h"
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/matmul/matmul_f8.h"
}

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP;
constexpr int64_t SPAN = 8192;             /* elements of a block that looks for the largest magnitude */
constexpr int64_t ROWS_DOWN = 256;         /* rows of a block that looks for those of columns */
constexpr int TILE = 64, PITCH = TILE + 4; /* of turned codes; the pitch keeps columns in different banks */
constexpr int64_t MAX_BLOCKS_DOWN = 65535;

/* ---- a scale a row, in one kernel -------------------------------------------------------------------------------- */

template <int DTYPE, int V, class X>
__global__ void __launch_bounds__(THREADS)
    round_rows(const X *x, int64_t k, int powers, float *scales, float *inverses, uint8_t *codes) {
  const int64_t row = blockIdx.x;
  const X *from = x + row * k;
  uint32_t own = 0;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * V; i < k; i += THREADS * V) {
    float each[V];
    ms_vector_load<V>(from + i, each);
    own = ms_f8_largest_of<V>(each, own);
  }
  const float scale = ms_f8_scale_of(ms_row_reduce(own, 0u, ms_larger_bits()), DTYPE, powers);
  if (threadIdx.x == 0) scales[row] = scale, inverses[row] = 1.0f / scale;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * V; i < k; i += THREADS * V) {
    float each[V];
    ms_vector_load<V>(from + i, each);
#pragma unroll
    for (int l = 0; l < V; l++) each[l] *= scale;
    ms_f8_store_codes<DTYPE, V>(codes + row * k + i, each);
  }
}

/* ---- magnitudes -------------------------------------------------------------------------------------------------- */

template <int V, class X>
__global__ void __launch_bounds__(THREADS) find_largest(const X *x, int64_t n, unsigned *magnitude) {
  const int64_t first = blockIdx.x * SPAN, end = min(n, first + SPAN);
  uint32_t own = 0;
  for (int64_t i = first + static_cast<int64_t>(threadIdx.x) * V; i < end; i += THREADS * V) {
    float each[V];
    ms_vector_load<V>(x + i, each);
    own = ms_f8_largest_of<V>(each, own);
  }
  const uint32_t most = ms_row_reduce(own, 0u, ms_larger_bits());
  if (threadIdx.x == 0) atomicMax(magnitude, static_cast<unsigned>(most));
}

/* Columns of x [k][columns]: a warp reads V columns a lane, warps read different rows. */
template <int V, class X>
__global__ void __launch_bounds__(THREADS) find_columns(const X *x, int64_t k, int64_t columns, unsigned *magnitudes) {
  __shared__ uint32_t of_warp[WARPS][MS_WARP * V];
  const int lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * MS_WARP + lane) * V;
  const int64_t first = blockIdx.y * ROWS_DOWN, end = min(k, first + ROWS_DOWN);
  uint32_t own[V] = {};
  for (int64_t row = first + warp; row < end && column < columns; row += WARPS) {
    float each[V];
    ms_vector_load<V>(x + row * columns + column, each);
#pragma unroll
    for (int l = 0; l < V; l++) own[l] = ms_larger_bits()(own[l], ms_magnitude(each[l]));
  }
#pragma unroll
  for (int l = 0; l < V; l++) of_warp[warp][lane * V + l] = own[l];
  __syncthreads();
  for (int i = threadIdx.x; i < MS_WARP * V; i += THREADS) {
    uint32_t most = 0;
    for (int w = 0; w < WARPS; w++) most = ms_larger_bits()(most, of_warp[w][i]);
    const int64_t at = static_cast<int64_t>(blockIdx.x) * MS_WARP * V + i;
    if (at < columns) atomicMax(magnitudes + at, static_cast<unsigned>(most));
  }
}

/* Scales [n] from magnitudes [n], or from one. */
__global__ void __launch_bounds__(THREADS)
    set_scales(const unsigned *magnitudes, int one, int64_t n, int dtype, int powers, float *scales, float *inverses) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  scales[i] = ms_f8_scale_of(magnitudes[one ? 0 : i], dtype, powers);
  inverses[i] = 1.0f / scales[i];
}

/* ---- codes with known scales ------------------------------------------------------------------------------------- */

template <int DTYPE, int V, class X>
__global__ void __launch_bounds__(THREADS) round_all(const X *x, int64_t n, const float *scale, uint8_t *codes) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * V;
  const float factor = *scale;
  if (i >= n) return;
  float each[V];
  ms_vector_load<V>(x + i, each);
#pragma unroll
  for (int l = 0; l < V; l++) each[l] *= factor;
  ms_f8_store_codes<DTYPE, V>(codes + i, each);
}

/* x [k][columns] to codes [columns][k]; scales [columns], or one. k is a multiple of 16. A block has TILE by TILE; a
 * thread has V columns of two rows at a time, whose codes are neighbours. */
template <int DTYPE, int V, class X>
__global__ void __launch_bounds__(THREADS)
    round_turned(const X *x, int64_t k, int64_t columns, const float *scales, int one, uint8_t *codes) {
  __shared__ uint32_t words[TILE * PITCH / 4];
  uint16_t *pairs = reinterpret_cast<uint16_t *>(words); /* [column][k / 2] */
  constexpr int LANES = TILE / V, PAIRS = TILE / 2;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * TILE;
  const int column = threadIdx.x % LANES * V, inside = first_column + column < columns;
  float scale[V];
#pragma unroll
  for (int l = 0; l < V; l++) scale[l] = inside ? scales[one ? 0 : first_column + column + l] : 0.0f;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * TILE; first < k;
       first += static_cast<int64_t>(gridDim.y) * TILE) {
    for (int pair = threadIdx.x / LANES; inside && pair < PAIRS && first + 2 * pair < k; pair += THREADS / LANES) {
      const X *from = x + (first + 2 * pair) * columns + first_column + column;
      float upper[V], lower[V];
      ms_vector_load<V>(from, upper);
      ms_vector_load<V>(from + columns, lower);
#pragma unroll
      for (int l = 0; l < V; l++)
        pairs[(column + l) * (PITCH / 2) + pair] =
            static_cast<uint16_t>(ms_f8_code_pair<DTYPE>(upper[l] * scale[l], lower[l] * scale[l]));
    }
    __syncthreads();
    const int to = threadIdx.x / 4, part = threadIdx.x % 4;
    if (first_column + to < columns && first + part * 16 < k) {
      const uint32_t *from = words + (to * PITCH + part * 16) / 4;
      *reinterpret_cast<uint4 *>(codes + (first_column + to) * k + first + part * 16) =
          make_uint4(from[0], from[1], from[2], from[3]);
    }
    __syncthreads();
  }
}

/* ---- codes that were made before --------------------------------------------------------------------------------- */

/* codes [k][columns] to [columns][k], TILE by TILE: a thread reads four of a row and writes four of a column. k and
 * columns are multiples of 16. */
__global__ void __launch_bounds__(THREADS) turn_codes(const uint8_t *from, int64_t k, int64_t columns, uint8_t *to) {
  __shared__ uint32_t words[TILE * PITCH / 4];
  uint8_t *tile = reinterpret_cast<uint8_t *>(words); /* [column][k] */
  constexpr int FOURS = TILE / 4;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * TILE;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * TILE; first < k;
       first += static_cast<int64_t>(gridDim.y) * TILE) {
    for (int i = threadIdx.x; i < TILE * FOURS; i += THREADS) {
      const int row = i / FOURS, column = i % FOURS * 4;
      if (first + row >= k || first_column + column >= columns) continue;
      const uint32_t four = *reinterpret_cast<const uint32_t *>(from + (first + row) * columns + first_column + column);
#pragma unroll
      for (int l = 0; l < 4; l++) tile[(column + l) * PITCH + row] = static_cast<uint8_t>(four >> 8 * l);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * FOURS; i += THREADS) {
      const int column = i / FOURS, row = i % FOURS * 4;
      if (first + row >= k || first_column + column >= columns) continue;
      *reinterpret_cast<uint32_t *>(to + (first_column + column) * k + first + row) = words[(column * PITCH + row) / 4];
    }
    __syncthreads();
  }
}

__global__ void invert(const float *scale, float *inverse) { *inverse = 1.0f / *scale; }

/* ---- a scale a block --------------------------------------------------------------------------------------------- */

/* x [rows][k], k a multiple of 32: neighbouring lanes have a block together. */
template <int V, class X>
__global__ void __launch_bounds__(THREADS)
    round_blocks(const X *x, int64_t k, int64_t elements, uint8_t *scales, uint8_t *codes) {
  constexpr int LANES = MS_MX_BLOCK / V;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * V;
  float each[V] = {};
  if (i < elements) ms_vector_load<V>(x + i, each);
  uint32_t most = ms_f8_largest_of<V>(each, 0u);
#pragma unroll
  for (int bits = LANES / 2; bits > 0; bits /= 2)
    most = ms_larger_bits()(most, __shfl_xor_sync(0xffffffffu, most, bits));
  if (i >= elements) return;
  const uint8_t scale = ms_mx_scale(most, MS_F8E4M3, MS_MX_RCEIL);
  const float inverse = ms_mx_inverse(scale);
#pragma unroll
  for (int l = 0; l < V; l++) each[l] *= inverse;
  ms_f8_store_codes<MS_F8E4M3, V>(codes + i, each);
  if (threadIdx.x % LANES == 0) scales[ms_f8_block_place(i / k, i % k / MS_MX_BLOCK, k / MS_MX_BLOCK)] = scale;
}

/* x [k][columns]: a thread has a block, 32 rows of a column. */
template <class X>
__global__ void __launch_bounds__(THREADS)
    round_turned_blocks(const X *x, int64_t k, int64_t columns, uint8_t *scales, uint8_t *codes) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t column = thread % columns, block = thread / columns, first = block * MS_MX_BLOCK;
  if (first >= k) return;
  float each[MS_MX_BLOCK];
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < MS_MX_BLOCK; i++) {
    each[i] = ms_element_load(x + (first + i) * columns + column);
    most = ms_larger_bits()(most, ms_magnitude(each[i]));
  }
  const uint8_t scale = ms_mx_scale(most, MS_F8E4M3, MS_MX_RCEIL);
  const float inverse = ms_mx_inverse(scale);
#pragma unroll
  for (int i = 0; i < MS_MX_BLOCK; i++) each[i] *= inverse;
#pragma unroll
  for (int i = 0; i < MS_MX_BLOCK; i += 16)
    *reinterpret_cast<uint4 *>(codes + column * k + first + i) =
        make_uint4(ms_f8_code_four<MS_F8E4M3>(each + i), ms_f8_code_four<MS_F8E4M3>(each + i + 4),
                   ms_f8_code_four<MS_F8E4M3>(each + i + 8), ms_f8_code_four<MS_F8E4M3>(each + i + 12));
  scales[ms_f8_block_place(column, block, k / MS_MX_BLOCK)] = scale;
}

/* ---- launches of the roundings ----------------------------------------------------------------------------------- */

struct task {
  const ms_kernel_call *call;
  const ms_f8 *f8;
  const ms_f8_operand *operand;
  const ms_f8_memory *to;
  int64_t k, elements;
};

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

unsigned down(int64_t n, int64_t of_each) {
  return static_cast<unsigned>(min(ms_cuda_ceil(n, of_each), MAX_BLOCKS_DOWN));
}

template <int V, class X> int find_scales(const task &t, const X *x) {
  unsigned *magnitudes = reinterpret_cast<unsigned *>(t.to->magnitudes);
  const int64_t scales = ms_f8_scales(t.f8, t.operand), found = t.operand->by_rows ? scales : 1;
  void *stream = t.call->stream;
  MS_TRY(ms_cuda_status(cudaMemsetAsync(magnitudes, 0, static_cast<size_t>(found) * sizeof *magnitudes,
                                        static_cast<cudaStream_t>(stream)),
                        "matmul_f8: cudaMemsetAsync"));
  if (t.operand->by_rows) {
    const dim3 blocks(grid(t.operand->rows, MS_WARP * V), grid(t.k, ROWS_DOWN));
    MS_TRY(MS_CUDA_LAUNCH((find_columns<V, X>), blocks, THREADS, 0, stream, x, t.k, t.operand->rows, magnitudes));
  } else {
    MS_TRY(MS_CUDA_LAUNCH((find_largest<V, X>), grid(t.elements, SPAN), THREADS, 0, stream, x, t.elements, magnitudes));
  }
  return MS_CUDA_LAUNCH(set_scales, grid(scales, THREADS), THREADS, 0, stream, magnitudes, !t.operand->by_rows, scales,
                        t.operand->dtype, t.f8->powers, t.to->scales, t.to->inverses);
}

template <int DTYPE, int V, class X> int round_typed(const task &t, const X *x) {
  void *stream = t.call->stream;
  if (t.operand->by_rows && !t.operand->turned)
    return MS_CUDA_LAUNCH((round_rows<DTYPE, V, X>), static_cast<unsigned>(t.operand->rows), THREADS, 0, stream, x, t.k,
                          t.f8->powers, t.to->scales, t.to->inverses, t.to->codes);
  MS_TRY((find_scales<V, X>(t, x)));
  if (!t.operand->turned)
    return MS_CUDA_LAUNCH((round_all<DTYPE, V, X>), grid(t.elements, THREADS * V), THREADS, 0, stream, x, t.elements,
                          t.to->scales, t.to->codes);
  const dim3 blocks(grid(t.operand->rows, TILE), down(t.k, TILE));
  return MS_CUDA_LAUNCH((round_turned<DTYPE, V, X>), blocks, THREADS, 0, stream, x, t.k, t.operand->rows, t.to->scales,
                        !t.operand->by_rows, t.to->codes);
}

template <int V, class X> int round_in_blocks(const task &t, const X *x) {
  void *stream = t.call->stream;
  uint8_t *scales = static_cast<uint8_t *>(t.to->blocks);
  if (t.operand->turned)
    return MS_CUDA_LAUNCH((round_turned_blocks<X>), grid(t.elements / MS_MX_BLOCK, THREADS), THREADS, 0, stream, x, t.k,
                          t.operand->rows, scales, t.to->codes);
  return MS_CUDA_LAUNCH((round_blocks<V, X>), grid(t.elements, THREADS * V), THREADS, 0, stream, x, t.k, t.elements,
                        scales, t.to->codes);
}

template <int V, class X> int round_as(const task &t, const X *x) {
  if (t.f8->e8m0) return round_in_blocks<V, X>(t, x);
  if (t.operand->block) return ms_f8_round_tiles_run(t.call, t.f8, t.operand, x, V > 1, t.to);
  if (t.operand->dtype == MS_F8E4M3) return round_typed<MS_F8E4M3, V, X>(t, x);
  return round_typed<MS_F8E5M2, V, X>(t, x);
}

/* Vectors, unless a row does not begin at a multiple of 16 bytes. */
template <class X> int round_any(const task &t, const X *x) {
  constexpr int V = ms_lanes<X>;
  const int64_t columns = t.operand->turned ? t.operand->rows : t.k;
  return columns % V == 0 && ms_cuda_aligned(x) ? round_as<V, X>(t, x) : round_as<1, X>(t, x);
}

} // namespace

extern "C" int ms_f8_round_run(const ms_kernel_call *call, const ms_f8 *f8, int which, const ms_f8_memory *to) {
  const ms_f8_operand *operand = which ? &f8->b : &f8->a;
  const task t = {call, f8, operand, to, f8->product.k, operand->rows * f8->product.k};
  return MS_CUDA_FLOATS(f8->product.dtype, X, round_any<X>(t, static_cast<const X *>(call->in_data[which])));
}

extern "C" int ms_f8_take_codes_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory *to) {
  const int64_t k = f8->product.k, columns = f8->product.n;
  const float *scale = static_cast<const float *>(call->in_data[MS_F8_SCALE_INPUT]);
  MS_TRY(MS_CUDA_LAUNCH(invert, 1, 1, 0, call->stream, scale, to->inverses));
  if (!f8->b.turned) return MS_OK;
  const dim3 blocks(grid(columns, TILE), down(k, TILE));
  return MS_CUDA_LAUNCH(turn_codes, blocks, THREADS, 0, call->stream,
                        static_cast<const uint8_t *>(call->in_data[MS_F8_CODES_INPUT]), k, columns, to->codes);
}
