/* test_kernels_delta_rule.c - compares the gated delta rule and its gradient with the recurrence, one position after
 * the other in double: chunks that end anywhere, grouped values, documents, a state before the first position, and the
 * state after the last one. */
#include "tests/c/support/kernel_case.h"

#include "base/numbers/dtype.h"
#include "kernels/gated_delta_rule.h"

enum { START = 7, MAX_T = 150, MAX_STATE = 40 * 24 };

typedef struct sizes {
  int64_t batch, t, groups, heads, d, e;
  int documents;
} sizes;

/* Inputs that a layer would give: keys of about length 1, g below 0, beta between 0 and 1. */
static void make_sensible(kernel_case *c, const sizes *z) {
  for (int64_t i = 0; i < ms_numel(&c->call.in[MS_DELTA_K]); i++)
    set_input(c, MS_DELTA_K, i, input_at(c, MS_DELTA_K, i) / sqrt((double)z->d));
  for (int64_t i = 0; i < ms_numel(&c->call.in[MS_DELTA_G]); i++) {
    set_input(c, MS_DELTA_G, i, -0.2 * fabs(input_at(c, MS_DELTA_G, i)));
    set_input(c, MS_DELTA_BETA, i, 1 / (1 + exp(-input_at(c, MS_DELTA_BETA, i))));
  }
}

/* Documents of 1, 2, 30, 31, 64 and more positions; the first row begins inside a document. */
static void add_tokens(kernel_case *c, const sizes *z) {
  static const int first[] = {1, 3, 33, 64, 130}, second[] = {0, 31, 95, 96, 149};
  const int input = add_input(c, SHAPE(MS_I32, z->batch, z->t));
  for (int64_t i = 0; i < z->batch * z->t; i++) set_input(c, input, i, (double)(i % 5));
  for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
    if (first[i] < z->t) set_input(c, input, first[i], START);
    if (z->batch > 1 && second[i] < z->t) set_input(c, input, z->t + second[i], START);
  }
}

static kernel_case make_case(const sizes *z, int dtype, int backward) {
  kernel_case c =
      case_of(z->documents ? backward ? MS_OP_document_gated_delta_rule_backward : MS_OP_document_gated_delta_rule
              : backward   ? MS_OP_gated_delta_rule_backward
                           : MS_OP_gated_delta_rule);
  c.call.attrs.delta_rule.start = START;
  if (z->d == 3) c.call.attrs.delta_rule.scale = 0.7;
  for (int i = 0; i < 2; i++) add_input(&c, SHAPE(dtype, z->batch, z->t, z->groups, z->d));
  add_input(&c, SHAPE(dtype, z->batch, z->t, z->heads, z->e));
  add_input(&c, SHAPE(MS_F32, z->batch, z->t, z->heads));
  add_input(&c, SHAPE(dtype, z->batch, z->t, z->heads));
  make_sensible(&c, z);
  if (backward) add_input(&c, SHAPE(dtype, z->batch, z->t, z->heads, z->e));
  if (z->documents) add_tokens(&c, z);
  for (int i = 0; backward && i < 5; i++) add_output(&c, c.call.in[i]);
  if (!backward) add_output(&c, c.call.in[MS_DELTA_V]);
  if (!backward) add_output(&c, SHAPE(MS_F32, z->batch, z->heads, z->d, z->e));
  return c;
}

/* ---- the recurrence of a head ------------------------------------------------------------------------------------ */

typedef struct head {
  const kernel_case *c;
  ms_delta_rule r;
  int64_t b, h;
  double state[MAX_T + 1][MAX_STATE]; /* before position t, and after the last one */
  double *out[5];                     /* y, or the five gradients, of the whole call */
} head;

static int64_t key_at(const head *x, int64_t t) {
  return ((x->b * x->r.t + t) * x->r.groups + x->h / (x->r.heads / x->r.groups)) * x->r.d;
}
static int64_t number_at(const head *x, int64_t t) { return (x->b * x->r.t + t) * x->r.heads + x->h; }
static int64_t value_at(const head *x, int64_t t) { return number_at(x, t) * x->r.e; }

/* The state before a position, decayed: 0 where a document begins. */
static double decayed(const head *x, int64_t t, int64_t i) {
  const int begins = x->r.tokens >= 0 && input_at(x->c, x->r.tokens, x->b * x->r.t + t) == START;
  return begins ? 0 : exp(input_at(x->c, MS_DELTA_G, number_at(x, t))) * x->state[t][i];
}

/* v - S' k */
static double missing(const head *x, int64_t t, int64_t e) {
  double sum = input_at(x->c, MS_DELTA_V, value_at(x, t) + e);
  for (int64_t d = 0; d < x->r.d; d++)
    sum -= decayed(x, t, d * x->r.e + e) * input_at(x->c, MS_DELTA_K, key_at(x, t) + d);
  return sum;
}

static void follow(head *x) {
  const int64_t n = x->r.d * x->r.e;
  for (int64_t i = 0; i < n; i++)
    x->state[0][i] = x->r.begins >= 0 ? input_at(x->c, x->r.begins, (x->b * x->r.heads + x->h) * n + i) : 0;
  for (int64_t t = 0; t < x->r.t; t++)
    for (int64_t e = 0; e < x->r.e; e++) {
      const double u = input_at(x->c, MS_DELTA_BETA, number_at(x, t)) * missing(x, t, e);
      double y = 0;
      for (int64_t d = 0; d < x->r.d; d++) {
        const int64_t i = d * x->r.e + e;
        x->state[t + 1][i] = decayed(x, t, i) + input_at(x->c, MS_DELTA_K, key_at(x, t) + d) * u;
        y += x->r.scale * x->state[t + 1][i] * input_at(x->c, MS_DELTA_Q, key_at(x, t) + d);
      }
      if (!x->r.backward) x->out[0][value_at(x, t) + e] = y;
    }
}

/* Position t of the gradient: dstate of the state after it becomes that of the state before it. */
static void follow_back(head *x, int64_t t, double *dstate) {
  const int64_t e_n = x->r.e;
  const double beta = input_at(x->c, MS_DELTA_BETA, number_at(x, t));
  double dg = 0, dbeta = 0;
  for (int64_t e = 0; e < e_n; e++) {
    const double dy = input_at(x->c, MS_DELTA_DY, value_at(x, t) + e), r = missing(x, t, e);
    double du = 0;
    for (int64_t d = 0; d < x->r.d; d++) {
      const int64_t i = d * e_n + e;
      dstate[i] += x->r.scale * dy * input_at(x->c, MS_DELTA_Q, key_at(x, t) + d);
      x->out[MS_DELTA_Q][key_at(x, t) + d] += x->r.scale * dy * x->state[t + 1][i];
      x->out[MS_DELTA_K][key_at(x, t) + d] += dstate[i] * beta * r;
      du += dstate[i] * input_at(x->c, MS_DELTA_K, key_at(x, t) + d);
    }
    dbeta += du * r;
    x->out[MS_DELTA_V][value_at(x, t) + e] = beta * du;
    for (int64_t d = 0; d < x->r.d; d++) {
      const int64_t i = d * e_n + e;
      const double kept = decayed(x, t, i);
      const double grown = x->state[t][i] != 0 ? kept / x->state[t][i] : 0; /* e^g, or 0 where a document begins */
      x->out[MS_DELTA_K][key_at(x, t) + d] -= kept * beta * du;
      dstate[i] -= input_at(x->c, MS_DELTA_K, key_at(x, t) + d) * beta * du;
      dg += dstate[i] * kept;
      dstate[i] *= grown;
    }
  }
  x->out[MS_DELTA_G][number_at(x, t)] = dg;
  x->out[MS_DELTA_BETA][number_at(x, t)] = dbeta;
}

static void check(kernel_case *c, const sizes *z) {
  const int backward = c->call.outputs == 5;
  head *x = calloc(1, sizeof *x);
  double dstate[MAX_STATE];
  assert_non_null(x);
  x->c = c;
  x->r = ms_delta_rule_of(c->call.op, &c->call.attrs, c->call.inputs, c->call.in);
  for (int o = 0; o < c->call.outputs; o++) x->out[o] = calloc((size_t)ms_numel(&c->call.out[o]) + 1, sizeof(double));
  run_case(c);
  for (x->b = 0; x->b < z->batch; x->b++)
    for (x->h = 0; x->h < z->heads; x->h++) {
      follow(x);
      for (int64_t i = 0; i < z->d * z->e && !backward; i++)
        x->out[1][(x->b * z->heads + x->h) * z->d * z->e + i] = x->state[z->t][i];
      memset(dstate, 0, sizeof dstate);
      for (int64_t t = z->t - 1; backward && t >= 0; t--) follow_back(x, t, dstate);
    }
  for (int o = 0; o < c->call.outputs; o++) {
    for (int64_t i = 0; i < ms_numel(&c->call.out[o]); i++) assert_output(c, o, i, x->out[o][i], 2e-5);
    free(x->out[o]);
  }
  free(x);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const sizes all_sizes[] = {
    {1, 1, 1, 1, 1, 1, 0}, {2, 5, 1, 2, 3, 5, 0},   {1, 64, 1, 1, 8, 8, 0},   {2, 150, 2, 4, 40, 24, 0},
    {1, 9, 1, 1, 8, 3, 1}, {2, 65, 1, 1, 3, 33, 1}, {2, 150, 1, 3, 16, 9, 1},
};

static void results_are_those_of_the_recurrence(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof all_sizes / sizeof *all_sizes; i++)
      for (int backward = 0; backward < 2; backward++) {
        const sizes *z = &all_sizes[i];
        if (too_large(z->batch * z->t * z->heads * z->d)) continue;
        kernel_case c = make_case(z, dtype, backward);
        check(&c, z);
        free_case(&c);
      }
}

/* The state that a first part of a text leaves is what the rest of it begins with. */
static void a_text_can_be_continued(void **state) {
  (void)state;
  const sizes z = {2, 70, 1, 2, 8, 6, 0};
  kernel_case c = make_case(&z, MS_F32, 0);
  add_input(&c, SHAPE(MS_F32, z.batch, z.heads, z.d, z.e));
  check(&c, &z);
  free_case(&c);
}

/* Keys of length 1 and beta 1 without decay: a value that is written is read with its key, whatever came before. */
static void what_is_written_is_read(void **state) {
  (void)state;
  const sizes z = {1, 66, 1, 1, 4, 3, 0};
  kernel_case c = make_case(&z, MS_F32, 0);
  c.call.attrs.delta_rule.scale = 1;
  for (int64_t i = 0; i < z.t; i++) {
    set_input(&c, MS_DELTA_G, i, 0);
    set_input(&c, MS_DELTA_BETA, i, 1);
    for (int64_t d = 0; d < z.d; d++) {
      set_input(&c, MS_DELTA_K, i * z.d + d, d == i % z.d);
      set_input(&c, MS_DELTA_Q, i * z.d + d, d == i % z.d);
    }
  }
  run_case(&c);
  for (int64_t i = 0; i < z.t * z.e; i++) assert_output(&c, 0, i, input_at(&c, MS_DELTA_V, i), 1e-6);
  free_case(&c);
}

/* A NaN in one document does not leave it. */
static void documents_are_hidden_from_each_other(void **state) {
  (void)state;
  const sizes z = {1, 150, 1, 1, 8, 6, 1};
  for (int backward = 0; backward < 2; backward++) {
    kernel_case c = make_case(&z, MS_F32, backward);
    for (int64_t i = 33 * z.e; i < 64 * z.e; i++) set_input(&c, MS_DELTA_V, i, NAN);
    run_case(&c);
    for (int64_t i = 0; i < z.t; i++) {
      const int nan = isnan(output_at(&c, backward ? MS_DELTA_BETA : 0, backward ? i : i * z.e)) != 0;
      assert_int_equal(nan, i >= 33 && i < 64);
    }
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(results_are_those_of_the_recurrence),
      cmocka_unit_test(a_text_can_be_continued),
      cmocka_unit_test(what_is_written_is_read),
      cmocka_unit_test(documents_are_hidden_from_each_other),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
