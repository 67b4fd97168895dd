/* bf16_block.c - products of bf16 blocks; see bf16_block.h. */
#include "kernels/cpu/matmul/bf16_block.h"

#include <stddef.h>

#include "kernels/cpu/target.h"

#if defined(__x86_64__)
  #include <pthread.h>
  #include <sys/syscall.h>
  #include <unistd.h>

MS_TARGET_BEGIN("arch=x86-64-v4,avx512bf16,amx-tile,amx-bf16")

/* ---- AMX: tiles of 16 x 16 sums, four at a time ------------------------------------------------------------------ */

/* Every tile register has 16 rows of 64 bytes. Constant, because the intrinsic declares only a read of the first bytes,
 * and the compiler could drop stores to the rest. */
static const struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} __attribute__((aligned(64)))
tile_shapes = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

static void begin_tiles(void) { _tile_loadconfig(&tile_shapes); }

static void end_tiles(void) { _tile_release(); }

/* A 32 x 32 block of c. The tile intrinsics do not declare their reads and writes of memory; the fences in
 * product_by_tiles order them. */
static inline void product_tile(float *c, int64_t c_stride, const ms_bf16 *a, int64_t a_stride, const uint32_t *b,
                                int64_t b_stride, int64_t k, int add) {
  float *lower = c + 16 * c_stride;
  const ms_bf16 *a_lower = a + 16 * a_stride;
  if (add) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + 16, c_stride * 4);
    _tile_loadd(2, lower, c_stride * 4);
    _tile_loadd(3, lower + 16, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < k; i += 32) {
    const uint32_t *row = b + i / 2 * b_stride;
    _tile_loadd(6, row, b_stride * 4);
    _tile_loadd(4, a + i, a_stride * 2);
    _tile_loadd(7, row + 16, b_stride * 4);
    _tile_loadd(5, a_lower + i, a_stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
  _tile_stored(2, lower, c_stride * 4);
  _tile_stored(3, lower + 16, c_stride * 4);
}

static void product_by_tiles(float *c, int64_t c_stride, const ms_bf16 *a, int64_t a_stride, const uint32_t *b,
                             int64_t b_stride, int64_t m, int64_t n, int64_t k, int add) {
  __asm__ volatile("" : : : "memory");
  for (int64_t j = 0; j < n; j += 32)
    for (int64_t i = 0; i < m; i += 32)
      product_tile(c + i * c_stride + j, c_stride, a + i * a_stride, a_stride, b + j, b_stride, k, add);
  __asm__ volatile("" : : : "memory");
}

/* ---- AVX512_BF16: register tiles of 8 x 32 sums ------------------------------------------------------------------ */

enum { DOT_ROWS = 8 };

static inline void dot_tile(float *c, int64_t c_stride, const ms_bf16 *a, int64_t a_stride, const uint32_t *b,
                            int64_t b_stride, int64_t k, int add) {
  __m512 sum[DOT_ROWS][2];
  #pragma GCC unroll 8
  for (int r = 0; r < DOT_ROWS; r++) {
    sum[r][0] = add ? _mm512_loadu_ps(c + r * c_stride) : _mm512_setzero_ps();
    sum[r][1] = add ? _mm512_loadu_ps(c + r * c_stride + 16) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < k; i += 2) {
    const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + i / 2 * b_stride);
    const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + i / 2 * b_stride + 16);
  #pragma GCC unroll 8
    for (int r = 0; r < DOT_ROWS; r++) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * a_stride + i, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
    }
  }
  #pragma GCC unroll 8
  for (int r = 0; r < DOT_ROWS; r++) {
    _mm512_storeu_ps(c + r * c_stride, sum[r][0]);
    _mm512_storeu_ps(c + r * c_stride + 16, sum[r][1]);
  }
}

static void product_by_dots(float *c, int64_t c_stride, const ms_bf16 *a, int64_t a_stride, const uint32_t *b,
                            int64_t b_stride, int64_t m, int64_t n, int64_t k, int add) {
  for (int64_t j = 0; j < n; j += 32)
    for (int64_t i = 0; i < m; i += DOT_ROWS)
      dot_tile(c + i * c_stride + j, c_stride, a + i * a_stride, a_stride, b + j, b_stride, k, add);
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

void ms_bf16_pair_rows(uint32_t *y, int64_t y_stride, const ms_bf16 *x, int64_t x_stride, int64_t rows,
                       int64_t columns) {
  for (int64_t r = 0; r < rows; r += 2)
    for (int64_t c = 0; c < columns; c += 16) {
      const __m256i even = _mm256_loadu_si256((const void *)(x + r * x_stride + c));
      const __m256i odd = _mm256_loadu_si256((const void *)(x + (r + 1) * x_stride + c));
      const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
      _mm512_storeu_si512(y + r / 2 * y_stride + c, _mm512_or_si512(high, _mm512_cvtepu16_epi32(even)));
    }
}

/* Column quarter `part` of rows i, i + 4, i + 8, i + 12. */
static inline __m512i gather_quarter(const uint32_t *x, int64_t x_stride, int i, int part) {
  const uint32_t *at = x + i * x_stride + 4 * part;
  __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)at));
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(at + 4 * x_stride)), 1);
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(at + 8 * x_stride)), 2);
  return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(at + 12 * x_stride)), 3);
}

/* 16 x 16 words. The loads do the exchange across 128-bit lanes, which halves the number of shuffles. */
static inline void transpose_16(uint32_t *y, int64_t y_stride, const uint32_t *x, int64_t x_stride) {
  #pragma GCC unroll 4
  for (int part = 0; part < 4; part++) {
    const __m512i r0 = gather_quarter(x, x_stride, 0, part), r1 = gather_quarter(x, x_stride, 1, part);
    const __m512i r2 = gather_quarter(x, x_stride, 2, part), r3 = gather_quarter(x, x_stride, 3, part);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    uint32_t *row = y + 4 * part * y_stride;
    _mm512_storeu_si512(row, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(row + y_stride, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(row + 2 * y_stride, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(row + 3 * y_stride, _mm512_unpackhi_epi64(high01, high23));
  }
}

void ms_transpose_32_bits(uint32_t *y, int64_t y_stride, const uint32_t *x, int64_t x_stride, int64_t rows,
                          int64_t columns) {
  for (int64_t r = 0; r < rows; r += 16)
    for (int64_t c = 0; c < columns; c += 16)
      transpose_16(y + c * y_stride + r, y_stride, x + r * x_stride + c, x_stride);
}

MS_TARGET_END

/* ---- choice of the unit ------------------------------------------------------------------------------------------ */

static const ms_bf16_unit tile_unit = {begin_tiles, end_tiles, product_by_tiles};
static const ms_bf16_unit dot_unit = {NULL, NULL, product_by_dots};
static const ms_bf16_unit *tiles, *dots;
static pthread_once_t unit_once = PTHREAD_ONCE_INIT;

/* Linux permits the use of tiles only on request, because their state makes signal frames 8 KiB larger. */
static int may_use_tiles(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void choose_unit(void) {
  if (!ms_cpu_multiplies_bf16()) return;
  dots = &dot_unit;
  if (ms_cpu_has_bf16_tiles() && may_use_tiles()) tiles = &tile_unit;
}

const ms_bf16_unit *ms_bf16_tiles_of_cpu(void) {
  pthread_once(&unit_once, choose_unit);
  return tiles;
}

const ms_bf16_unit *ms_bf16_dots_of_cpu(void) {
  pthread_once(&unit_once, choose_unit);
  return dots;
}

#else

const ms_bf16_unit *ms_bf16_tiles_of_cpu(void) { return NULL; }
const ms_bf16_unit *ms_bf16_dots_of_cpu(void) { return NULL; }

#endif

/* Intel's bf16 dot products take as long as two f32 multiply-adds, so packing for them pays off only on AMD. */
const ms_bf16_unit *ms_bf16_unit_of_cpu(void) {
  const ms_bf16_unit *unit = ms_bf16_tiles_of_cpu();
#if defined(__x86_64__)
  if (!unit && __builtin_cpu_is("amd")) unit = ms_bf16_dots_of_cpu();
#endif
  return unit;
}
