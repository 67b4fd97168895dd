/* test_partition_random.c - random small graphs with random placements of parameters and inputs, on one dimension and
 * on two: dividing one either is refused, or gives one rank's loss and gradients.
 */
#include "tests/c/partition_trial.h"

enum { POOL = 24, CASES = 2000, MOST_ELEMENTS = 1536 };

typedef struct draw {
  trial *t;
  uint64_t seed, count;
  int pool[POOL], values; /* of the fixture's graph, all f32 */
  int tokens;
  ms_placed_input inputs[TRIAL_DIMS][3];
} draw;

static int below(draw *d, int n) {
  uint32_t words[4];
  ms_philox4x32(d->seed, 17, d->count++, words);
  return (int)(words[0] % (uint32_t)n);
}

static const ms_value_info *shape(const draw *d, int v) { return &d->t->f.graph->values[v].info; }

/* ---- placements ------------------------------------------------------------------------------------------------- */

/* None, or a shard of some axis, in blocks sometimes. */
static ms_placement some_placement(draw *d, const ms_value_info *x) {
  if (!x->ndim || below(d, 5) < 2) return (ms_placement){0};
  return ms_shard(below(d, x->ndim), below(d, 6) ? 1 : 2);
}

/* Most often one that divides the parameter on every dimension. */
static int some_param(draw *d, int ndim, const int64_t *dims) {
  fixture *f = &d->t->f;
  const int p = f->params, v = param(f, MS_F32, ndim, dims);
  ms_value_info now = f->param[p].info;
  f->param[p].frozen = below(d, 8) == 0;
  for (int k = 0; k < d->t->dims; k++) {
    const ms_partition_spec *spec = &d->t->spec[k];
    ms_placement placement = some_placement(d, &now);
    const int fits = placement.kind != MS_SHARD || now.dims[placement.axis] % (placement.outer * spec->ranks) == 0;
    if (!fits && below(d, 20)) placement = (ms_placement){0};
    d->t->params[k][p] = placement;
    now = ms_placement_local(&now, placement, spec->ranks);
  }
  return v;
}

static int some_input(draw *d, const char *name, int dtype, int ndim, const int64_t *dims) {
  const int v = input(&d->t->f, name, dtype, ndim, dims);
  ms_value_info now = *shape(d, v);
  for (int k = 0; k < d->t->dims; k++) {
    ms_partition_spec *spec = &d->t->spec[k];
    ms_placement placement = some_placement(d, &now);
    if (placement.kind == MS_SHARD && now.dims[placement.axis] % (placement.outer * spec->ranks)) continue;
    d->inputs[k][spec->n_inputs++] = (ms_placed_input){name, placement, 0};
    spec->inputs = d->inputs[k];
    now = ms_placement_local(&now, placement, spec->ranks);
  }
  return v;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static int any(draw *d) {
  const int recent = d->values > 3 && below(d, 2) ? d->values - 3 : 0;
  return d->pool[recent + below(d, d->values - recent)];
}

static int with_axes(draw *d, int at_least) {
  int v = any(d);
  for (int k = 0; k < 20 && shape(d, v)->ndim < at_least; k++) v = any(d);
  return v;
}

static int linear_node(draw *d) {
  static const int64_t widths[] = {4, 6, 12, 24, 12};
  const int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 2) return -1;
  const int64_t from = shape(d, x)->dims[shape(d, x)->ndim - 1], to = below(d, 2) ? from : widths[below(d, 5)];
  const int swapped = below(d, 2), w = swapped ? some_param(d, SHAPE(to, from)) : some_param(d, SHAPE(from, to));
  if (below(d, 4) == 0)
    return op3(&d->t->f, MS_OP_matmul, x, w, some_param(d, SHAPE(to)), ATTRS(.i = {0, swapped, below(d, 2)}));
  const int y = op2(&d->t->f, MS_OP_matmul, x, w, ATTRS(.i = {0, swapped}));
  return below(d, 2) ? op2(&d->t->f, MS_OP_add, y, some_param(d, SHAPE(to)), NULL) : y;
}

static int table_node(draw *d) {
  const int64_t width = below(d, 2) ? 12 : 24;
  const int table = some_param(d, SHAPE(12, width));
  return op2(&d->t->f, MS_OP_embedding, table, d->tokens, below(d, 2) ? ATTRS(.i = {11}) : NULL);
}

static int unary_node(draw *d) {
  static const int ops[] = {MS_OP_tanh, MS_OP_sigmoid, MS_OP_gelu, MS_OP_silu, MS_OP_abs};
  const int x = any(d);
  if (below(d, 4)) return op1(&d->t->f, ops[below(d, 5)], x, NULL);
  return op1(&d->t->f, MS_OP_scale, x, ATTRS(.f = {0.7, below(d, 2) ? 0.3 : 0}));
}

static int binary_node(draw *d) {
  static const int ops[] = {MS_OP_add, MS_OP_sub, MS_OP_mul, MS_OP_maximum, MS_OP_add, MS_OP_swiglu};
  const int op = ops[below(d, 6)], a = any(d);
  int b = -1;
  for (int k = 0; k < 12 && b < 0; k++) {
    const int v = any(d);
    if (ms_same_shape(shape(d, v), shape(d, a)) && (v != a || k > 8)) b = v;
  }
  if (b < 0 || (below(d, 4) == 0 && op != MS_OP_swiglu)) {
    const ms_value_info x = *shape(d, a);
    const int fewer = x.ndim ? below(d, x.ndim) : 0;
    ms_value_info w = {.ndim = x.ndim - fewer};
    for (int k = 0; k < w.ndim; k++) w.dims[k] = below(d, 5) ? x.dims[k + fewer] : 1;
    b = some_param(d, w.ndim, w.dims);
    if (op == MS_OP_swiglu) return op2(&d->t->f, MS_OP_mul, a, b, NULL);
  }
  return op2(&d->t->f, op, op == MS_OP_mul ? op1(&d->t->f, MS_OP_tanh, a, NULL) : a, b, NULL);
}

static int norm_node(draw *d) {
  const int x = with_axes(d, 1);
  if (shape(d, x)->ndim < 1) return -1;
  const int64_t width = shape(d, x)->dims[shape(d, x)->ndim - 1];
  if (width < 4) return -1;
  if (below(d, 3) == 0) return op1(&d->t->f, below(d, 2) ? MS_OP_softmax : MS_OP_log_softmax, x, NULL);
  const int gain = some_param(d, SHAPE(width));
  if (below(d, 2)) return op2(&d->t->f, MS_OP_rms_norm, x, gain, ATTRS(.f = {0.1}));
  return op3(&d->t->f, MS_OP_layer_norm, x, gain, some_param(d, SHAPE(width)), ATTRS(.f = {0.1}));
}

static int reduce_node(draw *d) {
  static const int ops[] = {MS_OP_sum, MS_OP_mean, MS_OP_mean, MS_OP_max};
  const int x = with_axes(d, 2), op = ops[below(d, 4)];
  if (shape(d, x)->ndim < 1) return -1;
  const int y = op1(&d->t->f, op, x, ATTRS(.i = {below(d, shape(d, x)->ndim), below(d, 2), 0}));
  return op == MS_OP_sum ? op1(&d->t->f, MS_OP_scale, y, ATTRS(.f = {0.25})) : y;
}

static int transpose_node(draw *d) {
  const int x = with_axes(d, 2), n = shape(d, x)->ndim;
  ms_attrs attrs = {.i = {0, 1, 2, 3, 4, 5}};
  for (int k = n - 1; k > 0; k--) {
    const int j = below(d, k + 1);
    const int64_t p = attrs.i[k];
    attrs.i[k] = attrs.i[j], attrs.i[j] = p;
  }
  return n < 2 ? -1 : op1(&d->t->f, MS_OP_transpose, x, &attrs);
}

/* Folds two axes, or unfolds one. */
static int reshape_node(draw *d) {
  static const int64_t factors[] = {2, 3, 4, 6, 12};
  const int x = with_axes(d, 1);
  const ms_value_info from = *shape(d, x);
  ms_value_info to = {0};
  if (!from.ndim) return -1;
  const int at = below(d, from.ndim), folds = from.ndim > 1 && at + 1 < from.ndim && below(d, 2);
  const int64_t factor = factors[below(d, 5)];
  if (!folds && (from.dims[at] % factor || from.ndim == 4)) return -1;
  for (int k = 0; k < from.ndim; k++) {
    if (k != at) to.dims[to.ndim++] = from.dims[k];
    else if (folds) to.dims[to.ndim++] = from.dims[k] * from.dims[k + 1], k++;
    else to.dims[to.ndim++] = factor, to.dims[to.ndim++] = from.dims[k] / factor;
  }
  return reshape_to(&d->t->f, x, to.ndim, to.dims);
}

static int cut_node(draw *d) {
  const int x = with_axes(d, 1);
  const ms_value_info from = *shape(d, x);
  if (!from.ndim) return -1;
  const int axis = below(d, from.ndim), kind = below(d, 3);
  const int64_t size = from.dims[axis];
  if (kind == 0) return op2(&d->t->f, MS_OP_concat, x, op1(&d->t->f, MS_OP_tanh, x, NULL), ATTRS(.i = {axis}));
  if (kind == 1) return op1(&d->t->f, MS_OP_pad, x, ATTRS(.i = {axis, below(d, 3), below(d, 3)}));
  if (size % 2) return -1;
  const int second = below(d, 2);
  return op1(&d->t->f, MS_OP_slice, x, ATTRS(.i = {axis, second ? size / 2 : 0, second ? size : size / 2}));
}

/* Of a value and its transpose. */
static int product_node(draw *d) {
  const int x = with_axes(d, 2);
  if (shape(d, x)->ndim < 2) return -1;
  const int small = op1(&d->t->f, MS_OP_tanh, x, NULL);
  const int y = op2(&d->t->f, MS_OP_matmul, small, x, ATTRS(.i = {0, 1}));
  return op1(&d->t->f, MS_OP_scale, y, ATTRS(.f = {0.2}));
}

static int attention_node(draw *d) {
  fixture *f = &d->t->f;
  int x = with_axes(d, 3), parts[3], out[MS_MAX_OUTPUTS];
  const ms_value_info from = *shape(d, x);
  if (from.ndim != 3 || from.dims[2] % 12) return -1;
  const int64_t heads = below(d, 2) ? 12 : 6;
  const int64_t fewer[] = {heads, heads / 2, 2, 1}, keys = fewer[below(d, 4)];
  for (int k = 0; k < 3; k++) {
    const int64_t own = k ? keys : heads, width = from.dims[2] / heads * own;
    const int y = op2(f, MS_OP_matmul, x, some_param(d, SHAPE(width, from.dims[2])), ATTRS(.i = {0, 1}));
    parts[k] = reshape_to(f, y, SHAPE(from.dims[0], from.dims[1], own, -1));
  }
  apply(f, MS_OP_attention, 3, parts, NULL, out);
  return below(d, 2) ? reshape_to(f, out[0], SHAPE(from.dims[0], from.dims[1], -1)) : out[0];
}

static int sized_node(draw *d) {
  const int x = with_axes(d, 2);
  ms_value_info to = *shape(d, x);
  ms_attrs attrs = {.i = {1, 1, 1, 1, 1, 1, to.ndim}};
  if (!to.ndim) return -1;
  for (int k = 0; k < to.ndim; k++) attrs.i[k] = to.dims[k];
  attrs.i[below(d, to.ndim)] = 1;
  const int y = op1(&d->t->f, MS_OP_sum_to, x, &attrs);
  if (below(d, 2)) return op1(&d->t->f, MS_OP_tanh, y, NULL);
  for (int k = 0; k < to.ndim; k++) attrs.i[k] = to.dims[k];
  return op1(&d->t->f, MS_OP_broadcast_to, op1(&d->t->f, MS_OP_tanh, y, NULL), &attrs);
}

static int (*const makers[])(draw *) = {
    table_node,  linear_node,    linear_node,  linear_node,  unary_node, binary_node,    binary_node, norm_node,
    reduce_node, transpose_node, reshape_node, reshape_node, cut_node,   attention_node, sized_node,  product_node};
enum { N_MAKERS = sizeof makers / sizeof makers[0] };

/* ---- graphs ----------------------------------------------------------------------------------------------------- */

static void draw_graph(draw *d) {
  static const int64_t sizes[] = {2, 3, 4, 6, 12};
  fixture *f = &d->t->f;
  int64_t dims[] = {sizes[below(d, 5)], sizes[below(d, 5)], below(d, 2) ? 12 : 24};
  int loss = -1;
  d->pool[d->values++] = some_input(d, "x", MS_F32, 3, dims);
  d->tokens = some_input(d, "tokens", MS_I32, 2, dims);
  d->pool[d->values++] = some_input(d, "y", MS_F32, below(d, 2) ? 3 : 2, dims);
  d->pool[d->values++] = op2(f, MS_OP_add, d->pool[0], some_param(d, 1, &dims[2]), NULL);
  for (int n = 3 + below(d, 9); n > 0 && d->values < POOL && f->params < FIXTURE_PARAMS - 8; n--) {
    const int v = makers[below(d, N_MAKERS)](d);
    if (v >= 0 && ms_numel(shape(d, v)) <= MOST_ELEMENTS) d->pool[d->values++] = v;
  }
  for (int k = d->values - 1; k >= 2 && k >= d->values - 3; k--) {
    const int v = d->pool[k], square = op2(f, MS_OP_mul, v, op1(f, MS_OP_tanh, v, NULL), NULL);
    const int mean = op1(f, MS_OP_mean, square, ATTRS(.i = {0, 0, 1}));
    loss = loss < 0 ? mean : op2(f, MS_OP_add, loss, mean, NULL);
  }
  must(ms_graph_set_loss(f->graph, loss));
  must(ms_graph_output(f->graph, "last", d->pool[d->values - 1]));
  must(ms_graph_prune(f->graph));
}

/* 1 when it was divided. */
static int try_seed(uint64_t seed) {
  static trial t;
  draw d = {.t = &t, .seed = seed};
  char what[64];
  snprintf(what, sizeof what, "seed %d", (int)seed);
  trial_start(&t);
  const int dims = 1 + (below(&d, 4) == 0);
  for (int k = 0; k < dims; k++) {
    ms_partition_spec *spec =
        trial_add_dimension(&t, k ? "inner" : "outer", dims > 1 ? 2 + (k && below(&d, 2)) : 2 + below(&d, 3));
    spec->sequence_parallel = below(&d, 2);
    spec->divides_samples = below(&d, 4) == 0;
  }
  draw_graph(&d);
  const int rc = trial_partition(&t);
  if (rc && rc != MS_ESHAPE && rc != MS_EUNSUPPORTED) fail_msg("%s: %s", what, ms_error_message());
  ms_error_clear();
  if (!rc) {
    trial_run(&t, 11);
    trial_compare(&t, 1e-4, what);
  }
  trial_end(&t);
  return !rc;
}

static void T11_random_graphs_are_right_or_refused(void **state) {
  (void)state;
  const char *only = getenv("SEED");
  int divided = 0;
  if (only) {
    try_seed((uint64_t)atoi(only));
    return;
  }
  for (uint64_t seed = 1; seed <= CASES; seed++) divided += try_seed(seed);
  assert_in_range(divided, CASES / 3, CASES);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(T11_random_graphs_are_right_or_refused)};
  return cmocka_run_group_tests_name("partition of random graphs", tests, NULL, NULL);
}
