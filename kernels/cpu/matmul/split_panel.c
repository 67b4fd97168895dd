/* split_panel.c - f32 in three bf16 parts: packing and the product of two panels; see split_panel.h. */
#include "kernels/cpu/matmul/split_panel.h"

#include <stddef.h>
#include <string.h>

#include "base/env.h"
#include "kernels/cpu/matmul/bf16_block.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/target.h"

#if defined(__x86_64__)

MS_TARGET_BEGIN("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")

enum { TILE = 16, TILE_BYTES = 1024, PARTS = 3, HALVES = 2 };

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Pairs of bf16(x), bf16(y): x in the low half of each 32 bits. */
MS_INLINE __m512i pairs_of(__m512 x, __m512 y) {
  const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                              6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

/* The same for numbers that bf16 represents exactly. */
MS_INLINE __m512i upper_pairs_of(__m512 x, __m512 y) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(x), 16);
  return _mm512_ternarylogic_epi32(low, _mm512_castps_si512(y), _mm512_set1_epi32((int)0xffff0000u), 0xf8);
}

MS_INLINE __m512 low_of(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

MS_INLINE __m512 high_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Splits 16 pairs and writes one row in each of the three parts' tiles. */
MS_INLINE void split_row(char *row, __m512 x, __m512 y) {
  const __m512i first = pairs_of(x, y);
  x = _mm512_sub_ps(x, low_of(first)), y = _mm512_sub_ps(y, high_of(first));
  const __m512i second = pairs_of(x, y);
  x = _mm512_sub_ps(x, low_of(second)), y = _mm512_sub_ps(y, high_of(second));
  _mm512_store_si512(row, first);
  _mm512_store_si512(row + HALVES * TILE_BYTES, second);
  _mm512_store_si512(row + 2 * HALVES * TILE_BYTES, upper_pairs_of(x, y));
}

MS_INLINE __mmask16 first_lanes(int64_t count) {
  return count >= TILE ? (__mmask16)0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* Row i of a block with `rows` rows and the columns of the mask; zeros outside. */
MS_INLINE __m512 load_row(const float *x, int64_t stride, int64_t i, int64_t rows, __mmask16 columns) {
  return i < rows ? _mm512_maskz_loadu_ps(columns, x + i * stride) : _mm512_setzero_ps();
}

/* x[i] = column i of the block data [16][16], of which `rows` rows and the masked columns exist. */
MS_INLINE void load_transposed(__m512 *x, const float *data, int64_t stride, int64_t rows, __mmask16 columns) {
  __m512 y[TILE];
  #pragma GCC unroll 16
  for (int i = 0; i < TILE; i++) x[i] = load_row(data, stride, i, rows, columns);
  #pragma GCC unroll 4
  for (int i = 0; i < TILE; i += 4) {
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1])),
                  high01 = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1])),
                  low23 = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3])),
                  high23 = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
    y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
    y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
    y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
  }
  #pragma GCC unroll 4
  for (int i = 0; i < 4; i++) { /* y[4 r + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 r to 4 r + 3 */
    const __m512 low0 = _mm512_shuffle_f32x4(y[i], y[4 + i], 0x44), high0 = _mm512_shuffle_f32x4(y[i], y[4 + i], 0xee),
                 low1 = _mm512_shuffle_f32x4(y[8 + i], y[12 + i], 0x44),
                 high1 = _mm512_shuffle_f32x4(y[8 + i], y[12 + i], 0xee);
    x[i] = _mm512_shuffle_f32x4(low0, low1, 0x88);
    x[4 + i] = _mm512_shuffle_f32x4(low0, low1, 0xdd);
    x[8 + i] = _mm512_shuffle_f32x4(high0, high1, 0x88);
    x[12 + i] = _mm512_shuffle_f32x4(high0, high1, 0xdd);
  }
}

/* Packs the tiles of one half of a step: x holds elements 0 to 15 of k, y elements 16 to 31. Each block has
 * x_rows or y_rows rows, and x_columns or y_columns columns. */
MS_INLINE void pack_tiles(char *tiles, const float *x, const float *y, int64_t stride, int64_t x_rows, int64_t y_rows,
                          __mmask16 x_columns, __mmask16 y_columns, int transpose) {
  if (transpose) {
    __m512 rows[2][TILE];
    load_transposed(rows[0], x, stride, x_rows, x_columns);
    load_transposed(rows[1], y, stride, y_rows, y_columns);
    for (int i = 0; i < TILE; i++) split_row(tiles + i * 64, rows[0][i], rows[1][i]);
  } else {
    for (int i = 0; i < TILE; i++)
      split_row(tiles + i * 64, load_row(x, stride, i, x_rows, x_columns), load_row(y, stride, i, y_rows, y_columns));
  }
}

MS_INLINE void pack_half(char *tiles, const ms_split_operand *operand, int64_t row, int64_t rows, int64_t k_first,
                         int64_t k, int transpose) {
  const int64_t stride = operand->stride;
  if (operand->k_inside) {
    const float *x = operand->data + row * stride + k_first;
    if (rows >= TILE && k >= 2 * TILE) pack_tiles(tiles, x, x + TILE, stride, TILE, TILE, 0xffff, 0xffff, transpose);
    else pack_tiles(tiles, x, x + TILE, stride, rows, rows, first_lanes(k), first_lanes(k - TILE), transpose);
  } else {
    const float *x = operand->data + k_first * stride + row, *y = x + TILE * stride;
    if (rows >= TILE && k >= 2 * TILE) pack_tiles(tiles, x, y, stride, TILE, TILE, 0xffff, 0xffff, transpose);
    else pack_tiles(tiles, x, y, stride, k, k - TILE, first_lanes(rows), first_lanes(rows), transpose);
  }
}

MS_INLINE void pack_step(char *step, const ms_split_operand *x, int64_t row, int64_t rows, int64_t k_first, int64_t k,
                         int transpose) {
  pack_half(step, x, row, rows, k_first, k, transpose);
  pack_half(step + TILE_BYTES, x, row + TILE, rows - TILE, k_first, k, transpose);
}

/* Reads the operand in the order of its memory: panel by panel if k is the inner dimension, otherwise step by step. */
MS_INLINE void pack(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k,
                    int transpose) {
  const int64_t panel_bytes = ms_split_panel_bytes(k);
  if (x->k_inside) {
    for (int64_t r = 0; r < rows; r += MS_SPLIT_GRAIN)
      for (int64_t i = 0; i < k; i += MS_SPLIT_GRAIN)
        pack_step(panels + r / MS_SPLIT_GRAIN * panel_bytes + i / MS_SPLIT_GRAIN * MS_SPLIT_STEP_BYTES, x, first + r,
                  rows - r, k_first + i, k - i, transpose);
  } else {
    for (int64_t i = 0; i < k; i += MS_SPLIT_GRAIN)
      for (int64_t r = 0; r < rows; r += MS_SPLIT_GRAIN)
        pack_step(panels + r / MS_SPLIT_GRAIN * panel_bytes + i / MS_SPLIT_GRAIN * MS_SPLIT_STEP_BYTES, x, first + r,
                  rows - r, k_first + i, k - i, transpose);
  }
}

void ms_split_pack_a(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k) {
  if (x->k_inside) pack(panels, x, first, rows, k_first, k, 0);
  else pack(panels, x, first, rows, k_first, k, 1);
}

void ms_split_pack_b(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k) {
  if (x->k_inside) pack(panels, x, first, rows, k_first, k, 1);
  else pack(panels, x, first, rows, k_first, k, 0);
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

  #define LOAD(tile, step, part, half) \
    _tile_loadd(tile, (step) + ((part)*HALVES + (half)) * TILE_BYTES, TILE_BYTES / TILE)

MS_INLINE void load_a(const char *step, int part) {
  LOAD(4, step, part, 0);
  LOAD(5, step, part, 1);
}

MS_INLINE void load_b(const char *step, int part) {
  LOAD(6, step, part, 0);
  LOAD(7, step, part, 1);
}

MS_INLINE void multiply(void) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

/* The tile intrinsics do not declare their reads and writes of memory; the fences order them. */
void ms_split_product(float *c, int64_t c_stride, const char *a, const char *b, int64_t steps, const float *start,
                      int64_t start_stride) {
  __asm__ volatile("" : : : "memory");
  if (start) {
    _tile_loadd(0, start, start_stride * 4);
    _tile_loadd(1, start + TILE, start_stride * 4);
    _tile_loadd(2, start + TILE * start_stride, start_stride * 4);
    _tile_loadd(3, start + TILE * start_stride + TILE, start_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < steps; i++, a += MS_SPLIT_STEP_BYTES, b += MS_SPLIT_STEP_BYTES) {
    load_a(a, 2), load_b(b, 0), multiply();
    load_a(a, 1), multiply();
    load_b(b, 1), multiply();
    load_a(a, 0), multiply();
    load_b(b, 2), multiply();
    load_b(b, 0), multiply();
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + TILE, c_stride * 4);
  _tile_stored(2, c + TILE * c_stride, c_stride * 4);
  _tile_stored(3, c + TILE * c_stride + TILE, c_stride * 4);
  __asm__ volatile("" : : : "memory");
}

MS_TARGET_END

#else

void ms_split_pack_a(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k) {
  (void)panels, (void)x, (void)first, (void)rows, (void)k_first, (void)k;
}

void ms_split_pack_b(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first, int64_t k) {
  (void)panels, (void)x, (void)first, (void)rows, (void)k_first, (void)k;
}

void ms_split_product(float *c, int64_t c_stride, const char *a, const char *b, int64_t steps, const float *start,
                      int64_t start_stride) {
  (void)c, (void)c_stride, (void)a, (void)b, (void)steps, (void)start, (void)start_stride;
}

#endif

int ms_split_available(void) { return ms_bf16_tiles_of_cpu() != NULL; }

int ms_split_enabled(void) {
  const char *choice = ms_env_string("MOONSHARD_MATMUL", "auto");
  return ms_split_available() && (!strcmp(choice, "auto") || !strcmp(choice, "split"));
}

void ms_split_begin(void) { ms_bf16_tiles_of_cpu()->begin(); }

void ms_split_end(void) { ms_bf16_tiles_of_cpu()->end(); }
