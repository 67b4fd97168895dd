/* test_graph_linear_loss.c - which losses read the input of a linear layer instead of its logits, in chunks of how many
 * rows, and when loss and gradient are one node. fused_loss_spec.lua compares their numbers. */
#include "tests/c/graph/graph_case.h"

enum { WHOLE = 0, CHUNKED = 1, TO_SAVE = 2 };

typedef struct head {
  int x, w, b, product, targets, out[MS_MAX_OUTPUTS];
} head;

/* A loss of logits [rows,classes]: x is made of a parameter, so that it has a gradient. */
static head loss_of(int dtype, int64_t rows, int64_t classes, int64_t dim, int fused, int biased) {
  head h = {.b = -1};
  h.x = op1(&f, MS_OP_tanh, param(&f, dtype, SHAPE(rows, dim)), NULL);
  h.w = param(&f, dtype, SHAPE(classes, dim));
  if (biased) h.b = param(&f, dtype, SHAPE(classes));
  h.product = linear(&f, h.x, h.w, h.b);
  h.targets = input(&f, "targets", MS_I32, SHAPE(rows));
  apply(&f, MS_OP_cross_entropy, 2, (int[]){h.product, h.targets},
        ATTRS(.loss = {.ignore_index = -100, .fused = fused}), h.out);
  return h;
}

static head head_of(int dtype, int64_t rows, int64_t classes, int64_t dim, int fused) {
  return loss_of(dtype, rows, classes, dim, fused, 0);
}

static head biased_head(void) { return loss_of(MS_F32, 4, 7, 3, CHUNKED, 1); }

static void rewrite_weighted(int loss, int weight) {
  must(ms_graph_set_loss(f.graph, loss, weight));
  must(ms_graph_rewrite(f.graph, 0));
  assert_well_formed(f.graph);
}

static void rewrite(int loss) { rewrite_weighted(loss, -1); }

static void train_weighted(int loss, int weight) {
  rewrite_weighted(loss, weight);
  must(ms_graph_differentiate(f.graph));
  must(ms_graph_rewrite_backward(f.graph));
  assert_well_formed(f.graph);
}

static void train(int loss) { train_weighted(loss, -1); }

static void S20_the_loss_reads_the_layers_input(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  rewrite(h.out[0]);
  assert_int_equal(count_op(&f, MS_OP_matmul), 0);
  const ms_node *join = maker(h.out[0]);
  assert_int_equal(join->op, MS_OP_linear_cross_entropy_join);
  const ms_node *part = maker(join->in[3]);
  assert_int_equal(part->op, MS_OP_linear_cross_entropy_part);
  const int in[] = {h.x, h.w, h.targets};
  for (int i = 0; i < 3; i++) assert_int_equal(part->in[i], in[i]);
  assert_string_equal(shape_of(&f, join->in[3]), "[1,4,2]");
}

static void S20_the_loss_reads_the_layers_bias(void **state) {
  (void)state;
  const head h = biased_head();
  rewrite(h.out[0]);
  assert_int_equal(count_op(&f, MS_OP_matmul) + count_op(&f, MS_OP_add), 0);
  const ms_node *join = maker(h.out[0]), *part = maker(join->in[3]);
  assert_int_equal(join->op, MS_OP_linear_cross_entropy_join);
  assert_int_equal(part->op, MS_OP_linear_cross_entropy_part);
  assert_int_equal(part->inputs, 4);
  assert_int_equal(part->in[3], h.b);
  assert_int_equal(join->inputs, 5);
  assert_int_equal(join->in[4], h.b);
}

/* The product waits for targets that are made after it. */
static void S20_targets_may_be_made_late(void **state) {
  (void)state;
  const int w = param(&f, MS_F32, SHAPE(7, 3)), product = linear(&f, input(&f, "x", MS_F32, SHAPE(4, 3)), w, -1);
  const int targets = op1(&f, MS_OP_cast, input(&f, "t", MS_F32, SHAPE(4)), ATTRS(.out_dtype = 1 + MS_I32));
  rewrite(op2(&f, MS_OP_cross_entropy, product, targets, ATTRS(.loss = {.ignore_index = -100, .fused = CHUNKED})));
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_part), 1);
}

static void S20_padding_is_left_to_the_loss(void **state) {
  (void)state;
  const int x = input(&f, "x", MS_F32, SHAPE(2, 3, 4)), targets = input(&f, "targets", MS_I32, SHAPE(2, 3));
  const int logits = linear(&f, x, param(&f, MS_F32, SHAPE(16, 4)), -1);
  const int used = op1(&f, MS_OP_slice, logits, ATTRS(.cut = {.axis = 2, .stop = 13}));
  const int loss = op2(&f, MS_OP_cross_entropy, used, targets, ATTRS(.loss = {.ignore_index = -100, .fused = CHUNKED}));
  rewrite(loss);
  assert_int_equal(maker(loss)->op, MS_OP_linear_cross_entropy_join);
  assert_int_equal(maker(loss)->attrs.loss.classes, 13);
}

enum { ACTIVATED, READ_TWICE, NO_PRODUCT, TRANSPOSED, FAULTS };

static int faulty_loss(int fault, int fused) {
  const int x = input(&f, "x", MS_F32, SHAPE(5, 4)), targets = input(&f, "targets", MS_I32, SHAPE(5));
  const int w = param(&f, MS_F32, SHAPE(3, 4)), turned = param(&f, MS_F32, SHAPE(4, 3));
  int logits = fault == TRANSPOSED ? op2(&f, MS_OP_matmul, x, turned, NULL) : linear(&f, x, w, -1);
  if (fault == ACTIVATED) logits = op1(&f, MS_OP_relu, logits, NULL);
  if (fault == NO_PRODUCT) logits = op1(&f, MS_OP_tanh, logits, NULL);
  if (fault == READ_TWICE) must(ms_graph_output(f.graph, "logits", logits));
  must(ms_graph_set_scope(f.graph, "net"));
  return op2(&f, MS_OP_cross_entropy, logits, targets, ATTRS(.loss = {.ignore_index = -100, .fused = fused}));
}

static void S20_what_must_be_fused_and_cannot_is_refused(void **state) {
  (void)state;
  static const char *const facts[FAULTS] = {"net | has an activation", "net | reads", "net | product",
                                            "net | [classes, dim]"};
  for (int fault = 0; fault < FAULTS; fault++)
    for (int fused = CHUNKED; fused <= TO_SAVE; fused++) {
      fixture_end(&f);
      fixture_start(&f);
      const int loss = faulty_loss(fault, fused);
      must(ms_graph_set_loss(f.graph, loss, -1));
      if (fused == CHUNKED) assert_fails(ms_graph_rewrite(f.graph, 0), MS_EUNSUPPORTED, facts[fault]);
      else must(ms_graph_rewrite(f.graph, 0));
      if (fused == TO_SAVE) assert_int_equal(maker(loss)->op, MS_OP_cross_entropy);
    }
}

/* ---- rows of a chunk --------------------------------------------------------------------------------------------- */

static int64_t rows_of(int dtype, int64_t rows, int64_t classes, int64_t dim) {
  fixture_end(&f);
  fixture_start(&f);
  const head h = head_of(dtype, rows, classes, dim, CHUNKED);
  rewrite(h.out[0]);
  return maker(h.out[0])->attrs.loss.chunk;
}

static void S20_chunks_are_chosen_by_sizes(void **state) {
  (void)state;
  assert_int_equal(rows_of(MS_F32, 1024, 50304, 768), 352);     /* of at most 384, half of dim: three even ones */
  assert_int_equal(rows_of(MS_BF16, 1024, 50304, 768), 512);    /* of at most 768, dim */
  assert_int_equal(rows_of(MS_BF16, 8192, 128256, 4096), 1024); /* never more */
  assert_int_equal(rows_of(MS_F32, 8192, 128256, 64), 128);     /* nor less */
  assert_int_equal(rows_of(MS_F32, 100, 128256, 64), 100);
  assert_int_equal(rows_of(MS_F32, 16384, 256, 64), 8192); /* chunks of 8 MiB */
}

/* The frozen head alone needs no gradient of w; the sum of chunks in bf16 needs one more w in f32. */
static void S20_auto_fuses_where_it_saves(void **state) {
  (void)state;
  static const struct {
    int64_t rows, classes, dim;
    int dtype, grad_dtype, frozen, squared, fused;
  } cases[] = {
      {1024, 50304, 768, MS_F32, MS_F32, 0, 0, 1},   {1024, 256, 768, MS_F32, MS_F32, 0, 0, 0},
      {384, 50304, 768, MS_F32, MS_F32, 0, 0, 0},    {1024, 50304, 768, MS_F32, MS_F32, 1, 0, 0},
      {1024, 50304, 768, MS_F32, MS_F32, 0, 1, 0},   {1024, 50304, 768, MS_BF16, MS_F32, 0, 0, 1},
      {1024, 50304, 768, MS_BF16, MS_BF16, 0, 0, 0}, {8192, 50304, 768, MS_BF16, MS_BF16, 0, 0, 1},
      {4096, 1024, 512, MS_F32, MS_F32, 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fixture_end(&f);
    fixture_start(&f);
    const head h = head_of(cases[i].dtype, cases[i].rows, cases[i].classes, cases[i].dim, TO_SAVE);
    f.param[1].frozen = cases[i].frozen;
    f.param[1].grad_dtype = cases[i].grad_dtype;
    rewrite(cases[i].squared ? op2(&f, MS_OP_mul, h.out[0], h.out[0], NULL) : h.out[0]);
    if ((maker(h.out[0])->op == MS_OP_linear_cross_entropy_join) != cases[i].fused) fail_msg("case %d", (int)i);
  }
}

static void S20_auto_fuses_a_layer_with_a_bias(void **state) {
  (void)state;
  const head h = loss_of(MS_F32, 1024, 50304, 768, TO_SAVE, 1);
  rewrite(h.out[0]);
  assert_int_equal(maker(h.out[0])->op, MS_OP_linear_cross_entropy_join);
}

/* ---- one node ---------------------------------------------------------------------------------------------------- */

static void S20_loss_and_gradients_are_one_node(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  train_weighted(h.out[0], op1(&f, MS_OP_scale, h.out[2], ATTRS(.scale = {.alpha = 0.25})));
  const ms_node *step = maker(h.out[0]);
  assert_int_equal(step->op, MS_OP_linear_cross_entropy_step);
  assert_int_equal(f.graph->param_grads[1], step->out[1]);
  assert_int_equal(maker(h.out[2])->op, MS_OP_count_targets);
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_part), 0);
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_backward), 0);
}

/* A node that reads the loss and no gradient depends on: it runs after the step. */
static void S20_readers_of_the_loss_wait(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  const int told = op1(&f, MS_OP_exp, h.out[0], NULL);
  must(ms_graph_output(f.graph, "perplexity", told));
  train(op1(&f, MS_OP_scale, h.out[0], ATTRS(.scale = {.alpha = 2})));
  assert_int_equal(maker(h.out[0])->op, MS_OP_linear_cross_entropy_step);
  assert_true(maker(told) > maker(h.out[0]));
}

static void S20_a_gradient_that_needs_the_loss_makes_logits_again(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  train(op2(&f, MS_OP_mul, h.out[0], h.out[0], NULL));
  assert_int_equal(maker(h.out[0])->op, MS_OP_linear_cross_entropy_join);
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_backward), 1);
}

static void S20_a_frozen_weight_has_no_gradient(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  f.param[1].frozen = 1;
  train(h.out[0]);
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_backward_x), 1);
  assert_int_equal(f.graph->param_grads[1], -1);
}

/* Their gradients are neighbours in backward. */
static void S20_each_of_two_losses_is_one_node_with_its_gradient(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, CHUNKED);
  const int product = linear(&f, h.x, param(&f, MS_F32, SHAPE(5, 3)), -1);
  const int other =
      op2(&f, MS_OP_cross_entropy, product, h.targets, ATTRS(.loss = {.ignore_index = -100, .fused = CHUNKED}));
  train(op2(&f, MS_OP_add, h.out[0], other, NULL));
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_step), 2);
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_backward), 0);
}

/* ---- of whole logits ---- */

static void S20_loss_and_gradient_of_whole_logits_are_one_node(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, WHOLE);
  const int weight = op1(&f, MS_OP_scale, h.out[2], ATTRS(.scale = {.alpha = 0.25}));
  const int told = op1(&f, MS_OP_exp, h.out[0], NULL);
  must(ms_graph_output(f.graph, "perplexity", told));
  train_weighted(h.out[0], weight);
  const ms_node *step = maker(h.out[0]);
  assert_int_equal(step->op, MS_OP_cross_entropy_step);
  assert_int_equal(step->in[0], h.product);
  assert_int_equal(step->in[2], h.out[2]);
  assert_int_equal(maker(h.out[2])->op, MS_OP_count_targets);
  assert_true(maker(told) > step);
  assert_int_equal(count_op(&f, MS_OP_cross_entropy), 0);
  assert_int_equal(count_op(&f, MS_OP_cross_entropy_backward), 0);
}

static void S20_a_gradient_that_needs_the_loss_reads_whole_logits_again(void **state) {
  (void)state;
  const head h = head_of(MS_F32, 4, 7, 3, WHOLE);
  train(op2(&f, MS_OP_mul, h.out[0], h.out[0], NULL));
  assert_int_equal(maker(h.out[0])->op, MS_OP_cross_entropy);
  assert_int_equal(count_op(&f, MS_OP_cross_entropy_backward), 1);
}

/* The bias, if it is trainable, has a gradient next to that of the weight; a frozen one is only read. */
static void S20_a_bias_has_a_gradient_of_the_step(void **state) {
  (void)state;
  for (int frozen = 0; frozen < 2; frozen++) {
    fixture_end(&f);
    fixture_start(&f);
    const head h = biased_head();
    f.param[2].frozen = frozen;
    train(h.out[0]);
    const ms_node *step = maker(h.out[0]);
    assert_int_equal(step->op, frozen ? MS_OP_linear_cross_entropy_step : MS_OP_linear_cross_entropy_step_bias);
    assert_int_equal(step->inputs, 6);
    assert_int_equal(step->in[5], h.b);
    assert_int_equal(step->out[step->outputs - 2], h.out[0]);
    assert_int_equal(f.graph->param_grads[1], step->out[1]);
    assert_int_equal(f.graph->param_grads[2], frozen ? -1 : step->out[2]);
    assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_part), 0);
  }
}

static void S20_a_bias_has_a_gradient_where_logits_are_made_again(void **state) {
  (void)state;
  const head h = biased_head();
  train(op2(&f, MS_OP_mul, h.out[0], h.out[0], NULL));
  assert_int_equal(count_op(&f, MS_OP_linear_cross_entropy_backward_bias), 1);
  assert_int_equal(maker(f.graph->param_grads[2])->op, MS_OP_linear_cross_entropy_backward_bias);
}

int main(void) {
  const struct CMUnitTest tests[] = {CASE(S20_the_loss_reads_the_layers_input),
                                     CASE(S20_the_loss_reads_the_layers_bias),
                                     CASE(S20_targets_may_be_made_late),
                                     CASE(S20_padding_is_left_to_the_loss),
                                     CASE(S20_what_must_be_fused_and_cannot_is_refused),
                                     CASE(S20_chunks_are_chosen_by_sizes),
                                     CASE(S20_auto_fuses_where_it_saves),
                                     CASE(S20_auto_fuses_a_layer_with_a_bias),
                                     CASE(S20_loss_and_gradients_are_one_node),
                                     CASE(S20_readers_of_the_loss_wait),
                                     CASE(S20_a_gradient_that_needs_the_loss_makes_logits_again),
                                     CASE(S20_a_frozen_weight_has_no_gradient),
                                     CASE(S20_each_of_two_losses_is_one_node_with_its_gradient),
                                     CASE(S20_loss_and_gradient_of_whole_logits_are_one_node),
                                     CASE(S20_a_gradient_that_needs_the_loss_reads_whole_logits_again),
                                     CASE(S20_a_bias_has_a_gradient_of_the_step),
                                     CASE(S20_a_bias_has_a_gradient_where_logits_are_made_again)};
  return cmocka_run_group_tests_name("the loss of a linear layer", tests, NULL, NULL);
}
