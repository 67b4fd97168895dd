/* attention_f32_backward.h - the gradients of one key head: recomputes the probabilities from scores and the saved
 * log-sums, one block of queries at a time. Included by attention_f32.h. */
typedef struct backward_scratch {
  float *keys, *dkeys;      /* [padded keys][padded columns] of one key head */
  float *values, *dvalues;  /* [padded keys][value columns] */
  float *q, *q_panel, *dq;  /* [QUERIES][padded columns]; panels are transposed */
  float *dout, *dout_panel; /* [QUERIES][value columns] */
  float *p, *ds;            /* [BACKWARD_KEYS][QUERIES] */
  float *lse, *delta;       /* [QUERIES] */
} backward_scratch;

static int64_t lay_out_backward(const ms_attention *a, float *memory, backward_scratch *s) {
  const int64_t columns = padded_columns(a), of_values = value_columns(a), keys = padded_keys(a);
  const int64_t scores = (BACKWARD_KEYS + TILE_ROWS) * QUERIES;
  int64_t used = 0;
  float **like_keys[] = {&s->keys, &s->dkeys}, **like_values[] = {&s->values, &s->dvalues};
  float **like_queries[] = {&s->q, &s->q_panel, &s->dq}, **like_results[] = {&s->dout, &s->dout_panel};
  for (int i = 0; i < 2; i++) *like_keys[i] = memory + take(&used, keys * columns);
  for (int i = 0; i < 2; i++) *like_values[i] = memory + take(&used, keys * of_values);
  for (int i = 0; i < 3; i++) *like_queries[i] = memory + take(&used, QUERIES * columns);
  for (int i = 0; i < 2; i++) *like_results[i] = memory + take(&used, QUERIES * of_values);
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

/* delta[q] = sum over e of do o, and lse converted to base 2. Both are 0 after the last query, where q and do are 0
 * too. */
static void load_statistics(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                            int64_t h, int64_t q0) {
  const float *lse = (const float *)call->in_data[4] + (b * a->heads + h) * a->lse_row + q0;
  for (int64_t q = 0; q < QUERIES; q++) {
    float sum = 0.0f;
    if (q0 + q < a->t) {
      const float *dout = s->dout + q * value_columns(a);
      const void *o = row_of(call->in_data[3], a->dtype, a->t, a->heads, a->e, b, q0 + q, h);
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < a->e; i++) sum += dout[i] * ms_simd_load(o, i, a->dtype == MS_BF16);
    }
    s->delta[q] = sum;
    s->lse[q] = q0 + q < a->t ? (float)(lse[q] / MS_LN_2) : 0.0f;
  }
}

static void load_queries(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                         int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), of_values = value_columns(a);
  const int64_t rows = a->t - q0 < QUERIES ? a->t - q0 : QUERIES;
  pack_rows(s->q, columns, row_of(call->in_data[0], a->dtype, a->t, a->heads, a->d, b, q0, h), a->dtype,
            a->heads * a->d, rows, QUERIES, a->d, (float)(a->options.scale / MS_LN_2));
  pack_rows(s->dout, of_values, row_of(call->in_data[5], a->dtype, a->t, a->heads, a->e, b, q0, h), a->dtype,
            a->heads * a->e, rows, QUERIES, a->e, 1.0f);
  transpose_queries(s->q_panel, s->q, columns, a->d);
  transpose_queries(s->dout_panel, s->dout, of_values, a->e);
  load_statistics(a, call, s, b, h, q0);
  memset(s->dq, 0, (size_t)(QUERIES * columns) * sizeof(float));
}

/* p: replaces scores by probabilities; ds: replaces dp by p (dp - delta), times the slope of capped scores. Padding
 * rows of the last tile become 0. */
MS_INLINE void score_gradients(const ms_attention *a, const backward_scratch *s, int64_t keys, int64_t padded,
                               int capped) {
  for (int q = 0; q < QUERIES; q += LANES) {
    const vector lse = *(const vector *)(s->lse + q), delta = *(const vector *)(s->delta + q);
    for (int64_t key = 0; key < keys; key++) {
      vector *p = (vector *)(s->p + key * QUERIES + q), *ds = (vector *)(s->ds + key * QUERIES + q);
      const vector score = *p;
      *p = power_of_two(score - lse);
      *ds = *p * (*ds - delta);
      if (capped) *ds *= slope_of(a, score);
    }
  }
  memset(s->p + keys * QUERIES, 0, (size_t)((padded - keys) * QUERIES) * sizeof(float));
  memset(s->ds + keys * QUERIES, 0, (size_t)((padded - keys) * QUERIES) * sizeof(float));
}

/* dv += p' do and dk += ds' q for `padded` keys from `first`. A tile of keys takes the queries that see any of it. */
static void add_key_gradients(const ms_attention *a, const backward_scratch *s, int64_t q0, int64_t first,
                              int64_t padded) {
  const int64_t columns = padded_columns(a), of_values = value_columns(a);
  for (int64_t key = 0; key < padded; key += TILE_ROWS) {
    const int64_t skip = ms_blind_queries(a, first + key, q0);
    const int64_t seeing = ms_seeing_queries(a, first + key + TILE_ROWS - 1, q0, QUERIES) - skip;
    if (seeing <= 0) continue;
    const float *p = s->p + key * QUERIES + skip, *ds = s->ds + key * QUERIES + skip;
    for (int64_t e = 0; e < of_values; e += TILE_COLUMNS)
      tile(s->dvalues + (first + key) * of_values + e, of_values, p, QUERIES, 1, s->dout + skip * of_values + e,
           of_values, seeing, ADD, NULL);
    for (int64_t d = 0; d < columns; d += TILE_COLUMNS)
      tile(s->dkeys + (first + key) * columns + d, columns, ds, QUERIES, 1, s->q + skip * columns + d, columns, seeing,
           ADD, NULL);
  }
}

/* dq += ds k */
static void add_query_gradients(const ms_attention *a, const backward_scratch *s, int64_t q0, int64_t first,
                                int64_t keys) {
  const int64_t columns = padded_columns(a);
  for (int64_t q = 0; q < QUERIES; q += TILE_ROWS) {
    int64_t seen = ms_visible_keys(a, q0 + q + TILE_ROWS - 1) - first;
    if (seen > keys) seen = keys;
    int64_t from = ms_first_key(a, q0 + q) - first;
    if (from < 0) from = 0;
    if (seen <= from) continue;
    for (int64_t d = 0; d < columns; d += TILE_COLUMNS)
      tile(s->dq + q * columns + d, columns, s->ds + from * QUERIES + q, 1, QUERIES,
           s->keys + (first + from) * columns + d, columns, seen - from, ADD, NULL);
  }
}

static void backward_block(const ms_attention *a, const ms_kernel_call *call, const backward_scratch *s, int64_t b,
                           int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), keys = ms_block_keys(a, q0);
  expect_writes(a, call->out_data[0], a->t, a->heads, a->d, b, q0, QUERIES, h);
  load_queries(a, call, s, b, h, q0);
  for (int64_t first = ms_block_first_key(a, q0); first < keys; first += BACKWARD_KEYS) {
    const int64_t count = keys - first < BACKWARD_KEYS ? keys - first : BACKWARD_KEYS,
                  padded = round_up(count, TILE_ROWS);
    score_keys(s->p, s->keys + first * columns, columns, s->q_panel, count, a->d);
    cap_scores(a, s->p, count * QUERIES);
    score_keys(s->ds, s->values + first * value_columns(a), value_columns(a), s->dout_panel, count, a->e);
    hide_keys(a, s->p, first, count, q0);
    if (a->options.softcap > 0.0f) score_gradients(a, s, count, padded, 1);
    else score_gradients(a, s, count, padded, 0);
    add_key_gradients(a, s, q0, first, padded);
    add_query_gradients(a, s, q0, first, count);
  }
  for (int64_t q = 0; q < QUERIES && q0 + q < a->t; q++)
    unpack_row(call->out_data[0], a->dtype, ((b * a->t + q0 + q) * a->heads + h) * a->d, s->dq + q * columns,
               a->options.scale, a->d);
}

static void backward(const ms_attention *a, const ms_kernel_call *call, int64_t begin, int64_t end, void *memory) {
  const int64_t columns = padded_columns(a), of_values = value_columns(a), heads = a->heads / a->groups;
  backward_scratch s;
  lay_out_backward(a, memory, &s);
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / a->groups, g = item % a->groups;
    pack_key_head(a, call, s.keys, s.values, b, g);
    memset(s.dkeys, 0, (size_t)(padded_keys(a) * columns) * sizeof(float));
    memset(s.dvalues, 0, (size_t)(padded_keys(a) * of_values) * sizeof(float));
    for (int64_t h = g * heads; h < (g + 1) * heads; h++)
      for (int64_t q0 = 0; q0 < a->t; q0 += QUERIES) {
        if (h == (g + 1) * heads - 1) expect_key_gradients(a, call, b, g, q0, QUERIES);
        backward_block(a, call, &s, b, h, q0);
      }
    for (int64_t key = 0; key < a->s; key++) {
      const int64_t row = (b * a->s + key) * a->groups + g;
      unpack_row(call->out_data[1], a->dtype, row * a->d, s.dkeys + key * columns, (float)MS_LN_2, a->d);
      unpack_row(call->out_data[2], a->dtype, row * a->e, s.dvalues + key * of_values, 1.0f, a->e);
    }
  }
}
