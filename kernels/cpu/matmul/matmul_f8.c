/* matmul_f8.c - products of operands rounded to 8 bits on the CPU, which has no arithmetic for them: the values of the
 * codes, which bf16 holds exactly, are multiplied by the kernel of matmul with f32 sums, and divided by the scales. So
 * products are those of a GPU up to the order of the sums. A weight that comes as codes is only decoded. Scales of
 * blocks change along the sum, so values are divided by them before; in f32, where that is not exact in bf16.
 *
 * Workspace: for each operand its scales, and the values of its codes, laid out like the operand; the product in f32
 * where the result is bf16; and matmul's own.
 */
#include "kernels/cpu/block.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/matmul/f8_tiles.h"
#include "kernels/cpu/parallel.h"
#include "kernels/formats/quantise_code.h"

enum { ALIGNMENT = 64 };

/* Places in the workspace, in bytes. */
typedef struct prepared_f8 {
  ms_f8 f8;
  int64_t scales[2], values[2], product, inner;
  ms_kernel_call matmul;
} prepared_f8;

/* An operand on its way: stored as [rows][columns]; `across` if a scale belongs to a column. */
typedef struct rounding {
  const void *x;
  int bf16, dtype, powers, by_rows, across;
  int64_t rows, columns, scales;
  float *scale;    /* [scales]; while they are found, the bits of magnitudes, [rows] or [columns] */
  ms_bf16 *values; /* of codes; with blocks in the dtype that holds them divided by their scales */
} rounding;

/* ---- scales ------------------------------------------------------------------------------------------------------ */

MS_INLINE void magnitudes_along(const rounding *r, int64_t begin, int64_t end, int bf16) {
  uint32_t *magnitude = (uint32_t *)(void *)r->scale;
  for (int64_t row = begin; row < end; row++) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < r->columns; i++) {
      const uint32_t size = ms_magnitude(ms_simd_load(r->x, row * r->columns + i, bf16));
      most = size > most ? size : most;
    }
    magnitude[row] = most;
  }
}

MS_INLINE void magnitudes_across(const rounding *r, int64_t begin, int64_t end, int bf16) {
  uint32_t *magnitude = (uint32_t *)(void *)r->scale;
  for (int64_t i = begin; i < end; i++) magnitude[i] = 0;
  for (int64_t row = 0; row < r->rows; row++)
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
      const uint32_t size = ms_magnitude(ms_simd_load(r->x, row * r->columns + i, bf16));
      magnitude[i] = size > magnitude[i] ? size : magnitude[i];
    }
}

MS_CLONES static void find_along(const void *of, int64_t begin, int64_t end) {
  const rounding *r = of;
  if (r->bf16) magnitudes_along(r, begin, end, 1);
  else magnitudes_along(r, begin, end, 0);
}

MS_CLONES static void find_across(const void *of, int64_t begin, int64_t end) {
  const rounding *r = of;
  if (r->bf16) magnitudes_across(r, begin, end, 1);
  else magnitudes_across(r, begin, end, 0);
}

static float scale_of(const rounding *r, uint32_t magnitude) {
  const float scale = ms_tensor_scale(magnitude, r->dtype);
  return r->powers ? ms_power_below(scale) : scale;
}

static void find_scales(const ms_kernel_call *call, const rounding *r, int64_t bytes) {
  const int across = r->by_rows && r->across;
  if (across) ms_f8_divide(call, r->columns, MS_BLOCK, bytes, find_across, r);
  else ms_f8_divide(call, r->rows, 1, bytes, find_along, r);
  uint32_t *magnitude = (uint32_t *)(void *)r->scale, most = 0;
  for (int64_t i = 0; !r->by_rows && i < r->rows; i++) most = magnitude[i] > most ? magnitude[i] : most;
  for (int64_t i = 0; i < r->scales; i++) r->scale[i] = scale_of(r, r->by_rows ? magnitude[i] : most);
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

/* The value of a code has at most 4 significant bits, so the low half of its float is 0. */
MS_INLINE ms_bf16 rounded(float x, float scale, int dtype) {
  return (ms_bf16)(ms_float8_bits(ms_value_of(ms_code_of(x * scale, dtype), dtype)) >> 16);
}

MS_INLINE void round_as(const rounding *r, int64_t begin, int64_t end, int bf16, int dtype) {
  for (int64_t row = begin; row < end; row++) {
    const int64_t first = row * r->columns;
    const float *scale = r->scale, one = r->scale[r->by_rows && !r->across ? row : 0];
    ms_bf16 *values = r->values + first;
    if (r->by_rows && r->across) {
#pragma omp simd
      for (int64_t i = 0; i < r->columns; i++)
        values[i] = rounded(ms_simd_load(r->x, first + i, bf16), scale[i], dtype);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < r->columns; i++) values[i] = rounded(ms_simd_load(r->x, first + i, bf16), one, dtype);
    }
  }
}

MS_CLONES static void round_rows(const void *of, int64_t begin, int64_t end) {
  const rounding *r = of;
  const int e4m3 = r->dtype == MS_F8E4M3;
  if (r->bf16 && e4m3) round_as(r, begin, end, 1, MS_F8E4M3);
  else if (r->bf16) round_as(r, begin, end, 1, MS_F8E5M2);
  else if (e4m3) round_as(r, begin, end, 0, MS_F8E4M3);
  else round_as(r, begin, end, 0, MS_F8E5M2);
}

/* ---- scales of blocks, by which values are divided here ---------------------------------------------------------- */

static void round_blocks(const ms_kernel_call *call, const rounding *r, const ms_f8 *f8, const ms_f8_operand *o) {
  const ms_f8_matrix m = {.x = r->x,
                          .x_dtype = f8->product.dtype,
                          .dtype = r->dtype,
                          .powers = r->powers,
                          .e8m0 = f8->e8m0,
                          .rows = r->rows,
                          .columns = r->columns,
                          .tile = ms_f8_tile_of(o, r->rows, r->columns),
                          .scales = r->scale,
                          .values = r->values};
  ms_f8_round_tiles(call, &m);
  r->scale[0] = 1;
}

/* ---- codes that were made before --------------------------------------------------------------------------------- */

MS_CLONES static void decode_rows(const void *of, int64_t begin, int64_t end) {
  const rounding *r = of;
  const uint8_t *restrict codes = r->x;
  ms_bf16 *restrict values = r->values;
#pragma omp simd
  for (int64_t i = begin * r->columns; i < end * r->columns; i++)
    values[i] = (ms_bf16)(ms_float8_bits(ms_value_of(codes[i], MS_F8E4M3)) >> 16);
}

static void take_codes(const ms_kernel_call *call, const rounding *r) {
  ms_f8_divide(call, r->rows, 1, r->rows * r->columns, decode_rows, r);
  r->scale[0] = 1.0f / *(const float *)call->in_data[MS_F8_SCALE_INPUT];
}

static rounding rounding_of(const ms_kernel_call *call, int which) {
  const prepared_f8 *p = call->prepared;
  const ms_f8_operand *o = which ? &p->f8.b : &p->f8.a;
  char *workspace = call->workspace;
  return (rounding){.x = call->in_data[which],
                    .bf16 = p->f8.product.dtype == MS_BF16,
                    .dtype = o->dtype,
                    .powers = p->f8.powers,
                    .by_rows = o->by_rows,
                    .across = o->turned,
                    .rows = o->turned ? p->f8.product.k : o->rows,
                    .columns = o->turned ? o->rows : p->f8.product.k,
                    .scales = ms_f8_scales(&p->f8, o),
                    .scale = (float *)(void *)(workspace + p->scales[which]),
                    .values = (ms_bf16 *)(void *)(workspace + p->values[which])};
}

static void round_operand(const ms_kernel_call *call, int which) {
  const prepared_f8 *p = call->prepared;
  const rounding r = rounding_of(call, which);
  if (p->f8.coded && which == MS_F8_CODES_INPUT) {
    take_codes(call, &r);
    return;
  }
  const int64_t bytes = r.rows * r.columns * ms_dtype_size(call->in[which].dtype);
  const ms_f8_operand *o = which ? &p->f8.b : &p->f8.a;
  if (o->block) {
    round_blocks(call, &r, &p->f8, o);
    return;
  }
  find_scales(call, &r, bytes);
  ms_f8_divide(call, r.rows, 1, bytes, round_rows, &r);
  for (int64_t i = 0; i < r.scales; i++) r.scale[i] = 1.0f / r.scale[i];
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

/* c[first .. first + n) of a row: the sums divided by the scales, plus the bias. */
MS_CLONES static void finish_block(const ms_kernel_call *call, const float *sums, int64_t row, int64_t first,
                                   int64_t n) {
  const prepared_f8 *p = call->prepared;
  const float *a = (const float *)(const void *)((char *)call->workspace + p->scales[0]);
  const float *b = (const float *)(const void *)((char *)call->workspace + p->scales[1]) + (p->f8.by_rows ? first : 0);
  const int64_t at = row * p->f8.product.n + first;
  const float of_row = a[p->f8.by_rows ? row : 0];
  MS_BLOCK_BUFFER(bias);
  MS_BLOCK_BUFFER(x);
  ms_block_fill(bias, 0, n);
  if (p->f8.product.bias_dtype >= 0) ms_widen(ms_f8_bias(call, &p->f8), p->f8.product.bias_dtype, first, n, bias);
  if (p->f8.by_rows) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = sums[i] * of_row * b[i] + bias[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] = sums[i] * of_row * b[0] + bias[i];
  }
  ms_activate_row(x, n, p->f8.product.activation);
  if (p->f8.product.c_dtype == MS_F32) memcpy((float *)call->out_data[0] + at, x, (size_t)n * sizeof *x);
  else ms_narrow((ms_bf16 *)call->out_data[0] + at, x, n);
}

static const float *sums_of(const ms_kernel_call *call) {
  const prepared_f8 *p = call->prepared;
  if (p->f8.product.c_dtype == MS_F32) return call->out_data[0];
  return (const float *)(const void *)((char *)call->workspace + p->product);
}

static void finish_rows(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const prepared_f8 *p = call->prepared;
  const int64_t n = p->f8.product.n;
  (void)part;
  for (int64_t row = begin; row < end; row++)
    for (int64_t first = 0; first < n; first += MS_BLOCK)
      finish_block(call, sums_of(call) + row * n + first, row, first, ms_block_length(first, n));
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static const ms_kernel *matmul(void) { return ms_cpu_kernel(MS_OP_matmul); }

static int64_t take(int64_t *total, int64_t bytes) {
  const int64_t at = *total;
  *total += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

static int values_dtype(const ms_kernel_call *call, const ms_f8 *f8) {
  return ms_f8_values_dtype((int)call->attrs.product.recipe, f8->a.block > 0);
}

/* The call of matmul that multiplies the values. */
static ms_kernel_call matmul_of(const ms_kernel_call *call, const ms_f8 *f8) {
  ms_kernel_call made = {.op = MS_OP_matmul, .inputs = 2, .outputs = 1, .threads = call->threads};
  made.attrs.product.trans_a = call->attrs.product.trans_a;
  made.attrs.product.trans_b = call->attrs.product.trans_b;
  made.attrs.out_dtype = 1 + MS_F32;
  for (int i = 0; i < 2; i++) {
    made.in[i] = call->in[i];
    made.in[i].dtype = values_dtype(call, f8);
  }
  made.out[0] = call->out[0];
  made.out[0].dtype = MS_F32;
  return made;
}

static void place(const ms_kernel_call *call, prepared_f8 *p, int64_t *total) {
  const ms_product *of = &p->f8.product;
  const int64_t rows[2] = {of->m, of->n};
  const ms_f8_operand *operand[2] = {&p->f8.a, &p->f8.b};
  for (int i = 0; i < 2; i++) {
    const int turned = operand[i]->turned;
    const int64_t longest = rows[i] > of->k ? rows[i] : of->k, down = turned ? of->k : rows[i],
                  across = turned ? rows[i] : of->k,
                  tiles = ms_f8_tiles(ms_f8_tile_of(operand[i], down, across), down, across);
    p->scales[i] = take(total, (operand[i]->block ? tiles + 1 : longest) * (int64_t)sizeof(float));
    p->values[i] = take(total, rows[i] * of->k * ms_dtype_size(values_dtype(call, &p->f8)));
  }
  p->product = take(total, call->out[0].dtype == MS_F32 ? 0 : of->m * of->n * (int64_t)sizeof(float));
  p->inner = *total;
}

static int prepare(ms_kernel_call *call) {
  int64_t total = 0;
  prepared_f8 *p = ms_calloc(1, sizeof *p);
  if (!p) return MS_ENOMEM;
  int rc = ms_f8_of(call, &p->f8);
  if (!rc) {
    p->matmul = matmul_of(call, &p->f8);
    rc = matmul()->prepare(&p->matmul);
  }
  if (rc) {
    free(p);
    return rc;
  }
  place(call, p, &total);
  call->workspace_bytes = total + p->matmul.workspace_bytes;
  call->prepared = p;
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  const prepared_f8 *p = call->prepared;
  const int64_t m = p->f8.product.m;
  char *workspace = call->workspace;
  ms_kernel_call inner = p->matmul;
  for (int i = 0; i < 2; i++) {
    round_operand(call, i);
    inner.in_data[i] = workspace + p->values[i];
  }
  inner.out_data[0] = (void *)sums_of(call);
  inner.workspace = workspace + p->inner;
  inner.scalars = call->scalars;
  MS_TRY(matmul()->run(&inner));
  ms_run_parts(call, ms_part_count(call, m, ms_call_bytes(call)), m, 1, finish_rows);
  return MS_OK;
}

static void release(void *data) {
  prepared_f8 *p = data;
  if (p) matmul()->release(p->matmul.prepared);
  free(p);
}

const ms_kernel ms_cpu_matmul_f8 = {.prepare = prepare, .run = run, .release = release};
