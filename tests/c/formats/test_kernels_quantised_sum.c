/* test_kernels_quantised_sum.c - numbers that travel in 8 and 4 bits against the same written out, bit for bit, on the
 * CPU and on (emulated) CUDA: sizes that no piece, block or word divides, several numbers of ranks, ranges of the
 * result; what rounding leaves, over many sums; weights in blocks.
 */
#include "base/numbers/dtype.h"
#include "tests/c/support/pieces.h"

enum { MAX_RANKS = 5 };

static void round_pieces(int dtype, float *x, int64_t n, const ms_pieces *of) {
  for (int64_t piece = 0; piece < n; piece += of->elements)
    for (int64_t begin = piece; begin < piece + of->elements && begin < n; begin += MS_PIECE_BLOCK) {
      const int64_t block = begin + MS_PIECE_BLOCK, last = piece + of->elements;
      const int64_t end = block < last ? block : last;
      round_block(dtype, x, begin, end < n ? end : n);
    }
}

/* ---- the ops ---- */

/* One rank's pieces. */
static void quantise(int dtype, int from, int rank, int64_t n, int ranks, int32_t *out) {
  const ms_pieces of = ms_pieces_of(dtype, n, ranks);
  kernel_case c = case_of(MS_OP_quantise_pieces);
  c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = ranks}};
  add_input(&c, vector_of(from, n));
  for (int64_t i = 0; i < n; i++) {
    if (from == MS_F32) ((float *)(uintptr_t)c.call.in_data[0])[i] = value_of(rank, i);
    else ((ms_bf16 *)(uintptr_t)c.call.in_data[0])[i] = ms_f32_to_bf16(value_of(rank, i));
  }
  add_output(&c, words_of(ranks * of.words));
  run_once(&c, c.call, TEAM);
  assert_as_on_the_cpu(&c);
  memcpy(out, c.call.out_data[0], (size_t)(4 * ranks * of.words));
  free_case(&c);
}

static void sum(int dtype, int64_t n, int ranks, const int32_t *from, int32_t *out) {
  const ms_pieces of = ms_pieces_of(dtype, n, ranks);
  kernel_case c = case_of(MS_OP_sum_pieces);
  c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = ranks, .elements = n}};
  add_input(&c, words_of(ranks * of.words));
  memcpy((void *)(uintptr_t)c.call.in_data[0], from, (size_t)(4 * ranks * of.words));
  add_output(&c, words_of(of.words));
  run_once(&c, c.call, TEAM);
  assert_as_on_the_cpu(&c);
  memcpy(out, c.call.out_data[0], (size_t)(4 * of.words));
  free_case(&c);
}

/* Elements [first, first + count) are those of `wanted`, or what was there with these added. */
static void restore(int dtype, int64_t n, int ranks, const int32_t *from, int64_t first, int64_t count, int adds,
                    const float *wanted) {
  kernel_case c = case_of(MS_OP_restore_pieces);
  c.call.attrs = (ms_op_attrs){.add = adds, .pieces = {.dtype = dtype, .pieces = ranks, .elements = n, .first = first}};
  const int64_t words = ranks * ms_pieces_of(dtype, n, ranks).words;
  add_input(&c, words_of(words));
  memcpy((void *)(uintptr_t)c.call.in_data[0], from, (size_t)(4 * words));
  add_output(&c, vector_of(MS_F32, count));
  for (int64_t i = 0; i < count && adds; i++) ((float *)c.call.out_data[0])[i] = 0.5f * (float)i;
  run_once(&c, c.call, TEAM);
  for (int64_t i = 0; i < count; i++) {
    const float expected = adds ? 0.5f * (float)i + wanted[first + i] : wanted[first + i];
    if (output_at(&c, 0, i) != (double)expected)
      fail_msg("%s over %d ranks, %lld elements: element %lld is %a, not %a", ms_dtype_name(dtype), ranks, (long long)n,
               (long long)(first + i), output_at(&c, 0, i), (double)expected);
  }
  free_case(&c);
}

/* ---- */

static void all_of(int dtype, int from, int64_t n, int ranks) {
  const ms_pieces of = ms_pieces_of(dtype, n, ranks);
  const int64_t words = ranks * of.words;
  int32_t *sent = malloc((size_t)(4 * ranks * words)), *received = malloc((size_t)(4 * words)),
          *sums = malloc((size_t)(4 * words));
  float *x = malloc((size_t)(4 * n)), *total = calloc((size_t)n, 4);
  for (int rank = 0; rank < ranks; rank++) {
    quantise(dtype, from, rank, n, ranks, sent + rank * words);
    for (int64_t i = 0; i < n; i++)
      x[i] = from == MS_F32 ? value_of(rank, i) : ms_bf16_to_f32(ms_f32_to_bf16(value_of(rank, i)));
    round_pieces(dtype, x, n, &of);
    for (int64_t i = 0; i < n; i++) total[i] = rank ? total[i] + x[i] : x[i];
  }
  round_pieces(dtype, total, n, &of);
  for (int me = 0; me < ranks; me++) {
    for (int rank = 0; rank < ranks; rank++)
      memcpy(received + rank * of.words, sent + rank * words + me * of.words, (size_t)(4 * of.words));
    sum(dtype, n, ranks, received, sums + me * of.words);
  }
  for (int adds = 0; adds < 2; adds++) {
    restore(dtype, n, ranks, sums, 0, n, adds, total);
    restore(dtype, n, ranks, sums, n / 3, n - n / 3 - n / 5, adds, total);
    restore(dtype, n, ranks, sums, n / 2, 0, adds, total);
  }
  free(sent);
  free(received);
  free(sums);
  free(x);
  free(total);
}

static void Q6_sums_in_few_bits_are_those_written_out_and_within_half_a_step_of_each_block(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 7, 64, 255, 257, 1000, 3001};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
      for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
        all_of(dtype, MS_F32, sizes[s], ranks);
        if (ranks == 2) all_of(dtype, MS_BF16, sizes[s], ranks);
      }
}

static void Q6_a_piece_has_the_words_of_its_codes_and_scales(void **state) {
  (void)state;
  static const struct {
    int dtype;
    int64_t n, ranks, elements, words;
  } cases[] = {{MS_I8, 1024, 4, 256, 64 + 1}, {MS_I4, 1024, 4, 256, 32 + 1}, {MS_I8, 1025, 4, 264, 66 + 2},
               {MS_I4, 1025, 4, 264, 33 + 2}, {MS_I8, 1, 3, 8, 2 + 1},       {MS_I4, 1, 3, 8, 1 + 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const ms_pieces of = ms_pieces_of(cases[i].dtype, cases[i].n, cases[i].ranks);
    assert_int_equal(of.elements, cases[i].elements);
    assert_int_equal(of.words, cases[i].words);
  }
}

/* ---- sums over shards: pieces of `chunk` elements, whose total is in f32 ---- */

/* One rank's pieces; residuals: NULL, or what is left of the last time, and here. */
static void quantise_chunks(int dtype, const float *x, int64_t chunk, int shards, float *residuals, int32_t *out) {
  const int64_t words = shards * ms_pieces_each(dtype, chunk).words;
  kernel_case c = case_of(residuals ? MS_OP_quantise_pieces_kept : MS_OP_quantise_pieces);
  c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = shards, .stride = chunk}};
  add_input(&c, vector_of(MS_F32, shards * chunk));
  memcpy((void *)(uintptr_t)c.call.in_data[0], x, (size_t)(4 * shards * chunk));
  add_output(&c, words_of(words));
  if (residuals) {
    add_output(&c, vector_of(MS_F32, shards * chunk));
    memcpy(c.call.out_data[1], residuals, (size_t)(4 * shards * chunk));
  }
  run_once(&c, c.call, TEAM);
  memcpy(out, c.call.out_data[0], (size_t)(4 * words));
  if (residuals) memcpy(residuals, c.call.out_data[1], (size_t)(4 * shards * chunk));
  else assert_as_on_the_cpu(&c);
  free_case(&c);
}

static void total(int dtype, int64_t chunk, int shards, const int32_t *from, int adds, float *sum) {
  const int64_t words = shards * ms_pieces_each(dtype, chunk).words;
  kernel_case c = case_of(MS_OP_total_pieces);
  c.call.attrs = (ms_op_attrs){.add = adds, .pieces = {.dtype = dtype, .pieces = shards, .elements = chunk}};
  add_input(&c, words_of(words));
  memcpy((void *)(uintptr_t)c.call.in_data[0], from, (size_t)(4 * words));
  add_output(&c, vector_of(MS_F32, chunk));
  memcpy(c.call.out_data[0], sum, (size_t)(4 * chunk));
  run_once(&c, c.call, TEAM);
  memcpy(sum, c.call.out_data[0], (size_t)(4 * chunk));
  free_case(&c);
}

static void shards_of(int dtype, int64_t chunk, int shards) {
  const ms_pieces of = ms_pieces_each(dtype, chunk);
  const int64_t n = shards * chunk;
  int32_t *sent = malloc((size_t)(4 * shards * shards * of.words));
  int32_t *received = malloc((size_t)(4 * shards * of.words));
  float *x = malloc((size_t)(4 * n)), *wanted = calloc((size_t)n, 4), *sum = calloc((size_t)chunk, 4);
  for (int rank = 0; rank < shards; rank++) {
    for (int64_t i = 0; i < n; i++) x[i] = value_of(rank, i);
    quantise_chunks(dtype, x, chunk, shards, NULL, sent + rank * shards * of.words);
    for (int64_t begin = 0; begin < n; begin += chunk)
      for (int64_t at = begin; at < begin + chunk; at += MS_PIECE_BLOCK)
        round_block(dtype, x, at, at + MS_PIECE_BLOCK < begin + chunk ? at + MS_PIECE_BLOCK : begin + chunk);
    for (int64_t i = 0; i < n; i++) wanted[i] = rank ? wanted[i] + x[i] : x[i];
  }
  for (int me = 0; me < shards; me++) {
    for (int rank = 0; rank < shards; rank++)
      memcpy(received + rank * of.words, sent + (rank * shards + me) * of.words, (size_t)(4 * of.words));
    for (int adds = 0; adds < 2; adds++) {
      for (int64_t i = 0; i < chunk; i++) sum[i] = adds ? 0.5f * (float)i : NAN;
      total(dtype, chunk, shards, received, adds, sum);
      for (int64_t i = 0; i < chunk; i++) assert_true(sum[i] == (adds ? 0.5f * (float)i : 0) + wanted[me * chunk + i]);
    }
  }
  free(sent);
  free(received);
  free(x);
  free(wanted);
  free(sum);
}

static void Q6_sums_over_shards_round_each_block_once_and_add_in_f32(void **state) {
  (void)state;
  static const int64_t chunks[] = {1, 7, 255, 256, 333, 1025};
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
    for (int shards = 1; shards <= MAX_RANKS; shards += 2)
      for (int dtype = MS_I8; dtype <= MS_I4; dtype++) shards_of(dtype, chunks[i], shards);
}

/* The sum of what is sent differs from that of the gradients by one rest, so their means by less and less. */
static void Q6_the_mean_of_many_sums_has_no_bias_with_error_feedback(void **state) {
  (void)state;
  enum { CHUNK = 333, SHARDS = 3, N = SHARDS * CHUNK, STEPS = 64 };
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    static float x[N], residuals[N], mean[2][N];
    static int32_t words[SHARDS * 512];
    const ms_pieces of = ms_pieces_each(dtype, CHUNK);
    memset(residuals, 0, sizeof residuals);
    memset(mean, 0, sizeof mean);
    for (int i = 0; i < N; i++) x[i] = value_of(0, i % 256) * (i % 256 ? 1 : 8);
    for (int step = 0; step < STEPS; step++)
      for (int keeps = 0; keeps < 2; keeps++) {
        quantise_chunks(dtype, x, CHUNK, SHARDS, keeps ? residuals : NULL, words);
        for (int piece = 0; piece < SHARDS; piece++) {
          float one[CHUNK];
          total(dtype, CHUNK, 1, words + piece * of.words, 0, one);
          for (int i = 0; i < CHUNK; i++) mean[keeps][piece * CHUNK + i] += one[i] / STEPS;
        }
      }
    float most = 0, without = 0, with = 0;
    for (int i = 0; i < N; i++) {
      most = fmaxf(most, fabsf(x[i]));
      without = fmaxf(without, fabsf(mean[0][i] - x[i]));
      with = fmaxf(with, fabsf(mean[1][i] - x[i]));
    }
    const float half = most / (2 * max_of(dtype));
    assert_true(without > half / 2);
    assert_true(with <= 1.1f * half / STEPS + 1e-5f * most);
  }
}

/* One rest of a step that is not finite would spoil all that follow. */
static void Q6_what_is_not_finite_leaves_no_rest(void **state) {
  (void)state;
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    float x[600], residuals[600];
    int32_t words[256];
    for (int i = 0; i < 600; i++) {
      x[i] = i == 7 ? NAN : i == 300 ? INFINITY : value_of(0, i);
      residuals[i] = 0.25f;
    }
    quantise_chunks(dtype, x, 600, 1, residuals, words);
    for (int i = 0; i < 512; i++) assert_true(residuals[i] == 0);
    for (int i = 512; i < 600; i++) assert_true(isfinite(residuals[i]));
  }
}

/* sum_pieces_kept: the piece and the rest are those of the sum and what was left. */
static void Q6_the_rest_of_a_sum_is_what_its_piece_lacks(void **state) {
  (void)state;
  enum { N = 700, RANKS = 2 };
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    const ms_pieces of = ms_pieces_of(dtype, N, RANKS);
    static int32_t pieces[2][RANKS * 256];
    for (int rank = 0; rank < RANKS; rank++) quantise(dtype, MS_F32, rank, N, RANKS, pieces[rank]);
    memmove(pieces[0] + of.words, pieces[1], (size_t)(4 * of.words));
    kernel_case c = case_of(MS_OP_sum_pieces_kept);
    c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = RANKS, .elements = N}};
    add_input(&c, words_of(RANKS * of.words));
    memcpy((void *)(uintptr_t)c.call.in_data[0], pieces[0], (size_t)(4 * RANKS * of.words));
    add_output(&c, words_of(of.words));
    add_output(&c, vector_of(MS_F32, of.elements));
    for (int64_t i = 0; i < of.elements; i++) ((float *)c.call.out_data[1])[i] = value_of(3, i) / 128;
    run_once(&c, c.call, TEAM);
    float sum[N] = {0}, sent[N];
    total(dtype, of.elements, RANKS, pieces[0], 0, sum);
    total(dtype, of.elements, 1, c.call.out_data[0], 0, sent);
    for (int64_t i = 0; i < of.elements; i++)
      assert_true((float)output_at(&c, 1, i) == (sum[i] + value_of(3, i) / 128) - sent[i]);
    free_case(&c);
  }
}

/* ---- weights in blocks ---- */

static void Q3_weights_in_blocks_are_those_written_out_in_f32_and_bf16(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 255, 256, 257, 1000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    const int64_t n = sizes[s], blocks = (n + MS_PIECE_BLOCK - 1) / MS_PIECE_BLOCK, words = ms_weight_words(MS_I8, n);
    float x[1000];
    for (int64_t i = 0; i < n; i++) x[i] = value_of(2, i);
    kernel_case c = case_of(MS_OP_quantise_pieces);
    c.call.attrs = (ms_op_attrs){.pieces = {.dtype = MS_I8, .pieces = blocks, .stride = MS_PIECE_BLOCK}};
    add_input(&c, vector_of(MS_F32, n));
    memcpy((void *)(uintptr_t)c.call.in_data[0], x, (size_t)(4 * n));
    add_output(&c, words_of(words));
    run_once(&c, c.call, TEAM);
    assert_as_on_the_cpu(&c);
    for (int64_t begin = 0; begin < n; begin += MS_PIECE_BLOCK)
      round_block(MS_I8, x, begin, begin + MS_PIECE_BLOCK < n ? begin + MS_PIECE_BLOCK : n);
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
      kernel_case back = case_of(MS_OP_restore_pieces);
      back.call.attrs =
          (ms_op_attrs){.out_dtype = 1 + dtype,
                        .pieces = {.dtype = MS_I8, .pieces = blocks, .elements = n, .stride = MS_PIECE_BLOCK}};
      add_input(&back, words_of(words));
      memcpy((void *)(uintptr_t)back.call.in_data[0], c.call.out_data[0], (size_t)(4 * words));
      add_output(&back, vector_of(dtype, n));
      run_once(&back, back.call, TEAM);
      for (int64_t i = 0; i < n; i++)
        assert_true((float)output_at(&back, 0, i) == (dtype == MS_F32 ? x[i] : ms_bf16_to_f32(ms_f32_to_bf16(x[i]))));
      free_case(&back);
    }
    free_case(&c);
  }
}

/* A gradient that is not finite must stop the step on all ranks. */
static void Q6_what_is_not_finite_stays_so(void **state) {
  (void)state;
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    const ms_pieces of = ms_pieces_of(dtype, 300, 1);
    int32_t words[128], sums[128];
    kernel_case c = case_of(MS_OP_quantise_pieces);
    c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = 1}};
    add_input(&c, vector_of(MS_F32, 300));
    for (int64_t i = 0; i < 300; i++) ((float *)(uintptr_t)c.call.in_data[0])[i] = i == 7 ? NAN : 1;
    add_output(&c, words_of(of.words));
    run_once(&c, c.call, 1);
    memcpy(words, c.call.out_data[0], (size_t)(4 * of.words));
    free_case(&c);
    sum(dtype, 300, 1, words, sums);
    c = case_of(MS_OP_restore_pieces);
    c.call.attrs = (ms_op_attrs){.pieces = {.dtype = dtype, .pieces = 1, .elements = 300}};
    add_input(&c, words_of(of.words));
    memcpy((void *)(uintptr_t)c.call.in_data[0], sums, (size_t)(4 * of.words));
    add_output(&c, vector_of(MS_F32, 300));
    run_once(&c, c.call, 1);
    assert_true(isnan(output_at(&c, 0, 7)) && isnan(output_at(&c, 0, 8)));
    assert_true(output_at(&c, 0, 299) == 1);
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q6_sums_in_few_bits_are_those_written_out_and_within_half_a_step_of_each_block),
      TEST(Q6_a_piece_has_the_words_of_its_codes_and_scales),
      TEST(Q6_what_is_not_finite_stays_so),
      TEST(Q6_sums_over_shards_round_each_block_once_and_add_in_f32),
      TEST(Q6_the_mean_of_many_sums_has_no_bias_with_error_feedback),
      TEST(Q6_what_is_not_finite_leaves_no_rest),
      TEST(Q6_the_rest_of_a_sum_is_what_its_piece_lacks),
      TEST(Q3_weights_in_blocks_are_those_written_out_in_f32_and_bf16),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
