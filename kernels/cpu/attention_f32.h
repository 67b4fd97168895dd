/* attention_f32.h - attention in f32 arithmetic for one instruction set: included by a file that has set
**
**   MS_TARGET_CODE   the name of the ms_attention_code it defines
**   MS_VECTOR_BYTES  bytes of a vector register
**   MS_TILE_ROWS     rows of a register tile; 2 vectors wide, and it must leave registers for the operands
**   ms_vector_max    (a, b): elementwise maximum, b where either is NaN
**
** Scores are kept transposed, [keys][queries]: a vector holds one key's scores for as many queries, so that the softmax over
** keys needs no sums within a vector. Everything else is products of register tiles, c[r][n] += sum_k a(r,k) b[k][n], in
** which b is read by vectors and a element by element, along rows or columns alike; so keys and values are never transposed:
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

static int64_t round_up(int64_t n, int64_t grain) { return (n + grain - 1) / grain * grain; }

static int64_t padded_columns(const ms_attention *a) { return round_up(a->d, COLUMN_GRAIN); }

static int64_t padded_keys(const ms_attention *a) { return round_up(a->s, TILE_ROWS); }

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

/* The softmax of QUERIES queries so far: largest score, sum of 2^(score - largest), and what the latest keys scaled both by. */
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

/* ---- forward ------------------------------------------------------------------------------------------------------- */

static const double LN_2 = 0.69314718055994530942;

typedef struct forward_scratch {
  float *keys, *values; /* [padded keys][padded columns] of one key head */
  float *rows, *panel;  /* q [QUERIES][padded columns] and transposed */
  float *scores;        /* [FORWARD_KEYS][QUERIES] */
  float *sums;          /* o before division [QUERIES][padded columns] */
} forward_scratch;

static int64_t take(int64_t *used, int64_t floats) {
  int64_t at = *used;
  *used += round_up(floats, 16);
  return at;
}

static int64_t lay_out_forward(const ms_attention *a, float *memory, forward_scratch *s) {
  const int64_t columns = padded_columns(a), matrix = padded_keys(a) * columns;
  int64_t used = 0;
  s->keys = memory + take(&used, matrix);
  s->values = memory + take(&used, matrix);
  s->rows = memory + take(&used, QUERIES * columns);
  s->panel = memory + take(&used, QUERIES * columns);
  s->scores = memory + take(&used, (FORWARD_KEYS + TILE_ROWS) * QUERIES);
  s->sums = memory + take(&used, QUERIES * columns);
  return used * (int64_t)sizeof(float);
}

static int64_t forward_scratch_bytes(const ms_attention *a) {
  static float nothing[1];
  forward_scratch scratch;
  return lay_out_forward(a, nothing, &scratch);
}

/* o[q][d] = o factor[q] + p v for keys [first, first + keys); each tile of queries stops at the last key it sees. */
static void weigh_values(const ms_attention *a, const forward_scratch *s, const running_softmax *state, int64_t q0,
                         int64_t first, int64_t keys) {
  const int64_t columns = padded_columns(a);
  for (int64_t q = 0; q < QUERIES; q += TILE_ROWS) {
    int64_t seen = ms_visible_keys(a, q0 + q + TILE_ROWS - 1) - first;
    if (seen > keys) seen = keys;
    if (seen <= 0) continue;
    for (int64_t d = 0; d < columns; d += TILE_COLUMNS)
      tile(s->sums + q * columns + d, columns, s->scores + q, 1, QUERIES, s->values + first * columns + d, columns,
           seen, SCALE_AND_ADD, state->factor + q);
  }
}

static void write_outputs(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s,
                          const running_softmax *state, int64_t b, int64_t h, int64_t q0) {
  float *lse = (float *)call->out_data[1] + (b * a->heads + h) * a->t + q0;
  for (int64_t q = 0; q < QUERIES && q0 + q < a->t; q++) {
    unpack_row(call->out_data[0], a->dtype, ((b * a->t + q0 + q) * a->heads + h) * a->d,
               s->sums + q * padded_columns(a), 1.0f / state->sum[q], a->d);
    lse[q] = (float)((state->largest[q] + log2f(state->sum[q])) * LN_2);
  }
}

static void forward_block(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s, int64_t b,
                          int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), keys = ms_block_keys(a, q0),
                rows = a->t - q0 < QUERIES ? a->t - q0 : QUERIES;
  running_softmax state;
  pack_rows(s->rows, columns, row_of(call->in_data[0], a->dtype, a->t, a->heads, a->d, b, q0, h), a->dtype,
            a->heads * a->d, rows, QUERIES, a->d, (float)(a->scale / LN_2));
  transpose_queries(s->panel, s->rows, columns, a->d);
  memset(s->sums, 0, (size_t)(QUERIES * columns) * sizeof(float));
  for (int q = 0; q < QUERIES; q++) state.largest[q] = -INFINITY, state.sum[q] = 0.0f;
  for (int64_t first = 0; first < keys; first += FORWARD_KEYS) {
    const int64_t count = keys - first < FORWARD_KEYS ? keys - first : FORWARD_KEYS;
    score_keys(s->scores, s->keys + first * columns, columns, s->panel, count, a->d);
    hide_keys(a, s->scores, first, count, q0);
    softmax_keys(s->scores, count, &state);
    weigh_values(a, s, &state, q0, first, count);
  }
  write_outputs(a, call, s, &state, b, h, q0);
}

static void pack_key_head(const ms_attention *a, const ms_kernel_call *call, float *keys, float *values, int64_t b,
                          int64_t g) {
  const int64_t stride = a->groups * a->d, columns = padded_columns(a);
  pack_rows(keys, columns, row_of(call->in_data[1], a->dtype, a->s, a->groups, a->d, b, 0, g), a->dtype, stride, a->s,
            padded_keys(a), a->d, 1.0f);
  pack_rows(values, columns, row_of(call->in_data[2], a->dtype, a->s, a->groups, a->d, b, 0, g), a->dtype, stride, a->s,
            padded_keys(a), a->d, 1.0f);
}

/* Blocks of a head in the order first, last, second, ...: any stretch of items is then about as much work as another. */
static int64_t balanced(int64_t i, int64_t blocks) { return i & 1 ? blocks - 1 - i / 2 : i / 2; }

static void forward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const int64_t blocks = ms_query_blocks(a);
  int64_t packed = -1;
  forward_scratch scratch;
  lay_out_forward(a, memory, &scratch);
  for (int64_t item = begin; item < end; item++) {
    const int64_t head = item / blocks, b = head / a->heads, h = head % a->heads;
    const int64_t key_head = b * a->groups + h / (a->heads / a->groups);
    if (key_head != packed) pack_key_head(a, call, scratch.keys, scratch.values, b, key_head % a->groups);
    packed = key_head;
    forward_block(a, call, &scratch, b, h, balanced(item % blocks, blocks) * QUERIES);
  }
}

/* ---- backward ------------------------------------------------------------------------------------------------------ */

typedef struct backward_scratch {
  float *keys, *values, *dkeys, *dvalues;      /* [padded keys][padded columns] of one key head */
  float *q, *q_panel, *dout, *dout_panel, *dq; /* [QUERIES][padded columns], panels transposed */
  float *p, *ds;                               /* [BACKWARD_KEYS][QUERIES] */
  float *lse, *delta;                          /* [QUERIES] */
} backward_scratch;

static int64_t lay_out_backward(const ms_attention *a, float *memory, backward_scratch *s) {
  const int64_t columns = padded_columns(a), matrix = padded_keys(a) * columns, block = QUERIES * columns;
  const int64_t scores = (BACKWARD_KEYS + TILE_ROWS) * QUERIES;
  int64_t used = 0;
  float **matrices[] = {&s->keys, &s->values, &s->dkeys, &s->dvalues};
  float **blocks[] = {&s->q, &s->q_panel, &s->dout, &s->dout_panel, &s->dq};
  for (int i = 0; i < 4; i++) *matrices[i] = memory + take(&used, matrix);
  for (int i = 0; i < 5; i++) *blocks[i] = memory + take(&used, block);
  s->p = memory + take(&used, scores);
  s->ds = memory + take(&used, scores);
  s->lse = memory + take(&used, QUERIES);
  s->delta = memory + take(&used, QUERIES);
  return used * (int64_t)sizeof(float);
}

static int64_t backward_scratch_bytes(const ms_attention *a) {
  static float nothing[1];
  backward_scratch scratch;
  return lay_out_backward(a, nothing, &scratch);
}

/* delta[q] = sum_d do o, and lse in powers of 2; both 0 beyond the last query, where q and do are 0 too. */
static void load_statistics(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                            int64_t h, int64_t q0) {
  const float *lse = (const float *)call->in_data[4] + (b * a->heads + h) * a->t + q0;
  for (int64_t q = 0; q < QUERIES; q++) {
    float sum = 0.0f;
    if (q0 + q < a->t) {
      const float *dout = s->dout + q * padded_columns(a);
      const void *o = row_of(call->in_data[3], a->dtype, a->t, a->heads, a->d, b, q0 + q, h);
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < a->d; i++) sum += dout[i] * ms_load(o, i, a->dtype == MS_BF16);
    }
    s->delta[q] = sum;
    s->lse[q] = q0 + q < a->t ? (float)(lse[q] / LN_2) : 0.0f;
  }
}

static void load_queries(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                         int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), stride = a->heads * a->d, rows = a->t - q0 < QUERIES ? a->t - q0 : QUERIES;
  pack_rows(s->q, columns, row_of(call->in_data[0], a->dtype, a->t, a->heads, a->d, b, q0, h), a->dtype, stride, rows,
            QUERIES, a->d, (float)(a->scale / LN_2));
  pack_rows(s->dout, columns, row_of(call->in_data[5], a->dtype, a->t, a->heads, a->d, b, q0, h), a->dtype, stride,
            rows, QUERIES, a->d, 1.0f);
  transpose_queries(s->q_panel, s->q, columns, a->d);
  transpose_queries(s->dout_panel, s->dout, columns, a->d);
  load_statistics(a, call, s, b, h, q0);
  memset(s->dq, 0, (size_t)(QUERIES * columns) * sizeof(float));
}

/* p: scores become probabilities; ds: dp becomes p (dp - delta). Padding rows of a last tile become 0. */
static void score_gradients(const backward_scratch *s, int64_t keys, int64_t padded) {
  for (int q = 0; q < QUERIES; q += LANES) {
    const vector lse = *(const vector *)(s->lse + q), delta = *(const vector *)(s->delta + q);
    for (int64_t key = 0; key < keys; key++) {
      vector *p = (vector *)(s->p + key * QUERIES + q), *ds = (vector *)(s->ds + key * QUERIES + q);
      *p = power_of_two(*p - lse);
      *ds = *p * (*ds - delta);
    }
  }
  memset(s->p + keys * QUERIES, 0, (size_t)((padded - keys) * QUERIES) * sizeof(float));
  memset(s->ds + keys * QUERIES, 0, (size_t)((padded - keys) * QUERIES) * sizeof(float));
}

/* dv += p' do and dk += ds' q for `padded` keys from `first`: a tile of keys starts at the first query that sees it. */
static void add_key_gradients(const ms_attention *a, const backward_scratch *s, int64_t q0, int64_t first,
                              int64_t padded) {
  const int64_t columns = padded_columns(a);
  for (int64_t key = 0; key < padded; key += TILE_ROWS) {
    int64_t skip = a->causal ? first + key - (a->s - a->t) - q0 : 0;
    if (skip < 0) skip = 0;
    if (skip >= QUERIES) continue;
    const float *p = s->p + key * QUERIES + skip, *ds = s->ds + key * QUERIES + skip;
    for (int64_t d = 0; d < columns; d += TILE_COLUMNS) {
      const int64_t at = (first + key) * columns + d;
      tile(s->dvalues + at, columns, p, QUERIES, 1, s->dout + skip * columns + d, columns, QUERIES - skip, ADD, NULL);
      tile(s->dkeys + at, columns, ds, QUERIES, 1, s->q + skip * columns + d, columns, QUERIES - skip, ADD, NULL);
    }
  }
}

/* dq += ds k */
static void add_query_gradients(const ms_attention *a, const backward_scratch *s, int64_t q0, int64_t first,
                                int64_t keys) {
  const int64_t columns = padded_columns(a);
  for (int64_t q = 0; q < QUERIES; q += TILE_ROWS) {
    int64_t seen = ms_visible_keys(a, q0 + q + TILE_ROWS - 1) - first;
    if (seen > keys) seen = keys;
    if (seen <= 0) continue;
    for (int64_t d = 0; d < columns; d += TILE_COLUMNS)
      tile(s->dq + q * columns + d, columns, s->ds + q, 1, QUERIES, s->keys + first * columns + d, columns, seen, ADD,
           NULL);
  }
}

static void backward_block(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                           int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), keys = ms_block_keys(a, q0);
  load_queries(a, call, s, b, h, q0);
  for (int64_t first = 0; first < keys; first += BACKWARD_KEYS) {
    const int64_t count = keys - first < BACKWARD_KEYS ? keys - first : BACKWARD_KEYS,
                  padded = round_up(count, TILE_ROWS);
    score_keys(s->p, s->keys + first * columns, columns, s->q_panel, count, a->d);
    score_keys(s->ds, s->values + first * columns, columns, s->dout_panel, count, a->d);
    hide_keys(a, s->p, first, count, q0);
    score_gradients(s, count, padded);
    add_key_gradients(a, s, q0, first, padded);
    add_query_gradients(a, s, q0, first, count);
  }
  for (int64_t q = 0; q < QUERIES && q0 + q < a->t; q++)
    unpack_row(call->out_data[0], a->dtype, ((b * a->t + q0 + q) * a->heads + h) * a->d, s->dq + q * columns, a->scale,
               a->d);
}

static void backward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const int64_t columns = padded_columns(a), heads = a->heads / a->groups;
  backward_scratch s;
  lay_out_backward(a, memory, &s);
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / a->groups, g = item % a->groups;
    pack_key_head(a, call, s.keys, s.values, b, g);
    memset(s.dkeys, 0, (size_t)(padded_keys(a) * columns) * sizeof(float));
    memset(s.dvalues, 0, (size_t)(padded_keys(a) * columns) * sizeof(float));
    for (int64_t h = g * heads; h < (g + 1) * heads; h++)
      for (int64_t q0 = 0; q0 < a->t; q0 += QUERIES) backward_block(a, call, &s, b, h, q0);
    for (int64_t key = 0; key < a->s; key++) {
      const int64_t at = ((b * a->s + key) * a->groups + g) * a->d;
      unpack_row(call->out_data[1], a->dtype, at, s.dkeys + key * columns, (float)LN_2, a->d);
      unpack_row(call->out_data[2], a->dtype, at, s.dvalues + key * columns, 1.0f, a->d);
    }
  }
}

const ms_attention_code MS_TARGET_CODE = {{forward_scratch_bytes, forward}, {backward_scratch_bytes, backward}};
