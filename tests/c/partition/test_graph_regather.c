/* test_graph_regather.c - gathers that backward repeats: how many there are, where they stand, and who chooses. */
#include "tests/c/partition/partition_models.h"

enum { RANKS = 4 };

static const unsigned char everywhere[MS_DIMS] = {1, 1, 1, 1}, nowhere[MS_DIMS];

static trial t;

static int end_trial(void **state) {
  (void)state;
  trial_end(&t);
  return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start_without_error, end_trial)

/* A GPT of this many layers with sequence parallelism, differentiated and with its gathers repeated. */
static ms_graph *repeated_gpt(int layers, const unsigned char *by_default) {
  model_shape m = divided_shape(RANKS, 2 * RANKS);
  m.layers = layers;
  trial_end(&t);
  divided_start(&t, &divided_gpt, &m, RANKS, 1);
  must(trial_partition(&t));
  ms_graph *local = trial_local(&t);
  must(ms_graph_differentiate(local));
  must(ms_graph_regather(local, by_default));
  must(ms_graph_prune(local));
  assert_well_formed(local);
  return local;
}

static int backward_gathers(const ms_graph *g) { return trial_count(g, MS_OP_all_gather, 1); }

static void T12_backward_gathers_inputs_again_of_each_block(void **state) {
  (void)state;
  const int blocks = backward_gathers(repeated_gpt(3, everywhere)) - backward_gathers(repeated_gpt(2, everywhere));
  assert_int_equal(blocks, 2 + 2); /* the gradients of two sums, and two inputs */
  assert_int_equal(trial_count(repeated_gpt(2, everywhere), MS_OP_all_gather, 0),
                   trial_count(repeated_gpt(2, nowhere), MS_OP_all_gather, 0));
}

static int first_reader(const ms_graph *g, int v) {
  for (int n = 0; n < g->n_nodes; n++)
    for (int i = 0; i < g->nodes[n].inputs; i++)
      if (g->nodes[n].in[i] == v) return n;
  return -1;
}

/* No result of a gather in forward reaches backward, and a copy stands right before the node that needs it. */
static void T12_what_forward_gathers_ends_in_forward(void **state) {
  (void)state;
  const ms_graph *g = repeated_gpt(2, everywhere);
  int copies = 0;
  for (int n = 0; n < g->n_nodes; n++) {
    const ms_node *node = &g->nodes[n];
    for (int i = 0; i < node->inputs; i++) {
      const int maker = g->values[node->in[i]].node;
      if (!node->backward || maker < 0 || g->nodes[maker].op != MS_OP_all_gather) continue;
      assert_true(g->nodes[maker].backward || g->nodes[maker].regather == MS_REGATHER_NEVER);
    }
    if (node->op != MS_OP_all_gather || !node->recomputed) continue;
    assert_int_equal(first_reader(g, node->out[0]), n + 1);
    copies++;
  }
  assert_int_equal(copies, 2 * 2 + 1); /* of each block, and of the head */
}

/* Two numbers a row cost more to gather than to keep. */
static void T12_the_numbers_of_the_loss_are_kept(void **state) {
  (void)state;
  const ms_graph *g = repeated_gpt(1, everywhere);
  for (int n = 0; n < g->n_nodes; n++)
    if (g->nodes[n].recomputed) assert_true(g->values[g->nodes[n].out[0]].info.dims[2] > 2);
}

/* y = gelu(x w') w2', with x divided, so that it is gathered for w; backward reads it through a reshape. */
static const ms_graph *one_gather(int when, const unsigned char *by_default, int recompute) {
  trial_end(&t);
  trial_start(&t);
  ms_graph *traced = t.f.graph;
  trial_add_dimension(&t, "tensor", RANKS)->sequence_parallel = 1;
  t.params[0][1] = ms_shard(0, 1);
  t.params[0][2] = ms_shard(1, 1);
  const ms_op_attrs flat = {.shape = {.d = {48, 8, 1, 1, 1, 1}, .ndim = 2}};
  int x = linear(&t.f, input(&t.f, "x", MS_F32, SHAPE(4, 12, 8)), param(&t.f, MS_F32, SHAPE(8, 8)), -1);
  x = op1(&t.f, MS_OP_tanh, x, NULL);
  must(ms_graph_set_regather(traced, when));
  must(ms_graph_set_recompute(traced, recompute, NULL));
  const int h = linear(&t.f, op1(&t.f, MS_OP_reshape, x, &flat), param(&t.f, MS_F32, SHAPE(16, 8)), -1);
  const int y = linear(&t.f, op1(&t.f, MS_OP_gelu, h, NULL), param(&t.f, MS_F32, SHAPE(8, 16)), -1);
  must(ms_graph_set_recompute(traced, 0, NULL));
  must(ms_graph_set_loss(traced, sum_all(&t.f, y), -1));
  static unsigned char splits[FIXTURE_PARAMS];
  splits[0] = 1;
  t.spec[0].splits = splits;
  must(trial_partition(&t));
  ms_graph *local = trial_local(&t);
  must(ms_graph_differentiate(local));
  must(ms_graph_regather(local, by_default));
  must(ms_graph_insert_recomputation(local));
  must(ms_graph_prune(local));
  assert_well_formed(local);
  return local;
}

static int repeats(const ms_graph *g) {
  int n = 0;
  for (int i = 0; i < g->n_nodes; i++) n += g->nodes[i].op == MS_OP_all_gather && g->nodes[i].recomputed;
  return n;
}

static int listed(const ms_graph *g) {
  int n = 0;
  for (int c = 0; c < g->n_conversions; c++) n += g->conversions[c].regathered;
  return n;
}

static void T12_the_trace_and_the_dimension_choose_what_is_gathered_again(void **state) {
  (void)state;
  assert_int_equal(repeats(one_gather(MS_REGATHER_DEFAULT, everywhere, 0)), 1);
  assert_int_equal(repeats(one_gather(MS_REGATHER_DEFAULT, nowhere, 0)), 0);
  assert_int_equal(repeats(one_gather(MS_REGATHER_ALWAYS, nowhere, 0)), 1);
  assert_int_equal(repeats(one_gather(MS_REGATHER_NEVER, everywhere, 0)), 0);
  assert_int_equal(listed(one_gather(MS_REGATHER_ALWAYS, nowhere, 0)), 1);
  assert_int_equal(listed(one_gather(MS_REGATHER_NEVER, everywhere, 0)), 0);
  assert_int_equal(ms_graph_set_regather(t.f.graph, 3), MS_EINVAL);
  ms_error_clear();
}

/* A region that is recomputed gathers its input once, not twice. */
static void T12_recomputed_regions_gather_once_more_not_twice(void **state) {
  (void)state;
  assert_int_equal(repeats(one_gather(MS_REGATHER_ALWAYS, everywhere, 1)), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(T12_backward_gathers_inputs_again_of_each_block),
      CASE(T12_what_forward_gathers_ends_in_forward),
      CASE(T12_the_numbers_of_the_loss_are_kept),
      CASE(T12_the_trace_and_the_dimension_choose_what_is_gathered_again),
      CASE(T12_recomputed_regions_gather_once_more_not_twice),
  };
  return cmocka_run_group_tests_name("regather", tests, NULL, NULL);
}
