/* test_kernels_adafactor.c - the ops of Adafactor on parameters whose elements several ranks have, compared with
 * PyTorch's formulas, written out in double for the whole parameter. */
#include "kernels/adafactor.h"
#include "kernels/clip.h"
#include "tests/c/support/kernel_case.h"

enum { STEPS = 3, RANKS = 3, MAX = 5000 };

/* Axis: the one that `parts` ranks of a tensor dimension divide: 0 matrices, 1 rows, 2 columns. Leading axes of a
 * parameter with more than three are `blocks` of matrices, each of which is divided. */
typedef struct parameter {
  int64_t matrices, rows, columns;
  int axis, parts, blocks;
} parameter;

static const parameter parameters[] = {
    {0, 1, 1, 1, 1, 1}, {0, 37, 1, 1, 1, 1},   {0, 36, 1, 1, 2, 1}, {1, 1, 1, 0, 1, 1},  {1, 5, 9, 0, 1, 1},
    {1, 9, 5, 1, 3, 1}, {1, 6, 300, 2, 2, 1},  {3, 4, 7, 0, 1, 1},  {4, 4, 6, 0, 2, 1},  {2, 6, 5, 1, 2, 1},
    {3, 5, 8, 2, 4, 1}, {1, 160, 31, 1, 1, 1}, {6, 2, 2, 0, 2, 3},  {12, 3, 5, 0, 3, 2}, {12, 2, 33, 0, 2, 6},
    {8, 1, 1, 0, 2, 2}, {12, 1, 7, 0, 4, 3},   {12, 9, 1, 0, 2, 3}};

static const double lr = 0.5, lr_scale = 0.5, decay = 0.25, beta2_decay = -0.8, eps1 = 1e-3, eps2 = 1e-2, d = 1.5,
                    factor = 0.5, most = 0.45;

typedef struct reference {
  const parameter *of;
  double p[MAX], g[MAX], rows[MAX], columns[MAX];
} reference;

static int64_t elements_of(const parameter *x) { return (x->matrices ? x->matrices : 1) * x->rows * x->columns; }
static double larger(double a, double b) { return a > b ? a : b; }

/* A step of the whole parameter, by its gradient in g. */
static void step_of(reference *r, int step) {
  const parameter *x = r->of;
  const int64_t n = elements_of(x), matrices = x->matrices ? x->matrices : 1;
  const double rest = pow(step, beta2_decay), rate = lr * lr_scale;
  double squares = 0, of_updates = 0, mean[16] = {0};
  static double update[MAX];
  for (int64_t i = 0; i < n; i++) squares += r->p[i] * r->p[i];
  const double alpha = larger(eps2, sqrt(squares / (double)n)) * fmin(rate, 1 / sqrt(step));
  for (int64_t row = 0; row < matrices * x->rows; row++) {
    double sum = 0;
    for (int64_t k = 0; k < x->columns; k++) sum += r->g[row * x->columns + k] * r->g[row * x->columns + k];
    r->rows[row] += rest * (sum / (double)x->columns - r->rows[row]);
    mean[row / x->rows] += r->rows[row] / (double)x->rows;
  }
  for (int64_t at = 0; at < x->matrices * x->columns; at++) {
    double sum = 0;
    for (int64_t i = 0; i < x->rows; i++) {
      const double g = r->g[(at / x->columns * x->rows + i) * x->columns + at % x->columns];
      sum += g * g;
    }
    r->columns[at] += rest * (sum / (double)x->rows - r->columns[at]);
  }
  for (int64_t i = 0; i < n; i++) {
    const int64_t row = i / x->columns, matrix = row / x->rows;
    const double column = r->columns[matrix * x->columns + i % x->columns];
    const double variance = x->matrices ? r->rows[row] * column / larger(mean[matrix], eps1) : r->rows[row];
    update[i] = r->g[i] / sqrt(larger(variance, eps1 * eps1));
    of_updates += update[i] * update[i];
  }
  const double by = alpha / larger(1, sqrt(of_updates / (double)n) / d);
  for (int64_t i = 0; i < n; i++) r->p[i] = r->p[i] * (1 - rate * decay) - by * update[i];
}

/* ---- the ranks that have parts of it ---- */

typedef struct rank {
  ms_factored at;
  int64_t count;
} rank;

static int64_t whole_index(const rank *k, int64_t i) {
  const int64_t element = k->at.first + i;
  return element / k->at.run * k->at.stride + k->at.origin + element % k->at.run;
}

/* The parts of a tensor dimension, and of each RANKS pieces that begin and end anywhere. */
static int ranks_of(const parameter *x, rank *list) {
  int n = 0;
  for (int part = 0; part < x->parts; part++) {
    const int64_t elements = elements_of(x) / x->parts, outer = x->blocks;
    const int64_t rows = x->rows * x->columns, run[] = {elements / outer, rows / x->parts, x->columns / x->parts};
    ms_factored at = {.rows = x->rows, .columns = x->columns, .matrices = x->matrices, .run = run[x->axis]};
    at.stride = at.run * x->parts;
    at.origin = part * at.run;
    at = ms_factored_shape(at);
    for (int k = 0; k < RANKS; k++, n++) {
      at.first = elements * k / RANKS;
      list[n] = (rank){at, elements * (k + 1) / RANKS - at.first};
    }
  }
  return n;
}

static kernel_case case_for(int op, const rank *k) {
  kernel_case c = case_of(op);
  ms_factored_set(&c.call.attrs, &k->at);
  c.call.attrs.factored.clip = most;
  c.call.attrs.factored.lr_scale = lr_scale;
  c.call.attrs.factored.weight_decay = decay;
  c.call.attrs.factored.eps1 = eps1;
  c.call.attrs.factored.eps2 = eps2;
  c.call.attrs.factored.d = d;
  c.call.attrs.factored.beta2_decay = beta2_decay;
  c.scalars.lr = lr;
  return c;
}

static void add_values(kernel_case *c, const float *values, int64_t n, int scalar) {
  const int i = add_input(c, scalar ? SCALAR(MS_F32) : SHAPE(MS_F32, n));
  memcpy((void *)c->call.in_data[i], values, (size_t)n * sizeof *values);
}

/* What the ranks keep and exchange. */
typedef struct training {
  rank rank[16];
  int ranks;
  float p[MAX], gradient[MAX], rows[MAX], columns[MAX], row_sums[MAX], column_sums[MAX], means[16];
  float squares, update_squares;
} training;

static void add_gradient(const training *t, const rank *k, kernel_case *c) {
  static float own[MAX];
  for (int64_t i = 0; i < k->count; i++) own[i] = t->gradient[whole_index(k, i)];
  add_values(c, own, k->count, 0);
  add_values(c, (float[]){0, 0, (float)factor, 0}, 4, 0);
}

static void add_averages(const training *t, const rank *k, kernel_case *c) {
  add_gradient(t, k, c);
  add_values(c, t->rows, ms_factored_row_count(&k->at), 0);
  add_values(c, t->columns, ms_factored_column_count(&k->at), 0);
}

/* Sums of all ranks, as their all-reduce makes them. */
static void sum_all(training *t) {
  for (int k = 0; k < t->ranks; k++) {
    const rank *own = &t->rank[k];
    kernel_case c = case_for(MS_OP_adafactor_sums, own);
    add_gradient(t, own, &c);
    add_output(&c, SHAPE(MS_F32, ms_factored_row_count(&own->at)));
    add_output(&c, SHAPE(MS_F32, ms_factored_column_count(&own->at)));
    run_case(&c);
    for (int64_t i = 0; i < ms_numel(&c.call.out[0]); i++) t->row_sums[i] += (float)output_at(&c, 0, i);
    for (int64_t i = 0; i < ms_numel(&c.call.out[1]); i++) t->column_sums[i] += (float)output_at(&c, 1, i);
    free_case(&c);
  }
}

static void average_all(training *t, float updates) {
  kernel_case c = case_for(MS_OP_adafactor_average, &t->rank[0]);
  const int64_t rows = ms_factored_row_count(&t->rank[0].at), columns = ms_factored_column_count(&t->rank[0].at);
  add_values(&c, t->row_sums, rows, 0);
  add_values(&c, t->column_sums, columns, 0);
  add_values(&c, &updates, 1, 1);
  memcpy(c.call.out_data[add_output(&c, SHAPE(MS_F32, rows))], t->rows, (size_t)rows * sizeof(float));
  memcpy(c.call.out_data[add_output(&c, SHAPE(MS_F32, columns))], t->columns, (size_t)columns * sizeof(float));
  run_once(&c, c.call, TEAM);
  for (int64_t i = 0; i < rows; i++) t->rows[i] = (float)output_at(&c, 0, i);
  for (int64_t i = 0; i < columns; i++) t->columns[i] = (float)output_at(&c, 1, i);
  free_case(&c);
}

static void find_norm(training *t, float updates) {
  for (int k = 0; k < t->ranks; k++) {
    const rank *own = &t->rank[k];
    kernel_case c = case_for(MS_OP_adafactor_norm, own);
    add_averages(t, own, &c);
    add_values(&c, &t->squares, 1, 1);
    add_values(&c, &updates, 1, 1);
    add_output(&c, SCALAR(MS_F32));
    add_output(&c, SHAPE(MS_F32, own->at.matrices + 1));
    run_case(&c);
    t->update_squares += (float)output_at(&c, 0, 0);
    for (int64_t i = 0; i <= own->at.matrices; i++) t->means[i] = (float)output_at(&c, 1, i);
    free_case(&c);
  }
}

static void step_all(training *t) {
  for (int k = 0; k < t->ranks; k++) {
    const rank *own = &t->rank[k];
    kernel_case c = case_for(MS_OP_adafactor, own);
    add_averages(t, own, &c);
    add_values(&c, t->means, own->at.matrices + 1, 0);
    add_values(&c, &t->update_squares, 1, 1);
    float *p = c.call.out_data[add_output(&c, SHAPE(MS_F32, own->count))];
    for (int64_t i = 0; i < own->count; i++) p[i] = t->p[whole_index(own, i)];
    run_once(&c, c.call, TEAM);
    for (int64_t i = 0; i < own->count; i++) t->p[whole_index(own, i)] = (float)output_at(&c, 0, i);
    free_case(&c);
  }
}

static void steps_match(void **state) {
  (void)state;
  static reference r;
  static training t;
  for (size_t x = 0; x < sizeof parameters / sizeof *parameters; x++) {
    const int64_t n = elements_of(&parameters[x]);
    memset(&r, 0, sizeof r);
    memset(&t, 0, sizeof t);
    r.of = &parameters[x];
    t.ranks = ranks_of(r.of, t.rank);
    for (int64_t i = 0; i < n; i++) r.p[i] = t.p[i] = (float)(0.1 * sin((double)i));
    for (int step = 1; step <= STEPS; step++) {
      t.squares = t.update_squares = 0;
      memset(t.row_sums, 0, sizeof t.row_sums);
      memset(t.column_sums, 0, sizeof t.column_sums);
      for (int64_t i = 0; i < n; i++) {
        t.gradient[i] = (float)(cos((double)(i * 7 + step)) * (i % 5 ? 1 : 1e-4));
        const float clipped = t.gradient[i] * (float)factor, bound = (float)most;
        r.g[i] = clipped > bound ? bound : clipped < -bound ? -bound : clipped;
        t.squares += t.p[i] * t.p[i];
      }
      sum_all(&t);
      average_all(&t, (float)step);
      find_norm(&t, (float)step);
      step_all(&t);
      step_of(&r, step);
      for (int64_t i = 0; i < n; i++)
        if (!(fabs(t.p[i] - r.p[i]) <= 1e-5 * (0.1 + fabs(r.p[i]))))
          fail_msg("parameter %d, step %d, element %d: %.9g instead of %.9g", (int)x, step, (int)i, t.p[i], r.p[i]);
    }
  }
}

/* A rank without elements adds nothing, and a gradient that is not a number makes all that depends on it so. */
static void nothing_is_zero_and_nan_shows(void **state) {
  (void)state;
  const ms_factored whole =
      ms_factored_shape((ms_factored){.run = 12, .stride = 12, .rows = 3, .columns = 4, .matrices = 1});
  const rank none = {whole, 0}, all = {whole, 12};
  for (int i = 0; i < 2; i++) {
    const rank *own = i ? &all : &none;
    kernel_case c = case_for(MS_OP_adafactor_sums, own);
    add_input(&c, SHAPE(MS_F32, own->count));
    add_values(&c, (float[]){0, 0, 1, 0}, 4, 0);
    if (own->count) set_input(&c, 0, 5, NAN);
    add_output(&c, SHAPE(MS_F32, 3));
    add_output(&c, SHAPE(MS_F32, 4));
    run_case(&c);
    for (int64_t k = 0; k < 3; k++)
      assert_true(own->count ? isnan(output_at(&c, 0, k)) == (k == 1) : !output_at(&c, 0, k));
    for (int64_t k = 0; k < 4; k++)
      assert_true(own->count ? isnan(output_at(&c, 1, k)) == (k == 1) : !output_at(&c, 1, k));
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(steps_match), TEST(nothing_is_zero_and_nan_shows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
