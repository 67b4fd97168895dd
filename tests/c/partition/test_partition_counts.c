/* test_partition_counts.c - which collectives a divided model takes, where parameters and conversions end up, and that
 * the other passes treat them as they must.
 */
#include "tests/c/partition/partition_models.h"

enum { RANKS = 4 };

static trial t;

static int end_trial(void **state) {
  (void)state;
  trial_end(&t);
  return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start_without_error, end_trial)

static model_shape shape_of_layers(int layers) {
  model_shape m = divided_shape(RANKS, 2 * RANKS);
  m.layers = layers;
  return m;
}

typedef struct counts {
  int gathers[2], scatters[2], reduces[2]; /* [forward, backward] */
} counts;

static counts count_collectives(const ms_graph *graph) {
  counts n;
  for (int b = 0; b < 2; b++) {
    n.gathers[b] = trial_count(graph, MS_OP_all_gather, b);
    n.scatters[b] = trial_count(graph, MS_OP_reduce_scatter, b);
    n.reduces[b] = trial_count(graph, MS_OP_all_reduce, b);
  }
  return n;
}

static counts of_model(const divided_model *model, int layers, int sequence) {
  const model_shape m = shape_of_layers(layers);
  trial_end(&t);
  divided_start(&t, model, &m, RANKS, sequence);
  must(trial_partition(&t));
  must(ms_graph_differentiate(trial_local(&t)));
  must(ms_graph_prune(trial_local(&t)));
  return count_collectives(trial_local(&t));
}

/* The counts of one block: what a third one adds to two. */
static counts of_block(const divided_model *model, int sequence) {
  counts more, n;
  trial_start(&t);
  n = of_model(model, 3, sequence);
  more = of_model(model, 2, sequence);
  for (int b = 0; b < 2; b++) {
    n.gathers[b] -= more.gathers[b];
    n.scatters[b] -= more.scatters[b];
    n.reduces[b] -= more.reduces[b];
  }
  return n;
}

static void T12_a_block_reduces_twice_each_way(void **state) {
  (void)state;
  const divided_model *models[] = {&divided_gpt, &divided_llama};
  for (int k = 0; k < 2; k++) {
    const counts n = of_block(models[k], 0);
    for (int b = 0; b < 2; b++) {
      assert_int_equal(n.reduces[b], 2);
      assert_int_equal(n.gathers[b], 0);
      assert_int_equal(n.scatters[b], 0);
    }
    if (!k) trial_end(&t);
  }
}

static void T12_a_block_gathers_and_scatters_twice_each_way(void **state) {
  (void)state;
  const divided_model *models[] = {&divided_gpt, &divided_llama};
  for (int k = 0; k < 2; k++) {
    const counts n = of_block(models[k], 1);
    for (int b = 0; b < 2; b++) {
      assert_int_equal(n.reduces[b], 0);
      assert_int_equal(n.gathers[b], 2);
      assert_int_equal(n.scatters[b], 2);
    }
    if (!k) trial_end(&t);
  }
}

/* The table's parts are summed once, and the head reads the positions once. The loss gathers two numbers a row; the
 * logits are gathered only because they are an output. */
static void T12_table_and_head_take_one_each(void **state) {
  (void)state;
  trial_start(&t);
  const counts n = of_model(&divided_gpt, 2, 1);
  assert_int_equal(n.scatters[0], 2 * 2 + 1);
  assert_int_equal(n.gathers[0], 2 * 2 + 1 + 2);
  assert_int_equal(n.scatters[1], 2 * 2 + 1);
  assert_int_equal(n.gathers[1], 2 * 2 + 1);
  assert_int_equal(n.reduces[0] + n.reduces[1], 0);
}

/* Of blocks that are recomputed, inputs are gathered again, and sums are not: they are kept. */
static void T12_recomputed_blocks_gather_again_and_keep_sums(void **state) {
  (void)state;
  counts n[2];
  for (int layers = 2; layers <= 3; layers++) {
    const model_shape m = shape_of_layers(layers);
    if (layers == 3) trial_end(&t);
    trial_start(&t);
    int x = op2(&t.f, MS_OP_embedding, weights(&t.f, &m, m.vocab, m.dim), input(&t.f, "tokens", MS_I32, SHAPE(2, 12)),
                NULL);
    for (int k = 0; k < layers; k++) {
      must(ms_graph_set_recompute(t.f.graph, 1 + k, NULL));
      x = llama_block(&t.f, &m, x);
    }
    must(ms_graph_set_recompute(t.f.graph, 0, NULL));
    language_model_loss(&t.f, &m, x, weights(&t.f, &m, m.vocab, m.dim));
    trial_add_dimension(&t, "tensor", RANKS)->sequence_parallel = 1;
    place_llama(t.params[0], &m, &t.f);
    must(trial_partition(&t));
    ms_graph *local = trial_local(&t);
    must(ms_graph_differentiate(local));
    must(ms_graph_insert_recomputation(local));
    must(ms_graph_prune(local));
    assert_well_formed(local);
    n[layers - 2] = count_collectives(local);
  }
  assert_int_equal(n[1].gathers[0] - n[0].gathers[0], 2);
  assert_int_equal(n[1].gathers[1] - n[0].gathers[1], 4);
  assert_int_equal(n[1].scatters[0] - n[0].scatters[0], 2);
  assert_int_equal(n[1].scatters[1] - n[0].scatters[1], 2);
  assert_int_equal(n[1].reduces[1] - n[0].reduces[1], 0);
}

/* ---- placements ------------------------------------------------------------------------------------------------- */

static void partition_gpt(int sequence) {
  const model_shape m = shape_of_layers(2);
  divided_start(&t, &divided_gpt, &m, RANKS, sequence);
  must(trial_partition(&t));
}

static int kind_of(int param) { return t.part[0].params[param].kind; }

static void T11_parameters_that_meet_shards_are_replicate(void **state) {
  (void)state;
  enum { GAIN = GPT_FIRST + GPT_BLOCK, BIAS_OF_COLUMNS = GAIN + 3, BIAS_OF_ROWS = GAIN + 5 };
  partition_gpt(0);
  assert_int_equal(kind_of(GAIN), MS_INVARIANT);
  assert_int_equal(kind_of(BIAS_OF_COLUMNS), MS_SHARD);
  assert_int_equal(kind_of(BIAS_OF_ROWS), MS_REPLICATE); /* it counts on one rank only, before the sum */
  assert_int_equal(kind_of(1), MS_REPLICATE);            /* likewise, positions that are added to parts of the table */
  trial_end(&t);
  partition_gpt(1);
  assert_int_equal(kind_of(GAIN), MS_REPLICATE);
  assert_int_equal(kind_of(GAIN + 1), MS_REPLICATE);
  assert_int_equal(t.part[0].loss.kind, MS_INVARIANT);
}

/* The norm in front of the first sum. */
static void T11_a_first_norm_splits_its_input_when_asked(void **state) {
  (void)state;
  unsigned char splits[FIXTURE_PARAMS] = {[LLAMA_FIRST] = 1};
  const model_shape m = shape_of_layers(2);
  divided_start(&t, &divided_llama, &m, RANKS, 1);
  must(trial_partition(&t));
  assert_int_equal(kind_of(LLAMA_FIRST), MS_INVARIANT);
  ms_partition_free(&t.part[0]);
  t.spec[0].splits = splits;
  must(trial_partition(&t));
  assert_int_equal(kind_of(LLAMA_FIRST), MS_REPLICATE);
  assert_int_equal(trial_count(trial_local(&t), MS_OP_copy_to, 0), 0);
  trial_run(&t, (int)m.vocab);
  trial_compare(&t, 1e-5, "Llama");
}

/* Values of a graph keep their ids, and the caller's graph its nodes. */
static void T11_the_traced_graph_stays_as_it_is(void **state) {
  (void)state;
  const model_shape m = shape_of_layers(2);
  divided_start(&t, &divided_gpt, &m, RANKS, 1);
  const int nodes = t.f.graph->n_nodes, values = t.f.graph->n_values;
  must(trial_partition(&t));
  const ms_graph *local = trial_local(&t);
  assert_int_equal(t.f.graph->n_nodes, nodes);
  assert_int_equal(t.f.graph->n_values, values);
  for (int v = 0; v < values; v++) {
    assert_int_equal(local->values[v].kind, t.f.graph->values[v].kind);
    assert_string_equal(local->values[v].name, t.f.graph->values[v].name);
  }
  assert_int_equal(local->n_outputs, t.f.graph->n_outputs);
  const ms_value_info *whole = &t.f.graph->values[t.f.graph->outputs[0].value].info;
  assert_true(ms_same_shape(&local->values[local->outputs[0].value].info, whole));
}

/* Nothing is prepared for a backward that does not come. */
static void T11_a_graph_without_a_loss_is_divided_for_forward(void **state) {
  (void)state;
  trial_start(&t);
  trial_add_dimension(&t, "tensor", RANKS);
  t.params[0][0] = ms_shard(0, 1);
  t.params[0][1] = ms_shard(1, 1);
  const int x = op1(&t.f, MS_OP_tanh, input(&t.f, "x", MS_F32, SHAPE(2, 12, 8)), NULL);
  const int h = linear(&t.f, x, param(&t.f, MS_F32, SHAPE(16, 8)), -1);
  const int y = linear(&t.f, h, param(&t.f, MS_F32, SHAPE(8, 16)), -1);
  must(ms_graph_output(t.f.graph, "y", y));
  must(trial_partition(&t));
  assert_int_equal(trial_local(&t)->n_nodes, 4);
  assert_int_equal(trial_count(trial_local(&t), MS_OP_all_reduce, 0), 1);
  assert_int_equal(trial_local(&t)->n_conversions, 1);
}

/* Rewrites see what they know: the bias of divided rows is in the product, and residuals join their norms. */
static void T11_divided_graphs_are_fused(void **state) {
  (void)state;
  partition_gpt(1);
  ms_graph *local = trial_local(&t);
  must(ms_graph_rewrite(local, 0));
  for (int n = 0; n < local->n_nodes; n++)
    if (local->nodes[n].op == MS_OP_matmul && local->nodes[n].attrs.product.trans_b &&
        !strcmp(local->nodes[n].scope, "layers.1"))
      assert_int_equal(local->nodes[n].inputs, 3);
  assert_int_equal(trial_count(local, MS_OP_add_layer_norm, 0), 4);
}

/* ---- the log ---------------------------------------------------------------------------------------------------- */

static const ms_conversion *find_conversion(int op, const char *scope, int skipped) {
  for (int k = 0; k < trial_local(&t)->n_conversions; k++) {
    const ms_conversion *c = &trial_local(&t)->conversions[k];
    if (c->op == op && !strcmp(c->scope, scope) && skipped-- == 0) return c;
  }
  return NULL;
}

/* A sum belongs to the product that made the summands, whichever node reads it first. */
static void T12_sums_belong_to_their_products(void **state) {
  (void)state;
  trial_start(&t);
  trial_add_dimension(&t, "tensor", RANKS);
  t.params[0][1] = ms_shard(1, 1);
  must(ms_graph_set_recompute(t.f.graph, 1, NULL));
  must(ms_graph_set_scope(t.f.graph, "inner"));
  const int x = input(&t.f, "x", MS_F32, SHAPE(2, 12, 8));
  const int scaled = op2(&t.f, MS_OP_mul, x, param(&t.f, MS_F32, SHAPE(8)), NULL);
  const int y = linear(&t.f, scaled, param(&t.f, MS_F32, SHAPE(8, 8)), -1);
  must(ms_graph_set_recompute(t.f.graph, 0, NULL));
  must(ms_graph_set_scope(t.f.graph, "outer"));
  must(ms_graph_set_loss(t.f.graph, sum_all(&t.f, op1(&t.f, MS_OP_tanh, y, NULL)), -1));
  must(trial_partition(&t));
  assert_non_null(find_conversion(MS_OP_all_reduce, "inner", 0));
  const ms_graph *local = trial_local(&t);
  for (int n = 0; n < local->n_nodes; n++) {
    if (local->nodes[n].op != MS_OP_all_reduce) continue;
    assert_string_equal(local->nodes[n].scope, "inner");
    assert_int_equal(local->nodes[n].region, 1);
    assert_int_equal(local->nodes[n].recompute, 0);
  }
}

static void T12_conversions_are_listed_by_scope(void **state) {
  (void)state;
  char text[MS_CONVERSION_TEXT];
  partition_gpt(1);
  const ms_conversion *gather = find_conversion(MS_OP_all_gather, "layers.1", 0);
  const ms_conversion *scatter = find_conversion(MS_OP_reduce_scatter, "layers.1", 1);
  assert_non_null(gather);
  assert_non_null(scatter);
  assert_null(find_conversion(MS_OP_all_gather, "layers.1", 2));
  assert_null(find_conversion(MS_OP_reduce_scatter, "layers.1", 2));
  assert_int_equal(gather->backward, MS_OP_reduce_scatter);
  assert_int_equal(ms_numel(&gather->whole), 2 * 12 * 8 * RANKS);
  assert_int_equal(t.f.graph->nodes[gather->reader].op, MS_OP_matmul);
  assert_int_equal(gather->from.axis, 1); /* 2 samples are not divided by 4 ranks */
  assert_has(ms_conversion_text(gather, text),
             "layers.1 | all_gather | [2,12,32] f32 | shard of axis 1 | replicate | reduce_scatter");
  assert_has(ms_conversion_text(scatter, text), "partial | shard of axis 1 | all_gather");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(T12_a_block_reduces_twice_each_way),
      CASE(T12_a_block_gathers_and_scatters_twice_each_way),
      CASE(T12_table_and_head_take_one_each),
      CASE(T12_recomputed_blocks_gather_again_and_keep_sums),
      CASE(T11_parameters_that_meet_shards_are_replicate),
      CASE(T11_a_first_norm_splits_its_input_when_asked),
      CASE(T11_the_traced_graph_stays_as_it_is),
      CASE(T11_a_graph_without_a_loss_is_divided_for_forward),
      CASE(T11_divided_graphs_are_fused),
      CASE(T12_sums_belong_to_their_products),
      CASE(T12_conversions_are_listed_by_scope),
  };
  return cmocka_run_group_tests_name("partition counts", tests, NULL, NULL);
}
