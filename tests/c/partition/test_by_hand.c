/* test_by_hand.c - graphs that a recipe divides itself: gradients of each op across ranks against central differences,
 * on simulated ranks, where every rank computes with what it has; and what is refused.
 */
#include "tests/c/graph/graph_case.h"
#include "tests/c/partition/partition_trial.h"

enum { BATCH = 4, SEQ = 12, DIM = 12, DIM_OF_RANKS = 3 };

/* A graph of one rank's shapes over parameters x [BATCH,SEQ,DIM], gain [DIM] and w [DIM,DIM], which its placement
 * divides along axis 0. */
typedef struct by_hand {
  trial t;
  int ranks, x, gain, w;
} by_hand;

static int across(by_hand *h, int op, int x, ms_op_attrs attrs) {
  attrs.across.dim = DIM_OF_RANKS, attrs.across.ranks = h->ranks;
  return op1(&h->t.f, op, x, &attrs);
}

static int border(by_hand *h, int op, int x, int kind, int axis) {
  return across(h, op, x, (ms_op_attrs){.across = {.along = axis, .kind = kind}});
}

static int local(by_hand *h, int x, int axis) { return border(h, MS_OP_to_local, x, MS_LOCAL_SHARD, axis); }
static int whole(by_hand *h, int x) { return border(h, MS_OP_to_local, x, MS_LOCAL_REPLICATE, 0); }
static int summand(by_hand *h, int x) { return border(h, MS_OP_to_local, x, MS_LOCAL_PARTIAL, 0); }
static int part(by_hand *h, int x, int axis) { return border(h, MS_OP_from_local, x, MS_LOCAL_SHARD, axis); }
static int equal(by_hand *h, int x) { return border(h, MS_OP_from_local, x, MS_LOCAL_REPLICATE, 0); }
static int sum_of(by_hand *h, int x) { return border(h, MS_OP_from_local, x, MS_LOCAL_PARTIAL, 0); }

static int bend(by_hand *h, int x) { return op2(&h->t.f, MS_OP_mul, x, op1(&h->t.f, MS_OP_tanh, x, NULL), NULL); }
static int scaled(by_hand *h, int x) { return op2(&h->t.f, MS_OP_mul, x, h->gain, NULL); }
static int product(by_hand *h, int x, int w) {
  return op2(&h->t.f, MS_OP_matmul, x, w, ATTRS(.product = {.trans_b = 1}));
}

/* ---- one op each ------------------------------------------------------------------------------------------------ */

static int hidden(by_hand *h, int x) { return bend(h, product(h, x, local(h, h->w, 0))); }

/* Only the gathered hidden features are used, and alike by all ranks; then differently. */
static int gathers(by_hand *h) {
  const int all =
      across(h, MS_OP_all_gather, hidden(h, whole(h, h->x)), (ms_op_attrs){.across = {.along = 2, .outer = 1}});
  return equal(h, scaled(h, bend(h, all)));
}

static int gathers_for_parts(by_hand *h) {
  const int all =
      across(h, MS_OP_all_gather, local(h, scaled(h, h->x), 1), (ms_op_attrs){.across = {.along = 1, .outer = 1}});
  return part(h, hidden(h, all), 2);
}

static int sums(by_hand *h) {
  const int y = bend(h, scaled(h, local(h, h->x, 1)));
  const int sum = across(h, MS_OP_all_reduce, y, (ms_op_attrs){0});
  return equal(h, scaled(h, bend(h, sum)));
}

/* The sum is used by each rank for its own part, too. */
static int sums_for_parts(by_hand *h) {
  const int y = scaled(h, local(h, h->x, 1)), sum = across(h, MS_OP_all_reduce, bend(h, y), (ms_op_attrs){0});
  return part(h, op2(&h->t.f, MS_OP_mul, sum, y, NULL), 1);
}

/* A sum of what is equal counts it once for each rank. */
static int sums_of_equals(by_hand *h) {
  return equal(h, bend(h, across(h, MS_OP_all_reduce, scaled(h, whole(h, h->x)), (ms_op_attrs){0})));
}

static int copies(by_hand *h) {
  const int x = across(h, MS_OP_copy_to, scaled(h, whole(h, h->x)), (ms_op_attrs){0});
  return part(h, hidden(h, x), 2);
}

static int scatters(by_hand *h) {
  const int y = op2(&h->t.f, MS_OP_matmul, hidden(h, whole(h, h->x)), local(h, h->w, 0), NULL);
  return part(
      h, scaled(h, bend(h, across(h, MS_OP_reduce_scatter, y, (ms_op_attrs){.across = {.along = 1, .outer = 1}}))), 1);
}

static int exchanges(by_hand *h) {
  const int x = bend(h, scaled(h, local(h, h->x, 1)));
  const int y = across(h, MS_OP_all_to_all, x, (ms_op_attrs){.across = {.split_axis = 2, .concat_axis = 1}});
  return part(h, op2(&h->t.f, MS_OP_mul, bend(h, y), y, NULL), 2);
}

static int shifts(by_hand *h, int by) {
  const int x = scaled(h, local(h, h->x, 1)),
            y = across(h, MS_OP_shift, bend(h, x), (ms_op_attrs){.across = {.by = by}});
  return part(h, op2(&h->t.f, MS_OP_mul, x, y, NULL), 1);
}
static int shifts_ahead(by_hand *h) { return shifts(h, 1); }
static int shifts_back(by_hand *h) { return shifts(h, -2); }
static int shifts_around(by_hand *h) { return shifts(h, 7); }

/* The border itself: what each rank adds. */
static int adds(by_hand *h) { return bend(h, sum_of(h, scaled(h, bend(h, local(h, h->x, 1))))); }
static int adds_equals(by_hand *h) { return bend(h, sum_of(h, scaled(h, whole(h, h->x)))); }
static int adds_summands(by_hand *h) { return bend(h, sum_of(h, scaled(h, summand(h, bend(h, h->x))))); }

/* A norm by hand, whose gain all ranks have, which is also used outside. */
static int shares_a_gain(by_hand *h) {
  fixture *f = &h->t.f;
  const int own = op2(f, MS_OP_rms_norm, local(h, h->x, 1), h->gain, NULL);
  return op2(f, MS_OP_mul, part(h, bend(h, own), 1), op1(f, MS_OP_tanh, h->gain, NULL), NULL);
}

static int (*const builds[])(by_hand *) = {
    gathers,     gathers_for_parts, sums,         sums_for_parts, sums_of_equals, copies,
    scatters,    exchanges,         shifts_ahead, shifts_back,    shifts_around,  adds,
    adds_equals, adds_summands,     shares_a_gain};

/* ---- central differences ---------------------------------------------------------------------------------------- */

static void start(by_hand *h, int ranks) {
  memset(h, 0, sizeof *h);
  h->ranks = ranks;
  trial_start(&h->t);
  trial_add_dimension(&h->t, "tensor", ranks);
  h->t.params[0][2] = ms_shard(0, 1);
  h->x = param(&h->t.f, MS_F32, SHAPE(BATCH, SEQ, DIM));
  h->gain = param(&h->t.f, MS_F32, SHAPE(DIM));
  h->w = param(&h->t.f, MS_F32, SHAPE(DIM, DIM));
}

static void set_loss(by_hand *h, int y) {
  must(ms_graph_set_loss(h->t.f.graph, op1(&h->t.f, MS_OP_mean, y, ATTRS(.reduce = {.all = 1})), -1));
}

/* The graph has no meaning on one rank, so the whole is there only to draw from. */
static void run(by_hand *h) {
  trial *t = &h->t;
  must(trial_partition(t));
  must(ms_graph_differentiate(trial_local(t)));
  must(ms_graph_prune(trial_local(t)));
  assert_well_formed(trial_local(t));
  interpreter_open(&t->whole, t->f.graph);
  for (int r = 0; r < t->ranks; r++) interpreter_start(&t->rank[r], trial_local(t));
  trial_draw(t, 2);
  trial_cut_leaves(t);
  trial_run_ranks(t);
}

static double loss_with(by_hand *h, int value, int64_t i, double x) {
  trial *t = &h->t;
  const double before = interpreter_get(&t->whole, value, i);
  double loss = 0;
  interpreter_set(&t->whole, value, i, x);
  trial_cut_leaves(t);
  trial_run_ranks(t);
  interpreter_set(&t->whole, value, i, before);
  for (int r = 0; r < t->ranks; r++) {
    loss = interpreter_get(&t->rank[r], trial_local(t)->loss, 0);
    assert_true(loss == interpreter_get(&t->rank[0], trial_local(t)->loss, 0));
  }
  return loss;
}

/* The gradient of one element of a parameter, from those of the ranks. */
static double gradient_of(by_hand *h, int param, int64_t i) {
  const trial *t = &h->t;
  const int gradient = trial_local(t)->param_grads[param];
  const int64_t n = gradient < 0 ? 0 : interpreter_numel(&t->rank[0], gradient);
  double sum = 0;
  if (gradient < 0) return 0;
  if (t->params[0][param].kind == MS_SHARD) return interpreter_get(&t->rank[i / n], gradient, i % n);
  if (t->part[0].params[param].kind != MS_REPLICATE) return interpreter_get(&t->rank[0], gradient, i);
  for (int r = 0; r < t->ranks; r++) sum += interpreter_get(&t->rank[r], gradient, i);
  return sum;
}

static void compare_gradients(by_hand *h, int build) {
  const double step = 2e-2;
  double given[32];
  for (int p = 0; p < h->t.f.params; p++) {
    const int value = h->t.f.graph->param_values[p];
    const int64_t n = interpreter_numel(&h->t.whole, value), stride = n / 16 ? n / 16 : 1;
    double largest = 1e-4;
    int count = 0;
    loss_with(h, value, 0, interpreter_get(&h->t.whole, value, 0));
    for (int64_t i = 0; i < n && count < 32; i += stride) given[count++] = gradient_of(h, p, i);
    for (int k = 0; k < count; k++) largest = fmax(largest, fabs(given[k]));
    for (int k = 0; k < count; k++) {
      const double x = interpreter_get(&h->t.whole, value, k * stride);
      const double above = loss_with(h, value, k * stride, x + step), below = loss_with(h, value, k * stride, x - step);
      const double wanted = (above - below) / (2 * step);
      if (fabs(wanted - given[k]) > 2e-2 * largest)
        fail_msg("case %d over %d ranks, parameter %d[%d]: gradient %.6g, by differences %.6g", build, h->ranks, p,
                 (int)(k * stride), given[k], wanted);
    }
  }
}

static void T4_gradients_are_those_of_central_differences(void **state) {
  by_hand h;
  (void)state;
  for (int ranks = 2; ranks <= 4; ranks++)
    for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
      start(&h, ranks);
      set_loss(&h, builds[b](&h));
      run(&h);
      compare_gradients(&h, (int)b);
      trial_end(&h.t);
    }
}

/* ---- what a node becomes ---------------------------------------------------------------------------------------- */

static int count_nodes(const by_hand *h, int op) {
  const ms_graph *g = trial_local(&h->t);
  int n = 0;
  for (int i = 0; i < g->n_nodes; i++) n += g->nodes[i].op == op;
  return n;
}

/* What is gathered for different uses is reduced and scattered in backward, and what is used alike is cut. */
static void T4_backward_of_a_gather_depends_on_its_use(void **state) {
  by_hand h;
  (void)state;
  for (int parts = 0; parts < 2; parts++) {
    start(&h, 2);
    set_loss(&h, parts ? gathers_for_parts(&h) : gathers(&h));
    run(&h);
    assert_int_equal(count_nodes(&h, MS_OP_reduce_scatter), parts);
    assert_int_equal(count_nodes(&h, MS_OP_all_gather), 1);
    trial_end(&h.t);
  }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static int refused_outside(by_hand *h) { return across(h, MS_OP_all_reduce, h->x, (ms_op_attrs){0}); }
static int refused_end(by_hand *h) { return equal(h, h->x); }
static int refused_twice(by_hand *h) { return equal(h, whole(h, whole(h, h->x))); }
static int refused_unequal(by_hand *h) { return equal(h, local(h, h->x, 1)); }
static int refused_loss(by_hand *h) { return local(h, h->x, 1); }
static int refused_parameter(by_hand *h) { return equal(h, product(h, whole(h, h->x), h->w)); }
static int refused_axis(by_hand *h) { return part(h, local(h, h->w, 1), 1); }
static int refused_maximum(by_hand *h) {
  return equal(h, across(h, MS_OP_all_reduce, local(h, h->x, 1), (ms_op_attrs){.across = {.max = 1}}));
}

static void T4_what_has_no_meaning_is_refused(void **state) {
  static const struct {
    int (*build)(by_hand *);
    int status;
    const char *facts;
  } cases[] = {
      {refused_outside, MS_EINVAL, "all_reduce | tensor | to_local"},
      {refused_end, MS_EINVAL, "from_local | tensor | to_local"},
      {refused_twice, MS_EINVAL, "to_local | from_local"},
      {refused_unequal, MS_EINVAL, "from_local | all_reduce | partial"},
      {refused_loss, MS_EINVAL, "the loss | from_local"},
      {refused_parameter, MS_EINVAL, "matmul | input 2 | to_local | axis 0"},
      {refused_axis, MS_EINVAL, "to_local | axis 0 | axis 1"},
      {refused_maximum, MS_EUNSUPPORTED, "all_reduce | gradient"},
  };
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    by_hand h;
    start(&h, 2);
    set_loss(&h, cases[c].build(&h));
    int rc = trial_partition(&h.t);
    if (!rc) rc = ms_graph_differentiate(trial_local(&h.t));
    assert_fails(rc, cases[c].status, cases[c].facts);
    trial_end(&h.t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(T4_gradients_are_those_of_central_differences),
      TEST(T4_backward_of_a_gather_depends_on_its_use),
      TEST(T4_what_has_no_meaning_is_refused),
  };
  return cmocka_run_group_tests_name("by hand", tests, NULL, NULL);
}
