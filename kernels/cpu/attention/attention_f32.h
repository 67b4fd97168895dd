/* attention_f32.h - attention in f32 arithmetic for one instruction set. The including file defines
 *
 *   MS_TARGET_CODE   the name of the ms_attention_code to define
 *   MS_VECTOR_BYTES  bytes of a vector register
 *   MS_TILE_ROWS     rows of a register tile, which is 2 vectors wide and must leave registers for the operands
 *   ms_vector_max    (a, b): elementwise maximum, b where either is NaN
 *
 * Everything except the softmax (attention_vector.h) is products of register tiles, c[r][n] += sum_k a(r,k) b[k][n].
 * They read b by vectors and a by single elements, along rows or columns, so keys and values are never transposed:
 *
 *   forward   s'[key][q] = k q'   o[q][e] += p v               (p reads p'[key][q] by columns)
 *   backward  s' = k q', dp' = v do', ds' = p' (dp' - delta)   dv[key][e] += p' do, dk[key][d] += ds' q, dq[q][d] += ds
 * k
 *
 * Packing multiplies q by scale / ln 2, so that probabilities are powers of 2.
 */
#include "kernels/cpu/attention/attention_vector.h"

enum {
  TILE_ROWS = MS_TILE_ROWS,
  TILE_COLUMNS = 2 * LANES,
  FORWARD_KEYS = 128, /* keys at a time: their scores [keys][QUERIES] stay in L1 */
  BACKWARD_KEYS = 64,
  COLUMN_GRAIN = 32 /* rows are padded to a multiple of this: whole tiles for every instruction set */
};

/* Columns of queries and keys, and of values and results. */
static int64_t padded_columns(const ms_attention *a) { return round_up(a->d, COLUMN_GRAIN); }
static int64_t value_columns(const ms_attention *a) { return round_up(a->e, COLUMN_GRAIN); }

static int64_t padded_keys(const ms_attention *a) { return round_up(a->s, TILE_ROWS); }

/* ---- register tiles ---------------------------------------------------------------------------------------------- */

typedef enum tile_start { FROM_ZERO, ADD, SCALE_AND_ADD } tile_start;

/* c[r][n] = start + sum over i < k of a[r a_row + i a_k] b[i b_stride + n], for one tile of TILE_ROWS x TILE_COLUMNS.
 * start is 0, c[r][n], or (SCALE_AND_ADD) c[r][n] factor[r]. */
MS_INLINE void tile(float *c, int64_t c_stride, const float *a, int64_t a_row, int64_t a_k, const float *b,
                    int64_t b_stride, int64_t k, tile_start start, const float *factor) {
  vector sum[TILE_ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      sum[r][v] = (vector){0};
      if (start != FROM_ZERO) sum[r][v] = *(const vector *)(c + r * c_stride + v * LANES);
      if (start == SCALE_AND_ADD) sum[r][v] = sum[r][v] * factor[r];
    }
  for (int64_t i = 0; i < k; i++) {
    const vector b0 = *(const vector *)(b + i * b_stride), b1 = *(const vector *)(b + i * b_stride + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; r++) {
      const float x = a[r * a_row + i * a_k];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; r++) {
    *(vector *)(c + r * c_stride) = sum[r][0];
    *(vector *)(c + r * c_stride + LANES) = sum[r][1];
  }
}

/* scores[key][q] = sum_d x[key][d] panel[d][q] for `keys` rows of x (rounded up to tiles) and all QUERIES columns */
static void score_keys(float *scores, const float *x, int64_t x_stride, const float *panel, int64_t keys, int64_t d) {
  for (int64_t q = 0; q < QUERIES; q += TILE_COLUMNS)
    for (int64_t r = 0; r < keys; r += TILE_ROWS)
      tile(scores + r * QUERIES + q, QUERIES, x + r * x_stride, x_stride, 1, panel + q, QUERIES, d, FROM_ZERO, NULL);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* y [padded_rows][y_stride] f32 = scale x [rows][d], padded with zeros; the rows of x are `stride` elements apart. */
static void pack_rows(float *y, int64_t y_stride, const void *x, int dtype, int64_t stride, int64_t rows,
                      int64_t padded_rows, int64_t d, float scale) {
  for (int64_t r = 0; r < padded_rows; r++) {
    float *row = y + r * y_stride;
    int64_t filled = r < rows ? d : 0;
    if (dtype == MS_BF16)
      for (int64_t i = 0; i < filled; i++) row[i] = scale * ms_from_bf16(((const ms_bf16 *)x)[r * stride + i]);
    else
      for (int64_t i = 0; i < filled; i++) row[i] = scale * ((const float *)x)[r * stride + i];
    for (int64_t i = filled; i < y_stride; i++) row[i] = 0.0f;
  }
}

/* panel[d][q] = rows[q][d], transposed in blocks of 4 x 4 */
static void transpose_queries(float *panel, const float *rows, int64_t stride, int64_t d) {
  for (int64_t i = 0; i < d; i += 4)
    for (int64_t q = 0; q < QUERIES; q += 4) {
      const float *x = rows + q * stride + i;
      __m128 r0 = _mm_load_ps(x), r1 = _mm_load_ps(x + stride), r2 = _mm_load_ps(x + 2 * stride),
             r3 = _mm_load_ps(x + 3 * stride);
      _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
      float *y = panel + i * QUERIES + q;
      _mm_store_ps(y, r0);
      _mm_store_ps(y + QUERIES, r1);
      _mm_store_ps(y + 2 * QUERIES, r2);
      _mm_store_ps(y + 3 * QUERIES, r3);
    }
}

static void pack_key_head(const ms_attention *a, const ms_kernel_call *call, float *keys, float *values, int64_t b,
                          int64_t g) {
  pack_rows(keys, padded_columns(a), row_of(call->in_data[1], a->dtype, a->s, a->groups, a->d, b, 0, g), a->dtype,
            a->groups * a->d, a->s, padded_keys(a), a->d, 1.0f);
  pack_rows(values, value_columns(a), row_of(call->in_data[2], a->dtype, a->s, a->groups, a->e, b, 0, g), a->dtype,
            a->groups * a->e, a->s, padded_keys(a), a->e, 1.0f);
}

/* Sets scores[key][q] to -inf where a query cannot see the key: `keys` keys from `first`, QUERIES queries from q0. */
static void hide_keys(const ms_attention *a, float *scores, int64_t first, int64_t keys, int64_t q0) {
  int64_t from = ms_visible_keys(a, q0); /* the first query sees the fewest of the last keys */
  for (int64_t key = from > first ? from : first; key < first + keys; key++) {
    int64_t blind = ms_blind_queries(a, key, q0);
    if (blind > QUERIES) blind = QUERIES;
    for (int64_t q = 0; q < blind; q++) scores[(key - first) * QUERIES + q] = -INFINITY;
  }
  int64_t until = ms_first_key(a, q0 + QUERIES - 1); /* and the last one of the first keys */
  for (int64_t key = first; key < first + keys && key < until; key++)
    for (int64_t q = ms_seeing_queries(a, key, q0, QUERIES); q < QUERIES; q++)
      scores[(key - first) * QUERIES + q] = -INFINITY;
}

#include "kernels/cpu/attention/attention_f32_backward.h"
#include "kernels/cpu/attention/attention_f32_forward.h"

const ms_attention_code MS_TARGET_CODE = {{forward_scratch_bytes, forward}, {backward_scratch_bytes, backward}};
