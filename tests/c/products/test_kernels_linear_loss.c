/* test_kernels_linear_loss.c - the loss of a linear layer in chunks of rows: the numbers of a product, a cross entropy
 * and their gradients in double, whatever the chunk; and the logits of only one chunk in the workspace. */
#include "kernels/products/linear_cross_entropy.h"

#include "tests/c/support/kernel_case.h"

enum { X, W, TARGETS, LSE, COUNT, DLOSS, ADDED = 3 };
enum { ROWS = 23, CLASSES = 19, DIM = 12, IGNORED = -100 };

/* The loss of all rows, in double. */
typedef struct reference {
  double loss, count, lse[ROWS], p[ROWS][CLASSES]; /* p: of classes that count, the others are 0 */
} reference;

static kernel_case wide_operands(int op, int dtype, int chunk, int classes, int columns) {
  kernel_case c = case_of(op);
  add_input(&c, SHAPE(dtype, ROWS, DIM));
  add_input(&c, SHAPE(dtype, columns, DIM));
  add_input(&c, SHAPE(MS_I32, ROWS));
  c.call.attrs = (ms_op_attrs){.loss = {.ignore_index = IGNORED, .parts = 1, .classes = classes, .chunk = chunk}};
  for (int r = 0; r < ROWS; r++)
    set_input(&c, TARGETS, r, r % 7 == 3 ? IGNORED : r * 5 % (classes ? classes : columns));
  return c;
}

static kernel_case operands(int op, int dtype, int chunk, int classes) {
  return wide_operands(op, dtype, chunk, classes, CLASSES);
}

/* The last output, after all others. */
static void add_chunk(kernel_case *c, int chunk) {
  const int rows = chunk && chunk < ROWS ? chunk : ROWS;
  add_output(c, SHAPE(c->call.in[X].dtype, rows, (int)c->call.in[W].dims[0]));
}

static int target_of(const kernel_case *c, int r) { return (int)input_at(c, TARGETS, r); }

/* A bf16 logit is rounded before anything reads it, but after the bias is added. */
static double logit(const kernel_case *c, int r, int v) {
  const int b = ms_loss_bias_of(c->call.op, c->call.inputs);
  double sum = b < 0 ? 0 : input_at(c, b, v);
  for (int d = 0; d < DIM; d++) sum += input_at(c, X, r * DIM + d) * input_at(c, W, v * DIM + d);
  return c->call.in[X].dtype == MS_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16((float)sum)) : sum;
}

static reference reference_of(const kernel_case *c) {
  reference ref = {0};
  const int classes = c->call.attrs.loss.classes ? (int)c->call.attrs.loss.classes : CLASSES;
  for (int r = 0; r < ROWS; r++) {
    double sum = 0;
    for (int v = 0; v < classes; v++) sum += ref.p[r][v] = exp(logit(c, r, v));
    for (int v = 0; v < classes; v++) ref.p[r][v] /= sum;
    ref.lse[r] = log(sum);
    if (target_of(c, r) == IGNORED) continue;
    ref.loss += ref.lse[r] - logit(c, r, target_of(c, r));
    ref.count++;
  }
  ref.loss /= ref.count;
  return ref;
}

static double dlogit(const kernel_case *c, const reference *ref, int r, int v, double scale) {
  if (target_of(c, r) == IGNORED) return 0;
  return scale * (ref->p[r][v] - (v == target_of(c, r)));
}

/* Tolerances of bf16 also cover the rounded gradients of logits. */
static void assert_gradients(const kernel_case *c, const reference *ref, int dx, int dw, double scale) {
  const double tolerance = c->call.in[X].dtype == MS_BF16 ? 4e-3 : 2e-6;
  for (int r = 0; r < ROWS; r++)
    for (int d = 0; d < DIM; d++) {
      double sum = 0;
      for (int v = 0; v < CLASSES; v++) sum += dlogit(c, ref, r, v, scale) * input_at(c, W, v * DIM + d);
      assert_output(c, dx, r * DIM + d, sum, tolerance);
    }
  for (int v = 0; v < CLASSES && dw >= 0; v++)
    for (int d = 0; d < DIM; d++) {
      double sum = 0;
      for (int r = 0; r < ROWS; r++) sum += dlogit(c, ref, r, v, scale) * input_at(c, X, r * DIM + d);
      assert_output(c, dw, v * DIM + d, sum, tolerance);
    }
}

static const int chunks[] = {0, 1, 5, 8, ROWS - 1, ROWS, 100};

static void forward_matches(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes) FOR_EACH(chunk, chunks) {
    kernel_case c = operands(MS_OP_linear_cross_entropy_part, dtype, chunk, 17);
    add_output(&c, SHAPE(MS_F32, 1, ROWS, 2));
    add_chunk(&c, chunk);
    run_case(&c);
    const reference ref = reference_of(&c);
    for (int r = 0; r < ROWS; r++) {
      assert_output(&c, 0, 2 * r, ref.lse[r], 2e-5);
      assert_output(&c, 0, 2 * r + 1, target_of(&c, r) == IGNORED ? 0 : logit(&c, r, target_of(&c, r)), 1e-5);
    }
    kernel_case join = operands(MS_OP_linear_cross_entropy_join, dtype, chunk, 17);
    add_input(&join, SHAPE(MS_F32, 1, ROWS, 2));
    for (int i = 0; i < 2 * ROWS; i++) set_input(&join, ADDED, i, output_at(&c, 0, i));
    add_output(&join, SCALAR(MS_F32));
    add_output(&join, SHAPE(MS_F32, ROWS));
    add_output(&join, SCALAR(MS_F32));
    run_case(&join);
    assert_output(&join, 0, 0, ref.loss, 2e-5);
    assert_output(&join, 2, 0, ref.count, 0);
    for (int r = 0; r < ROWS; r++) assert_true(output_at(&join, 1, r) == output_at(&c, 0, 2 * r));
    free_case(&c);
    free_case(&join);
  }
}

/* dw in f32, and in the dtype of x, to which the sum of all chunks is rounded once. */
static void gradients_match(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes) FOR_EACH(chunk, chunks) for (int frozen = 0; frozen < 2; frozen++) {
    const int op = frozen ? MS_OP_linear_cross_entropy_backward_x : MS_OP_linear_cross_entropy_backward;
    kernel_case c = operands(op, dtype, chunk, 17);
    const reference ref = reference_of(&c);
    add_input(&c, SHAPE(MS_F32, ROWS));
    add_input(&c, SCALAR(MS_F32));
    add_input(&c, SCALAR(MS_F32));
    for (int r = 0; r < ROWS; r++) set_input(&c, LSE, r, ref.lse[r]);
    set_input(&c, COUNT, 0, ref.count);
    set_input(&c, DLOSS, 0, 3);
    add_output(&c, SHAPE(dtype, ROWS, DIM));
    if (!frozen) add_output(&c, SHAPE(chunk % 2 ? dtype : MS_F32, CLASSES, DIM));
    add_chunk(&c, chunk);
    run_case(&c);
    assert_gradients(&c, &ref, 0, frozen ? -1 : 1, 3 / ref.count);
    free_case(&c);
  }
}

static kernel_case wide_step_case(int dtype, int chunk, int dw_dtype, double count, int columns) {
  kernel_case c = wide_operands(MS_OP_linear_cross_entropy_step, dtype, chunk, 0, columns);
  add_input(&c, SCALAR(MS_F32));
  add_input(&c, SCALAR(MS_F32));
  set_input(&c, 3, 0, count);
  set_input(&c, 4, 0, 3);
  add_output(&c, SHAPE(dtype, ROWS, DIM));
  add_output(&c, SHAPE(dw_dtype, columns, DIM));
  add_output(&c, SCALAR(MS_F32));
  add_chunk(&c, chunk);
  return c;
}

static kernel_case step_case(int dtype, int chunk, int dw_dtype, double count) {
  return wide_step_case(dtype, chunk, dw_dtype, count, CLASSES);
}

static void one_pass_makes_loss_and_gradients(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes) FOR_EACH(chunk, chunks) {
    kernel_case c = step_case(dtype, chunk, chunk % 2 ? dtype : MS_F32, 20);
    const reference ref = reference_of(&c);
    assert_int_equal(ref.count, 20);
    run_case(&c);
    assert_output(&c, 2, 0, ref.loss, 2e-5);
    assert_gradients(&c, &ref, 0, 1, 3 / ref.count);
    free_case(&c);
  }
}

/* ---- with a bias ------------------------------------------------------------------------------------------------- */

static int adds_bias(int op) {
  return op == MS_OP_linear_cross_entropy_backward_bias || op == MS_OP_linear_cross_entropy_step_bias;
}

static int makes_loss(int op) {
  return op == MS_OP_linear_cross_entropy_step || op == MS_OP_linear_cross_entropy_step_bias;
}

/* Gradients in the dtype of x, or in f32. */
static kernel_case biased_case(int op, int dtype, int chunk, reference *ref) {
  const int made = chunk % 2 ? dtype : MS_F32;
  kernel_case c = operands(op, dtype, chunk, 17);
  if (!makes_loss(op)) add_input(&c, SHAPE(MS_F32, ROWS));
  const int count = add_input(&c, SCALAR(MS_F32)), dloss = add_input(&c, SCALAR(MS_F32));
  add_input(&c, SHAPE(dtype, CLASSES));
  *ref = reference_of(&c);
  for (int r = 0; r < ROWS && !makes_loss(op); r++) set_input(&c, LSE, r, ref->lse[r]);
  set_input(&c, count, 0, ref->count);
  set_input(&c, dloss, 0, 3);
  add_output(&c, SHAPE(dtype, ROWS, DIM));
  if (op != MS_OP_linear_cross_entropy_backward_x) add_output(&c, SHAPE(made, CLASSES, DIM));
  if (adds_bias(op)) add_output(&c, SHAPE(made, CLASSES));
  if (makes_loss(op)) add_output(&c, SCALAR(MS_F32));
  add_chunk(&c, chunk);
  return c;
}

static void assert_bias_gradient(const kernel_case *c, const reference *ref, int db, double scale) {
  for (int v = 0; v < CLASSES; v++) {
    double sum = 0;
    for (int r = 0; r < ROWS; r++) sum += dlogit(c, ref, r, v, scale);
    assert_output(c, db, v, sum, c->call.in[X].dtype == MS_BF16 ? 4e-3 : 2e-6);
  }
}

/* A GPU rounds products to bf16 before it adds a bias in f32. */
static void a_bias_is_added_to_logits(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes) FOR_EACH(chunk, chunks) {
    kernel_case c = operands(MS_OP_linear_cross_entropy_part, dtype, chunk, 17);
    const int bias_dtype = chunk % 2 ? dtype : MS_F32;
    const double twice = bias_dtype == dtype ? 0 : 0.03;
    add_input(&c, SHAPE(bias_dtype, CLASSES));
    add_output(&c, SHAPE(MS_F32, 1, ROWS, 2));
    add_chunk(&c, chunk);
    run_case(&c);
    const reference ref = reference_of(&c);
    for (int r = 0; r < ROWS; r++) {
      const double of_target = target_of(&c, r) == IGNORED ? 0 : logit(&c, r, target_of(&c, r));
      assert_output(&c, 0, 2 * r, ref.lse[r], 2e-5 + twice);
      assert_output(&c, 0, 2 * r + 1, of_target, 1e-5 + twice);
    }
    free_case(&c);
  }
}

/* Also where it is not to have one: of a frozen bias, or weight. */
static void a_bias_has_its_gradient(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_linear_cross_entropy_backward_bias, MS_OP_linear_cross_entropy_step_bias,
                            MS_OP_linear_cross_entropy_backward, MS_OP_linear_cross_entropy_step,
                            MS_OP_linear_cross_entropy_backward_x};
  static const int some[] = {0, 5, ROWS}; /* all of them with each op would say no more about a bias */
  FOR_EACH(op, ops) FOR_EACH(dtype, dtypes) FOR_EACH(chunk, some) {
    reference ref;
    kernel_case c = biased_case(op, dtype, chunk, &ref);
    run_case(&c);
    assert_gradients(&c, &ref, 0, op == MS_OP_linear_cross_entropy_backward_x ? -1 : 1, 3 / ref.count);
    if (adds_bias(op)) assert_bias_gradient(&c, &ref, 2, 3 / ref.count);
    if (makes_loss(op)) assert_output(&c, c.call.outputs - 2, 0, ref.loss, 2e-5);
    free_case(&c);
  }
}

static void share_operands(kernel_case *c, const kernel_case *with) {
  for (int i = 0; i < 3; i++)
    memcpy((void *)c->call.in_data[i], with->call.in_data[i], (size_t)tensor_bytes(&with->call.in[i]));
}

/* Products of other shapes can sum in another order, but chunks of one size give the bits of the two passes. Rows of
 * 1003 classes begin anywhere in 16 bytes and keep all threads of a GPU's block busy. */
static void one_pass_has_the_bits_of_two(void **state) {
  (void)state;
  static const int widths[] = {CLASSES, 1003};
  FOR_EACH(dtype, dtypes) FOR_EACH(columns, widths) {
    kernel_case step = wide_step_case(dtype, 8, MS_F32, 20, columns);
    kernel_case part = wide_operands(MS_OP_linear_cross_entropy_part, dtype, 8, 0, columns);
    kernel_case backward = wide_operands(MS_OP_linear_cross_entropy_backward, dtype, 8, 0, columns);
    kernel_case join = wide_operands(MS_OP_linear_cross_entropy_join, dtype, 8, 0, columns);
    share_operands(&part, &step);
    share_operands(&backward, &step);
    add_output(&part, SHAPE(MS_F32, 1, ROWS, 2));
    add_chunk(&part, 8);
    run_case(&part);
    add_input(&join, SHAPE(MS_F32, 1, ROWS, 2));
    memcpy((void *)join.call.in_data[ADDED], part.call.out_data[0], (size_t)tensor_bytes(&part.call.out[0]));
    add_output(&join, SCALAR(MS_F32));
    add_output(&join, SHAPE(MS_F32, ROWS));
    add_output(&join, SCALAR(MS_F32));
    run_case(&join);
    add_input(&backward, SHAPE(MS_F32, ROWS));
    for (int r = 0; r < ROWS; r++) set_input(&backward, LSE, r, output_at(&part, 0, 2 * r));
    set_input(&backward, add_input(&backward, SCALAR(MS_F32)), 0, 20);
    set_input(&backward, add_input(&backward, SCALAR(MS_F32)), 0, 3);
    add_output(&backward, SHAPE(dtype, ROWS, DIM));
    add_output(&backward, SHAPE(MS_F32, columns, DIM));
    add_chunk(&backward, 8);
    run_case(&backward);
    contract(1);
    run_case(&step);
    contract(0);
    for (int o = 0; o < 2; o++)
      assert_memory_equal(step.call.out_data[o], backward.call.out_data[o], tensor_bytes(&step.call.out[o]));
    assert_memory_equal(step.call.out_data[2], join.call.out_data[0], sizeof(float));
    free_case(&step);
    free_case(&part);
    free_case(&backward);
    free_case(&join);
  }
}

/* Per rank, the gradient of its own classes: their sum over ranks, and dw side by side, are those of the whole. */
static void parts_of_the_classes_have_their_gradients(void **state) {
  (void)state;
  enum { PARTS = 2 };
  kernel_case whole = operands(MS_OP_linear_cross_entropy_backward, MS_F32, 5, 0);
  const reference ref = reference_of(&whole);
  double dx[ROWS * DIM] = {0};
  for (int p = 0; p < PARTS; p++) {
    const int first = p * 10, own = p ? CLASSES - 10 : 10; /* the last part is padded with rows that do not count */
    kernel_case c = case_of(MS_OP_linear_cross_entropy_backward);
    add_input(&c, SHAPE(MS_F32, ROWS, DIM));
    add_input(&c, SHAPE(MS_F32, 10, DIM));
    add_input(&c, SHAPE(MS_I32, ROWS));
    for (int i = 0; i < ROWS * DIM; i++) set_input(&c, X, i, input_at(&whole, X, i));
    for (int i = 0; i < own * DIM; i++) set_input(&c, W, i, input_at(&whole, W, first * DIM + i));
    for (int r = 0; r < ROWS; r++) set_input(&c, TARGETS, r, target_of(&whole, r));
    add_input(&c, SHAPE(MS_F32, ROWS));
    for (int r = 0; r < ROWS; r++) set_input(&c, LSE, r, ref.lse[r]);
    set_input(&c, add_input(&c, SCALAR(MS_F32)), 0, ref.count);
    set_input(&c, add_input(&c, SCALAR(MS_F32)), 0, 1);
    c.call.attrs = (ms_op_attrs){
        .loss = {.ignore_index = IGNORED, .parts = PARTS, .first = first, .classes = CLASSES, .chunk = 5}};
    add_output(&c, SHAPE(MS_F32, ROWS, DIM));
    add_output(&c, SHAPE(MS_F32, 10, DIM));
    add_chunk(&c, 5);
    run_case(&c);
    for (int i = 0; i < ROWS * DIM; i++) dx[i] += output_at(&c, 0, i);
    for (int v = 0; v < own; v++)
      for (int d = 0; d < DIM; d++) {
        double sum = 0;
        for (int r = 0; r < ROWS; r++)
          sum += dlogit(&whole, &ref, r, first + v, 1 / ref.count) * input_at(&whole, X, r * DIM + d);
        assert_output(&c, 1, v * DIM + d, sum, 2e-6);
      }
    free_case(&c);
  }
  for (int r = 0; r < ROWS; r++)
    for (int d = 0; d < DIM; d++) {
      double sum = 0;
      for (int v = 0; v < CLASSES; v++)
        sum += dlogit(&whole, &ref, r, v, 1 / ref.count) * input_at(&whole, W, v * DIM + d);
      assert_true(same_number(dx[r * DIM + d], sum, 2e-6));
    }
  free_case(&whole);
}

static void wrong_targets_are_reported(void **state) {
  (void)state;
  kernel_case c = step_case(MS_F32, 5, MS_F32, 20);
  set_input(&c, TARGETS, 17, CLASSES);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("19 | row 17 | [0,19) | ignore_index | -100", "19 | [0,19)"));
  free_case(&c);
}

static int64_t workspace_of(int chunk, int rows, int classes) {
  kernel_case c = case_of(MS_OP_linear_cross_entropy_step);
  const ms_kernel *kernel = kernel_of(c.call.op);
  c.call.in[0] = c.call.out[0] = SHAPE(MS_F32, rows, 64);
  c.call.in[1] = c.call.out[1] = SHAPE(MS_F32, classes, 64);
  c.call.in[2] = SHAPE(MS_I32, rows);
  c.call.in[3] = c.call.in[4] = c.call.out[2] = SCALAR(MS_F32);
  c.call.out[3] = SHAPE(MS_F32, chunk, classes);
  c.call.inputs = 5;
  c.call.outputs = 4;
  c.call.attrs.loss.chunk = chunk;
  must(prepare_kernel(kernel, &c.call));
  if (kernel->release) kernel->release(c.call.prepared);
  return c.call.workspace_bytes;
}

/* More chunks need nothing but the numbers of their rows. */
static void only_the_logits_of_a_chunk_exist(void **state) {
  (void)state;
  enum { CHUNK = 64, MANY = 4000 };
  const int64_t more = workspace_of(CHUNK, 8 * CHUNK, MANY) - workspace_of(CHUNK, 2 * CHUNK, MANY);
  assert_in_range(more, 0, 32 * 6 * CHUNK);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(forward_matches),
                                     TEST(gradients_match),
                                     TEST(one_pass_makes_loss_and_gradients),
                                     TEST(a_bias_is_added_to_logits),
                                     TEST(a_bias_has_its_gradient),
                                     TEST(one_pass_has_the_bits_of_two),
                                     TEST(parts_of_the_classes_have_their_gradients),
                                     TEST(wrong_targets_are_reported),
                                     TEST(only_the_logits_of_a_chunk_exist)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
