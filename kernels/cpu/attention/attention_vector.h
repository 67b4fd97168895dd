/* attention_vector.h - shared by the f32 implementations of attention: exponentials, the softmax, rows of tensors. The
 * including file defines
 *
 *   MS_VECTOR_BYTES  bytes of a vector register
 *   ms_vector_max    (a, b): elementwise maximum, b where either is NaN
 *
 * Scores are transposed, [keys][queries]: a vector holds the scores of one key with LANES queries, so that the softmax
 * over keys needs no sums within a vector.
 */
#include "kernels/cpu/simd.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/attention_cap.h"

typedef float vector __attribute__((vector_size(MS_VECTOR_BYTES)));
typedef uint32_t vector_bits __attribute__((vector_size(MS_VECTOR_BYTES)));

enum { LANES = MS_VECTOR_BYTES / 4, QUERIES = MS_QUERIES };

static int64_t round_up(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

/* Takes `floats` of scratch, rounded up to whole cache lines; returns their offset. */
static int64_t take(int64_t *used, int64_t floats) {
  int64_t at = *used;
  *used += round_up(floats, 16);
  return at;
}

/* ---- rows of tensors --------------------------------------------------------------------------------------------- */

static void unpack_row(void *y, int dtype, int64_t first, const float *x, float scale, int64_t d) {
  if (dtype == MS_BF16)
    for (int64_t i = 0; i < d; i++) ((ms_bf16 *)y)[first + i] = ms_to_bf16(scale * x[i]);
  else
    for (int64_t i = 0; i < d; i++) ((float *)y)[first + i] = scale * x[i];
}

/* The address of element [b][i][h][0] of a tensor [batch][rows][heads][d]. */
static const void *row_of(const void *x, int dtype, int64_t rows, int64_t heads, int64_t d, int64_t b, int64_t i,
                          int64_t h) {
  return (const char *)x + ((b * rows + i) * heads + h) * d * ms_dtype_size(dtype);
}

/* Prefetches rows [first, first + rows) of head h of x [batch][length][heads][width] into L2 for writing. A head's rows
 * are short and far apart, so the hardware does not prefetch them, and stores would wait for memory. */
static void expect_writes(const ms_attention *a, const void *x, int64_t length, int64_t heads, int64_t width, int64_t b,
                          int64_t first, int64_t rows, int64_t h) {
  const int64_t row_bytes = width * ms_dtype_size(a->dtype);
  for (int64_t i = first; i < first + rows && i < length; i++) {
    const char *row = row_of(x, a->dtype, length, heads, width, b, i, h);
    for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
  }
}

/* dk and dv of a key head are written after its last queries; each block of queries prefetches a share of their
 * rows. */
MS_INLINE void expect_key_gradients(const ms_attention *a, const ms_kernel_call *call, int64_t b, int64_t g, int64_t q0,
                                    int64_t queries) {
  const int64_t first = a->s * q0 / a->t, last = q0 + queries < a->t ? q0 + queries : a->t,
                rows = a->s * last / a->t - first;
  expect_writes(a, call->out_data[1], a->s, a->groups, a->d, b, first, rows, g);
  expect_writes(a, call->out_data[2], a->s, a->groups, a->e, b, first, rows, g);
}

/* Orders the blocks of a head as first, last, second, ..., so that any range of items is about the same amount of work
 * under a causal mask. */
static int64_t balanced_block(int64_t i, int64_t blocks) { return i & 1 ? blocks - 1 - i / 2 : i / 2; }

/* ---- capped scores ----------------------------------------------------------------------------------------------- */

/* Scores [n] in units of ln 2. */
MS_INLINE void cap_scores(const ms_attention *a, float *scores, int64_t n) {
  if (a->options.softcap > 0.0f)
    ms_cap_scores(scores, n, (float)(MS_LN_2 / a->options.softcap), (float)(a->options.softcap / MS_LN_2));
}

/* The derivative of capped scores by the scores that were capped; 0 where they are hidden. */
MS_INLINE vector slope_of(const ms_attention *a, vector capped) {
  const vector t = ms_vector_max((vector){0} - 1.0f, capped * (float)(MS_LN_2 / a->options.softcap));
  return 1.0f - t * t;
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* 2^x for x <= 0 to 1.5 ulp, 0 below -126.5, NaN for NaN: like ms_exp_nonpositive, with one term less. */
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

/* The running softmax of QUERIES queries: the largest score, the sum of 2^(score - largest), and the factor by which
 * the last keys rescaled earlier results. */
typedef struct running_softmax {
  float largest[QUERIES], sum[QUERIES], factor[QUERIES];
} __attribute__((aligned(64))) running_softmax;

/* The maximum over scores [keys][QUERIES] of LANES queries, and of `largest`. */
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

/* Replaces scores [keys][QUERIES] by 2^(score - largest) and updates the running softmax. A query that has seen no key
 * yet has the largest score -inf, and its powers are 0. */
static void softmax_keys(float *scores, int64_t keys, running_softmax *state) {
  for (int q = 0; q < QUERIES; q += LANES) {
    vector *largest = (vector *)(state->largest + q), *sum = (vector *)(state->sum + q);
    const vector top = column_max(scores + q, keys, *largest);
    const vector highest = ms_vector_max((vector){0} - FLT_MAX, top);
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
    *largest = top;
    *sum = s0 + s1;
    *(vector *)(state->factor + q) = factor;
  }
}
