/* attention_f32_forward.h - multiplies blocks of queries with all keys they see, FORWARD_KEYS keys at a time: scores,
 * running softmax (Milakov & Gimelshein 2018), weighted values. Included by attention_f32.h. */
typedef struct forward_scratch {
  float *keys, *values; /* [padded keys][padded columns], [padded keys][value columns] of one key head */
  float *rows, *panel;  /* q [QUERIES][padded columns], and its transpose */
  float *scores;        /* [FORWARD_KEYS][QUERIES] */
  float *sums;          /* [QUERIES][value columns]: o before division by the denominator */
} forward_scratch;

static int64_t lay_out_forward(const ms_attention *a, float *memory, forward_scratch *s) {
  const int64_t columns = padded_columns(a), keys = padded_keys(a);
  int64_t used = 0;
  s->keys = memory + take(&used, keys * columns);
  s->values = memory + take(&used, keys * value_columns(a));
  s->rows = memory + take(&used, QUERIES * columns);
  s->panel = memory + take(&used, QUERIES * columns);
  s->scores = memory + take(&used, (FORWARD_KEYS + TILE_ROWS) * QUERIES);
  s->sums = memory + take(&used, QUERIES * value_columns(a));
  return used * (int64_t)sizeof(float);
}

static int64_t forward_scratch_bytes(const ms_attention *a) {
  static float nothing[1];
  forward_scratch scratch;
  return lay_out_forward(a, nothing, &scratch);
}

/* o[q][e] = o factor[q] + p v for keys [first, first + keys). Each tile of queries takes those that it sees. */
static void weigh_values(const ms_attention *a, const forward_scratch *s, const running_softmax *state, int64_t q0,
                         int64_t first, int64_t keys) {
  const int64_t columns = value_columns(a);
  for (int64_t q = 0; q < QUERIES; q += TILE_ROWS) {
    int64_t seen = ms_visible_keys(a, q0 + q + TILE_ROWS - 1) - first;
    if (seen > keys) seen = keys;
    int64_t from = ms_first_key(a, q0 + q) - first;
    if (from < 0) from = 0;
    if (seen <= from) continue;
    for (int64_t e = 0; e < columns; e += TILE_COLUMNS)
      tile(s->sums + q * columns + e, columns, s->scores + from * QUERIES + q, 1, QUERIES,
           s->values + (first + from) * columns + e, columns, seen - from, SCALE_AND_ADD, state->factor + q);
  }
}

static void write_outputs(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s,
                          const running_softmax *state, int64_t b, int64_t h, int64_t q0) {
  float *lse = (float *)call->out_data[1] + (b * a->heads + h) * a->lse_row + q0;
  for (int64_t q = 0; q < QUERIES && q0 + q < a->t; q++) {
    unpack_row(call->out_data[0], a->dtype, ((b * a->t + q0 + q) * a->heads + h) * a->e, s->sums + q * value_columns(a),
               1.0f / state->sum[q], a->e);
    lse[q] = (float)((state->largest[q] + log2f(state->sum[q])) * MS_LN_2);
  }
}

static void forward_block(const ms_attention *a, const ms_kernel_call *call, const forward_scratch *s, int64_t b,
                          int64_t h, int64_t q0) {
  const int64_t columns = padded_columns(a), keys = ms_block_keys(a, q0),
                rows = a->t - q0 < QUERIES ? a->t - q0 : QUERIES;
  running_softmax state;
  expect_writes(a, call->out_data[0], a->t, a->heads, a->e, b, q0, QUERIES, h);
  pack_rows(s->rows, columns, row_of(call->in_data[0], a->dtype, a->t, a->heads, a->d, b, q0, h), a->dtype,
            a->heads * a->d, rows, QUERIES, a->d, (float)(a->options.scale / MS_LN_2));
  transpose_queries(s->panel, s->rows, columns, a->d);
  memset(s->sums, 0, (size_t)(QUERIES * value_columns(a)) * sizeof(float));
  for (int q = 0; q < QUERIES; q++) state.largest[q] = -INFINITY, state.sum[q] = 0.0f;
  for (int64_t first = ms_block_first_key(a, q0); first < keys; first += FORWARD_KEYS) {
    const int64_t count = keys - first < FORWARD_KEYS ? keys - first : FORWARD_KEYS;
    score_keys(s->scores, s->keys + first * columns, columns, s->panel, count, a->d);
    cap_scores(a, s->scores, count * QUERIES);
    hide_keys(a, s->scores, first, count, q0);
    softmax_keys(s->scores, count, &state);
    weigh_values(a, s, &state, q0, first, count);
  }
  write_outputs(a, call, s, &state, b, h, q0);
}

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
    forward_block(a, call, &scratch, b, h, balanced_block(item % blocks, blocks) * QUERIES);
  }
}
