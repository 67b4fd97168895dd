/* attention_split.c - f32 attention with products on the bf16 matrix unit, in three parts (split_panel.h), and AVX-512
 * for the rest.
 *
 * As in attention_f32.h, scores are transposed and q is multiplied by scale / ln 2. The left operands of the products
 * are keys, values, probabilities and their gradients. Each is packed right after it is computed, mostly while it is in
 * L1:
 *
 *   forward   s'[key][q] = k q'   o[q][e] += p v
 *   backward  s' = k q', dp' = v do', ds' = p' (dp' - delta)   dv[key][e] += p' do, dk[key][d] += ds' q, dq[q][d] += ds
 * k
 *
 * Blocks of 32 x 32 scores that no query sees are skipped.
 */
#if defined(__x86_64__)
  #include "kernels/cpu/target.h"

MS_TARGET_BEGIN("arch=x86-64-v4")

  #define MS_VECTOR_BYTES 64
  #define ms_vector_max(a, b) ((vector)_mm512_max_ps((__m512)(a), (__m512)(b)))

  #include "base/min.h"
  #include "kernels/cpu/attention/attention_vector.h"
  #include "kernels/cpu/matmul/split_panel.h"

enum {
  GRAIN = MS_SPLIT_GRAIN,
  KEYS = 512, /* keys per stretch: the probabilities of one block of queries and one stretch are held at a time */
  BACKWARD_QUERIES = 2 * GRAIN, /* queries per block: longer sums, so fewer additions to dk and dv */
  STEP_FLOATS = MS_SPLIT_STEP_BYTES / 4
};

static int64_t padded(int64_t n) { return round_up(n, GRAIN); }

/* Bytes of all panels of an operand [rows][k]. */
static int64_t panels_bytes(int64_t rows, int64_t k) { return ms_split_steps(rows) * ms_split_panel_bytes(k); }

static char *take_panels(float *memory, int64_t *used, int64_t rows, int64_t k) {
  return (char *)(memory + take(used, panels_bytes(rows, k) / 4));
}

/* Head h of a tensor [batch][length][heads][width] as an operand, for sums over columns (k_inside) or over rows. */
static ms_split_operand head_of(const void *x, int64_t length, int64_t heads, int64_t width, int64_t b, int64_t first,
                                int64_t h, int over_columns) {
  return (ms_split_operand){row_of(x, MS_F32, length, heads, width, b, first, h), heads * width, over_columns};
}

/* Packs keys or values for sums over keys: panels of `width` columns, one stretch of KEYS keys after the other. */
static void pack_over_keys(const ms_attention *a, char *panels, const ms_split_operand *x, int64_t width) {
  for (int64_t first = 0; first < a->s; first += KEYS)
    ms_split_pack_b(panels + panels_bytes(width, first), x, 0, width, first, ms_min(KEYS, a->s - first));
}

/* Panel j of the stretch that key `key` is in, from that key on. */
static const char *stretch_panel(const ms_attention *a, const char *panels, int64_t width, int64_t key, int64_t j) {
  const int64_t first = key / KEYS * KEYS;
  return panels + panels_bytes(width, first) + j * ms_split_panel_bytes(ms_min(KEYS, a->s - first)) +
         panels_bytes(key - first, 1);
}

/* The keys, whole blocks of them, from `first` to the end of its stretch or of those that are seen. */
static int64_t keys_of_stretch(int64_t first, int64_t seen) {
  return padded(ms_min((first / KEYS + 1) * KEYS, seen) - first);
}

/* y [rows][padded d] = scale x [rows][d]; the rows of x are `stride` elements apart. */
static void scale_rows(float *y, const float *x, int64_t stride, int64_t rows, int64_t d, float scale) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < d; i++) y[r * padded(d) + i] = scale * x[r * stride + i];
}

static __mmask16 first_lanes(int64_t count) { return (__mmask16)((1u << (count < LANES ? count : LANES)) - 1); }

static void hide_row(float *scores, int64_t begin, int64_t end) {
  for (int64_t q = begin; q < end; q += LANES)
    _mm512_mask_storeu_ps(scores + q, first_lanes(end - q), _mm512_set1_ps(-INFINITY));
}

/* Sets scores [keys][stride] of queries from q0 to -inf where the query does not see the key, or the key is padding. */
static void hide(const ms_attention *a, float *scores, int64_t stride, int64_t first, int64_t keys, int64_t q0,
                 int64_t queries) {
  for (int64_t key = first; key < first + keys; key++) {
    int64_t blind = ms_blind_queries(a, key, q0);
    if (key >= a->s || blind > queries) blind = queries;
    hide_row(scores + (key - first) * stride, 0, blind);
    hide_row(scores + (key - first) * stride, ms_seeing_queries(a, key, q0, queries), queries);
  }
}

static float dot(const float *x, const float *y, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += LANES) {
    const __mmask16 lanes = first_lanes(n - i);
    sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_maskz_loadu_ps(lanes, y + i), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

typedef struct forward_scratch {
  char *keys, *values;   /* panels of one key head: k for sums over d, v for sums over keys */
  char *query, *weights; /* panels of a block of queries: q, and its probabilities */
  float *rows;           /* q [QUERIES][padded d] */
  float *scores;         /* [KEYS][QUERIES] */
  float *sums;           /* [QUERIES][padded e]: o before division by the denominator */
} forward_scratch;

static int64_t lay_out_forward(const ms_attention *a, float *memory, forward_scratch *s) {
  int64_t used = 0;
  s->keys = take_panels(memory, &used, a->s, a->d);
  s->values = take_panels(memory, &used, a->e, padded(a->s));
  s->query = take_panels(memory, &used, QUERIES, a->d);
  s->weights = take_panels(memory, &used, QUERIES, KEYS);
  s->rows = memory + take(&used, QUERIES * padded(a->d));
  s->scores = memory + take(&used, KEYS * QUERIES);
  s->sums = memory + take(&used, QUERIES * padded(a->e));
  return used * (int64_t)sizeof(float);
}

static int64_t forward_scratch_bytes(const ms_attention *a) {
  static float nothing[1];
  forward_scratch scratch;
  return lay_out_forward(a, nothing, &scratch);
}

/* sums = sums factor + p v for one stretch of keys; they are 0 before the first. */
static void weigh_values(const ms_attention *a, const forward_scratch *s, const running_softmax *state, int64_t first,
                         int64_t keys, int adds) {
  const ms_split_operand p = {s->scores, QUERIES, 0};
  const int64_t columns = padded(a->e);
  ms_split_pack_a(s->weights, &p, 0, QUERIES, 0, keys);
  if (adds)
    for (int64_t q = 0; q < QUERIES; q++)
      for (int64_t i = 0; i < columns; i++) s->sums[q * columns + i] *= state->factor[q];
  for (int64_t j = 0; j < columns; j += GRAIN)
    ms_split_product(s->sums + j, columns, s->weights, stretch_panel(a, s->values, a->e, first, j / GRAIN),
                     ms_split_steps(keys), adds ? s->sums + j : NULL, columns);
}

static void write_outputs(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s,
                          const running_softmax *state, int64_t b, int64_t h, int64_t q0) {
  float *lse = (float *)call->out_data[1] + (b * a->heads + h) * a->lse_row + q0;
  for (int64_t q = 0; q < QUERIES && q0 + q < a->t; q++) {
    unpack_row(call->out_data[0], MS_F32, ((b * a->t + q0 + q) * a->heads + h) * a->e, s->sums + q * padded(a->e),
               1.0f / state->sum[q], a->e);
    lse[q] = (float)((state->largest[q] + log2f(state->sum[q])) * MS_LN_2);
  }
}

static void forward_block(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s, int64_t b,
                          int64_t h, int64_t q0) {
  const int64_t begin = ms_block_first_key(a, q0), seen = ms_block_keys(a, q0), rows = ms_min(QUERIES, a->t - q0),
                d_steps = ms_split_steps(a->d);
  const ms_split_operand q = {s->rows, padded(a->d), 1};
  running_softmax state;
  expect_writes(a, call->out_data[0], a->t, a->heads, a->e, b, q0, QUERIES, h);
  scale_rows(s->rows, row_of(call->in_data[0], MS_F32, a->t, a->heads, a->d, b, q0, h), a->heads * a->d, rows, a->d,
             (float)(a->options.scale / MS_LN_2));
  ms_split_pack_b(s->query, &q, 0, rows, 0, a->d);
  for (int i = 0; i < QUERIES; i++) state.largest[i] = -INFINITY, state.sum[i] = 0.0f;
  for (int64_t first = begin, keys; first < seen; first += keys) {
    keys = keys_of_stretch(first, seen);
    for (int64_t key = 0; key < keys; key += GRAIN)
      ms_split_product(s->scores + key * QUERIES, QUERIES, s->keys + panels_bytes(first + key, a->d), s->query, d_steps,
                       NULL, 0);
    cap_scores(a, s->scores, keys * QUERIES);
    hide(a, s->scores, QUERIES, first, keys, q0, QUERIES);
    softmax_keys(s->scores, keys, &state);
    weigh_values(a, s, &state, first, keys, first > begin);
  }
  write_outputs(a, call, s, &state, b, h, q0);
}

static void pack_key_head(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s, int64_t b,
                          int64_t g) {
  const ms_split_operand k = head_of(call->in_data[1], a->s, a->groups, a->d, b, 0, g, 1),
                         v = head_of(call->in_data[2], a->s, a->groups, a->e, b, 0, g, 0);
  ms_split_pack_a(s->keys, &k, 0, a->s, 0, a->d);
  pack_over_keys(a, s->values, &v, a->e);
}

static void forward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const int64_t blocks = ms_query_blocks(a);
  int64_t packed = -1;
  forward_scratch scratch;
  lay_out_forward(a, memory, &scratch);
  ms_split_begin();
  for (int64_t item = begin; item < end; item++) {
    const int64_t head = item / blocks, b = head / a->heads, h = head % a->heads;
    const int64_t key_head = b * a->groups + h / (a->heads / a->groups);
    if (key_head != packed) pack_key_head(a, call, &scratch, b, key_head % a->groups);
    packed = key_head;
    forward_block(a, call, &scratch, b, h, balanced_block(item % blocks, blocks) * QUERIES);
  }
  ms_split_end();
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct backward_scratch {
  char *keys, *values,
      *keys_over_keys;          /* panels of one key head: k and v for sums over columns, k for sums over keys */
  float *dkeys, *dvalues;       /* [padded keys][padded d], [padded keys][padded e] */
  float *rows, *dq;             /* [BACKWARD_QUERIES][padded d]: q scaled, and dq */
  char *query, *dout;           /* panels for sums over columns */
  char *query_over, *dout_over; /* the same for sums over queries */
  char *left;                   /* panels of 32 keys of p or ds, for sums over queries */
  char *scores;                 /* panels of ds for one stretch, for sums over keys */
  float *p, *ds;                /* [GRAIN][BACKWARD_QUERIES] */
  float *lse, *delta;           /* [BACKWARD_QUERIES] */
} backward_scratch;

static int64_t lay_out_backward(const ms_attention *a, float *memory, backward_scratch *s) {
  const int64_t columns = padded(a->d);
  int64_t used = 0;
  s->keys = take_panels(memory, &used, a->s, a->d);
  s->values = take_panels(memory, &used, a->s, a->e);
  s->keys_over_keys = take_panels(memory, &used, a->d, padded(a->s));
  s->query = take_panels(memory, &used, BACKWARD_QUERIES, a->d);
  s->dout = take_panels(memory, &used, BACKWARD_QUERIES, a->e);
  s->query_over = take_panels(memory, &used, a->d, BACKWARD_QUERIES);
  s->dout_over = take_panels(memory, &used, a->e, BACKWARD_QUERIES);
  s->left = take_panels(memory, &used, GRAIN, BACKWARD_QUERIES);
  s->scores = take_panels(memory, &used, BACKWARD_QUERIES, KEYS);
  s->dkeys = memory + take(&used, padded(a->s) * columns);
  s->dvalues = memory + take(&used, padded(a->s) * padded(a->e));
  float **blocks[] = {&s->rows, &s->dq}, **tiles[] = {&s->p, &s->ds}, **queries[] = {&s->lse, &s->delta};
  for (int i = 0; i < 2; i++) {
    *blocks[i] = memory + take(&used, BACKWARD_QUERIES * columns);
    *tiles[i] = memory + take(&used, GRAIN * BACKWARD_QUERIES);
    *queries[i] = memory + take(&used, BACKWARD_QUERIES);
  }
  return used * (int64_t)sizeof(float);
}

static int64_t backward_scratch_bytes(const ms_attention *a) {
  static float nothing[1];
  backward_scratch scratch;
  return lay_out_backward(a, nothing, &scratch);
}

/* delta[q] = sum over e of do o, and lse converted to base 2. Both are 0 after the last query, where q and do are 0
 * too. */
static void load_statistics(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                            int64_t h, int64_t q0) {
  const float *lse = (const float *)call->in_data[4] + (b * a->heads + h) * a->lse_row + q0;
  for (int64_t q = 0; q < BACKWARD_QUERIES; q++) {
    const int there = q0 + q < a->t;
    s->delta[q] = there ? dot(row_of(call->in_data[5], MS_F32, a->t, a->heads, a->e, b, q0 + q, h),
                              row_of(call->in_data[3], MS_F32, a->t, a->heads, a->e, b, q0 + q, h), a->e)
                        : 0.0f;
    s->lse[q] = there ? (float)(lse[q] / MS_LN_2) : 0.0f;
  }
}

static void load_queries(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                         int64_t h, int64_t q0, int64_t rows) {
  const ms_split_operand q = {s->rows, padded(a->d), 1}, q_over = {s->rows, padded(a->d), 0},
                         dout = head_of(call->in_data[5], a->t, a->heads, a->e, b, q0, h, 1),
                         dout_over = head_of(call->in_data[5], a->t, a->heads, a->e, b, q0, h, 0);
  scale_rows(s->rows, row_of(call->in_data[0], MS_F32, a->t, a->heads, a->d, b, q0, h), a->heads * a->d, rows, a->d,
             (float)(a->options.scale / MS_LN_2));
  ms_split_pack_b(s->query, &q, 0, rows, 0, a->d);
  ms_split_pack_b(s->dout, &dout, 0, rows, 0, a->e);
  ms_split_pack_b(s->query_over, &q_over, 0, a->d, 0, rows);
  ms_split_pack_b(s->dout_over, &dout_over, 0, a->e, 0, rows);
  load_statistics(a, call, s, b, h, q0);
}

/* p: replaces scores by probabilities; ds: replaces dp by p (dp - delta), times the slope of capped scores. For queries
 * [begin, end) of the block. */
MS_INLINE void score_gradients(const ms_attention *a, const backward_scratch *s, int64_t begin, int64_t end,
                               int capped) {
  for (int64_t q = begin; q < end; q += LANES) {
    const vector lse = *(const vector *)(s->lse + q), delta = *(const vector *)(s->delta + q);
    for (int64_t key = 0; key < GRAIN; key++) {
      vector *p = (vector *)(s->p + key * BACKWARD_QUERIES + q), *ds = (vector *)(s->ds + key * BACKWARD_QUERIES + q);
      const vector score = *p;
      *p = power_of_two(score - lse);
      *ds = *p * (*ds - delta);
      if (capped) *ds *= slope_of(a, score);
    }
  }
}

/* gradient [GRAIN][columns] += x' y over queries [begin, end) of `block_rows`: x [GRAIN keys][queries], y packed for
 * sums over queries. */
static void add_over_queries(const backward_scratch *s, float *gradient, int64_t columns, const float *x, const char *y,
                             int64_t begin, int64_t end, int64_t block_rows) {
  const ms_split_operand left = {x, BACKWARD_QUERIES, 1};
  ms_split_pack_a(s->left, &left, 0, GRAIN, begin, end - begin);
  for (int64_t j = 0; j < columns; j += GRAIN)
    ms_split_product(gradient + j, columns, s->left, y + panels_bytes(j, block_rows) + panels_bytes(begin, 1),
                     ms_split_steps(end - begin), gradient + j, columns);
}

/* Processes 32 keys from `key` with those of the `rows` queries from q0 that see any of them: adds to dv and dk, and
 * packs ds into the panels of the stretch that begins at `first`. */
static void backward_keys(const ms_attention *a, const backward_scratch *s, int64_t key, int64_t first,
                          int64_t stretch_keys, int64_t q0, int64_t rows) {
  const int64_t begin = ms_blind_queries(a, key, q0) / GRAIN * GRAIN,
                end = padded(ms_seeing_queries(a, key + GRAIN - 1, q0, rows)), d_steps = ms_split_steps(a->d),
                e_steps = ms_split_steps(a->e);
  const ms_split_operand ds = {s->ds, BACKWARD_QUERIES, 0};
  if (begin >= end) return; /* between the windows of queries that are in two parts of the axis */
  for (int64_t q = begin; q < end; q += GRAIN) {
    ms_split_product(s->p + q, BACKWARD_QUERIES, s->keys + panels_bytes(key, a->d), s->query + panels_bytes(q, a->d),
                     d_steps, NULL, 0);
    ms_split_product(s->ds + q, BACKWARD_QUERIES, s->values + panels_bytes(key, a->e), s->dout + panels_bytes(q, a->e),
                     e_steps, NULL, 0);
  }
  for (int64_t i = 0; i < GRAIN; i++) cap_scores(a, s->p + i * BACKWARD_QUERIES + begin, end - begin);
  hide(a, s->p, BACKWARD_QUERIES, key, GRAIN, q0, end);
  if (a->options.softcap > 0.0f) score_gradients(a, s, begin, end, 1);
  else score_gradients(a, s, begin, end, 0);
  add_over_queries(s, s->dvalues + key * padded(a->e), padded(a->e), s->p, s->dout_over, begin, end, rows);
  add_over_queries(s, s->dkeys + key * padded(a->d), padded(a->d), s->ds, s->query_over, begin, end, rows);
  for (int64_t q = begin; q < end; q += GRAIN)
    ms_split_pack_a(s->scores + panels_bytes(q, stretch_keys) + panels_bytes(key - first, 1), &ds, q, GRAIN, 0, GRAIN);
}

/* dq += ds k for 32 of the `rows` queries, from q on, and those of the stretch's keys that they see. */
static void add_query_gradients(const ms_attention *a, const backward_scratch *s, int64_t q, int64_t first,
                                int64_t keys, int64_t q0, int64_t rows) {
  const int64_t columns = padded(a->d), begin = ms_block_first_key(a, q0 + q), from = begin > first ? begin : first,
                end = ms_visible_keys(a, q0 + ms_min(q + GRAIN, rows) - 1);
  const int64_t seen = ms_min(padded(end - first), keys) - (from - first);
  if (seen <= 0) return;
  for (int64_t j = 0; j < columns; j += GRAIN)
    ms_split_product(s->dq + q * columns + j, columns,
                     s->scores + panels_bytes(q, keys) + panels_bytes(from - first, 1),
                     stretch_panel(a, s->keys_over_keys, a->d, from, j / GRAIN), ms_split_steps(seen),
                     from > begin ? s->dq + q * columns + j : NULL, columns);
}

static void backward_block(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                           int64_t h, int64_t q0) {
  const int64_t columns = padded(a->d), rows = ms_min(BACKWARD_QUERIES, a->t - q0),
                seen = ms_visible_keys(a, q0 + rows - 1);
  expect_writes(a, call->out_data[0], a->t, a->heads, a->d, b, q0, rows, h);
  load_queries(a, call, s, b, h, q0, rows);
  for (int64_t first = ms_block_first_key(a, q0), keys; first < seen; first += keys) {
    keys = keys_of_stretch(first, seen);
    for (int64_t key = first; key < first + keys; key += GRAIN) backward_keys(a, s, key, first, keys, q0, rows);
    for (int64_t q = 0; q < rows; q += GRAIN) add_query_gradients(a, s, q, first, keys, q0, rows);
  }
  for (int64_t q = 0; q < rows; q++)
    unpack_row(call->out_data[0], MS_F32, ((b * a->t + q0 + q) * a->heads + h) * a->d, s->dq + q * columns,
               a->options.scale, a->d);
}

static void pack_for_backward(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                              int64_t g) {
  const ms_split_operand k = head_of(call->in_data[1], a->s, a->groups, a->d, b, 0, g, 1),
                         k_over = head_of(call->in_data[1], a->s, a->groups, a->d, b, 0, g, 0),
                         v = head_of(call->in_data[2], a->s, a->groups, a->e, b, 0, g, 1);
  ms_split_pack_a(s->keys, &k, 0, a->s, 0, a->d);
  ms_split_pack_a(s->values, &v, 0, a->s, 0, a->e);
  pack_over_keys(a, s->keys_over_keys, &k_over, a->d);
  memset(s->dkeys, 0, (size_t)(padded(a->s) * padded(a->d)) * sizeof(float));
  memset(s->dvalues, 0, (size_t)(padded(a->s) * padded(a->e)) * sizeof(float));
}

static void backward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const int64_t columns = padded(a->d), heads = a->heads / a->groups;
  backward_scratch s;
  lay_out_backward(a, memory, &s);
  ms_split_begin();
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / a->groups, g = item % a->groups;
    pack_for_backward(a, call, &s, b, g);
    for (int64_t h = g * heads; h < (g + 1) * heads; h++)
      for (int64_t q0 = 0; q0 < a->t; q0 += BACKWARD_QUERIES) {
        if (h == (g + 1) * heads - 1) expect_key_gradients(a, call, b, g, q0, BACKWARD_QUERIES);
        backward_block(a, call, &s, b, h, q0);
      }
    for (int64_t key = 0; key < a->s; key++) {
      const int64_t row = (b * a->s + key) * a->groups + g;
      unpack_row(call->out_data[1], MS_F32, row * a->d, s.dkeys + key * columns, (float)MS_LN_2, a->d);
      unpack_row(call->out_data[2], MS_F32, row * a->e, s.dvalues + key * padded(a->e), 1.0f, a->e);
    }
  }
  ms_split_end();
}

const ms_attention_code ms_attention_split = {{forward_scratch_bytes, forward}, {backward_scratch_bytes, backward}};
MS_TARGET_END
#endif
