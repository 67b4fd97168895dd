/* test_kernels_places.c - compares kernels that order the elements of an axis, move them along it, or name them by
 * index, with plain loops in double: roll, cumsum, topk, gather and scatter_add. Axes of every kind: first, middle and
 * last, short and long, alone and empty. */
#include "tests/c/support/kernel_case.h"

#include "graph/graph.h"

/* A tensor [outer][n][inner]. */
typedef struct view {
  int64_t outer, n, inner;
} view;

static const view views[] = {{1, 1, 1},    {1, 17, 1},  {3, 40, 1},  {5, 7, 3},     {1, 33, 20}, {2, 300, 1},
                             {1, 5, 1001}, {900, 8, 1}, {2, 64, 33}, {1, 40001, 1}, {0, 4, 2},   {2, 5, 0}};

static kernel_case case_along(int op, int dtype, view v) {
  kernel_case c = case_of(op);
  *ms_op_integer(op, &c.call.attrs, "axis") = 1;
  add_input(&c, SHAPE(dtype, v.outer, v.n, v.inner));
  return c;
}

static int64_t place(view v, int64_t outer, int64_t j, int64_t inner) { return (outer * v.n + j) * v.inner + inner; }

/* body for every line of the view. */
#define FOR_LINES(v, first, second)                   \
  for (int64_t first = 0; first < (v).outer; first++) \
    for (int64_t second = 0; second < (v).inner; second++)

/* ---- roll -------------------------------------------------------------------------------------------------------- */

static const int all_dtypes[] = {MS_F32, MS_BF16, MS_I32, MS_U8};
static const int64_t steps[] = {0, 1, -1, 3, 1000, -1003};

static void roll_moves_along_the_axis(void **state) {
  (void)state;
  FOR_EACH(dtype, all_dtypes)
  FOR_EACH(by, steps)
  FOR_EACH(v, views) {
    kernel_case c = case_along(MS_OP_roll, dtype, v);
    c.call.attrs.cut.by = by;
    add_output(&c, c.call.in[0]);
    for (int64_t i = 0; i < ms_numel(&c.call.in[0]); i++) set_input(&c, 0, i, (double)(i % 251));
    run_case(&c);
    FOR_LINES(v, o, i)
    for (int64_t j = 0; j < v.n; j++)
      assert_true(output_at(&c, 0, place(v, o, ((j + by) % v.n + v.n) % v.n, i)) == input_at(&c, 0, place(v, o, j, i)));
    free_case(&c);
  }
}

/* ---- cumsum ------------------------------------------------------------------------------------------------------ */

static void cumsum_matches(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(v, views)
  for (int reverse = 0; reverse < 2; reverse++) {
    kernel_case c = case_along(MS_OP_cumsum, dtype, v);
    c.call.attrs.cumsum.reverse = reverse;
    add_output(&c, c.call.in[0]);
    run_case(&c);
    FOR_LINES(v, o, i) {
      double total = 0;
      for (int64_t j = 0; j < v.n; j++) {
        const int64_t at = place(v, o, reverse ? v.n - 1 - j : j, i);
        total += input_at(&c, 0, at);
        assert_output(&c, 0, at, total, 1e-6);
      }
    }
    free_case(&c);
  }
}

static void cumsum_keeps_nan(void **state) {
  (void)state;
  kernel_case c = case_along(MS_OP_cumsum, MS_F32, (view){1, 700, 1});
  add_output(&c, c.call.in[0]);
  set_input(&c, 0, 300, NAN);
  run_case(&c);
  for (int64_t j = 0; j < 700; j++) assert_true(isnan(output_at(&c, 0, j)) == (j >= 300));
  free_case(&c);
}

/* ---- topk -------------------------------------------------------------------------------------------------------- */

/* Whether a comes before b: larger, or smaller, with NaN the largest; of equal ones the first. */
static int precedes(double a, int64_t at_a, double b, int64_t at_b, int largest) {
  const int a_nan = isnan(a), b_nan = isnan(b);
  if (a_nan || b_nan) {
    if (a_nan && b_nan) return at_a < at_b;
    return largest ? a_nan : b_nan;
  }
  if (a == b) return at_a < at_b;
  return largest ? a > b : a < b;
}

/* Every place has as many elements before it as its number. */
static void check_line(const kernel_case *c, view v, int64_t k, int64_t o, int64_t i) {
  const view to = {v.outer, k, v.inner};
  const int largest = c->call.attrs.topk.largest != 0;
  for (int64_t p = 0; p < k; p++) {
    const int64_t at = (int64_t)output_at(c, 1, place(to, o, p, i));
    assert_true(at >= 0 && at < v.n);
    const double x = input_at(c, 0, place(v, o, at, i)), value = output_at(c, 0, place(to, o, p, i));
    assert_true(x == value || (isnan(x) && isnan(value)));
    int64_t before = 0;
    for (int64_t j = 0; j < v.n; j++) before += precedes(input_at(c, 0, place(v, o, j, i)), j, x, at, largest);
    assert_true(before == p);
  }
}

static void topk_is_ordered_and_stable(void **state) {
  (void)state;
  static const int64_t ks[] = {1, 2, 8, 40};
  FOR_EACH(dtype, dtypes)
  FOR_EACH(v, views)
  FOR_EACH(k, ks)
  for (int largest = 0; largest < 2; largest++)
    for (int ties = 0; ties < 2; ties++) {
      if (k > v.n || (v.n > 1000 && k > 2)) continue;
      kernel_case c = case_along(MS_OP_topk, dtype, v);
      c.call.attrs.topk.k = k;
      c.call.attrs.topk.largest = largest;
      add_output(&c, SHAPE(dtype, v.outer, k, v.inner));
      add_output(&c, SHAPE(MS_I32, v.outer, k, v.inner));
      for (int64_t e = 0; ties && e < ms_numel(&c.call.in[0]); e++) {
        const int64_t drawn = e * 2654435761 % 7;
        set_input(&c, 0, e, drawn == 6 ? NAN : drawn == 5 ? -0.0 : drawn == 4 ? -INFINITY : (double)(drawn - 1));
      }
      run_case(&c);
      FOR_LINES(v, o, i) check_line(&c, v, k, o, i);
      free_case(&c);
    }
}

static void topk_sorts_a_whole_line(void **state) {
  (void)state;
  for (int order = 0; order < 3; order++) {
    const view v = {2, 150, 1};
    kernel_case c = case_along(MS_OP_topk, MS_F32, v);
    c.call.attrs.topk.k = v.n;
    c.call.attrs.topk.largest = 1;
    add_output(&c, c.call.in[0]);
    add_output(&c, SHAPE(MS_I32, v.outer, v.n, v.inner));
    for (int64_t e = 0; order && e < 2 * v.n; e++) set_input(&c, 0, e, order == 1 ? (double)e : (double)-e);
    run_case(&c);
    FOR_LINES(v, o, i) check_line(&c, v, v.n, o, i);
    free_case(&c);
  }
}

/* ---- gather and scatter_add ---------------------------------------------------------------------------------------
 */

static const int64_t lengths[] = {0, 1, 5, 130};

/* Indices that name some elements often and others never. */
static void draw_index(kernel_case *c, int input, int64_t n) {
  for (int64_t e = 0; e < ms_numel(&c->call.in[input]); e++)
    set_input(c, input, e, (double)(e * 2654435761 % 1000003 % n * (e % 3) % n));
}

static void gather_takes_along_the_axis(void **state) {
  (void)state;
  FOR_EACH(dtype, all_dtypes)
  FOR_EACH(v, views)
  FOR_EACH(m, lengths) {
    const view to = {v.outer, m, v.inner};
    kernel_case c = case_along(MS_OP_gather, dtype, v);
    add_input(&c, SHAPE(MS_I32, v.outer, m, v.inner));
    add_output(&c, SHAPE(dtype, v.outer, m, v.inner));
    draw_index(&c, 1, v.n);
    run_case(&c);
    FOR_LINES(v, o, i)
    for (int64_t j = 0; j < m; j++) {
      const int64_t at = (int64_t)input_at(&c, 1, place(to, o, j, i));
      assert_true(output_at(&c, 0, place(to, o, j, i)) == input_at(&c, 0, place(v, o, at, i)));
    }
    free_case(&c);
  }
}

static void scatter_add_sums_in_order(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(v, views)
  FOR_EACH(m, lengths) {
    const view from = {v.outer, m, v.inner};
    kernel_case c = case_along(MS_OP_scatter_add, dtype, v);
    add_input(&c, SHAPE(MS_I32, v.outer, m, v.inner));
    add_input(&c, SHAPE(dtype, v.outer, m, v.inner));
    add_output(&c, c.call.in[0]);
    draw_index(&c, 1, v.n);
    run_case(&c);
    const int64_t elements = ms_numel(&c.call.in[0]);
    double *sum = calloc((size_t)elements + 1, sizeof *sum);
    for (int64_t e = 0; e < elements; e++) sum[e] = input_at(&c, 0, e);
    FOR_LINES(v, o, i)
    for (int64_t j = 0; j < m; j++)
      sum[place(v, o, (int64_t)input_at(&c, 1, place(from, o, j, i)), i)] += input_at(&c, 2, place(from, o, j, i));
    for (int64_t e = 0; e < elements; e++) assert_output(&c, 0, e, sum[e], 1e-5);
    free(sum);
    free_case(&c);
  }
}

/* Sums of f32 are those of a loop in the order of the index, bit for bit, on every device. */
static void scatter_add_has_the_bits_of_its_order(void **state) {
  (void)state;
  enum { N = 9, M = 3000 };
  kernel_case c = case_along(MS_OP_scatter_add, MS_F32, (view){1, N, 1});
  add_input(&c, SHAPE(MS_I32, 1, M, 1));
  add_input(&c, SHAPE(MS_F32, 1, M, 1));
  add_output(&c, c.call.in[0]);
  draw_index(&c, 1, N);
  run_case(&c);
  float sum[N];
  for (int j = 0; j < N; j++) sum[j] = (float)input_at(&c, 0, j);
  for (int j = 0; j < M; j++) sum[(int)input_at(&c, 1, j)] += (float)input_at(&c, 2, j);
  assert_memory_equal(sum, c.call.out_data[0], sizeof sum);
  free_case(&c);
}

static void wrong_indices_are_reported(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_gather, MS_OP_scatter_add};
  FOR_EACH(op, ops) {
    kernel_case c = case_along(op, MS_F32, (view){2, 4, 3});
    add_input(&c, SHAPE(MS_I32, 2, 5, 3));
    if (op == MS_OP_scatter_add) add_input(&c, SHAPE(MS_F32, 2, 5, 3));
    add_output(&c, op == MS_OP_gather ? c.call.in[1] : c.call.in[0]);
    draw_index(&c, 1, 4);
    set_input(&c, 1, 7, 4);
    assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("index 4 | position 7 | [0,4) | axis 1", "4 | [0,4)"));
    set_input(&c, 1, 7, 0);
    set_input(&c, 1, 29, -1);
    assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("index -1 | position 29 | [0,4)", "-1 | [0,4)"));
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(roll_moves_along_the_axis),  TEST(cumsum_matches),
      TEST(cumsum_keeps_nan),           TEST(topk_is_ordered_and_stable),
      TEST(topk_sorts_a_whole_line),    TEST(gather_takes_along_the_axis),
      TEST(scatter_add_sums_in_order),  TEST(scatter_add_has_the_bits_of_its_order),
      TEST(wrong_indices_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
