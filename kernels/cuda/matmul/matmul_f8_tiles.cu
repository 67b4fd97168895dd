/* matmul_f8_tiles.cu - rounds the operands of products to 8 bits with an f32 scale for each 128 elements that are
 * summed, or each 128 x 128: a warp has the elements of a scale, or a block those of a square, in registers, so an
 * operand is read once. */
#include "kernels/cuda/matmul/matmul_f8_blocks.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP;

struct tiles {
  int64_t rows, k, pitch;
  int powers;
  float *inverses;
  uint8_t *codes;
};

__device__ __forceinline__ float tile_scale(const tiles &t, uint32_t magnitude) {
  return ms_f8_scale_of(magnitude, MS_F8E4M3, t.powers);
}

/* x [rows][k], k a multiple of 16: a block has DOWN rows of each of its warps, a lane 4 of their 128 elements. */
template <int SIDE, int V, class X> __global__ void __launch_bounds__(THREADS) round_tiles(const X *x, tiles t) {
  constexpr int DOWN = SIDE > 1 ? SIDE / WARPS : 1, ROWS = DOWN * WARPS, EACH = MS_F8_SIDE / MS_WARP;
  const int lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  const int64_t across = ms_cuda_ceil(t.k, static_cast<int64_t>(MS_F8_SIDE)), block = blockIdx.x % across;
  const int64_t first = blockIdx.x / across * ROWS + warp, at = block * MS_F8_SIDE + lane * EACH;
  float each[DOWN][EACH] = {};
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
    const int64_t row = first + i * WARPS;
    if (row >= t.rows || at >= t.k) continue;
    if constexpr (V == EACH) ms_vector_load<EACH>(x + row * t.k + at, each[i]);
    else
#pragma unroll
      for (int l = 0; l < EACH; l++) each[i][l] = ms_element_load(x + row * t.k + at + l);
    most = ms_f8_largest_of<EACH>(each[i], most);
  }
  most = SIDE > 1 ? ms_row_reduce(most, 0u, ms_larger_bits()) : ms_warp_reduce(most, ms_larger_bits());
  const float scale = tile_scale(t, most);
  if (SIDE > 1 ? threadIdx.x == 0 : lane == 0 && first < t.rows)
    t.inverses[ms_f8_scale_place(first, block, SIDE, t.pitch)] = 1.0f / scale;
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
    const int64_t row = first + i * WARPS;
    if (row >= t.rows || at >= t.k) continue;
#pragma unroll
    for (int l = 0; l < EACH; l++) each[i][l] *= scale;
    ms_f8_store_codes<MS_F8E4M3, EACH>(t.codes + row * t.k + at, each[i]);
  }
}

/* x [k][rows], to codes [rows][k]: a lane has ACROSS columns of x, a warp 16 of their 128 elements. */
template <int SIDE, class X> __global__ void __launch_bounds__(THREADS) round_turned_tiles(const X *x, tiles t) {
  constexpr int ACROSS = SIDE > 1 ? SIDE / MS_WARP : 1, EACH = MS_F8_SIDE / WARPS;
  __shared__ uint32_t of_warp[WARPS][MS_WARP];
  const int lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  const int64_t down = ms_cuda_ceil(t.k, static_cast<int64_t>(MS_F8_SIDE)), block = blockIdx.x % down;
  const int64_t row = blockIdx.x / down * ACROSS * MS_WARP + lane, at = block * MS_F8_SIDE + warp * EACH;
  float each[ACROSS][EACH] = {};
  uint32_t most = 0;
#pragma unroll
  for (int c = 0; c < ACROSS; c++) {
    if (row + c * MS_WARP >= t.rows || at >= t.k) continue;
#pragma unroll
    for (int i = 0; i < EACH; i++) each[c][i] = ms_element_load(x + (at + i) * t.rows + row + c * MS_WARP);
    most = ms_f8_largest_of<EACH>(each[c], most);
  }
  if constexpr (SIDE > 1) most = ms_row_reduce(most, 0u, ms_larger_bits());
  else {
    of_warp[warp][lane] = most;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) most = ms_larger_bits()(most, of_warp[w][lane]);
  }
  const float scale = tile_scale(t, most);
  if (SIDE > 1 ? threadIdx.x == 0 : warp == 0 && row < t.rows)
    t.inverses[ms_f8_scale_place(row, block, SIDE, t.pitch)] = 1.0f / scale;
#pragma unroll
  for (int c = 0; c < ACROSS; c++) {
    if (row + c * MS_WARP >= t.rows || at >= t.k) continue;
#pragma unroll
    for (int i = 0; i < EACH; i++) each[c][i] *= scale;
    *reinterpret_cast<uint4 *>(t.codes + (row + c * MS_WARP) * t.k + at) =
        make_uint4(ms_f8_code_four<MS_F8E4M3>(each[c]), ms_f8_code_four<MS_F8E4M3>(each[c] + 4),
                   ms_f8_code_four<MS_F8E4M3>(each[c] + 8), ms_f8_code_four<MS_F8E4M3>(each[c] + 12));
  }
}

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

template <int SIDE, class X>
int round_in(const ms_kernel_call *call, const tiles &to, int turned, const X *x, int vectors) {
  const unsigned blocks = grid(to.k, MS_F8_SIDE);
  if (turned)
    return MS_CUDA_LAUNCH((round_turned_tiles<SIDE, X>), blocks * grid(to.rows, SIDE > 1 ? SIDE : MS_WARP), THREADS, 0,
                          call->stream, x, to);
  const unsigned down = grid(to.rows, SIDE > 1 ? SIDE : WARPS);
  if (vectors) return MS_CUDA_LAUNCH((round_tiles<SIDE, 4, X>), blocks * down, THREADS, 0, call->stream, x, to);
  return MS_CUDA_LAUNCH((round_tiles<SIDE, 1, X>), blocks * down, THREADS, 0, call->stream, x, to);
}

} // namespace

template <class X>
int ms_f8_round_tiles_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_operand *operand, const X *x,
                          int vectors, const ms_f8_memory *to) {
  const int64_t k = f8->product.k;
  const tiles t = {operand->rows, k, ms_f8_scale_pitch(operand, k), f8->powers, static_cast<float *>(to->blocks),
                   to->codes};
  return operand->side > 1 ? round_in<MS_F8_SIDE, X>(call, t, operand->turned, x, vectors)
                           : round_in<1, X>(call, t, operand->turned, x, vectors);
}

template int ms_f8_round_tiles_run(const ms_kernel_call *, const ms_f8 *, const ms_f8_operand *, const float *, int,
                                   const ms_f8_memory *);
template int ms_f8_round_tiles_run(const ms_kernel_call *, const ms_f8 *, const ms_f8_operand *, const ms_b16 *, int,
                                   const ms_f8_memory *);
