/* test_kernels_quantised_sum.c - sums over ranks in 8 and 4 bits against the same written out, bit for bit, on the CPU
 * and on (emulated) CUDA: sizes that no piece, block or word divides, several numbers of ranks, ranges of the result.
 */
#include "kernels/quantised_sum.h"

#include <math.h>
#include <stdlib.h>

#include "base/bf16.h"
#include "tests/c/support/kernel_case.h"

enum { MOST_RANKS = 5 };

static float value_of(int rank, int64_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + 77);
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  /* Blocks differ by orders of magnitude, and some are zero. */
  return i / 256 % 3 == 2 ? 0 : ldexpf((float)(int32_t)x, -24 - (int)(i / 256 % 7));
}

/* ---- the reference ---- */

static float most_of(int dtype) { return dtype == MS_I8 ? 127 : 7; }

/* Rounds [begin, end) of x, a block, to codes and back. Every element moves by half a step at most. */
static void round_block(int dtype, float *x, int64_t begin, int64_t end) {
  float amax = 0;
  for (int64_t i = begin; i < end; i++) amax = fmaxf(amax, fabsf(x[i]));
  const float scale = amax / most_of(dtype), half = amax / (2 * most_of(dtype));
  for (int64_t i = begin; i < end; i++) {
    const float rounded = scale > 0 ? rintf(x[i] / scale) * scale : 0;
    assert_true(fabsf(rounded - x[i]) <= half * (1 + 1e-5f));
    x[i] = rounded;
  }
}

static void round_pieces(int dtype, float *x, int64_t n, const ms_pieces *of) {
  for (int64_t piece = 0; piece < n; piece += of->elements)
    for (int64_t begin = piece; begin < piece + of->elements && begin < n; begin += MS_PIECE_BLOCK) {
      const int64_t block = begin + MS_PIECE_BLOCK, last = piece + of->elements;
      const int64_t end = block < last ? block : last;
      round_block(dtype, x, begin, end < n ? end : n);
    }
}

/* ---- the ops ---- */

static ms_value_info vector_of(int dtype, int64_t n) { return (ms_value_info){.dtype = dtype, .ndim = 1, .dims = {n}}; }

static ms_value_info words_of(int64_t n) { return vector_of(MS_I32, n); }

/* Both kinds of devices make the same bytes. */
static void assert_as_on_the_cpu(const kernel_case *c) {
  const int64_t bytes = tensor_bytes(&c->call.out[0]);
  ms_kernel_call call = c->call;
  void *words = call.out_data[0] = malloc((size_t)bytes);
  call.threads = 1;
  must(ms_cpu_kernel(call.op)->run(&call));
  assert_memory_equal(words, c->call.out_data[0], (size_t)bytes);
  free(words);
}

/* One rank's pieces. */
static void quantise(int dtype, int from, int rank, int64_t n, int ranks, int32_t *out) {
  const ms_pieces of = ms_pieces_of(dtype, n, ranks);
  kernel_case c = case_of(MS_OP_quantise_pieces);
  c.call.attrs = (ms_attrs){.i = {dtype, ranks}};
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
  c.call.attrs = (ms_attrs){.i = {dtype, ranks, n}};
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
  c.call.attrs = (ms_attrs){.i = {adds, dtype, ranks, n, first}};
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
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
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

/* A gradient that is not finite must stop the step on all ranks. */
static void Q6_what_is_not_finite_stays_so(void **state) {
  (void)state;
  for (int dtype = MS_I8; dtype <= MS_I4; dtype++) {
    const ms_pieces of = ms_pieces_of(dtype, 300, 1);
    int32_t words[128], sums[128];
    kernel_case c = case_of(MS_OP_quantise_pieces);
    c.call.attrs = (ms_attrs){.i = {dtype, 1}};
    add_input(&c, vector_of(MS_F32, 300));
    for (int64_t i = 0; i < 300; i++) ((float *)(uintptr_t)c.call.in_data[0])[i] = i == 7 ? NAN : 1;
    add_output(&c, words_of(of.words));
    run_once(&c, c.call, 1);
    memcpy(words, c.call.out_data[0], (size_t)(4 * of.words));
    free_case(&c);
    sum(dtype, 300, 1, words, sums);
    c = case_of(MS_OP_restore_pieces);
    c.call.attrs = (ms_attrs){.i = {0, dtype, 1, 300, 0}};
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
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
