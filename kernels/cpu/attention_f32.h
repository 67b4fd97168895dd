/* attention_f32.h - attention in f32 arithmetic for one instruction set: included by a file that has set
**
**   MS_TARGET_CODE   the name of the ms_attention_code it defines
**   MS_VECTOR_BYTES  bytes of a vector register
**   MS_TILE_ROWS     rows of a register tile; 2 vectors wide, and it must leave registers for the operands
**   ms_vector_max    (a, b): elementwise maximum, b where either is NaN
**
** Scores are kept transposed, [keys][queries]: a vector holds one key's scores for as many queries, so that the
** softmax over keys needs no sums within a vector. Everything else is products of register tiles, c[r][n] += sum_k
** a(r,k) b[k][n], in which b is read by vectors and a element by element, along rows or columns alike; so keys and
** values are never transposed:
**
**   forward   s'[key][q] = k q'   o[q][d] += p v              (p = p'[key][q] read by columns)
**   backward  s' = k q', dp' = v do', ds' = p' (dp' - delta)   dv[key][d] += p' do, dk += ds' q, dq[q][d] += ds k
**
** q is scaled by scale / ln 2 on packing: probabilities are powers of 2.
*/
#include "kernels/cpu/simd.h"

#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/attention.h"

typedef float vector __attribute__((vector_size(MS_VECTOR_BYTES)));
typedef uint32_t vector_bits __attribute__((vector_size(MS_VECTOR_BYTES)));

enum {
  LANES = MS_VECTOR_BYTES / 4,
  TILE_ROWS = MS_TILE_ROWS,
  TILE_COLUMNS = 2 * LANES,
  QUERIES = MS_QUERIES,
  FORWARD_KEYS = 128, /* keys at a time: their scores [keys][QUERIES] stay in L1 */
  BACKWARD_KEYS = 64,
  COLUMN_GRAIN = 32 /* rows of d elements are padded to a multiple of this: whole tiles for every instruction set */
};

static const double LN_2 = 0.69314718055994530942;

static int64_t round_up(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

static int64_t padded_columns(const ms_attention *a) { return round_up(a->d, COLUMN_GRAIN); }

static int64_t padded_keys(const ms_attention *a) { return round_up(a->s, TILE_ROWS); }

/* Hands out scratch by cache lines. */
static int64_t take(int64_t *used, int64_t floats) {
  int64_t at = *used;
  *used += round_up(floats, 16);
  return at;
}

/* ---- register tiles ---------------------------------------------------------------------------------------------- */

typedef enum tile_start { FROM_ZERO, ADD, SCALE_AND_ADD } tile_start;

/* c[r][n] = start + sum over i < k of a[r a_row + i a_k] b[i b_stride + n], for a tile of rows and columns. With
** SCALE_AND_ADD, start is c[r][n] factor[r]. */
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

/* scores[key][q] = sum_d x[key][d] panel[d][q] for `keys` rows of x (rounded up to tiles), all QUERIES */
static void score_keys(float *scores, const float *x, int64_t x_stride, const float *panel, int64_t keys, int64_t d) {
  for (int64_t q = 0; q < QUERIES; q += TILE_COLUMNS)
    for (int64_t r = 0; r < keys; r += TILE_ROWS)
      tile(scores + r * QUERIES + q, QUERIES, x + r * x_stride, x_stride, 1, panel + q, QUERIES, d, FROM_ZERO, NULL);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* y [padded_rows][columns padded] = scale x, in f32, zeros around; x has rows of d elements, `stride` apart. */
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

/* panel[d][q] = rows[q][d], 4 x 4 at a time */
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

static void unpack_row(void *y, int dtype, int64_t first, const float *x, float scale, int64_t d) {
  if (dtype == MS_BF16)
    for (int64_t i = 0; i < d; i++) ((ms_bf16 *)y)[first + i] = ms_to_bf16(scale * x[i]);
  else
    for (int64_t i = 0; i < d; i++) ((float *)y)[first + i] = scale * x[i];
}

/* The address of element [b,i,h,0] of a tensor [batch,rows,heads,d]. */
static const void *row_of(const void *x, int dtype, int64_t rows, int64_t heads, int64_t d, int64_t b, int64_t i,
                          int64_t h) {
  return (const char *)x + ((b * rows + i) * heads + h) * d * ms_dtype_size(dtype);
}

/* Asks for rows [first, first + rows) of head h of x [batch,length,heads,d] to be brought to L2 for writing. A
** head's rows are short and far apart, so the hardware does not foresee them, and a store would wait for each. */
static void expect_writes(const ms_attention *a, const void *x, int64_t length, int64_t heads, int64_t b, int64_t first,
                          int64_t rows, int64_t h) {
  const int64_t row_bytes = a->d * ms_dtype_size(a->dtype);
  for (int64_t i = first; i < first + rows && i < length; i++) {
    const char *row = row_of(x, a->dtype, length, heads, a->d, b, i, h);
    for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
  }
}

static void pack_key_head(const ms_attention *a, const ms_kernel_call *call, float *keys, float *values, int64_t b,
                          int64_t g) {
  const int64_t stride = a->groups * a->d, columns = padded_columns(a);
  pack_rows(keys, columns, row_of(call->in_data[1], a->dtype, a->s, a->groups, a->d, b, 0, g), a->dtype, stride, a->s,
            padded_keys(a), a->d, 1.0f);
  pack_rows(values, columns, row_of(call->in_data[2], a->dtype, a->s, a->groups, a->d, b, 0, g), a->dtype, stride, a->s,
            padded_keys(a), a->d, 1.0f);
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* 2^x for x <= 0 to 1.5 ulp, 0 below -126.5, NaN for NaN: as ms_exp_nonpositive, a term shorter. */
MS_INLINE vector power_of_two(vector x) {
  x = ms_vector_max((vector){0} - 127.0f, x);
  vector shifted = x + MS_ROUND_MAGIC;
  vector r = x - (shifted - MS_ROUND_MAGIC);
  vector p = r * 1.326476340e-03f + 9.671511129e-03f;
  p = p * r + 5.550733581e-02f;
  p = p * r + 2.402224243e-01f;
  p = p * r + 6.931470037e-01f;
  p = p * r + 1.0f;
  return p * (vector)(((vector_bits)shifted << 23) + 0x3f800000u);
}

/* Scores of keys that a query does not see become -inf: keys from `first` on, QUERIES queries from q0. */
static void hide_keys(const ms_attention *a, float *scores, int64_t first, int64_t keys, int64_t q0) {
  int64_t from = ms_visible_keys(a, q0); /* the first query sees least */
  for (int64_t key = from > first ? from : first; key < first + keys; key++) {
    int64_t blind = key - from + 1; /* so many queries do not see it */
    if (blind > QUERIES) blind = QUERIES;
    for (int64_t q = 0; q < blind; q++) scores[(key - first) * QUERIES + q] = -INFINITY;
  }
}

/* The softmax of QUERIES queries so far: largest score, sum of 2^(score - largest), and what the latest keys scaled
** both by. */
typedef struct running_softmax {
  float largest[QUERIES], sum[QUERIES], factor[QUERIES];
} __attribute__((aligned(64))) running_softmax;

MS_INLINE vector column_max(const float *scores, int64_t keys, vector largest) {
  vector m0 = largest, m1 = largest, m2 = largest, m3 = largest;
  int64_t key = 0;
  for (; key + 4 <= keys; key += 4) {
    m0 = ms_vector_max(*(const vector *)(scores + key * QUERIES), m0);
    m1 = ms_vector_max(*(const vector *)(scores + (key + 1) * QUERIES), m1);
    m2 = ms_vector_max(*(const vector *)(scores + (key + 2) * QUERIES), m2);
    m3 = ms_vector_max(*(const vector *)(scores + (key + 3) * QUERIES), m3);
  }
  for (; key < keys; key++) m0 = ms_vector_max(*(const vector *)(scores + key * QUERIES), m0);
  return ms_vector_max(ms_vector_max(m0, m1), ms_vector_max(m2, m3));
}

/* scores[keys][QUERIES] become 2^(score - largest); the running softmax takes them in. */
static void softmax_keys(float *scores, int64_t keys, running_softmax *state) {
  for (int q = 0; q < QUERIES; q += LANES) {
    vector *largest = (vector *)(state->largest + q), *sum = (vector *)(state->sum + q);
    const vector highest = column_max(scores + q, keys, *largest);
    const vector factor = power_of_two(*largest - highest);
    vector s0 = *sum * factor, s1 = {0};
    int64_t key = 0;
    for (; key + 2 <= keys; key += 2) {
      vector *p0 = (vector *)(scores + key * QUERIES + q), *p1 = (vector *)(scores + (key + 1) * QUERIES + q);
      *p0 = power_of_two(*p0 - highest);
      *p1 = power_of_two(*p1 - highest);
      s0 += *p0;
      s1 += *p1;
    }
    if (key < keys) {
      vector *p = (vector *)(scores + key * QUERIES + q);
      *p = power_of_two(*p - highest);
      s0 += *p;
    }
    *largest = highest;
    *sum = s0 + s1;
    *(vector *)(state->factor + q) = factor;
  }
}

#include "kernels/cpu/attention_f32_backward.h"
#include "kernels/cpu/attention_f32_forward.h"

const ms_attention_code MS_TARGET_CODE = {{forward_scratch_bytes, forward}, {backward_scratch_bytes, backward}};
