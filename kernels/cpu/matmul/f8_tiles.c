/* f8_tiles.c - see the header. Tiles are 1 x 128, 128 x 1, 128 x 128, 1 x 32, 32 x 1, a row, a column or all: one loop
 * for all of them, over spans of columns, in which each column has its magnitude and its scale. So loops over columns
 * are of vectors whichever way a tile lies.
 */
#include "kernels/cpu/matmul/f8_tiles.h"

#include "base/numbers/dtype.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/team.h"
#include "kernels/formats/quantise_code.h"

/* Columns of a span, a multiple of those of every tile that is not as wide as the matrix. */
enum { SPAN = 256 };

typedef struct split {
  const void *of;
  void (*run)(const void *of, int64_t begin, int64_t end);
  int64_t count, grain;
  int parts;
} split;

static void run_part(void *context, int part) {
  const split *s = context;
  const int64_t grains = (s->count + s->grain - 1) / s->grain;
  const int64_t begin = grains * part / s->parts * s->grain, end = grains * (part + 1) / s->parts * s->grain;
  s->run(s->of, begin, end < s->count ? end : s->count);
}

void ms_f8_divide(const ms_kernel_call *call, int64_t count, int64_t grain, int64_t bytes,
                  void (*run)(const void *of, int64_t begin, int64_t end), const void *of) {
  split s = {of, run, count, grain, ms_part_count(call, (count + grain - 1) / grain, bytes)};
  if (s.parts > 1) ms_team_run(s.parts, run_part, &s);
  else run(of, 0, count);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- scales ------------------------------------------------------------------------------------------------------ */

static float scale_of(const ms_f8_matrix *m, uint32_t magnitude) {
  if (m->e8m0) return ms_mx_inverse(ms_mx_scale(magnitude, m->dtype, MS_MX_RCEIL));
  const float scale = ms_tensor_scale(magnitude, m->dtype);
  return m->powers ? ms_power_below(scale) : scale;
}

/* The largest magnitudes of n columns from `first` on, over a tile's rows. */
MS_INLINE void find_columns(const ms_f8_matrix *m, int64_t row, int64_t end, int64_t first, int64_t n, int bf16,
                            uint32_t *most) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) most[i] = 0;
  for (; row < end; row++)
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const uint32_t size = ms_magnitude(ms_simd_load(m->x, row * m->columns + first + i, bf16));
      most[i] = size > most[i] ? size : most[i];
    }
}

/* A row of tiles; `scales` has the bits of their magnitudes until all of its columns are read. */
MS_INLINE void find_band(const ms_f8_matrix *m, int64_t band, int bf16) {
  const int64_t row = band * m->tile.rows, end = least(row + m->tile.rows, m->rows), wide = m->tile.columns;
  const int64_t tiles = (m->columns + wide - 1) / wide;
  float *scales = m->scales + band * tiles;
  uint32_t *magnitudes = (uint32_t *)(void *)scales, most[SPAN];
  for (int64_t i = 0; i < tiles; i++) magnitudes[i] = 0;
  for (int64_t first = 0; first < m->columns; first += SPAN) {
    const int64_t n = least(SPAN, m->columns - first);
    find_columns(m, row, end, first, n, bf16, most);
    for (int64_t i = 0; i < n;) {
      const int64_t tile = (first + i) / wide, stop = least((tile + 1) * wide - first, n);
      uint32_t size = magnitudes[tile];
      for (; i < stop; i++) size = most[i] > size ? most[i] : size;
      magnitudes[tile] = size;
    }
  }
  for (int64_t i = 0; i < tiles; i++) scales[i] = scale_of(m, magnitudes[i]);
}

MS_CLONES static void find_bands(const void *of, int64_t begin, int64_t end) {
  const ms_f8_matrix *m = of;
  for (int64_t band = begin; band < end; band++)
    if (m->x_dtype == MS_BF16) find_band(m, band, 1);
    else find_band(m, band, 0);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A code has at most 4 significant bits, so with a power of two the low half of its value is 0. */
MS_INLINE void round_span(const ms_f8_matrix *m, int64_t at, int64_t n, const float *scale, const float *inverse,
                          int bf16, int dtype, int powers) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float value = ms_value_of(ms_code_of(ms_simd_load(m->x, at + i, bf16) * scale[i], dtype), dtype) * inverse[i];
    if (powers) ((ms_bf16 *)m->values)[at + i] = (ms_bf16)(ms_float8_bits(value) >> 16);
    else ((float *)m->values)[at + i] = value;
  }
}

MS_INLINE void round_as(const ms_f8_matrix *m, int64_t at, int64_t n, const float *scale, const float *inverse,
                        int bf16, int dtype) {
  if (m->powers) round_span(m, at, n, scale, inverse, bf16, dtype, 1);
  else round_span(m, at, n, scale, inverse, bf16, dtype, 0);
}

MS_CLONES static void round_rows(const void *of, int64_t begin, int64_t end) {
  const ms_f8_matrix *m = of;
  const int64_t wide = m->tile.columns, tiles = (m->columns + wide - 1) / wide;
  float scale[SPAN], inverse[SPAN];
  for (int64_t row = begin; row < end; row++)
    for (int64_t first = 0; first < m->columns; first += SPAN) {
      const int64_t n = least(SPAN, m->columns - first), at = row * m->columns + first;
      const float *scales = m->scales + row / m->tile.rows * tiles;
      for (int64_t i = 0; i < n;) {
        const int64_t tile = (first + i) / wide, stop = least((tile + 1) * wide - first, n);
        const float own = scales[tile], back = 1.0f / own;
        for (; i < stop; i++) scale[i] = own, inverse[i] = back;
      }
      if (m->x_dtype == MS_BF16 && m->dtype == MS_F8E4M3) round_as(m, at, n, scale, inverse, 1, MS_F8E4M3);
      else if (m->x_dtype == MS_BF16) round_as(m, at, n, scale, inverse, 1, MS_F8E5M2);
      else if (m->dtype == MS_F8E4M3) round_as(m, at, n, scale, inverse, 0, MS_F8E4M3);
      else round_as(m, at, n, scale, inverse, 0, MS_F8E5M2);
    }
}

void ms_f8_round_tiles(const ms_kernel_call *call, const ms_f8_matrix *m) {
  const int64_t bytes = m->rows * m->columns * ms_dtype_size(m->x_dtype);
  if (!bytes) return;
  ms_f8_divide(call, (m->rows + m->tile.rows - 1) / m->tile.rows, 1, bytes, find_bands, m);
  ms_f8_divide(call, m->rows, 1, bytes, round_rows, m);
}
