/* attention_bf16_backward.c - the gradients of attention of bf16 tensors on processors that multiply bf16.
 *
 * As in attention_f32.h, scores are recomputed transposed, [keys][queries]. Rounded to bf16, the probabilities and
 * their gradients are then in the layout that the left operands of dv and dk need. dq is computed transposed,
 * [d][queries], from transposed keys and ds in pairs of keys. All sums are f32.
 */
#if defined(__x86_64__)
  #include "kernels/cpu/target.h"

MS_TARGET_BEGIN("arch=x86-64-v4,avx512bf16")

  #include "kernels/cpu/attention/attention_bf16.h"

enum { KEYS_AT_ONCE = 64 };

typedef struct scratch {
  ms_bf16 *keys, *values;         /* [S][D], [S][E] of one key head */
  ms_bf16 *keys_transposed;       /* [D][S] */
  float *dkeys, *dvalues;         /* [S][D], [S][E] */
  ms_bf16 *q, *dout;              /* [32][D], [32][E] of a block of queries */
  uint32_t *q_panel, *dout_panel; /* [D / 2][32], [E / 2][32]: transposed, in pairs of columns */
  uint32_t *q_pairs, *dout_pairs; /* [16][D], [16][E]: pairs of queries */
  float *scores, *dp;             /* [KEYS_AT_ONCE][32]: s = k q', dp = v do' */
  ms_bf16 *p, *ds;                /* [KEYS_AT_ONCE][32] */
  uint32_t *ds_pairs;             /* [KEYS_AT_ONCE / 2][32] */
  float *dq_transposed, *dq;      /* [D][32], [32][D] */
  float *lse, *delta;             /* [32] */
} scratch;

static int64_t lay_out(const ms_attention *a, char *memory, scratch *s) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  const int64_t matrix = ms_bf16_round_up(a->s) * columns, of_values = ms_bf16_round_up(a->s) * width;
  const int64_t block = MS_QUERIES * columns, of_results = MS_QUERIES * width;
  const int64_t scores = KEYS_AT_ONCE * MS_QUERIES;
  int64_t used = 0;
  s->keys = ms_bf16_take(memory, &used, matrix * 2);
  s->values = ms_bf16_take(memory, &used, of_values * 2);
  s->keys_transposed = ms_bf16_take(memory, &used, matrix * 2);
  s->dkeys = ms_bf16_take(memory, &used, matrix * 4);
  s->dvalues = ms_bf16_take(memory, &used, of_values * 4);
  s->q = ms_bf16_take(memory, &used, block * 2);
  s->dout = ms_bf16_take(memory, &used, of_results * 2);
  s->q_panel = ms_bf16_take(memory, &used, block * 2);
  s->dout_panel = ms_bf16_take(memory, &used, of_results * 2);
  s->q_pairs = ms_bf16_take(memory, &used, block * 2);
  s->dout_pairs = ms_bf16_take(memory, &used, of_results * 2);
  s->scores = ms_bf16_take(memory, &used, scores * 4);
  s->dp = ms_bf16_take(memory, &used, scores * 4);
  s->p = ms_bf16_take(memory, &used, scores * 2);
  s->ds = ms_bf16_take(memory, &used, scores * 2);
  s->ds_pairs = ms_bf16_take(memory, &used, scores * 2);
  s->dq_transposed = ms_bf16_take(memory, &used, block * 4);
  s->dq = ms_bf16_take(memory, &used, block * 4);
  s->lse = ms_bf16_take(memory, &used, MS_QUERIES * 4);
  s->delta = ms_bf16_take(memory, &used, MS_QUERIES * 4);
  return used;
}

static int64_t scratch_bytes(const ms_attention *a) {
  static char nothing[1];
  scratch s;
  return lay_out(a, nothing, &s);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* q_pairs is free at this point and holds the pairs of keys before they are transposed. */
static void lay_out_key_head(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b,
                             int64_t g) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e), padded = ms_bf16_round_up(a->s);
  const int64_t first = b * a->s * a->groups + g;
  ms_bf16_pack(s->keys, columns, (const ms_bf16 *)call->in_data[1] + first * a->d, a->groups * a->d, a->s, padded,
               a->d);
  ms_bf16_pack(s->values, width, (const ms_bf16 *)call->in_data[2] + first * a->e, a->groups * a->e, a->s, padded,
               a->e);
  for (int64_t key = 0; key < padded; key += 32) {
    ms_bf16_pair_rows(s->q_pairs, columns, s->keys + key * columns, columns, 32, columns);
    ms_transpose_32_bits((uint32_t *)s->keys_transposed + key / 2, padded / 2, s->q_pairs, columns, 16, columns);
  }
  memset(s->dkeys, 0, (size_t)(padded * columns) * sizeof(float));
  memset(s->dvalues, 0, (size_t)(padded * width) * sizeof(float));
}

static float dot(const ms_bf16 *x, const ms_bf16 *y, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 32) /* rows are padded */
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(x + i), (__m512bh)_mm512_loadu_si512(y + i));
  return _mm512_reduce_add_ps(sum);
}

/* delta[q] = sum over e of do o, and lse converted to base 2. Both are 0 after the last query, where q and do are 0
 * too. */
static void load_statistics(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b, int64_t h,
                            int64_t q0, int64_t rows) {
  const float *lse = (const float *)call->in_data[4] + (b * a->heads + h) * a->lse_row + q0;
  const int64_t width = ms_bf16_round_up(a->e);
  ms_bf16 *o = (ms_bf16 *)s->dout_pairs; /* not in use yet */
  ms_bf16_pack(o, width, (const ms_bf16 *)call->in_data[3] + ((b * a->t + q0) * a->heads + h) * a->e, a->heads * a->e,
               rows, MS_QUERIES, a->e);
  for (int64_t q = 0; q < MS_QUERIES; q++) {
    s->delta[q] = dot(s->dout + q * width, o + q * width, width);
    s->lse[q] = q < rows ? (float)(lse[q] / MS_LN_2) : 0.0f;
  }
}

static void load_queries(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b, int64_t h,
                         int64_t q0) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  const int64_t first = (b * a->t + q0) * a->heads + h, rows = a->t - q0 < MS_QUERIES ? a->t - q0 : MS_QUERIES;
  ms_bf16_pack(s->q, columns, (const ms_bf16 *)call->in_data[0] + first * a->d, a->heads * a->d, rows, MS_QUERIES,
               a->d);
  ms_bf16_pack(s->dout, width, (const ms_bf16 *)call->in_data[5] + first * a->e, a->heads * a->e, rows, MS_QUERIES,
               a->e);
  load_statistics(a, call, s, b, h, q0, rows);
  ms_transpose_32_bits(s->q_panel, MS_QUERIES, (const uint32_t *)s->q, columns / 2, MS_QUERIES, columns / 2);
  ms_transpose_32_bits(s->dout_panel, MS_QUERIES, (const uint32_t *)s->dout, width / 2, MS_QUERIES, width / 2);
  ms_bf16_pair_rows(s->q_pairs, columns, s->q, columns, MS_QUERIES, columns);
  ms_bf16_pair_rows(s->dout_pairs, width, s->dout, width, MS_QUERIES, width);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The queries of the block that see a key, one bit per query. */
static uint32_t queries_that_see(const ms_attention *a, int64_t key, int64_t q0) {
  const int64_t blind = ms_blind_queries(a, key, q0), seeing = ms_seeing_queries(a, key, q0, MS_QUERIES);
  if (key >= a->s || blind >= seeing) return 0;
  return ~0u << blind & ~0u >> (MS_QUERIES - seeing);
}

typedef struct gradient_row {
  __m512 ds[2];
} gradient_row;

/* The derivative of capped scores by the scores that were capped; per_cap: 1 / cap. */
static inline __m512 slope_of(__m512 capped, __m512 per_cap) {
  const __m512 t = _mm512_mul_ps(capped, per_cap);
  return _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1.0f));
}

/* Computes row `row` of p and ds from the same row of scores and dp. */
MS_INLINE gradient_row gradient_of_key(const scratch *s, int64_t row, uint32_t seeing, __m512 scale, __m512 per_cap,
                                       int capped) {
  gradient_row result;
  __m512 p[2];
  for (int v = 0; v < 2; v++) {
    const int64_t at = row * MS_QUERIES + 16 * v;
    const __m512 score = _mm512_load_ps(s->scores + at);
    const __m512 x = _mm512_fmsub_ps(score, scale, _mm512_load_ps(s->lse + 16 * v));
    p[v] = _mm512_maskz_mov_ps((__mmask16)(seeing >> 16 * v), ms_bf16_power_of_two(x));
    __m512 ds = _mm512_mul_ps(p[v], _mm512_sub_ps(_mm512_load_ps(s->dp + at), _mm512_load_ps(s->delta + 16 * v)));
    if (capped) ds = _mm512_mul_ps(ds, slope_of(score, per_cap));
    result.ds[v] = _mm512_maskz_mov_ps((__mmask16)(seeing >> 16 * v), ds);
  }
  _mm512_store_si512(s->p + row * MS_QUERIES, (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
  _mm512_store_si512(s->ds + row * MS_QUERIES, (__m512i)_mm512_cvtne2ps_pbh(result.ds[1], result.ds[0]));
  return result;
}

/* p = 2^(scale scores - lse) and ds = p (dp - delta), times the slope of capped scores, also packed in pairs of keys
 * (ds_pairs); 0 where the query does not see the key. */
MS_INLINE void score_gradients(const ms_attention *a, const scratch *s, int64_t q0, int64_t first, int64_t padded,
                               int capped) {
  static const uint16_t interleave[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_loadu_si512(interleave);
  const __m512 scale = ms_bf16_scale(a),
               per_cap = _mm512_set1_ps(capped ? (float)(MS_LN_2 / a->options.softcap) : 0.0f);
  for (int64_t row = 0; row < padded; row += 2) {
    const gradient_row even = gradient_of_key(s, row, queries_that_see(a, first + row, q0), scale, per_cap, capped);
    const gradient_row odd =
        gradient_of_key(s, row + 1, queries_that_see(a, first + row + 1, q0), scale, per_cap, capped);
    for (int v = 0; v < 2; v++) {
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd.ds[v], even.ds[v]);
      _mm512_store_si512(s->ds_pairs + row / 2 * MS_QUERIES + 16 * v, _mm512_permutexvar_epi16(order, both));
    }
  }
}

/* ---- blocks of queries ------------------------------------------------------------------------------------------- */

static void backward_block(const ms_attention *a, const ms_kernel_call *call, ms_bf16_product *product,
                           const scratch *s, int64_t b, int64_t h, int64_t q0) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  const int64_t row = ms_bf16_round_up(a->s), begin = ms_block_first_key(a, q0),
                keys = ms_bf16_round_up(ms_block_keys(a, q0));
  ms_bf16 *dq = (ms_bf16 *)call->out_data[0] + ((b * a->t + q0) * a->heads + h) * a->d;
  load_queries(a, call, s, b, h, q0);
  for (int64_t first = begin; first < keys; first += KEYS_AT_ONCE) {
    const int64_t count = keys - first < KEYS_AT_ONCE ? keys - first : KEYS_AT_ONCE;
    const int64_t at = first * columns, at_values = first * width;
    product(s->scores, MS_QUERIES, s->keys + at, columns, s->q_panel, MS_QUERIES, count, MS_QUERIES, columns, 0);
    product(s->dp, MS_QUERIES, s->values + at_values, width, s->dout_panel, MS_QUERIES, count, MS_QUERIES, width, 0);
    ms_bf16_cap(a, s->scores, MS_QUERIES, count, MS_QUERIES);
    if (a->options.softcap > 0.0f) score_gradients(a, s, q0, first, count, 1);
    else score_gradients(a, s, q0, first, count, 0);
    product(s->dvalues + at_values, width, s->p, MS_QUERIES, s->dout_pairs, width, count, width, MS_QUERIES, 1);
    product(s->dkeys + at, columns, s->ds, MS_QUERIES, s->q_pairs, columns, count, columns, MS_QUERIES, 1);
    product(s->dq_transposed, MS_QUERIES, s->keys_transposed + first, row, s->ds_pairs, MS_QUERIES, columns, MS_QUERIES,
            count, first > begin);
  }
  ms_transpose_32_bits((uint32_t *)s->dq, columns, (const uint32_t *)s->dq_transposed, MS_QUERIES, columns, MS_QUERIES);
  for (int64_t q = 0; q < MS_QUERIES && q0 + q < a->t; q++)
    ms_bf16_unpack(dq + q * a->heads * a->d, s->dq + q * columns, a->options.scale, a->d);
}

static void write_key_head(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b, int64_t g) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  for (int64_t key = 0; key < a->s; key++) {
    const int64_t at = (b * a->s + key) * a->groups + g;
    ms_bf16_unpack((ms_bf16 *)call->out_data[1] + at * a->d, s->dkeys + key * columns, a->options.scale, a->d);
    ms_bf16_unpack((ms_bf16 *)call->out_data[2] + at * a->e, s->dvalues + key * width, 1.0f, a->e);
  }
}

static void backward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const ms_bf16_unit *unit = ms_bf16_unit_of_cpu();
  const int64_t heads = a->heads / a->groups;
  scratch s;
  lay_out(a, memory, &s);
  if (unit->begin) unit->begin();
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / a->groups, g = item % a->groups;
    lay_out_key_head(a, call, &s, b, g);
    for (int64_t h = g * heads; h < (g + 1) * heads; h++)
      for (int64_t q0 = 0; q0 < a->t; q0 += MS_QUERIES) backward_block(a, call, unit->product, &s, b, h, q0);
    write_key_head(a, call, &s, b, g);
  }
  if (unit->end) unit->end();
}

const ms_attention_part ms_attention_bf16_backward = {scratch_bytes, backward};
MS_TARGET_END
#endif
