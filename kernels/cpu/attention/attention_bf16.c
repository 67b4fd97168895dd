/* attention_bf16.c - forward attention of bf16 tensors on processors that multiply bf16.
 *
 * Scores [queries][keys] are f32 sums of bf16 products. The softmax over a row is f32; its weights are rounded to bf16
 * for the product with the values, as on every device that multiplies bf16. The keys of a key head are packed once
 * (transposed, in pairs), and so are its values (in pairs); queries and results need no transposing. One multiplication
 * by scale / ln 2 applies the scale and changes e^x to 2^x.
 */
#if defined(__x86_64__)
  #include "kernels/cpu/target.h"

MS_TARGET_BEGIN("arch=x86-64-v4,avx512bf16")

  #include "kernels/cpu/attention/attention_bf16.h"

  #include <math.h>

enum { KEYS_AT_ONCE = 256 };

typedef struct scratch {
  uint32_t *keys;   /* [S / 32][D / 2][32]: blocks of 32 keys, transposed, in pairs of d */
  uint32_t *values; /* [S / 2][E]: pairs of keys */
  ms_bf16 *rows;    /* [32][D or E]: q, or 32 rows of keys or values while they are packed */
  float *scores;    /* [32][KEYS_AT_ONCE] */
  ms_bf16 *weights; /* [32][KEYS_AT_ONCE] */
  float *sums;      /* [32][E]: o before division by the denominator */
  float largest[MS_QUERIES], denominator[MS_QUERIES];
} scratch;

static int64_t lay_out(const ms_attention *a, char *memory, scratch *s) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e), keys = ms_bf16_round_up(a->s);
  int64_t used = 0;
  s->keys = ms_bf16_take(memory, &used, keys * columns * 2);
  s->values = ms_bf16_take(memory, &used, keys * width * 2);
  s->rows = ms_bf16_take(memory, &used, MS_QUERIES * (columns > width ? columns : width) * 2);
  s->scores = ms_bf16_take(memory, &used, MS_QUERIES * KEYS_AT_ONCE * 4);
  s->weights = ms_bf16_take(memory, &used, MS_QUERIES * KEYS_AT_ONCE * 2);
  s->sums = ms_bf16_take(memory, &used, MS_QUERIES * width * 4);
  return used;
}

static int64_t scratch_bytes(const ms_attention *a) {
  static char nothing[1];
  scratch s;
  return lay_out(a, nothing, &s);
}

static void lay_out_key_head(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b,
                             int64_t g) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  const ms_bf16 *k = (const ms_bf16 *)call->in_data[1] + (b * a->s * a->groups + g) * a->d;
  const ms_bf16 *v = (const ms_bf16 *)call->in_data[2] + (b * a->s * a->groups + g) * a->e;
  for (int64_t key = 0; key < a->s; key += 32) {
    const int64_t count = a->s - key < 32 ? a->s - key : 32;
    ms_bf16_pack(s->rows, columns, k + key * a->groups * a->d, a->groups * a->d, count, 32, a->d);
    ms_transpose_32_bits(s->keys + key * columns / 2, 32, (const uint32_t *)s->rows, columns / 2, 32, columns / 2);
    ms_bf16_pack(s->rows, width, v + key * a->groups * a->e, a->groups * a->e, count, 32, a->e);
    ms_bf16_pair_rows(s->values + key / 2 * width, width, s->rows, width, 32, width);
  }
}

/* ---- softmax of rows --------------------------------------------------------------------------------------------- */

static inline __mmask16 lanes_of(int64_t left) { return left < 16 ? (__mmask16)((1u << left) - 1) : 0xffff; }

/* The lanes of keys [from, keys) at i, where lanes [i, i + 16) are not all of them. */
static inline __mmask16 lanes_between(int64_t i, int64_t from, int64_t keys) {
  const __mmask16 hidden = from > i ? lanes_of(from - i) : 0;
  return keys > i ? lanes_of(keys - i) & (__mmask16)~hidden : 0;
}

/* Of keys [from, keys). Ignores NaN scores: _mm512_max_ps returns its second operand if either is NaN. The NaN still
 * reaches the result, through its own weight. */
static inline float row_max(const float *scores, int64_t from, int64_t keys, __m512 scale) {
  const int64_t whole = keys / 16 * 16;
  __m512 largest = _mm512_set1_ps(-INFINITY), other = largest;
  int64_t i = from / 16 * 16;
  if (i < from) {
    const __m512 x = _mm512_mul_ps(_mm512_load_ps(scores + i), scale);
    largest = _mm512_mask_max_ps(largest, lanes_between(i, from, keys), x, largest);
    i += 16;
  }
  for (; i + 32 <= whole; i += 32) {
    largest = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(scores + i), scale), largest);
    other = _mm512_max_ps(_mm512_mul_ps(_mm512_load_ps(scores + i + 16), scale), other);
  }
  for (; i < keys; i += 16) {
    const __m512 x = _mm512_mul_ps(_mm512_load_ps(scores + i), scale);
    largest = _mm512_mask_max_ps(largest, lanes_of(keys - i), x, largest);
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(largest, other));
}

static inline __m512 weight(const float *scores, __m512 scale, __m512 largest) {
  return ms_bf16_power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores), scale, largest));
}

/* Weights of keys [from, keys) are 2^(scale scores - largest), others up to `padded` are 0; returns their sum before
 * rounding to bf16. */
static inline float weigh_row(ms_bf16 *weights, const float *scores, int64_t from, int64_t keys, int64_t padded,
                              __m512 scale, float largest) {
  const __m512 shift = _mm512_set1_ps(largest);
  __m512 sum = _mm512_setzero_ps(), other = sum;
  int64_t i = from / 16 * 16;
  if (i) memset(weights, 0, (size_t)i * sizeof *weights);
  if (i < from) {
    sum = _mm512_maskz_mov_ps(lanes_between(i, from, keys), weight(scores + i, scale, shift));
    _mm256_store_si256((void *)(weights + i), (__m256i)_mm512_cvtneps_pbh(sum));
    i += 16;
  }
  for (; i + 32 <= keys; i += 32) {
    const __m512 p0 = weight(scores + i, scale, shift), p1 = weight(scores + i + 16, scale, shift);
    sum = _mm512_add_ps(sum, p0);
    other = _mm512_add_ps(other, p1);
    _mm512_storeu_si512(weights + i, (__m512i)_mm512_cvtne2ps_pbh(p1, p0));
  }
  for (; i < padded; i += 16) {
    const __m512 p = _mm512_maskz_mov_ps(lanes_of(keys > i ? keys - i : 0), weight(scores + i, scale, shift));
    sum = _mm512_add_ps(sum, p);
    _mm256_store_si256((void *)(weights + i), (__m256i)_mm512_cvtneps_pbh(p));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(sum, other));
}

static void scale_row(float *x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i += 16)
    _mm512_store_ps(x + i, _mm512_mul_ps(_mm512_load_ps(x + i), _mm512_set1_ps(factor)));
}

/* Adds `count` keys from `first` to the softmax of every row, and rescales earlier sums if the largest score has
 * grown; it is -inf where a row has seen no key yet. */
static void weigh_keys(const ms_attention *a, scratch *s, int64_t q0, int64_t first, int64_t count, int adds) {
  const __m512 scale = ms_bf16_scale(a);
  const int64_t padded = ms_bf16_round_up(count), width = ms_bf16_round_up(a->e);
  for (int64_t q = 0; q < MS_QUERIES; q++) {
    const float *scores = s->scores + q * KEYS_AT_ONCE;
    int64_t keys = ms_visible_keys(a, q0 + q) - first;
    int64_t from = ms_first_key(a, q0 + q) - first;
    if (keys > count) keys = count;
    if (from < 0) from = 0;
    if (keys <= from) keys = from = 0;
    float largest = row_max(scores, from, keys, scale);
    if (largest < s->largest[q]) largest = s->largest[q];
    const float sum = weigh_row(s->weights + q * KEYS_AT_ONCE, scores, from, keys, padded, scale, largest);
    if (!adds) {
      s->denominator[q] = sum;
    } else if (keys > 0) {
      const float factor = exp2f(s->largest[q] - largest);
      s->denominator[q] = s->denominator[q] * factor + sum;
      scale_row(s->sums + q * width, factor, width);
    }
    s->largest[q] = largest;
  }
}

/* ---- blocks of queries ------------------------------------------------------------------------------------------- */

static void write_outputs(const ms_attention *a, const ms_kernel_call *call, const scratch *s, int64_t b, int64_t h,
                          int64_t q0) {
  float *lse = (float *)call->out_data[1] + (b * a->heads + h) * a->lse_row + q0;
  ms_bf16 *o = (ms_bf16 *)call->out_data[0] + ((b * a->t + q0) * a->heads + h) * a->e;
  for (int64_t q = 0; q < MS_QUERIES && q0 + q < a->t; q++) {
    ms_bf16_unpack(o + q * a->heads * a->e, s->sums + q * ms_bf16_round_up(a->e), 1.0f / s->denominator[q], a->e);
    lse[q] = (float)((s->largest[q] + log2f(s->denominator[q])) * MS_LN_2);
  }
}

static void forward_block(const ms_attention *a, const ms_kernel_call *call, const ms_bf16_unit *unit, scratch *s,
                          int64_t b, int64_t h, int64_t q0) {
  const int64_t columns = ms_bf16_round_up(a->d), width = ms_bf16_round_up(a->e);
  const int64_t begin = ms_block_first_key(a, q0), keys = ms_block_keys(a, q0);
  const ms_bf16 *q = (const ms_bf16 *)call->in_data[0] + ((b * a->t + q0) * a->heads + h) * a->d;
  ms_bf16_pack(s->rows, columns, q, a->heads * a->d, a->t - q0 < MS_QUERIES ? a->t - q0 : MS_QUERIES, MS_QUERIES, a->d);
  for (int i = 0; i < MS_QUERIES; i++) s->largest[i] = -INFINITY;
  for (int64_t first = begin; first < keys; first += KEYS_AT_ONCE) {
    const int64_t count = keys - first < KEYS_AT_ONCE ? keys - first : KEYS_AT_ONCE, padded = ms_bf16_round_up(count);
    for (int64_t key = 0; key < padded; key += 32)
      unit->product(s->scores + key, KEYS_AT_ONCE, s->rows, columns, s->keys + (first + key) * columns / 2, 32,
                    MS_QUERIES, 32, columns, 0);
    ms_bf16_cap(a, s->scores, KEYS_AT_ONCE, MS_QUERIES, padded);
    weigh_keys(a, s, q0, first, count, first > begin);
    unit->product(s->sums, width, s->weights, KEYS_AT_ONCE, s->values + first / 2 * width, width, MS_QUERIES, width,
                  padded, first > begin);
  }
  write_outputs(a, call, s, b, h, q0);
}

/* Orders the blocks of a head as first, last, second, ..., so that any range of items is about the same amount of work
 * under a causal mask. */
static int64_t balanced(int64_t i, int64_t blocks) { return i & 1 ? blocks - 1 - i / 2 : i / 2; }

static void forward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const ms_bf16_unit *unit = ms_bf16_unit_of_cpu();
  const int64_t blocks = ms_query_blocks(a);
  int64_t laid_out = -1;
  scratch s;
  lay_out(a, memory, &s);
  if (unit->begin) unit->begin();
  for (int64_t item = begin; item < end; item++) {
    const int64_t head = item / blocks, b = head / a->heads, h = head % a->heads;
    const int64_t key_head = b * a->groups + h / (a->heads / a->groups);
    if (key_head != laid_out) lay_out_key_head(a, call, &s, b, key_head % a->groups);
    laid_out = key_head;
    forward_block(a, call, unit, &s, b, h, balanced(item % blocks, blocks) * MS_QUERIES);
  }
  if (unit->end) unit->end();
}

const ms_attention_part ms_attention_bf16_forward = {scratch_bytes, forward};
MS_TARGET_END
#endif
