/* test_partition_random.c - random small graphs with random placements of parameters and inputs, on one dimension and
 * on two: dividing one either is refused, or gives one rank's loss and gradients.
 *
 * SEED=n and CASES=m of the environment run cases n to n + m - 1, as `make fuzz-placements` and `make soak` do.
 */
#include "tests/c/partition/random_images.h"
#include "tests/c/partition/random_places.h"

enum { CASES = 3000, MAX_ELEMENTS = 1536 };

typedef struct tally {
  int divided, refused;
  unsigned char op[MS_OP_COUNT]; /* 1: a rank has computed a part of such a node */
} tally;

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

/* A mean of squares, or of the targets' losses where v can be logits: as they are, or with their rows in one axis. */
static int loss_of(draw *d, int v) {
  fixture *f = &d->t->f;
  const ms_value_info *x = shape(d, v), *targets = shape(d, d->targets);
  const int logits =
      x->ndim == 3 && x->dims[2] >= DRAW_INTEGERS && x->dims[0] == targets->dims[0] && x->dims[1] == targets->dims[1];
  if (logits && below(d, 3)) {
    const ms_op_attrs attrs = {
        .loss = {.ignore_index = below(d, 2) ? 3 : -100, .classes = below(d, 3) ? 0 : DRAW_INTEGERS}};
    const int flat = below(d, 3) == 0;
    const int rows = flat ? reshape_to(f, v, SHAPE(-1, x->dims[2])) : v;
    return op2(f, MS_OP_cross_entropy, rows, flat ? reshape_to(f, d->targets, SHAPE(-1)) : d->targets, &attrs);
  }
  const int square = op2(f, MS_OP_mul, v, op1(f, MS_OP_tanh, v, NULL), NULL);
  return op1(f, MS_OP_mean, square, ATTRS(.reduce = {.all = 1}));
}

static int (*const random_nodes[])(draw *) = {
    table_node, linear_node,  linear_node,    linear_node,  unary_node,   unary_node,     binary_node, binary_node,
    norm_node,  reduce_node,  transpose_node, where_node,   reshape_node, reshape_node,   cut_node,    attention_node,
    sized_node, product_node, hint_node,      dropout_node, cast_node,    numbers_node,   power_node,  along_node,
    topk_node,  index_node,   image_node,     image_node,   expert_node,  delta_rule_node};
enum { N_RANDOM_NODES = sizeof random_nodes / sizeof random_nodes[0] };

static void draw_graph(draw *d) {
  static const int64_t sizes[] = {2, 3, 4, 6, 8, 12};
  fixture *f = &d->t->f;
  int64_t dims[] = {sizes[below(d, 6)], sizes[below(d, 6)], below(d, 2) ? 12 : 24};
  d->pool[d->values++] = some_input(d, "x", MS_F32, 3, dims);
  d->tokens = some_input(d, "tokens", MS_I32, 2, dims);
  d->targets = some_input(d, "targets", MS_I32, 2, dims);
  d->pool[d->values++] = some_input(d, "y", MS_F32, below(d, 2) ? 3 : 2, dims);
  d->pool[d->values++] = op2(f, MS_OP_add, d->pool[0], some_param(d, 1, &dims[2]), NULL);
  for (int n = 3 + below(d, 9); n > 0 && d->values < DRAW_POOL && f->params < FIXTURE_PARAMS - 8; n--) {
    const int v = random_nodes[below(d, N_RANDOM_NODES)](d);
    if (v >= 0 && ms_numel(shape(d, v)) <= MAX_ELEMENTS) d->pool[d->values++] = v;
  }
  int loss = loss_of(d, d->pool[2]); /* so that some gradient is more than rounding */
  for (int k = d->values - 1; k > 2 && k >= d->values - 3; k--)
    loss = op2(f, MS_OP_add, loss, loss_of(d, d->pool[k]), NULL);
  must(ms_graph_set_loss(f->graph, loss, -1));
  must(ms_graph_output(f->graph, "last", d->pool[d->values - 1]));
  if (below(d, 3) == 0) must(ms_graph_output(f->graph, "some", any(d)));
  must(ms_graph_prune(f->graph));
}

static void draw_mesh(draw *d) {
  const int dims = 1 + (below(d, 3) == 0);
  for (int k = 0; k < dims; k++) {
    ms_partition_spec *spec =
        trial_add_dimension(d->t, k ? "inner" : "outer", dims > 1 ? 2 + (k && below(d, 2)) : 2 + below(d, 3));
    spec->sequence_parallel = below(d, 2);
    spec->divides_samples = below(d, 4) == 0;
  }
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static int is_part(const trial *t, int v) {
  return !ms_same_shape(&t->f.graph->values[v].info, &trial_local(t)->values[v].info);
}

static void note_ops(const trial *t, tally *seen) {
  const ms_graph *g = t->f.graph;
  for (int n = 0; n < g->n_nodes; n++) {
    const ms_node *node = &g->nodes[n];
    for (int i = 0; i < node->inputs; i++) seen->op[node->op] |= is_part(t, node->in[i]);
    for (int o = 0; o < node->outputs; o++) seen->op[node->op] |= is_part(t, node->out[o]);
  }
}

static void try_seed(uint64_t seed, tally *seen) {
  static trial t;
  static draw d;
  char what[64];
  snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
  memset(&d, 0, sizeof d);
  d.t = &t, d.seed = seed;
  trial_start(&t);
  draw_mesh(&d);
  draw_graph(&d);
  const int rc = trial_partition(&t);
  if (rc && rc != MS_ESHAPE && rc != MS_EUNSUPPORTED) fail_msg("%s: %s", what, ms_error_message());
  if (rc && getenv("TRACE")) print_message("%s: %s\n", what, ms_error_message());
  ms_error_clear();
  if (rc) seen->refused++;
  else {
    seen->divided++;
    note_ops(&t, seen);
    trial_run(&t, DRAW_INTEGERS);
    trial_compare(&t, 1e-4, what);
  }
  trial_end(&t);
}

/* A constant has nothing to divide, but what it becomes. Collectives are for parts that are divided by hand. */
static void assert_all_ops_were_divided(const tally *seen) {
  for (int op = 0; op < MS_OP_COUNT; op++)
    if (ms_op_has_axes(op) && ms_op_row_of(op)->flags & MS_OP_PUBLIC && !(ms_op_row_of(op)->flags & MS_OP_COLLECTIVE) &&
        op != MS_OP_fill && !seen->op[op])
      fail_msg("no case has divided %s", ms_op_row_of(op)->name);
}

static void T11_random_graphs_are_right_or_refused(void **state) {
  (void)state;
  const char *first = getenv("SEED"), *count = getenv("CASES");
  const uint64_t begin = first ? strtoull(first, NULL, 10) : 1;
  const uint64_t cases = count ? strtoull(count, NULL, 10) : first ? 1 : CASES;
  tally seen = {0};
  for (uint64_t seed = begin; seed < begin + cases; seed++) try_seed(seed, &seen);
  if (first || count) print_message("%d cases are right, %d were refused\n", seen.divided, seen.refused);
  if (cases < CASES) return;
  assert_in_range(seen.divided, cases / 2, cases);
  assert_all_ops_were_divided(&seen);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(T11_random_graphs_are_right_or_refused)};
  return cmocka_run_group_tests_name("partition of random graphs", tests, NULL, NULL);
}
