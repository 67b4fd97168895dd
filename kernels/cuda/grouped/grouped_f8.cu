/* grouped_f8.cu - rounds the operands of grouped_matmul to 8 bits, to what the codes are then worth. A block has a band
 * of rows, and 128 columns of it or all of them: whole tiles, so it finds their magnitudes, reads again from cache, and
 * writes. Bands are a row, the 32 or 128 rows of a block, or all rows of a group; those of a weight are of one expert.
 */
#include "kernels/cuda/grouped/grouped_rows.h"
#include "kernels/cuda/vector.h"

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256, WIDTH = MS_GROUPED_ROUND_COLUMNS, DOWN = THREADS / WIDTH;

struct rounding {
  ms_groups groups;
  int64_t each;          /* rows of a group, if all have as many: those of weights; 0: as the offsets say */
  int64_t columns, wide; /* of x, and of a tile */
  int64_t chunks;        /* blocks across */
  int dtype, powers, e8m0;
};

struct band {
  int64_t begin, end;
};

/* BAND: rows of a tile; 0: all of a group. */
template <int BAND> __device__ __forceinline__ band find_band(const rounding &r, int64_t number) {
  if constexpr (BAND == 1) return {number, number + 1};
  if (r.each) {
    const int64_t rows = BAND ? BAND : r.each, bands = ms_cuda_ceil(r.each, rows), group = number / bands;
    const int64_t begin = group * r.each + number % bands * rows;
    return {begin, min(begin + rows, (group + 1) * r.each)};
  }
  if constexpr (BAND == 0) {
    const ms_group_rows own = ms_find_group(r.groups, static_cast<int>(number));
    return {own.begin, own.end};
  } else {
    const ms_group_rows own = ms_find_tile<BAND>(r.groups, static_cast<int>(number));
    if (own.group < 0) return {0, 0};
    return {own.row, min(own.row + BAND, own.end)};
  }
}

__device__ __forceinline__ float scale_of(const rounding &r, uint32_t magnitude) {
  if (r.e8m0) return ms_mx_inverse(ms_mx_scale(magnitude, r.dtype, MS_MX_RCEIL));
  const float scale = ms_tensor_scale(magnitude, r.dtype);
  return r.powers ? ms_power_below(scale) : scale;
}

template <int BAND, class X, class V>
__global__ void __launch_bounds__(THREADS) round_band(const X *x, V *values, rounding r) {
  __shared__ unsigned magnitude[WIDTH];
  const band own = find_band<BAND>(r, blockIdx.x / r.chunks);
  if (own.begin >= own.end) return;
  const int64_t first = blockIdx.x % r.chunks * WIDTH;
  const bool all = r.chunks == 1 && r.wide > WIDTH; /* a tile is wider than the threads */
  const int64_t column = first + threadIdx.x % WIDTH, step = all ? WIDTH : r.columns;
  const int tile = all ? 0 : static_cast<int>(threadIdx.x % WIDTH / r.wide);
  if (threadIdx.x < WIDTH) magnitude[threadIdx.x] = 0;
  __syncthreads();
  uint32_t most = 0;
  for (int64_t row = own.begin + threadIdx.x / WIDTH; row < own.end; row += DOWN)
    for (int64_t i = column; i < r.columns; i += step) {
      const uint32_t size = ms_magnitude(ms_element_load(x + row * r.columns + i));
      most = size > most ? size : most;
    }
  atomicMax(&magnitude[tile], most);
  __syncthreads();
  const float scale = scale_of(r, magnitude[tile]), inverse = 1.0f / scale;
  for (int64_t row = own.begin + threadIdx.x / WIDTH; row < own.end; row += DOWN)
    for (int64_t i = column; i < r.columns; i += step) {
      const int64_t at = row * r.columns + i;
      const uint8_t code = ms_code_of(ms_element_load(x + at) * scale, r.dtype);
      ms_element_store(values + at, ms_value_of(code, r.dtype) * inverse);
    }
}

struct task {
  const ms_kernel_call *call;
  const void *x;
  int x_dtype;
  int64_t rows; /* of all groups */
  rounding r;
};

template <int BAND, class X, class V> int launch(const task &t, V *values) {
  const int64_t groups = t.r.groups.groups, rows = BAND ? BAND : 1;
  const int64_t by_offsets = BAND == 1 ? t.rows : BAND ? ms_cuda_ceil(t.rows, rows) + groups + 1 : groups;
  const int64_t bands = t.r.each && BAND != 1 ? groups * (BAND ? ms_cuda_ceil(t.r.each, rows) : 1) : by_offsets;
  if (bands * t.r.chunks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((round_band<BAND, X, V>), static_cast<unsigned>(bands * t.r.chunks), THREADS, 0, t.call->stream,
                        static_cast<const X *>(t.x), values, t.r);
}

/* band 0: all rows of a group. */
template <class X, class V> int launch_band(const task &t, int64_t band, V *values) {
  switch (band) {
    case 1: return launch<1, X, V>(t, values);
    case MS_MX_BLOCK: return launch<MS_MX_BLOCK, X, V>(t, values);
    case MS_F8_SIDE: return launch<MS_F8_SIDE, X, V>(t, values);
    default: return launch<0, X, V>(t, values);
  }
}

template <class V> int round_to(const task &t, int64_t band, V *values) {
  return MS_CUDA_FLOATS(t.x_dtype, X, (launch_band<X, V>(t, band, values)));
}

} // namespace

int ms_grouped_round_run(const ms_kernel_call *call, const ms_grouped_f8 *f8, int which, void *values) {
  const ms_f8_operand *o = which ? &f8->f8.b : &f8->f8.a;
  const ms_value_info *x = &call->in[which];
  const int64_t columns = x->dims[x->ndim - 1], each = x->ndim == 3 ? x->dims[1] : 0;
  /* Where a tile has all rows of a group, this is 0, which no other tile has. */
  const ms_f8_tile tile = ms_f8_tile_of(o, 0, columns);
  const int64_t chunks = tile.columns < columns ? ms_cuda_ceil(columns, static_cast<int64_t>(WIDTH)) : 1;
  const task t = {call,
                  call->in_data[which],
                  x->dtype,
                  columns ? ms_numel(x) / columns : 0,
                  {ms_groups_of(call), each, columns, tile.columns, chunks, o->dtype, f8->f8.powers, f8->f8.e8m0}};
  return MS_CUDA_FLOATS(f8->dtype, V, round_to<V>(t, tile.rows, static_cast<V *>(values)));
}
