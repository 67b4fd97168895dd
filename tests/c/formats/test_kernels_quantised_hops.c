/* test_kernels_quantised_hops.c - sums of gradients in 8 and 4 bits over shards on several nodes, in two hops, against
 * the same written out, bit for bit, on the CPU and on (emulated) CUDA: numbers of nodes and of ranks of a node, sizes
 * that no piece, block or word divides; what each hop rounds off, at most and when it is kept.
 */
#include "tests/c/support/pieces.h"

typedef struct hops {
  int dtype, nodes, inner; /* inner: ranks of a node */
  int64_t chunk;           /* elements */
} hops;

static int shards_of(const hops *s) { return s->nodes * s->inner; }

static ms_pieces pieces_of(const hops *s) { return ms_pieces_each(s->dtype, s->chunk); }

static float *floats(int64_t n) {
  float *x = calloc((size_t)n, sizeof *x);
  assert_non_null(x);
  return x;
}

/* ---- the ops ---- */

static void run(kernel_case *c, const void *in, int64_t bytes, const float *residuals) {
  memcpy((void *)(uintptr_t)c->call.in_data[0], in, (size_t)bytes);
  if (residuals) memcpy(c->call.out_data[1], residuals, (size_t)(4 * ms_numel(&c->call.out[1])));
  run_once(c, c->call, TEAM);
  if (!residuals) assert_as_on_the_cpu(c);
}

/* Ends a case: its words, and its residuals if it has them. */
static void take(kernel_case *c, int32_t *words, float *residuals) {
  memcpy(words, c->call.out_data[0], (size_t)tensor_bytes(&c->call.out[0]));
  if (residuals) memcpy(residuals, c->call.out_data[1], (size_t)(4 * ms_numel(&c->call.out[1])));
  free_case(c);
}

/* x: the gradients of all shards; group: 0: pieces in their order. residuals: NULL, or those of x. */
static void quantise(const hops *s, const float *x, int group, float *residuals, int32_t *out) {
  const int64_t n = shards_of(s) * s->chunk;
  kernel_case c = case_of(residuals ? MS_OP_quantise_pieces_kept : MS_OP_quantise_pieces);
  c.call.attrs =
      (ms_op_attrs){.pieces = {.dtype = s->dtype, .pieces = shards_of(s), .stride = s->chunk, .group = group}};
  add_input(&c, vector_of(MS_F32, n));
  add_output(&c, words_of(shards_of(s) * pieces_of(s).words));
  if (residuals) add_output(&c, vector_of(MS_F32, n));
  run(&c, x, 4 * n, residuals);
  take(&c, out, residuals);
}

/* from: of every rank of a node, a piece for each node; residuals: NULL, or of the sums, [nodes][elements of a piece].
 */
static void sum(const hops *s, const int32_t *from, float *residuals, int32_t *out) {
  const int64_t words = s->nodes * pieces_of(s).words;
  kernel_case c = case_of(residuals ? MS_OP_sum_pieces_kept : MS_OP_sum_pieces);
  c.call.attrs =
      (ms_op_attrs){.pieces = {.dtype = s->dtype, .pieces = s->inner, .elements = s->chunk, .each = s->nodes}};
  add_input(&c, words_of(s->inner * words));
  add_output(&c, words_of(words));
  if (residuals) add_output(&c, vector_of(MS_F32, s->nodes * pieces_of(s).elements));
  run(&c, from, 4 * s->inner * words, residuals);
  take(&c, out, residuals);
}

static void total(const hops *s, int ranks, const int32_t *from, float *out) {
  const int64_t words = ranks * pieces_of(s).words;
  kernel_case c = case_of(MS_OP_total_pieces);
  c.call.attrs = (ms_op_attrs){.pieces = {.dtype = s->dtype, .pieces = ranks, .elements = s->chunk}};
  add_input(&c, words_of(words));
  add_output(&c, vector_of(MS_F32, s->chunk));
  run(&c, from, 4 * words, NULL);
  memcpy(out, c.call.out_data[0], (size_t)(4 * s->chunk));
  free_case(&c);
}

/* ---- all ranks ---- */

/* What the ranks have: gradients of all shards, residuals of both hops, and pieces on their way. */
typedef struct ranks {
  hops s;
  float **x, **residuals, **passed_residuals; /* [shards]; of residuals NULL where none are kept */
  int32_t **sent, **passed;                   /* [shards] */
} ranks;

static ranks open_ranks(const hops *s, int keeps) {
  const int shards = shards_of(s);
  const ms_pieces of = pieces_of(s);
  ranks r = {.s = *s};
  r.x = calloc((size_t)shards, sizeof *r.x);
  r.residuals = calloc((size_t)shards, sizeof *r.residuals);
  r.passed_residuals = calloc((size_t)shards, sizeof *r.passed_residuals);
  r.sent = calloc((size_t)shards, sizeof *r.sent);
  r.passed = calloc((size_t)shards, sizeof *r.passed);
  for (int rank = 0; rank < shards; rank++) {
    r.x[rank] = floats(shards * s->chunk);
    for (int64_t i = 0; i < shards * s->chunk; i++) r.x[rank][i] = value_of(rank, i);
    r.sent[rank] = calloc((size_t)(shards * of.words), 4);
    r.passed[rank] = calloc((size_t)(s->nodes * of.words), 4);
    if (!keeps) continue;
    r.residuals[rank] = floats(shards * s->chunk);
    r.passed_residuals[rank] = floats(s->nodes * of.elements);
  }
  return r;
}

static void close_ranks(ranks *r) {
  for (int rank = 0; rank < shards_of(&r->s); rank++) {
    free(r->x[rank]);
    free(r->residuals[rank]);
    free(r->passed_residuals[rank]);
    free(r->sent[rank]);
    free(r->passed[rank]);
  }
  free((void *)r->x);
  free((void *)r->residuals);
  free((void *)r->passed_residuals);
  free((void *)r->sent);
  free((void *)r->passed);
}

/* The hops, with the exchanges that collectives make. chunks: [shards * chunk] of all owners. */
static void hop_twice(const ranks *r, float *chunks) {
  const hops *s = &r->s;
  const int64_t words = pieces_of(s).words, of_node = s->nodes * words;
  int32_t *received = calloc((size_t)(shards_of(s) * words), 4);
  for (int rank = 0; rank < shards_of(s); rank++) quantise(s, r->x[rank], s->inner, r->residuals[rank], r->sent[rank]);
  for (int rank = 0; rank < shards_of(s); rank++) {
    const int first = rank / s->inner * s->inner, place = rank % s->inner;
    for (int i = 0; i < s->inner; i++)
      memcpy(received + i * of_node, r->sent[first + i] + place * of_node, (size_t)(4 * of_node));
    sum(s, received, r->passed_residuals[rank], r->passed[rank]);
  }
  for (int rank = 0; rank < shards_of(s); rank++) {
    for (int node = 0; node < s->nodes; node++)
      memcpy(received + node * words, r->passed[node * s->inner + rank % s->inner] + rank / s->inner * words,
             (size_t)(4 * words));
    total(s, s->nodes, received, chunks + rank * s->chunk);
  }
  free(received);
}

static void round_chunk(const hops *s, float *chunk) {
  for (int64_t at = 0; at < s->chunk; at += MS_PIECE_BLOCK)
    round_block(s->dtype, chunk, at, at + MS_PIECE_BLOCK < s->chunk ? at + MS_PIECE_BLOCK : s->chunk);
}

/* The same written out. half_steps: the most that both hops may be off, [shards * chunk]. */
static void reference(const ranks *r, float *chunks, double *half_steps) {
  const hops *s = &r->s;
  float *one = floats(s->chunk), *node_sum = floats(s->chunk);
  for (int owner = 0; owner < shards_of(s); owner++) {
    float *chunk = chunks + owner * s->chunk;
    double *half = half_steps + owner * s->chunk;
    memset(half, 0, (size_t)s->chunk * sizeof *half);
    for (int node = 0; node < s->nodes; node++) {
      for (int i = 0; i < s->inner; i++) {
        const float *x = r->x[node * s->inner + i] + owner * s->chunk;
        memcpy(one, x, (size_t)(4 * s->chunk));
        for (int64_t e = 0; e < s->chunk; e++) {
          float most = 0;
          for (int64_t k = e / 256 * 256; k < e / 256 * 256 + 256 && k < s->chunk; k++) most = fmaxf(most, fabsf(x[k]));
          half[e] += 2.02 * (double)most / (2 * (double)max_of(s->dtype)); /* that of a node's sum is no larger */
        }
        round_chunk(s, one);
        for (int64_t e = 0; e < s->chunk; e++) node_sum[e] = i ? node_sum[e] + one[e] : one[e];
      }
      round_chunk(s, node_sum);
      for (int64_t e = 0; e < s->chunk; e++) chunk[e] = node ? chunk[e] + node_sum[e] : node_sum[e];
    }
  }
  free(one);
  free(node_sum);
}

static void check(const hops *s) {
  const int64_t n = shards_of(s) * s->chunk;
  ranks r = open_ranks(s, 0);
  float *got = floats(n), *wanted = floats(n);
  double *half_steps = calloc((size_t)n, sizeof *half_steps);
  hop_twice(&r, got);
  reference(&r, wanted, half_steps);
  for (int64_t i = 0; i < n; i++) {
    double exact = 0;
    for (int rank = 0; rank < shards_of(s); rank++) exact += (double)r.x[rank][i];
    assert_true(got[i] == wanted[i]);
    assert_true(fabs((double)got[i] - exact) <= half_steps[i]);
  }
  free(got);
  free(wanted);
  free(half_steps);
  close_ranks(&r);
}

static void Q6_sums_over_nodes_round_each_block_once_in_a_node_and_once_between_nodes(void **state) {
  (void)state;
  static const int64_t chunks[] = {1, 7, 255, 257, 600};
  static const int shapes[][2] = {{2, 2}, {2, 3}, {3, 2}, {1, 2}};
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
      for (int dtype = MS_I8; dtype <= MS_I4; dtype++)
        check(&(hops){.dtype = dtype, .nodes = shapes[k][0], .inner = shapes[k][1], .chunk = chunks[i]});
}

static void Q6_pieces_for_the_same_place_of_every_node_are_together(void **state) {
  (void)state;
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    const hops s = {.dtype = dtype, .nodes = 3, .inner = 2, .chunk = 333};
    const int64_t words = pieces_of(&s).words;
    float *x = floats(6 * s.chunk);
    int32_t *plain = calloc((size_t)(6 * words), 4), *grouped = calloc((size_t)(6 * words), 4);
    for (int64_t i = 0; i < 6 * s.chunk; i++) x[i] = value_of(0, i);
    quantise(&s, x, 0, NULL, plain);
    quantise(&s, x, 2, NULL, grouped);
    static const int order[] = {0, 2, 4, 1, 3, 5};
    for (int at = 0; at < 6; at++)
      assert_memory_equal(grouped + at * words, plain + order[at] * words, (size_t)(4 * words));
    free(x);
    free(plain);
    free(grouped);
  }
}

/* Both hops keep what they round off: the mean of many sums has no bias. */
static void Q6_the_mean_of_many_sums_over_nodes_has_no_bias_with_error_feedback(void **state) {
  (void)state;
  enum { STEPS = 64 };
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    const hops s = {.dtype = dtype, .nodes = 2, .inner = 2, .chunk = 77};
    const int64_t n = shards_of(&s) * s.chunk;
    float *sums = floats(n), off[2] = {0};
    for (int keeps = 0; keeps < 2; keeps++) {
      ranks r = open_ranks(&s, keeps);
      double *mean = calloc((size_t)n, sizeof *mean), most = 0;
      for (int step = 0; step < STEPS; step++) {
        hop_twice(&r, sums);
        for (int64_t i = 0; i < n; i++) mean[i] += (double)sums[i] / STEPS;
      }
      for (int64_t i = 0; i < n; i++) {
        double exact = 0;
        for (int rank = 0; rank < shards_of(&s); rank++) exact += (double)r.x[rank][i];
        off[keeps] = fmaxf(off[keeps], (float)fabs(mean[i] - exact));
        most = fmax(most, fabs(exact));
      }
      assert_true(keeps == 0 || (double)off[1] < 0.2 * (double)off[0] + 1e-5 * most);
      free(mean);
      close_ranks(&r);
    }
    free(sums);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q6_sums_over_nodes_round_each_block_once_in_a_node_and_once_between_nodes),
      TEST(Q6_pieces_for_the_same_place_of_every_node_are_together),
      TEST(Q6_the_mean_of_many_sums_over_nodes_has_no_bias_with_error_feedback),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
