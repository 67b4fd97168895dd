/* test_graph_recompute.c - what is kept and what is made again when forward is cut into regions. */
#include "tests/c/graph/graph_case.h"

/* h + gelu(h w') over the parameters of one block. */
static int block(int h) {
  int w = param(&f, MS_F32, SHAPE(4, 4));
  return op2(&f, MS_OP_add, h, op1(&f, MS_OP_gelu, linear(&f, h, w, -1), NULL), NULL);
}

/* Two blocks, each a region; ops as ms_graph_set_recompute takes them. Differentiated and recomputed. */
static void two_blocks(const char *ops) {
  int h = linear(&f, input(&f, "x", MS_F32, SHAPE(5, 4)), param(&f, MS_F32, SHAPE(4, 4)), -1);
  for (int region = 1; region <= 2; region++) {
    must(ms_graph_set_recompute(f.graph, region, ops));
    h = block(h);
  }
  must(ms_graph_set_recompute(f.graph, 0, NULL));
  must(ms_graph_set_loss(f.graph, sum_all(&f, h), -1));
  must(ms_graph_rewrite(f.graph, 0));
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  must(ms_graph_insert_recomputation(f.graph));
  must(ms_graph_prune(f.graph));
  assert_well_formed(f.graph);
}

static int count_recomputed(int op) {
  int n = 0;
  for (int i = 0; i < f.graph->n_nodes; i++) n += f.graph->nodes[i].op == op && f.graph->nodes[i].recomputed;
  return n;
}

/* Index of the first node that is a copy made for the region, or that reads from one. */
static int first_copy(int region) {
  for (int i = 0; i < f.graph->n_nodes; i++)
    if (f.graph->nodes[i].recomputed && f.graph->nodes[i].region == region) return i;
  return -1;
}

static void only_what_leaves_a_region_is_kept(void **state) {
  (void)state;
  two_blocks(NULL);
  /* gelu's gradient needs the product; the product's needs h, which entered the region. */
  assert_int_equal(count_recomputed(MS_OP_matmul), 2);
  assert_int_equal(count_recomputed(MS_OP_gelu), 0);
  assert_int_equal(count_recomputed(MS_OP_add), 0);
  /* One region after the other, last first, each in front of its own backward. */
  assert_true(first_copy(2) < first_copy(1));
  for (int i = first_copy(1); i < f.graph->n_nodes; i++) assert_true(f.graph->nodes[i].region != 2);
  /* Backward reads nothing from inside of a region that forward made. */
  for (int i = 0; i < f.graph->n_nodes; i++) {
    const ms_node *node = &f.graph->nodes[i];
    if (!node->backward) continue;
    for (int k = 0; k < node->inputs; k++) {
      int made_by = f.graph->values[node->in[k]].node;
      if (made_by < 0 || f.graph->nodes[made_by].backward) continue;
      assert_true(f.graph->nodes[made_by].op != MS_OP_matmul || f.graph->nodes[made_by].region == 0);
    }
  }
}

static void a_list_of_ops_keeps_the_others(void **state) {
  (void)state;
  two_blocks("gelu add");
  assert_int_equal(first_copy(1), -1); /* nothing in backward needs what a gelu or an addition makes */
  end_graph(state);
  start_graph(state);
  two_blocks("matmul");
  assert_int_equal(count_recomputed(MS_OP_matmul), 2);
}

static void named_outputs_are_kept(void **state) {
  (void)state;
  int h = input(&f, "x", MS_F32, SHAPE(5, 4));
  must(ms_graph_set_recompute(f.graph, 1, NULL));
  int product = linear(&f, h, param(&f, MS_F32, SHAPE(4, 4)), -1);
  must(ms_graph_output(f.graph, "product", product));
  int loss = sum_all(&f, op1(&f, MS_OP_gelu, product, NULL));
  must(ms_graph_set_loss(f.graph, loss, -1));
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_insert_recomputation(f.graph));
  assert_well_formed(f.graph);
  assert_int_equal(first_copy(1), -1);
}

static void nodes_of_different_regions_are_not_fused(void **state) {
  (void)state;
  int h = input(&f, "x", MS_F32, SHAPE(5, 4)), gain = param(&f, MS_F32, SHAPE(4)), shift = param(&f, MS_F32, SHAPE(4));
  must(ms_graph_set_recompute(f.graph, 1, NULL));
  h = op2(&f, MS_OP_add, h, h, NULL);
  must(ms_graph_set_recompute(f.graph, 2, NULL));
  must(ms_graph_set_loss(f.graph, sum_all(&f, op3(&f, MS_OP_layer_norm, h, gain, shift, NULL)), -1));
  must(ms_graph_rewrite(f.graph, 0));
  assert_int_equal(count_op(&f, MS_OP_add_layer_norm), 0);
  assert_int_equal(count_op(&f, MS_OP_layer_norm), 1);
}

static void unknown_ops_are_an_error(void **state) {
  (void)state;
  assert_fails(ms_graph_set_recompute(f.graph, 1, "gelu gellu"), MS_ENAME, "gellu");
  assert_fails(ms_graph_set_recompute(f.graph, -1, NULL), MS_EINVAL, "region | -1 | 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(only_what_leaves_a_region_is_kept),
      CASE(a_list_of_ops_keeps_the_others),
      CASE(named_outputs_are_kept),
      CASE(nodes_of_different_regions_are_not_fused),
      CASE(unknown_ops_are_an_error),
  };
  return cmocka_run_group_tests_name("graph recompute", tests, NULL, NULL);
}
