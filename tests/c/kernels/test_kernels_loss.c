/* test_kernels_loss.c - compares cross entropy, forward and backward, with its definition in double, and both in one
 * pass with the two, bit for bit. */
#include "tests/c/support/kernel_case.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "graph/graph.h"

static const int64_t class_counts[] = {1, 2, 17, 256, 1300};

enum { IGNORED = -100, LOGITS = 0, TARGETS = 1 };

static kernel_case forward_case(int dtype, int64_t rows, int64_t classes) {
  kernel_case c = case_of(MS_OP_cross_entropy);
  c.call.attrs.loss.ignore_index = IGNORED;
  add_input(&c, SHAPE(dtype, rows, classes));
  add_input(&c, SHAPE(MS_I32, rows));
  add_output(&c, SCALAR(MS_F32));
  add_output(&c, SHAPE(MS_F32, rows));
  add_output(&c, SCALAR(MS_F32));
  for (int64_t i = 0; i < rows * classes; i++) set_input(&c, LOGITS, i, 4 * input_at(&c, LOGITS, i));
  for (int64_t r = 0; r < rows; r++) set_input(&c, TARGETS, r, r % 5 == 3 ? IGNORED : (double)(r * 31 % classes));
  return c;
}

static double reference_lse(const kernel_case *c, int64_t row, int64_t classes) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < classes; i++) largest = fmax(largest, input_at(c, LOGITS, row * classes + i));
  for (int64_t i = 0; i < classes; i++) sum += exp(input_at(c, LOGITS, row * classes + i) - largest);
  return largest + log(sum);
}

/* A case of the gradient, with forward's inputs and results. */
static kernel_case backward_case(const kernel_case *forward, int64_t rows, int64_t classes, double dloss) {
  kernel_case c = case_of(MS_OP_cross_entropy_backward);
  c.call.attrs.loss.ignore_index = IGNORED;
  add_input(&c, SHAPE(forward->call.in[0].dtype, rows, classes));
  add_input(&c, SHAPE(MS_I32, rows));
  add_input(&c, SHAPE(MS_F32, rows));
  add_input(&c, SCALAR(MS_F32));
  add_input(&c, SCALAR(MS_F32));
  add_output(&c, SHAPE(forward->call.in[0].dtype, rows, classes));
  for (int64_t i = 0; i < rows * classes; i++) set_input(&c, LOGITS, i, input_at(forward, LOGITS, i));
  for (int64_t r = 0; r < rows; r++)
    set_input(&c, TARGETS, r, input_at(forward, TARGETS, r)), set_input(&c, 2, r, output_at(forward, 1, r));
  set_input(&c, 3, 0, output_at(forward, 2, 0));
  set_input(&c, 4, 0, dloss);
  return c;
}

static void check_cross_entropy(int dtype, int64_t rows, int64_t classes) {
  kernel_case c = forward_case(dtype, rows, classes);
  double loss = 0, count = 0;
  run_case(&c);
  for (int64_t r = 0; r < rows; r++) {
    double lse = reference_lse(&c, r, classes), target = input_at(&c, TARGETS, r);
    assert_output(&c, 1, r, lse, 1e-6);
    if (target == IGNORED) continue;
    loss += lse - input_at(&c, LOGITS, r * classes + (int64_t)target);
    count++;
  }
  assert_output(&c, 0, 0, loss / count, 1e-6);
  assert_true(output_at(&c, 2, 0) == count);
  kernel_case b = backward_case(&c, rows, classes, 1.5);
  run_case(&b);
  for (int64_t r = 0; r < rows; r++) {
    const double lse = reference_lse(&c, r, classes), target = input_at(&c, TARGETS, r);
    for (int64_t i = 0; i < classes; i++) {
      double p = exp(input_at(&c, LOGITS, r * classes + i) - lse);
      double expected = target == IGNORED ? 0 : 1.5 / count * (p - (i == (int64_t)target));
      double actual = output_at(&b, 0, r * classes + i);
      double size = i == (int64_t)target ? 1 : p + 1e-3; /* the magnitude that f32 rounds before 1 is subtracted */
      if (fabs(actual - expected) > (dtype == MS_BF16 ? 4e-3 : 0) * fabs(expected) + 1e-5 * size / count)
        fail_msg("row %d, class %d: %.9g instead of %.9g", (int)r, (int)i, actual, expected);
    }
  }
  free_case(&b);
  free_case(&c);
}

static void cross_entropy_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof class_counts / sizeof *class_counts; i++) {
      check_cross_entropy(dtype, 1, class_counts[i]);
      if (!too_large(333 * class_counts[i])) check_cross_entropy(dtype, 333, class_counts[i]);
    }
}

/* ---- both in one pass ---- */

/* cross_entropy_step of forward's inputs; `classes` of a row's `columns` count. */
static kernel_case step_case(const kernel_case *forward, int64_t rows, int64_t columns, double dloss) {
  kernel_case c = case_of(MS_OP_cross_entropy_step);
  c.call.attrs = forward->call.attrs;
  add_input(&c, SHAPE(forward->call.in[0].dtype, rows, columns));
  add_input(&c, SHAPE(MS_I32, rows));
  add_input(&c, SCALAR(MS_F32));
  add_input(&c, SCALAR(MS_F32));
  add_output(&c, SHAPE(forward->call.in[0].dtype, rows, columns));
  add_output(&c, SCALAR(MS_F32));
  for (int64_t i = 0; i < rows * columns; i++) set_input(&c, LOGITS, i, input_at(forward, LOGITS, i));
  for (int64_t r = 0; r < rows; r++) set_input(&c, TARGETS, r, input_at(forward, TARGETS, r));
  set_input(&c, 2, 0, output_at(forward, 2, 0));
  set_input(&c, 3, 0, dloss);
  return c;
}

static void check_step(int dtype, int64_t rows, int64_t columns, int64_t classes) {
  kernel_case c = forward_case(dtype, rows, columns);
  c.call.attrs.loss.classes = classes;
  for (int64_t r = 0; r < rows; r++)
    if (input_at(&c, TARGETS, r) >= 0) set_input(&c, TARGETS, r, (double)(r * 31 % (classes ? classes : columns)));
  run_case(&c);
  kernel_case b = backward_case(&c, rows, columns, 1.5), step = step_case(&c, rows, columns, 1.5);
  b.call.attrs.loss.classes = classes;
  run_case(&b);
  run_case(&step);
  assert_true(output_at(&step, 1, 0) == output_at(&c, 0, 0));
  for (int64_t i = 0; i < rows * columns; i++)
    if (output_at(&step, 0, i) != output_at(&b, 0, i))
      fail_msg("%s [%d,%d], element %d: %.9g instead of %.9g", ms_dtype_name(dtype), (int)rows, (int)columns, (int)i,
               output_at(&step, 0, i), output_at(&b, 0, i));
  free_case(&c);
  free_case(&b);
  free_case(&step);
}

/* Rows of any alignment; long ones, of which a block of a GPU keeps the first in shared memory, and not the last. */
static void loss_and_gradient_of_one_pass_are_those_of_two(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes) {
    FOR_EACH(classes, class_counts) check_step(dtype, 37, classes, 0);
    check_step(dtype, 37, 1301, 1024);
    check_step(dtype, 3, 40001, 40000);
    check_step(dtype, 3, 90001, 90000);
  }
}

static void a_step_reports_wrong_targets_and_ignores_all(void **state) {
  (void)state;
  kernel_case c = forward_case(MS_F32, 9, 40);
  run_case(&c);
  kernel_case step = step_case(&c, 9, 40, 1.0);
  set_input(&step, TARGETS, 4, 40);
  assert_fails(run_status(&step, 1), MS_EINVAL, TOLD("40 | row 4 | [0,40)", "40 | [0,40)"));
  for (int r = 0; r < 9; r++) set_input(&step, TARGETS, r, IGNORED);
  set_input(&step, 2, 0, 0);
  run_case(&step);
  assert_true(output_at(&step, 1, 0) == 0);
  for (int i = 0; i < 360; i++) assert_true(output_at(&step, 0, i) == 0);
  free_case(&step);
  free_case(&c);
}

static void targets_are_counted(void **state) {
  (void)state;
  static const int64_t counts[] = {1, 37, 5000};
  FOR_EACH(n, counts) {
    kernel_case c = case_of(MS_OP_count_targets);
    c.call.attrs.loss.ignore_index = IGNORED;
    add_input(&c, SHAPE(MS_I32, n));
    add_output(&c, SCALAR(MS_F32));
    for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, i % 5 == 3 ? IGNORED : (double)i);
    run_case(&c);
    assert_true(output_at(&c, 0, 0) == (double)(n - (n + 1) / 5));
    free_case(&c);
  }
}

static void extreme_logits(void **state) {
  (void)state;
  kernel_case c = forward_case(MS_F32, 3, 700);
  for (int64_t i = 0; i < 700; i++) {
    set_input(&c, LOGITS, i, i == 600 ? 3e38 : -3e38);
    set_input(&c, LOGITS, 700 + i, i < 650 ? -INFINITY : 1.0);
    set_input(&c, LOGITS, 1400 + i, -1000.0);
  }
  set_input(&c, TARGETS, 0, 600), set_input(&c, TARGETS, 1, 699), set_input(&c, TARGETS, 2, 5);
  run_case(&c);
  assert_output(&c, 1, 0, 3e38, 1e-6);
  assert_output(&c, 1, 1, 1 + log(50), 1e-6);
  assert_output(&c, 1, 2, -1000 + log(700), 1e-6);
  assert_output(&c, 0, 0, (log(50) + log(700)) / 3, 1e-5);
  free_case(&c);
}

static void everything_ignored(void **state) {
  (void)state;
  kernel_case c = forward_case(MS_F32, 4, 9);
  for (int r = 0; r < 4; r++) set_input(&c, TARGETS, r, IGNORED);
  run_case(&c);
  assert_true(output_at(&c, 0, 0) == 0 && output_at(&c, 2, 0) == 0);
  kernel_case b = backward_case(&c, 4, 9, 1.0);
  run_case(&b);
  for (int i = 0; i < 36; i++) assert_true(output_at(&b, 0, i) == 0);
  free_case(&b);
  free_case(&c);
}

static void nan_reaches_the_loss(void **state) {
  (void)state;
  for (int where = 0; where < 3; where++) {
    kernel_case c = forward_case(MS_BF16, 40, 600);
    set_input(&c, LOGITS, 600 * 7 + (int64_t[]){0, 300, 599}[where], NAN);
    run_case(&c);
    assert_true(isnan(output_at(&c, 0, 0)) && isnan(output_at(&c, 1, 7)) && !isnan(output_at(&c, 1, 8)));
    kernel_case b = backward_case(&c, 40, 600, 1.0);
    run_case(&b);
    for (int i = 0; i < 600; i++) assert_true(isnan(output_at(&b, 0, 600 * 7 + i)));
    free_case(&b);
    free_case(&c);
  }
}

/* The workspace of an op's kernel for these rows and classes, and the outputs that its row in the op table declares. */
static int64_t wants(int op, int dtype, int64_t rows, int64_t classes, int64_t *outputs) {
  kernel_case forward = forward_case(dtype, rows, classes);
  kernel_case c = op == MS_OP_cross_entropy ? forward : backward_case(&forward, rows, classes, 1.0);
  const ms_node node = {.op = op, .attrs = c.call.attrs};
  ms_value_info out[MS_MAX_OUTPUTS] = {{0}};
  const ms_kernel *kernel = kernel_of(op);
  must(ms_op_row_of(op)->infer(&node, c.call.in, out));
  *outputs = 0;
  for (int i = 0; i < c.call.outputs; i++) *outputs += tensor_bytes(&out[i]);
  if (kernel->prepare) must(kernel->prepare(&c.call));
  if (kernel->release) kernel->release(c.call.prepared);
  const int64_t workspace = c.call.workspace_bytes;
  if (op != MS_OP_cross_entropy) free_case(&c);
  free_case(&forward);
  return workspace;
}

/* Only the gradient of the logits grows with the number of classes, and it can overwrite the logits. */
static void probabilities_are_never_stored(void **state) {
  (void)state;
  enum { ROWS = 16, FEW = 40, MANY = 5000 };
  FOR_EACH(dtype, dtypes) {
    int64_t few, many;
    assert_int_equal(wants(MS_OP_cross_entropy, dtype, ROWS, FEW, &few),
                     wants(MS_OP_cross_entropy, dtype, ROWS, MANY, &many));
    assert_int_equal(few, many);
    assert_int_equal(wants(MS_OP_cross_entropy_backward, dtype, ROWS, FEW, &few),
                     wants(MS_OP_cross_entropy_backward, dtype, ROWS, MANY, &many));
    assert_int_equal(many, ROWS * MANY * ms_dtype_size(dtype));
    assert_true(kernel_of(MS_OP_cross_entropy_backward)->in_place & MS_OVER(0, LOGITS));
  }
}

/* The same rows followed by padding of NaN: nothing reads it, and its gradient is zero. */
static void padding_has_no_part(void **state) {
  (void)state;
  enum { ROWS = 33, PADDED = 1300 };
  static const int64_t counts[] = {1, 257, 1024, 1299};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_EACH(classes, counts) {
      kernel_case plain = forward_case(dtype, ROWS, classes), padded = forward_case(dtype, ROWS, PADDED);
      padded.call.attrs.loss.classes = classes;
      for (int64_t r = 0; r < ROWS; r++) {
        set_input(&padded, TARGETS, r, input_at(&plain, TARGETS, r));
        for (int64_t i = 0; i < PADDED; i++)
          set_input(&padded, LOGITS, r * PADDED + i, i < classes ? input_at(&plain, LOGITS, r * classes + i) : NAN);
      }
      run_case(&plain);
      run_case(&padded);
      for (int64_t r = 0; r < ROWS; r++) assert_output(&padded, 1, r, output_at(&plain, 1, r), 1e-6);
      assert_output(&padded, 0, 0, output_at(&plain, 0, 0), 1e-6);
      kernel_case b = backward_case(&plain, ROWS, classes, 1.5), back = backward_case(&padded, ROWS, PADDED, 1.5);
      back.call.attrs.loss.classes = classes;
      run_case(&b);
      run_case(&back);
      for (int64_t r = 0; r < ROWS; r++)
        for (int64_t i = 0; i < PADDED; i++)
          if (i < classes) assert_output(&back, 0, r * PADDED + i, output_at(&b, 0, r * classes + i), 1e-6);
          else assert_true(output_at(&back, 0, r * PADDED + i) == 0);
      set_input(&padded, TARGETS, 5, (double)classes);
      assert_fails(run_status(&padded, 1), MS_EINVAL, "[0,");
      free_case(&plain);
      free_case(&padded);
      free_case(&b);
      free_case(&back);
    }
}

/* A case of an op of loss parallelism: columns [first, first + part) of the logits, and the same targets. */
static kernel_case part_case(const kernel_case *whole, int op, int64_t rows, int64_t parts, int64_t part,
                             int64_t first) {
  kernel_case c = case_of(op);
  const int64_t stride = parts * part;
  c.call.attrs = (ms_op_attrs){.loss = {.ignore_index = IGNORED,
                                        .parts = parts,
                                        .dim = 3,
                                        .first = first,
                                        .classes = whole->call.attrs.loss.classes}};
  add_input(&c, SHAPE(whole->call.in[0].dtype, rows, part));
  add_input(&c, SHAPE(MS_I32, rows));
  for (int64_t i = 0; i < rows * part; i++)
    set_input(&c, LOGITS, i, input_at(whole, LOGITS, i / part * stride + first + i % part));
  for (int64_t r = 0; r < rows; r++) set_input(&c, TARGETS, r, input_at(whole, TARGETS, r));
  return c;
}

/* Parts of the classes: what they add makes the loss of all, and backward's results are parts of its gradient. A part
 * can be padding altogether. */
static void check_parts(int dtype, int64_t classes) {
  enum { ROWS = 37, PARTS = 3, PART = 19, ALL = PARTS * PART };
  kernel_case whole = forward_case(dtype, ROWS, ALL);
  whole.call.attrs.loss.classes = classes;
  for (int64_t r = 0; r < ROWS; r++)
    if (input_at(&whole, TARGETS, r) >= 0) set_input(&whole, TARGETS, r, (double)(r * 31 % (classes ? classes : ALL)));
  run_case(&whole);
  kernel_case gradient = backward_case(&whole, ROWS, ALL, 1.5);
  gradient.call.attrs.loss.classes = classes;
  run_case(&gradient);
  kernel_case join = part_case(&whole, MS_OP_cross_entropy_join, ROWS, PARTS, PART, 0);
  add_input(&join, SHAPE(MS_F32, PARTS, ROWS, 2));
  add_output(&join, SCALAR(MS_F32));
  add_output(&join, SHAPE(MS_F32, ROWS));
  add_output(&join, SCALAR(MS_F32));
  for (int64_t p = 0; p < PARTS; p++) {
    kernel_case adds = part_case(&whole, MS_OP_cross_entropy_part, ROWS, PARTS, PART, p * PART);
    add_output(&adds, SHAPE(MS_F32, 1, ROWS, 2));
    run_case(&adds);
    for (int64_t i = 0; i < 2 * ROWS; i++) set_input(&join, 2, 2 * p * ROWS + i, output_at(&adds, 0, i));
    kernel_case own = part_case(&whole, MS_OP_cross_entropy_backward, ROWS, PARTS, PART, p * PART);
    for (int i = 2; i < 5; i++) add_input(&own, gradient.call.in[i]);
    for (int64_t r = 0; r < ROWS; r++) set_input(&own, 2, r, output_at(&whole, 1, r));
    set_input(&own, 3, 0, output_at(&whole, 2, 0));
    set_input(&own, 4, 0, 1.5);
    add_output(&own, SHAPE(dtype, ROWS, PART));
    run_case(&own);
    for (int64_t i = 0; i < ROWS * PART; i++)
      assert_output(&own, 0, i, output_at(&gradient, 0, i / PART * ALL + p * PART + i % PART), 1e-6);
    free_case(&adds);
    free_case(&own);
  }
  run_case(&join);
  for (int64_t r = 0; r < ROWS; r++) assert_output(&join, 1, r, output_at(&whole, 1, r), 1e-6);
  assert_output(&join, 0, 0, output_at(&whole, 0, 0), 1e-6);
  assert_true(output_at(&join, 2, 0) == output_at(&whole, 2, 0));
  set_input(&join, TARGETS, 5, (double)(classes ? classes : ALL));
  assert_fails(run_status(&join, 1), MS_EINVAL, "[0,");
  free_case(&whole);
  free_case(&gradient);
  free_case(&join);
}

static void parts_of_the_classes_make_the_whole(void **state) {
  static const int64_t counts[] = {0, 50, 18};
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) FOR_EACH(classes, counts) check_parts(dtype, classes);
}

static void wrong_targets_are_reported(void **state) {
  (void)state;
  for (int threads = 1; threads <= TEAM; threads += 2) {
    kernel_case c = forward_case(MS_F32, 1000, 256);
    set_input(&c, TARGETS, 900, -1);
    assert_fails(run_status(&c, threads), MS_EINVAL,
                 TOLD("-1 | row 900 | [0,256) | ignore_index | -100", "-1 | [0,256)"));
    set_input(&c, TARGETS, 900, 5);
    set_input(&c, TARGETS, 17, 256);
    assert_fails(run_status(&c, threads), MS_EINVAL, TOLD("256 | row 17 | [0,256)", "256 | [0,256)"));
    free_case(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(cross_entropy_matches),
                                     TEST(padding_has_no_part),
                                     TEST(parts_of_the_classes_make_the_whole),
                                     TEST(loss_and_gradient_of_one_pass_are_those_of_two),
                                     TEST(a_step_reports_wrong_targets_and_ignores_all),
                                     TEST(targets_are_counted),
                                     TEST(extreme_logits),
                                     TEST(everything_ignored),
                                     TEST(nan_reaches_the_loss),
                                     TEST(wrong_targets_are_reported),
                                     TEST(probabilities_are_never_stored)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
