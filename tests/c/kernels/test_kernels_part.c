/* test_kernels_part.c - kernels that have a part of an axis compute the part's share of the whole: attention with and
 * without documents and their gradients, rope, dropout; and what folding is for. */
#include "tests/c/support/kernel_case.h"

#include "graph/graph.h"
#include "kernels/fold.h"

#ifdef EMULATED_CUDA
enum { LENGTH = 72, HEADS = 2, GROUPS = 1 }; /* more than one tile, which is enough where it takes long */
#else
enum { LENGTH = 144, HEADS = 4, GROUPS = 2 };
#endif
enum { BATCH = 2, SIZE = 20, START = 3 };

/* How LENGTH is divided. */
typedef struct division {
  int ranks, folded;
} division;

static const division divisions[] = {{2, 0}, {3, 1}, {9, 0}, {4, 1}};

static ms_part part_of(const division *d, int place, int64_t inner) {
  return (ms_part){LENGTH / d->ranks / (d->folded ? 2 : 1) * inner, d->ranks, place, 0, d->folded};
}

static void set_tokens(kernel_case *c, int input) {
  for (int64_t i = 0; i < BATCH * LENGTH; i++) set_input(c, input, i, i % 31 == 7 || i % 47 == 0 ? START : 5);
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* Inputs q, k, v, and for backward o, lse, do, and for documents tokens; t queries. */
static kernel_case attention_case(int op, int dtype, int backward, int documents, int window, int64_t t) {
  kernel_case c = case_of(op);
  c.call.attrs.attention.window = window;
  c.call.attrs.attention.softcap = window == 11 ? 0.8 : 0; /* capped */
  if (documents) c.call.attrs.attention.start = START;
  else c.call.attrs.attention.causal = 1;
  add_input(&c, SHAPE(dtype, BATCH, t, HEADS, SIZE));
  for (int i = 0; i < 2; i++) add_input(&c, SHAPE(dtype, BATCH, LENGTH, GROUPS, SIZE));
  if (backward) add_input(&c, SHAPE(dtype, BATCH, t, HEADS, SIZE));
  if (backward) add_input(&c, SHAPE(MS_F32, BATCH, HEADS, t));
  if (backward) add_input(&c, SHAPE(dtype, BATCH, t, HEADS, SIZE));
  if (documents) set_tokens(&c, add_input(&c, SHAPE(MS_I32, BATCH, LENGTH)));
  add_output(&c, SHAPE(dtype, BATCH, t, HEADS, SIZE));
  if (!backward) add_output(&c, SHAPE(MS_F32, BATCH, HEADS, t));
  for (int i = 0; i < 2 && backward; i++) add_output(&c, SHAPE(dtype, BATCH, LENGTH, GROUPS, SIZE));
  return c;
}

/* The element of the whole [BATCH,LENGTH,...] that element i of a part [BATCH,t,...] is; row: elements of a position.
 */
static int64_t in_whole(const ms_part *part, int64_t i, int64_t row) {
  const int64_t t = LENGTH / part->ranks, position = i / row;
  return (position / t * LENGTH + ms_part_index(part, position % t)) * row + i % row;
}

static void copy_queries(kernel_case *to, int input, const ms_part *part, const kernel_case *from, int output) {
  for (int64_t i = 0; i < ms_numel(&to->call.in[input]); i++) {
    const int64_t at = in_whole(part, i, HEADS * SIZE);
    set_input(to, input, i, output >= 0 ? output_at(from, output, at) : input_at(from, input, at));
  }
}

static void copy_keys(kernel_case *to, const kernel_case *from) {
  for (int k = 1; k < 3; k++)
    for (int64_t i = 0; i < ms_numel(&to->call.in[k]); i++) set_input(to, k, i, input_at(from, k, i));
}

static void expect_queries(const kernel_case *c, const ms_part *part, const kernel_case *whole, double tolerance) {
  for (int64_t i = 0; i < ms_numel(&c->call.out[0]); i++)
    assert_output(c, 0, i, output_at(whole, 0, in_whole(part, i, HEADS * SIZE)), tolerance);
}

/* The attention of all queries, and its gradients. */
typedef struct whole_case {
  int documents, dtype, window;
  double tolerance;
  kernel_case forward, back;
} whole_case;

static whole_case run_whole(int documents, int dtype, int window) {
  const ms_part all = {LENGTH, 1, 0, 0, 0};
  whole_case w = {
      .documents = documents, .dtype = dtype, .window = window, .tolerance = dtype == MS_BF16 ? 3e-2 : 2e-5};
  w.forward =
      attention_case(documents ? MS_OP_document_attention : MS_OP_attention, dtype, 0, documents, window, LENGTH);
  run_case(&w.forward);
  w.back = attention_case(documents ? MS_OP_document_attention_backward : MS_OP_attention_backward, dtype, 1, documents,
                          window, LENGTH);
  copy_queries(&w.back, 0, &all, &w.forward, -1), copy_keys(&w.back, &w.forward);
  copy_queries(&w.back, 3, &all, &w.forward, 0);
  for (int64_t i = 0; i < ms_numel(&w.back.call.in[4]); i++) set_input(&w.back, 4, i, output_at(&w.forward, 1, i));
  run_case(&w.back);
  return w;
}

static void free_whole(whole_case *w) {
  free_case(&w->forward);
  free_case(&w->back);
}

/* One part: its queries are those of the whole, dq is the part's, and dk and dv are added to the sums. lse of documents
 * has no order that a test could cut, so each forward makes its own. */
static void check_part(const whole_case *w, ms_part part, double *sum[2]) {
  const kernel_case *whole = &w->forward, *back = &w->back;
  kernel_case c = attention_case(whole->call.op, w->dtype, 0, w->documents, w->window, LENGTH / part.ranks);
  c.call.attrs.attention.part = ms_part_attr(part);
  copy_queries(&c, 0, &part, whole, -1), copy_keys(&c, whole);
  run_case(&c);
  expect_queries(&c, &part, whole, w->tolerance);
  kernel_case g = attention_case(back->call.op, w->dtype, 1, w->documents, w->window, LENGTH / part.ranks);
  g.call.attrs.attention.part = ms_part_attr(part);
  copy_queries(&g, 0, &part, whole, -1), copy_keys(&g, whole), copy_queries(&g, 3, &part, whole, 0);
  copy_queries(&g, 5, &part, back, -1);
  for (int64_t i = 0; i < ms_numel(&g.call.in[4]); i++) set_input(&g, 4, i, output_at(&c, 1, i));
  run_case(&g);
  expect_queries(&g, &part, back, w->tolerance);
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; i < ms_numel(&g.call.out[1 + k]); i++) sum[k][i] += output_at(&g, 1 + k, i);
  free_case(&c);
  free_case(&g);
}

static void check_division(const whole_case *w, const division *d) {
  const int64_t keys = ms_numel(&w->back.call.out[1]);
  double *sum[2] = {calloc((size_t)keys, sizeof(double)), calloc((size_t)keys, sizeof(double))};
  for (int r = 0; r < d->ranks; r++) check_part(w, part_of(d, r, 1), sum);
  for (int k = 0; k < 2; k++)
    for (int64_t i = 0; i < keys; i++) assert_output(&w->back, 1 + k, i, sum[k][i], 3 * w->tolerance);
  free(sum[0]);
  free(sum[1]);
}

/* Also below the length of a part, so that its keys are not in one piece. */
static const int windows[] = {0, 60, 11};

static void check_attention(int documents) {
  FOR_EACH(dtype, dtypes)
  FOR_ENDS(window, windows) {
    whole_case w = run_whole(documents, dtype, window);
    FOR_ENDS(d, divisions)
    if (!window || d.ranks % 2 == 0) check_division(&w, &d); /* of windows, half of the divisions */
    free_whole(&w);
  }
}

static void C1_attention_of_a_part_of_the_queries(void **state) {
  (void)state;
  check_attention(0);
}

/* Documents begin and end in any part. */
static void C4_documents_of_any_length(void **state) {
  (void)state;
  check_attention(1);
}

/* Causal attention is as many scores on every rank. */
static void C2_a_folded_axis_is_the_same_work(void **state) {
  (void)state;
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    const int64_t length = 1024, t = length / ranks;
    for (int place = 0; place < ranks; place++) {
      const ms_part part = {t / 2, ranks, place, 0, 1};
      int64_t scores = 0;
      for (int64_t i = 0; i < t; i++) scores += ms_part_index(&part, i) + 1;
      assert_int_equal(scores * ranks, length * (length + 1) / 2);
    }
  }
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

static kernel_case elements_case(int op, int64_t t) {
  kernel_case c = case_of(op);
  must(ms_op_row_defaults(op, &c.call.attrs));
  add_input(&c, SHAPE(MS_F32, BATCH, t, HEADS, SIZE));
  add_output(&c, SHAPE(MS_F32, BATCH, t, HEADS, SIZE));
  return c;
}

/* Rope's runs are in positions, dropout's in elements. */
static void check_elements(int op, int64_t inner) {
  kernel_case whole = elements_case(op, LENGTH);
  run_case(&whole);
  for (size_t k = 0; k < sizeof divisions / sizeof *divisions; k++)
    for (int r = 0; r < divisions[k].ranks; r++) {
      const ms_part part = part_of(&divisions[k], r, 1);
      kernel_case c = elements_case(op, LENGTH / divisions[k].ranks);
      *ms_op_integer(op, &c.call.attrs, "part") = ms_part_attr(part_of(&divisions[k], r, inner));
      copy_queries(&c, 0, &part, &whole, -1);
      run_case(&c);
      expect_queries(&c, &part, &whole, 0);
      free_case(&c);
    }
  free_case(&whole);
}

static void C1_rope_and_dropout_of_a_part(void **state) {
  (void)state;
  check_elements(MS_OP_rope, 1);
  check_elements(MS_OP_dropout, HEADS * SIZE);
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

/* Ranks' runs joined, and parted again, and those of one rank, each with its index as the values. */
static void C1_runs_of_a_folded_axis_are_moved(void **state) {
  enum { RANKS = 3, BLOCKS = 4, RUN = 2 };
  (void)state;
  kernel_case join = case_of(MS_OP_fold), part = case_of(MS_OP_fold);
  add_input(&join, SHAPE(MS_F32, RANKS, BLOCKS, RUN));
  add_output(&join, SHAPE(MS_F32, BLOCKS, RANKS, RUN));
  add_input(&part, SHAPE(MS_F32, BLOCKS, RANKS, RUN));
  add_output(&part, SHAPE(MS_F32, RANKS, BLOCKS, RUN));
  part.call.attrs.fold.what = MS_FOLD_PART;
  for (int r = 0; r < RANKS; r++) {
    const ms_part own = {RUN, RANKS, r, 0, 1};
    for (int64_t i = 0; i < BLOCKS * RUN; i++)
      set_input(&join, 0, r * BLOCKS * RUN + i, (double)ms_part_index(&own, i));
  }
  run_case(&join);
  for (int64_t i = 0; i < RANKS * BLOCKS * RUN; i++) {
    assert_output(&join, 0, i, (double)i, 0);
    set_input(&part, 0, i, (double)i);
  }
  run_case(&part);
  for (int64_t i = 0; i < RANKS * BLOCKS * RUN; i++) assert_output(&part, 0, i, input_at(&join, 0, i), 0);
  for (int r = 0; r < RANKS; r++) {
    kernel_case take = case_of(MS_OP_fold), put = case_of(MS_OP_fold);
    take.call.attrs = (ms_op_attrs){.fold = {.what = MS_FOLD_TAKE, .place = r, .ranks = RANKS}};
    put.call.attrs = (ms_op_attrs){.fold = {.what = MS_FOLD_PUT, .place = r, .ranks = RANKS}};
    add_input(&take, SHAPE(MS_F32, BLOCKS, RANKS, RUN));
    add_output(&take, SHAPE(MS_F32, BLOCKS, 1, RUN));
    add_input(&put, SHAPE(MS_F32, BLOCKS, 1, RUN));
    add_output(&put, SHAPE(MS_F32, BLOCKS, RANKS, RUN));
    for (int64_t i = 0; i < RANKS * BLOCKS * RUN; i++) set_input(&take, 0, i, (double)i + 1);
    run_case(&take);
    for (int64_t i = 0; i < BLOCKS * RUN; i++) set_input(&put, 0, i, output_at(&take, 0, i));
    run_case(&put);
    const ms_part own = {RUN, RANKS, r, 0, 1};
    for (int64_t i = 0; i < RANKS * BLOCKS * RUN; i++) {
      const int64_t before = ms_part_before(&own, i);
      const int mine = before < BLOCKS * RUN && ms_part_index(&own, before) == i;
      assert_output(&put, 0, i, mine ? (double)i + 1 : 0, 0);
      if (mine) assert_output(&take, 0, before, (double)i + 1, 0);
    }
    free_case(&take);
    free_case(&put);
  }
  free_case(&join);
  free_case(&part);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(C1_attention_of_a_part_of_the_queries), TEST(C4_documents_of_any_length),
                                     TEST(C2_a_folded_axis_is_the_same_work), TEST(C1_rope_and_dropout_of_a_part),
                                     TEST(C1_runs_of_a_folded_axis_are_moved)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
