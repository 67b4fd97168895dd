/* test_graph_experts.c - mixtures of experts as graphs: shapes and refusals of their ops, what they cost, and how the
 * ranks of a dimension divide them: experts by columns and rows with one sum, and no expert to a rank.
 */
#include "tests/c/graph/graph_models.h"
#include "tests/c/partition/partition_trial.h"

enum { TOKENS = 6, EACH = 2, EXPERTS = 4, DIM = 8, INNER = 12, RANKS = 2 };

static trial t;

static int start_trial(void **state) {
  start_without_error(state);
  trial_start(&t);
  trial_add_dimension(&t, "tensor", RANKS);
  return 0;
}

static int end_trial(void **state) {
  (void)state;
  trial_end(&t);
  return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start_trial, end_trial)

static int attempt(int op, const ms_op_attrs *attrs, int inputs, const int *in) {
  int out[MS_MAX_OUTPUTS];
  return ms_graph_emit(t.f.graph, op, inputs, in, attrs, out);
}

#define REFUSED(op, attrs, status, facts, ...) \
  assert_fails(attempt(op, attrs, sizeof((int[]){__VA_ARGS__}) / sizeof(int), (int[]){__VA_ARGS__}), status, facts)

static int placed(ms_placement p, int ndim, const int64_t *dims) {
  t.params[0][t.f.params] = p;
  return param(&t.f, MS_F32, ndim, dims);
}

typedef struct experts {
  int x, order, places, offsets, weights;
} experts;

static experts some_experts(void) {
  experts e = {.x = input(&t.f, "x", MS_F32, SHAPE(TOKENS, DIM))};
  const int index = input(&t.f, "index", MS_I32, SHAPE(TOKENS, EACH));
  int out[MS_MAX_OUTPUTS];
  apply(&t.f, MS_OP_expert_order, 1, &index, ATTRS(.experts = {.experts = EXPERTS}), out);
  e.order = out[0], e.places = out[1], e.offsets = out[2];
  e.weights = op1(&t.f, MS_OP_sigmoid, linear(&t.f, e.x, placed((ms_placement){0}, SHAPE(EACH, DIM)), -1), NULL);
  return e;
}

/* w2 tanh(w1 x) of each token's experts, w1 [E,INNER,DIM] and w2 [E,DIM,INNER], weighted and added. */
static int layer(const experts *e, ms_placement up, ms_placement down) {
  int out[MS_MAX_OUTPUTS];
  const int rows = op3(&t.f, MS_OP_expert_dispatch, e->x, e->order, e->places, NULL);
  const int w1 = placed(up, SHAPE(EXPERTS, INNER, DIM)), w2 = placed(down, SHAPE(EXPERTS, DIM, INNER));
  const int h = op1(&t.f, MS_OP_tanh,
                    op3(&t.f, MS_OP_grouped_matmul, rows, w1, e->offsets, ATTRS(.product = {.trans_b = 1})), NULL);
  const int y = op3(&t.f, MS_OP_grouped_matmul, h, w2, e->offsets, ATTRS(.product = {.trans_b = 1}));
  apply(&t.f, MS_OP_expert_combine, 4, (int[]){y, e->order, e->places, e->weights}, NULL, out);
  return out[0];
}

static void shapes_follow_the_choices(void **state) {
  (void)state;
  const experts e = some_experts();
  assert_string_equal(shape_of(&t.f, e.order), "[12]");
  assert_string_equal(shape_of(&t.f, e.places), "[6,2]");
  assert_string_equal(shape_of(&t.f, e.offsets), "[5]");
  const int rows = op3(&t.f, MS_OP_expert_dispatch, e.x, e.order, e.places, NULL);
  assert_string_equal(shape_of(&t.f, rows), "[12,8]");
  assert_string_equal(shape_of(&t.f, layer(&e, (ms_placement){0}, (ms_placement){0})), "[6,8]");
  const int w = param(&t.f, MS_F32, SHAPE(EXPERTS, DIM, INNER)), few = param(&t.f, MS_F32, SHAPE(3, DIM, INNER));
  const int half = param(&t.f, MS_BF16, SHAPE(EXPERTS, DIM, INNER));
  REFUSED(MS_OP_expert_order, NULL, MS_EDTYPE, "expert_order | index | f32 | i32", e.x);
  REFUSED(MS_OP_expert_order, ATTRS(.experts = {.experts = 0}), MS_EINVAL, "expert_order | experts is 0", e.places);
  REFUSED(MS_OP_expert_dispatch, NULL, MS_ESHAPE, "expert_dispatch | x | [12,8] | 6 rows", rows, e.order, e.places);
  REFUSED(MS_OP_expert_dispatch, NULL, MS_ESHAPE, "order is [5] | places is [6,2]", e.x, e.offsets, e.places);
  REFUSED(MS_OP_expert_combine, NULL, MS_ESHAPE, "expert_combine | x | [6,8] | 12 rows", e.x, e.order, e.places);
  REFUSED(MS_OP_expert_combine, NULL, MS_ESHAPE, "places is [6,2] | weights is [12,8]", rows, e.order, e.places, rows);
  REFUSED(MS_OP_grouped_matmul, NULL, MS_ESHAPE, "x is [12,8] | w is [3,8,12] | 4 groups", rows, few, e.offsets);
  REFUSED(MS_OP_grouped_matmul, ATTRS(.product = {.trans_b = 1}), MS_ESHAPE, "[4,8,12] | [R,K] | [E,N,K]", rows, w,
          e.offsets);
  REFUSED(MS_OP_grouped_matmul, NULL, MS_EDTYPE, "grouped_matmul | x | f32 | w | bf16", rows, half, e.offsets);
  REFUSED(MS_OP_grouped_matmul, NULL, MS_EDTYPE, "offsets | f32 | i32", rows, w, e.x);
}

/* Each row has one expert: products of EACH of all experts, forward and twice as many backward. */
static void only_chosen_experts_are_counted(void **state) {
  (void)state;
  const experts e = some_experts();
  must(ms_graph_set_loss(t.f.graph, sum_all(&t.f, layer(&e, (ms_placement){0}, (ms_placement){0})), -1));
  must(ms_graph_differentiate(t.f.graph));
  double products = 0;
  for (int n = 0; n < t.f.graph->n_nodes; n++) {
    const ms_node *node = &t.f.graph->nodes[n];
    if (node->op == MS_OP_grouped_matmul || node->op == MS_OP_grouped_matmul_backward_weight)
      products += ms_node_flops(t.f.graph, node);
  }
  const double once = 2.0 * TOKENS * EACH * DIM * INNER;
  assert_true(products == 2 * once + 2 * once + once); /* x of the first layer needs no gradient */
}

static void divide_layer(ms_placement up, ms_placement down) {
  const experts e = some_experts();
  must(ms_graph_set_loss(t.f.graph, sum_all(&t.f, op1(&t.f, MS_OP_tanh, layer(&e, up, down), NULL)), -1));
  must(ms_graph_prune(t.f.graph));
}

/* The sum over ranks is one of [TOKENS,DIM], after a token's experts are added, and not of a row for each of them. */
static void T12_experts_by_columns_and_rows_are_summed_once(void **state) {
  (void)state;
  divide_layer(ms_shard(1, 1), ms_shard(2, 1));
  must(trial_partition(&t));
  const ms_graph *local = trial_local(&t);
  int sums = 0;
  for (int n = 0; n < local->n_nodes; n++) {
    if (local->nodes[n].op != MS_OP_all_reduce) continue;
    const ms_value_info *summed = &local->values[local->nodes[n].out[0]].info;
    assert_int_equal(summed->dims[0], TOKENS);
    assert_int_equal(summed->dims[1], DIM);
    sums++;
  }
  assert_int_equal(sums, 1);
  trial_run(&t, EXPERTS);
  trial_compare(&t, 1e-4, "experts by columns and rows");
}

static void T13_experts_of_a_rank_are_refused(void **state) {
  (void)state;
  divide_layer(ms_shard(0, 1), ms_shard(0, 1));
  assert_fails(trial_partition(&t), MS_EUNSUPPORTED, "p1 | [4,12,8] | axis 0 | tensor | grouped_matmul");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(shapes_follow_the_choices),
      CASE(only_chosen_experts_are_counted),
      CASE(T12_experts_by_columns_and_rows_are_summed_once),
      CASE(T13_experts_of_a_rank_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
