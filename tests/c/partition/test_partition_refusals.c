/* test_partition_refusals.c - what cannot be divided is refused, with the place, the shapes, and what would fit. */
#include "tests/c/graph/graph_models.h"
#include "tests/c/partition/partition_trial.h"

static trial t;
static ms_partition_spec *spec;

static int start_trial(void **state) {
  start_without_error(state);
  trial_start(&t);
  spec = trial_add_dimension(&t, "tensor", 4);
  return 0;
}

static int end_trial(void **state) {
  (void)state;
  trial_end(&t);
  return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start_trial, end_trial)

static int x_of(int64_t width) { return input(&t.f, "x", MS_F32, SHAPE(2, 12, width)); }

static int placed(ms_placement p, int ndim, const int64_t *dims) {
  t.params[0][t.f.params] = p;
  return param(&t.f, MS_F32, ndim, dims);
}

static void refused(int value, int status, const char *facts) {
  must(ms_graph_set_loss(t.f.graph, sum_all(&t.f, value), -1));
  must(ms_graph_prune(t.f.graph));
  assert_fails(trial_partition(&t), status, facts);
  assert_null(t.part[0].graph);
  assert_null(t.part[0].params);
}

static void T13_sizes_that_ranks_do_not_divide(void **state) {
  (void)state;
  refused(linear(&t.f, x_of(8), placed(ms_shard(0, 1), SHAPE(101, 8)), -1), MS_ESHAPE,
          "p0 | [101,8] | axis 0 | tensor | 4 ranks | 100 and 104");
  t.params[0][0] = ms_shard(0, 3);
  assert_fails(trial_partition(&t), MS_ESHAPE, "p0 | [101,8] | 3 blocks | multiple of 12 | 96 and 108");
  t.params[0][0] = ms_shard(1, 3);
  assert_fails(trial_partition(&t), MS_ESHAPE, "axis 1 | 12 is the smallest");
  t.params[0][0] = (ms_placement){0};
  spec->inputs = (ms_placed_input[]){{"x", ms_shard(0, 1), 0}}, spec->n_inputs = 1;
  assert_fails(trial_partition(&t), MS_ESHAPE, "input x | [2,12,8] | axis 0 | 4 is the smallest");
}

static void T13_placements_that_mean_nothing(void **state) {
  (void)state;
  refused(linear(&t.f, x_of(8), placed(ms_shard(2, 1), SHAPE(12, 8)), -1), MS_EINVAL, "p0 | [12,8] | tensor | axes");
  t.params[0][0] = (ms_placement){MS_PARTIAL, 0, 0, 0};
  assert_fails(trial_partition(&t), MS_EINVAL, "p0 | placement");
  t.params[0][0] = (ms_placement){0};
  spec->inputs = (ms_placed_input[]){{"tokens", ms_shard(0, 1), 0}}, spec->n_inputs = 1;
  assert_fails(trial_partition(&t), MS_ENAME, "no input tokens");
  spec->n_inputs = 0, spec->ranks = 1;
  assert_fails(trial_partition(&t), MS_EINVAL, "tensor | 1");
  spec->ranks = 4;
  must(ms_graph_differentiate(t.f.graph));
  assert_fails(trial_partition(&t), MS_EINVAL, "differentiated");
}

static void T13_parameters_that_the_op_needs_whole(void **state) {
  (void)state;
  must(ms_graph_set_scope(t.f.graph, "layers.3.norm"));
  const int gain = placed(ms_shard(0, 1), SHAPE(8));
  refused(op2(&t.f, MS_OP_rms_norm, x_of(8), gain, NULL), MS_EUNSUPPORTED,
          "in layers.3.norm: rms_norm | input 2 | p0 [8] | axis 0 | tensor (4 ranks) | whole");
}

static void T13_parameters_that_divide_the_work_differently(void **state) {
  (void)state;
  must(ms_graph_set_scope(t.f.graph, "mix"));
  const int a = placed(ms_shard(0, 1), SHAPE(12, 8)), b = placed(ms_shard(1, 1), SHAPE(12, 8));
  refused(op2(&t.f, MS_OP_add, a, b, NULL), MS_EUNSUPPORTED,
          "in mix: add | tensor | p0 [12,8] | axis 0 | p1 [12,8] | axis 1");
}

static void T13_heads_that_ranks_do_not_divide(void **state) {
  (void)state;
  must(ms_graph_set_scope(t.f.graph, "attention"));
  const int y = linear(&t.f, x_of(8), placed(ms_shard(0, 1), SHAPE(12, 8)), -1);
  refused(reshape_to(&t.f, y, SHAPE(2, 12, 6, 2)), MS_ESHAPE,
          "in attention: reshape | [2,12,12] to [2,12,6,2] | axis 2 | multiple of 4 | 4 and 8");
}

/* 4 ranks divide 12 heads of queries and neither 6 heads of keys nor their number of heads. */
static void T13_heads_of_keys_that_ranks_do_not_divide(void **state) {
  (void)state;
  int x = x_of(24), part[3], out[MS_MAX_OUTPUTS];
  const int q = linear(&t.f, x, placed(ms_shard(0, 1), SHAPE(24, 24)), -1);
  part[0] = reshape_to(&t.f, q, SHAPE(2, 12, 12, 2));
  for (int k = 1; k < 3; k++)
    part[k] = reshape_to(&t.f, linear(&t.f, x, param(&t.f, MS_F32, SHAPE(12, 24)), -1), SHAPE(2, 12, 6, 2));
  apply(&t.f, MS_OP_attention, 3, part, NULL, out);
  refused(out[0], MS_ESHAPE,
          "attention | input 1 [2,12,12,2] | axis 2 of input 2 [2,12,6,2] | multiple of 4 | 4 and 8");
}

static void T13_folds_that_cut_parts(void **state) {
  (void)state;
  int y = linear(&t.f, x_of(8), placed(ms_shard(0, 1), SHAPE(4, 8)), -1);
  refused(reshape_to(&t.f, y, SHAPE(48, 2)), MS_ESHAPE, "[2,12,4] to [48,2] | axis 2 | axis 0 | multiple of 96 | 96");
  trial_end(&t);
  start_trial(state);
  y = linear(&t.f, x_of(8), placed(ms_shard(0, 1), SHAPE(4, 8)), -1);
  refused(reshape_to(&t.f, y, SHAPE(16, 6)), MS_ESHAPE, "[2,12,4] to [16,6] | axis 2 | axis 1 | axis 2 alone");
}

/* Rows in blocks have no first row, and those of a part are not divided again. */
static void T13_tables_that_are_not_in_one_piece(void **state) {
  (void)state;
  ms_partition again;
  ms_placement placed_again[FIXTURE_PARAMS] = {{MS_SHARD, 0, 1, 0}};
  const int table = placed(ms_shard(0, 2), SHAPE(32, 8)), tokens = input(&t.f, "tokens", MS_I32, SHAPE(2, 12));
  refused(op2(&t.f, MS_OP_embedding, table, tokens, NULL), MS_EUNSUPPORTED, "embedding | p0 [32,8] | axis 0 | whole");
  t.params[0][0] = ms_shard(0, 1);
  must(trial_partition(&t));
  const ms_partition_spec other = {.dim = 2, .name = "context", .ranks = 2, .params = placed_again};
  assert_fails(ms_graph_partition(t.part[0].graph, &other, &again), MS_EUNSUPPORTED,
               "embedding | [8,8] | context | whole");
}

static void T13_statistics_of_a_divided_norm(void **state) {
  (void)state;
  int out[MS_MAX_OUTPUTS];
  spec->inputs = (ms_placed_input[]){{"x", ms_shard(1, 1), 0}}, spec->n_inputs = 1;
  apply(&t.f, MS_OP_rms_norm, 2, (int[]){x_of(8), param(&t.f, MS_F32, SHAPE(8))}, NULL, out);
  must(ms_graph_output(t.f.graph, "y", out[0]));
  refused(op1(&t.f, MS_OP_scale, out[1], NULL), MS_EUNSUPPORTED, "scale | statistics | rms_norm | tensor");
  must(ms_graph_output(t.f.graph, "rstd", out[1]));
  refused(out[0], MS_EUNSUPPORTED, "rstd | statistics | rms_norm | tensor");
}

static void T13_hints_that_ranks_do_not_divide(void **state) {
  (void)state;
  must(ms_graph_set_scope(t.f.graph, "mixer"));
  const int x = x_of(10), hint = op1(&t.f, MS_OP_redistribute, x, ATTRS(.across = {.dim = spec->dim, .along = 2}));
  refused(op1(&t.f, MS_OP_tanh, hint, NULL), MS_ESHAPE,
          "in mixer: | redistribute [2,12,10] | axis 2 | tensor (4 ranks) | 8 and 12");
  spec->divides_samples = 1; /* parts are folded, in two blocks */
  assert_fails(trial_partition(&t), MS_ESHAPE, "redistribute [2,12,10] | axis 2 | 2 blocks | multiple of 8 | 8 and 16");
}

/* Positions are the axis of a weight that mixes them: context divides both, and then tensor the weight again. */
static void T13_parameters_divided_twice_along_an_axis(void **state) {
  (void)state;
  const int x = input(&t.f, "x", MS_F32, SHAPE(2, 8, 16)), w = placed((ms_placement){0}, SHAPE(16, 16));
  must(ms_graph_set_scope(t.f.graph, "mixer"));
  spec->inputs = (ms_placed_input[]){{"x", ms_shard_folded(2), 0}}, spec->n_inputs = 1;
  spec->name = "context", spec->divides_samples = 1;
  trial_add_dimension(&t, "tensor", 2);
  t.params[1][0] = ms_shard(1, 1);
  must(ms_graph_set_loss(t.f.graph, sum_all(&t.f, linear(&t.f, x, w, -1)), -1));
  must(ms_graph_prune(t.f.graph));
  assert_fails(trial_partition(&t), MS_EUNSUPPORTED,
               "in mixer: | p0 [16,16] | axis 1 | tensor (2 ranks) | another dimension | same axis");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(T13_sizes_that_ranks_do_not_divide),
      CASE(T13_placements_that_mean_nothing),
      CASE(T13_parameters_that_the_op_needs_whole),
      CASE(T13_parameters_that_divide_the_work_differently),
      CASE(T13_heads_that_ranks_do_not_divide),
      CASE(T13_heads_of_keys_that_ranks_do_not_divide),
      CASE(T13_folds_that_cut_parts),
      CASE(T13_tables_that_are_not_in_one_piece),
      CASE(T13_statistics_of_a_divided_norm),
      CASE(T13_hints_that_ranks_do_not_divide),
      CASE(T13_parameters_divided_twice_along_an_axis),
  };
  return cmocka_run_group_tests_name("partition refusals", tests, NULL, NULL);
}
