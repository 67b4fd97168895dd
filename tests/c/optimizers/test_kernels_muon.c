/* test_kernels_muon.c - the steps of Muon compared with PyTorch's formulas, written out in double. */
#include "kernels/products/orthogonalise.h"
#include "tests/c/support/kernel_case.h"

enum { STEPS = 3 };

static const int64_t sizes[] = {0, 1, 3, 17, 1000, 70001};

static void momentum_matches(void **state) {
  (void)state;
  const double momentum = 0.9, factor = 0.5;
  FOR_EACH(n, sizes)
  for (int nesterov = 0; nesterov < 2; nesterov++) {
    kernel_case c = case_of(MS_OP_muon_momentum);
    c.call.attrs = (ms_op_attrs){.update = {.nesterov = nesterov, .momentum = momentum}};
    add_input(&c, SHAPE(MS_F32, n));
    add_input(&c, SHAPE(MS_F32, 4));
    set_input(&c, 1, 2, factor);
    for (int o = 0; o < 2; o++) add_output(&c, SHAPE(MS_F32, n));
    memset(c.call.out_data[1], 0, (size_t)tensor_bytes(&c.call.out[1]));
    double *b = calloc((size_t)n + 1, sizeof *b);
    for (int step = 1; step <= STEPS; step++) {
      for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, cos((double)(i * 7 + step)));
      run_once(&c, c.call, TEAM);
      for (int64_t i = 0; i < n; i++) {
        const double g = factor * input_at(&c, 0, i);
        b[i] += (1 - momentum) * (g - b[i]);
        assert_output(&c, 0, i, nesterov ? g + momentum * (b[i] - g) : b[i], 1e-6);
        assert_output(&c, 1, i, b[i], 1e-6);
      }
    }
    free(b);
    free_case(&c);
  }
}

static void weights_match(void **state) {
  (void)state;
  const double lr = 0.02, lr_scale = 0.5, decay = 0.1, adjust = 1.75;
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_muon_apply);
    c.call.attrs = (ms_op_attrs){.update = {.lr_scale = lr_scale, .weight_decay = decay, .adjust = adjust}};
    c.scalars.lr = NAN; /* it has its own */
    c.scalars.muon_lr = lr;
    add_input(&c, SHAPE(MS_F32, n));
    add_output(&c, SHAPE(MS_F32, n));
    for (int64_t i = 0; i < n; i++) ((float *)c.call.out_data[0])[i] = (float)sin((double)i);
    run_once(&c, c.call, TEAM);
    for (int64_t i = 0; i < n; i++) {
      const double p = (double)(float)sin((double)i), rate = lr * lr_scale;
      assert_output(&c, 0, i, p * (1 - rate * decay) - rate * adjust * input_at(&c, 0, i), 1e-6);
    }
    free_case(&c);
  }
}

/* out [m,n] = x [m,k] y [k,n]. */
static void multiply(const double *x, const double *y, double *out, int64_t m, int64_t k, int64_t n) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      out[i * n + j] = 0;
      for (int64_t l = 0; l < k; l++) out[i * n + j] += x[i * k + l] * y[l * n + j];
    }
}

/* The iteration on a matrix [rows,columns], of which a tall one is transposed first. */
static void iterate(const kernel_case *c, int64_t rows, int64_t columns, int steps, double *result) {
  const int tall = rows > columns;
  const int64_t m = tall ? columns : rows, n = tall ? rows : columns;
  double *x = calloc((size_t)(3 * m * n + 2 * m * m), sizeof *x), *t = x + m * n, *next = t + m * n, *g = next + m * n;
  double *gg = g + m * m, norm = 0;
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      x[i * n + j] = input_at(c, 0, tall ? j * columns + i : i * columns + j);
      norm += x[i * n + j] * x[i * n + j];
    }
  norm = fmax(sqrt(norm), 1e-7);
  for (int64_t i = 0; i < m * n; i++) x[i] /= norm;
  for (int step = 0; step < steps; step++) {
    for (int64_t i = 0; i < m * n; i++) t[i % n * m + i / n] = x[i];
    multiply(x, t, g, m, n, m);
    multiply(g, g, gg, m, m, m);
    for (int64_t i = 0; i < m * m; i++) gg[i] = -4.7750 * g[i] + 2.0315 * gg[i];
    multiply(gg, x, next, m, m, n);
    for (int64_t i = 0; i < m * n; i++) x[i] = 3.4445 * x[i] + next[i];
  }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) result[tall ? j * columns + i : i * columns + j] = x[i * n + j];
  free(x);
}

static const struct {
  int64_t rows, columns;
  int steps;
} matrices[] = {{1, 1, 5}, {1, 9, 5}, {9, 1, 4}, {5, 5, 5}, {7, 19, 5}, {19, 7, 5}, {33, 64, 3}, {48, 40, 1}};

/* The largest difference relative to the largest element. */
static double worst(const kernel_case *c, const double *expected) {
  double largest = 0, difference = 0;
  for (int64_t i = 0, n = ms_numel(&c->call.out[0]); i < n; i++) {
    largest = fmax(largest, fabs(expected[i]));
    difference = fmax(difference, fabs(output_at(c, 0, i) - expected[i]));
  }
  return difference / largest;
}

static void orthogonal_matrices_match(void **state) {
  (void)state;
  for (int dtype = MS_ORTHOGONALISE_F32; dtype <= MS_ORTHOGONALISE_BF16; dtype++)
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
      const int64_t rows = matrices[i].rows, columns = matrices[i].columns;
      kernel_case c = case_of(MS_OP_muon_orthogonalise);
      c.call.attrs = (ms_op_attrs){.orthogonalise = {.steps = matrices[i].steps, .dtype = dtype}};
      add_input(&c, SHAPE(MS_F32, rows, columns));
      add_output(&c, SHAPE(MS_F32, rows, columns));
      double *expected = calloc((size_t)(rows * columns), sizeof *expected);
      iterate(&c, rows, columns, matrices[i].steps, expected);
      run_case(&c);
      const double found = worst(&c, expected), bound = dtype ? 0.1 : 1e-5;
      if (!(found <= bound)) fail_msg("%d x %d, dtype %d: %g", (int)rows, (int)columns, dtype, found);
      free(expected);
      free_case(&c);
    }
}

/* Each of a stack is what it is alone, one after the other in the same workspace. Where it is not aligned, a product
 * can take another path, which sums in another order. */
static void stacks_are_their_matrices(void **state) {
  (void)state;
  enum { MATRICES = 3 };
  for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
    const int64_t rows = matrices[i].rows, columns = matrices[i].columns, numel = rows * columns;
    const ms_op_attrs attrs = {.orthogonalise = {.steps = matrices[i].steps}};
    kernel_case all = case_of(MS_OP_muon_orthogonalise), one = case_of(MS_OP_muon_orthogonalise);
    all.call.attrs = one.call.attrs = attrs;
    add_input(&all, SHAPE(MS_F32, MATRICES, rows, columns));
    add_output(&all, SHAPE(MS_F32, MATRICES, rows, columns));
    add_input(&one, SHAPE(MS_F32, rows, columns));
    add_output(&one, SHAPE(MS_F32, rows, columns));
    run_case(&all);
    for (int64_t m = 0; m < MATRICES; m++) {
      for (int64_t e = 0; e < numel; e++) set_input(&one, 0, e, input_at(&all, 0, m * numel + e));
      run_once(&one, one.call, TEAM);
      for (int64_t e = 0; e < numel; e++) assert_output(&all, 0, m * numel + e, output_at(&one, 0, e), 1e-5);
    }
    free_case(&all);
    free_case(&one);
  }
}

/* Runs of a part take their places in a matrix, which keeps what is between them; and back. */
static void runs_take_their_places(void **state) {
  (void)state;
  enum { RUN = 5, APART = 14, RUNS = 3, BETWEEN = 77 };
  for (int back = 0; back < 2; back++) {
    kernel_case c = case_of(MS_OP_copy_runs);
    const int64_t from = back ? APART : RUN, to = back ? RUN : APART;
    c.call.attrs = (ms_op_attrs){.runs = {.run = RUN, .from = from, .to = to}};
    add_input(&c, SHAPE(MS_F32, (RUNS - 1) * from + RUN));
    add_output(&c, SHAPE(MS_F32, (RUNS - 1) * to + RUN));
    float *out = c.call.out_data[0];
    for (int64_t i = 0; i < ms_numel(&c.call.out[0]); i++) out[i] = BETWEEN;
    run_once(&c, c.call, TEAM);
    for (int64_t i = 0; i < ms_numel(&c.call.out[0]); i++)
      assert_true(out[i] == (float)(i % to < RUN ? input_at(&c, 0, i / to * from + i % to) : BETWEEN));
    free_case(&c);
  }
}

/* Nothing is divided by the norm of a matrix of zeros, and what is not finite is not hidden. */
static void zeros_stay_and_nan_shows(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_muon_orthogonalise);
  c.call.attrs = (ms_op_attrs){.orthogonalise = {.steps = 5}};
  add_input(&c, SHAPE(MS_F32, 4, 6));
  add_output(&c, SHAPE(MS_F32, 4, 6));
  for (int64_t i = 0; i < 24; i++) set_input(&c, 0, i, 0);
  run_once(&c, c.call, 1);
  for (int64_t i = 0; i < 24; i++) assert_true(output_at(&c, 0, i) == 0);
  set_input(&c, 0, 5, NAN);
  run_once(&c, c.call, 1);
  assert_true(isnan(output_at(&c, 0, 0)));
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(momentum_matches),          TEST(weights_match),          TEST(orthogonal_matrices_match),
      TEST(stacks_are_their_matrices), TEST(runs_take_their_places), TEST(zeros_stay_and_nan_shows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
