/* matmul_f8_plain.cu - products of 8-bit operands where the library does not compute all of it: the scales, bias and
 * activation of its result, in place; or the whole product of the codes, by tiles in f32 arithmetic. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/matmul/matmul_f8_blocks.h"
#include "kernels/cuda/vector.h"

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256;

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

/* ---- the product's end ------------------------------------------------------------------------------------------- */

struct ending {
  int64_t m, n, k;
  const float *a, *b; /* inverse scales; NULL: of blocks */
  const void *bias;
  int by_rows, bias_dtype, activation;
};

__device__ __forceinline__ float ended(const ending &e, float sum, int64_t row, int64_t column) {
  float bias = 0.0f;
  if (e.bias_dtype == MS_BF16) bias = ms_element_load(static_cast<const ms_b16 *>(e.bias) + column);
  else if (e.bias_dtype == MS_F32) bias = static_cast<const float *>(e.bias)[column];
  if (e.a) sum *= e.a[e.by_rows ? row : 0] * e.b[e.by_rows ? column : 0];
  return ms_activate(sum + bias, e.activation);
}

ending ending_of(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory memory[2]) {
  const ms_product &p = f8->product;
  const int blocks = f8->a.block;
  return {p.m,
          p.n,
          p.k,
          blocks ? nullptr : memory[0].inverses,
          blocks ? nullptr : memory[1].inverses,
          ms_f8_bias(call, f8),
          f8->by_rows,
          p.bias_dtype,
          p.activation};
}

template <class Y> __global__ void __launch_bounds__(THREADS) scale_all(Y *c, ending e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < e.m * e.n) ms_element_store(c + i, ended(e, ms_element_load(c + i), i / e.n, i % e.n));
}

/* ---- the product by tiles ---------------------------------------------------------------------------------------- */

constexpr int SIDE = 16;

/* Codes [rows][k] and the scales of their blocks, or NULL: e8m0, or f32 with a pitch. */
struct coded {
  const uint8_t *codes;
  const void *blocks;
  int dtype, e8m0, block, side;
  int64_t pitch;
};

coded coded_of(const ms_f8 *f8, const ms_f8_operand *o, const ms_f8_memory *memory) {
  return {memory->codes,
          o->block ? memory->blocks : nullptr,
          o->dtype,
          f8->e8m0,
          o->block,
          o->side,
          o->block ? ms_f8_scale_pitch(o, f8->product.k) : 0};
}

__device__ __forceinline__ float value_at(const coded &c, int64_t row, int64_t at, int64_t k) {
  const float value = ms_value_of(c.codes[row * k + at], c.dtype);
  if (!c.blocks) return value;
  const int64_t block = at / c.block;
  if (c.e8m0)
    return value * ms_e8m0_to_f32(static_cast<const uint8_t *>(c.blocks)[ms_f8_block_place(row, block, k / c.block)]);
  return value * static_cast<const float *>(c.blocks)[ms_f8_scale_place(row, block, c.side, c.pitch)];
}

/* One thread an element of c; a [m][k], b [n][k]. */
template <class Y>
__global__ void __launch_bounds__(SIDE *SIDE) multiply(coded a, coded b, int64_t across, Y *c, ending e) {
  __shared__ float as[SIDE][SIDE + 1], bs[SIDE][SIDE + 1];
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  const int64_t first_row = blockIdx.x / across * SIDE, first_column = blockIdx.x % across * SIDE;
  const int64_t row = first_row + y, column = first_column + x;
  float sum = 0.0f;
  for (int64_t depth = 0; depth < e.k; depth += SIDE) {
    const int inside = depth + x < e.k;
    as[y][x] = inside && row < e.m ? value_at(a, row, depth + x, e.k) : 0.0f;
    bs[y][x] = inside && first_column + y < e.n ? value_at(b, first_column + y, depth + x, e.k) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIDE; i++) sum += as[y][i] * bs[x][i];
    __syncthreads();
  }
  if (row < e.m && column < e.n) ms_element_store(c + row * e.n + column, ended(e, sum, row, column));
}

} // namespace

extern "C" int ms_f8_scale_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory memory[2]) {
  const ending e = ending_of(call, f8, memory);
  return MS_CUDA_FLOATS(f8->product.c_dtype, Y,
                        MS_CUDA_LAUNCH(scale_all<Y>, grid(e.m * e.n, THREADS), THREADS, 0, call->stream,
                                       static_cast<Y *>(call->out_data[0]), e));
}

extern "C" int ms_f8_plain_run(const ms_kernel_call *call, const ms_f8 *f8, const ms_f8_memory memory[2]) {
  const ending e = ending_of(call, f8, memory);
  const int64_t across = ms_cuda_ceil(e.n, SIDE);
  return MS_CUDA_FLOATS(f8->product.c_dtype, Y,
                        MS_CUDA_LAUNCH(multiply<Y>, static_cast<unsigned>(ms_cuda_ceil(e.m, SIDE) * across),
                                       SIDE * SIDE, 0, call->stream, coded_of(f8, &f8->a, &memory[0]),
                                       coded_of(f8, &f8->b, &memory[1]), across, static_cast<Y *>(call->out_data[0]),
                                       e));
}
