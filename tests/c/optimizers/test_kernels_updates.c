/* test_kernels_updates.c - Lion compared with its formula in double, norms of groups, clipping by value, and updates of
 * many parameters in one launch, also with copies of weights in bf16. */
#include "base/numbers/bf16.h"
#include "kernels/clip.h"
#include "kernels/formats/moments.h"
#include "tests/c/support/optimizer_case.h"

static void lion_matches(void **state) {
  (void)state;
  const double lr = 0.02, lr_scale = 0.5, decay = 0.1, beta1 = 0.9, beta2 = 0.99;
  FOR_EACH(n, sizes)
  for (int threads = 1; threads <= TEAM; threads += 2) {
    kernel_case c = optimizer_case(MS_OP_lion, n, 1, n);
    c.call.attrs =
        (ms_op_attrs){.update = {.lr_scale = lr_scale, .weight_decay = decay, .beta1 = beta1, .beta2 = beta2}};
    double *p = calloc((size_t)(2 * n + 1), sizeof *p), *m = p + n;
    for (int64_t i = 0; i < n; i++) p[i] = output_at(&c, 0, i);
    for (int step = 1; step <= STEPS; step++) {
      new_gradient(&c, step);
      if (n) set_input(&c, 0, n / 2, 0.0);
      c.scalars.lr = lr / step;
      run_once(&c, c.call, threads);
      const double rate = lr / step * lr_scale;
      for (int64_t i = 0; i < n; i++) {
        const double g = 0.5 * input_at(&c, 0, i), direction = beta1 * m[i] + (1.0 - beta1) * g;
        p[i] = p[i] * (1.0 - rate * decay) - rate * ((direction > 0) - (direction < 0));
        m[i] = beta2 * m[i] + (1.0 - beta2) * g;
        if (fabs(direction) > 1e-6 || direction == 0) assert_output(&c, 0, i, p[i], 1e-6);
        p[i] = output_at(&c, 0, i); /* a direction that rounding decides has the kernel's sign */
        assert_output(&c, 1, i, m[i], 1e-6);
      }
    }
    free(p);
    free_case(&c);
  }
}

static void totals_and_norms_of_groups(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_step_totals);
  c.call.attrs = (ms_op_attrs){.step = {.replicas = 2, .groups = 3}};
  add_input(&c, SHAPE(MS_F32, 6));
  add_input(&c, SHAPE(MS_F32, 1));
  add_output(&c, SHAPE(MS_F32, 4));
  for (int i = 0; i < 6; i++) set_input(&c, 0, i, i);
  set_input(&c, 1, 0, 7.0);
  run_case(&c);
  for (int g = 0; g < 3; g++) assert_output(&c, 0, g, (4.0 * g + 1.0) / 2.0, 1e-7);
  assert_output(&c, 0, 3, 7.0, 0.0);
  free_case(&c);
  for (int group = 0; group <= 3; group++) {
    static const double norm[] = {13.0, 3.0, 4.0, 12.0};
    kernel_case n = case_of(MS_OP_step_norm);
    n.call.attrs = (ms_op_attrs){.step = {.ranks = 1, .groups = 3, .group = group, .max_norm = 3.5}};
    n.scalars.micro_batches = 1;
    add_input(&n, SHAPE(MS_F32, 4));
    add_output(&n, SHAPE(MS_F32, 4));
    for (int g = 0; g < 3; g++) set_input(&n, 0, g, norm[g + 1] * norm[g + 1]);
    set_input(&n, 0, 3, 7.0);
    run_case(&n);
    assert_output(&n, 0, 0, 7.0, 0.0);
    assert_output(&n, 0, 1, norm[group], 1e-7);
    assert_output(&n, 0, 2, fmin(1.0, 3.5 / (norm[group] + 1e-6)), 1e-7);
    free_case(&n);
  }
}

/* Gradients beyond the limit count as the limit, and those that are not a number stay so. */
static void gradients_are_clipped_by_value(void **state) {
  (void)state;
  enum { N = 9 };
  static const int ops[] = {MS_OP_adamw, MS_OP_sgd, MS_OP_lion, MS_OP_muon_momentum};
  FOR_EACH(op, ops)
  for (int clipped = 0; clipped < 2; clipped++) {
    kernel_case c[2];
    for (int by_hand = 0; by_hand < 2; by_hand++) {
      c[by_hand] = optimizer_case(op, N, op == MS_OP_adamw ? 2 : 1, N);
      c[by_hand].call.attrs =
          (ms_op_attrs){.update = {.lr_scale = 0.9, .beta1 = 0.5, .beta2 = 0.5, .momentum = 0.5, .dampening = 0.5}};
      if (op == MS_OP_muon_momentum) c[by_hand].call.inputs = 2;
      if (clipped && !by_hand) c[by_hand].call.attrs.update.clip = 0.25;
      for (int i = 0; i < N; i++) {
        const double g = i == N - 1 ? NAN : 0.5 * i - 1.75,
                     limit = clipped && by_hand ? 0.5 : INFINITY; /* factor 0.5 */
        set_input(&c[by_hand], 0, i, i == N - 1 ? g : fmax(-limit, fmin(limit, g)));
      }
      run_once(&c[by_hand], c[by_hand].call, 1);
    }
    for (int o = 0; o < c[0].call.outputs; o++)
      for (int i = 0; i < N; i++) {
        const double a = output_at(&c[0], o, i), b = output_at(&c[1], o, i);
        assert_true(i == N - 1 ? isnan(a) && isnan(b) : a == b);
      }
    for (int by_hand = 0; by_hand < 2; by_hand++) {
      c[by_hand].call.inputs = 3;
      free_case(&c[by_hand]);
    }
  }
}

/* ---- weights in bf16, too ---- */

static void add_copy(kernel_case *c) {
  const int at = c->call.outputs;
  add_output(c, SHAPE(MS_BF16, ms_numel(&c->call.out[0])));
  memset(c->call.out_data[at], 0xff, (size_t)tensor_bytes(&c->call.out[at]));
}

/* An optimizer whose moments have a form (kernels/formats/moments.h), or SGD without momentum (-1). */
static kernel_case update_of(int op, int form, int64_t n) {
  const int records = form == 2;
  kernel_case c = optimizer_case(op, n, 0, 0);
  for (int m = 0; m < (op == MS_OP_adamw ? 2 : 1); m++) {
    const int at = c.call.outputs;
    add_output(&c, records ? SHAPE(MS_I32, ms_moment_words(n)) : SHAPE(form == 1 ? MS_BF16 : MS_F32, form < 0 ? 0 : n));
    memset(c.call.out_data[at], 0, (size_t)tensor_bytes(&c.call.out[at]));
  }
  c.call.attrs = (ms_op_attrs){.update = {.lr_scale = 0.5,
                                          .weight_decay = 0.1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.99,
                                          .eps = 1e-8,
                                          .momentum = form < 0 ? 0 : 0.9,
                                          .dampening = 0.99,
                                          .stream = 77,
                                          .first = 5,
                                          .moments = op == MS_OP_sgd ? 0 : form}};
  return c;
}

/* The copy is the new weights, rounded; everything else has the bits that it has without one. */
static void a_copy_is_the_weights_rounded(void **state) {
  (void)state;
  static const struct {
    int op, form;
  } updates[] = {{MS_OP_adamw, 0}, {MS_OP_adamw, 1}, {MS_OP_adamw, 2}, {MS_OP_lion, 0},
                 {MS_OP_lion, 1},  {MS_OP_sgd, 0},   {MS_OP_sgd, -1}};
  FOR_EACH(n, sizes)
  for (size_t u = 0; u < sizeof updates / sizeof *updates; u++) {
    kernel_case plain = update_of(updates[u].op, updates[u].form, n),
                with = update_of(updates[u].op, updates[u].form, n);
    add_copy(&with);
    const int copy = plain.call.outputs;
    for (int step = 1; step <= STEPS; step++) {
      kernel_case *both[] = {&plain, &with};
      for (int i = 0; i < 2; i++) {
        new_gradient(both[i], step);
        set_input(both[i], 2, 0, step);
        both[i]->scalars.lr = 0.02;
        run_once(both[i], both[i]->call, TEAM);
      }
      assert_same_outputs(&plain, with.call.out_data, 0, "with a copy");
      for (int64_t i = 0; i < n; i++)
        assert_int_equal(((uint16_t *)with.call.out_data[copy])[i],
                         ms_f32_to_bf16(((float *)with.call.out_data[0])[i]));
    }
    free_case(&plain);
    free_case(&with);
  }
}

/* ---- many parameters in one launch ---- */

#ifdef MS_TEST_CUDA
static const int64_t lengths[] = {1, 768, 8192, 8193, 5, 20001, 300};

/* Parameters of any size, moments in f32, bf16 and records, rules, and places in the Philox stream. */
static kernel_case adamw_of_many(int i) {
  const int kinds = i < 45 ? 0 : i % 3;
  const int64_t n = lengths[i % 7], words = ms_moment_words(n);
  const double eps = i % 4 == 2 ? 1e-6 : 1e-8, beta2 = i % 3 == 1 ? 0.95 : 0.99;
  kernel_case c = optimizer_case(MS_OP_adamw, n, 0, 0);
  c.call.attrs = (ms_op_attrs){.update = {.stream = 77 + i,
                                          .first = 4 * i + i % 2,
                                          .moments = kinds,
                                          .coupled = i % 5 == 3,
                                          .lr_scale = 1.0 / (1 + i),
                                          .weight_decay = 0.01 * i,
                                          .beta1 = 0.9,
                                          .beta2 = beta2}};
  c.call.attrs.update.eps = eps;
  for (int m = 1; m <= 2; m++) {
    add_output(&c, kinds == 2 ? SHAPE(MS_I32, words) : SHAPE(kinds ? MS_BF16 : MS_F32, n));
    memset(c.call.out_data[m], 0, (size_t)tensor_bytes(&c.call.out[m]));
  }
  set_input(&c, 2, 0, 1 + i);
  if (i % 3 == 2) add_copy(&c);
  return c;
}

static kernel_case lion_of_many(int i) {
  const int64_t n = lengths[i % 7];
  kernel_case c = optimizer_case(MS_OP_lion, n, 0, 0);
  c.call.attrs = (ms_op_attrs){.update = {.stream = 77 + i,
                                          .first = 4 * i + i % 2,
                                          .moments = i >= 45 && i % 2,
                                          .lr_scale = 1.0 / (1 + i),
                                          .weight_decay = 0.01 * i,
                                          .beta1 = 0.9,
                                          .beta2 = i % 3 == 1 ? 0.95 : 0.99}};
  add_output(&c, SHAPE(c.call.attrs.update.moments ? MS_BF16 : MS_F32, n));
  memset(c.call.out_data[1], 0, (size_t)tensor_bytes(&c.call.out[1]));
  set_input(&c, 2, 0, 1 + i);
  if (i % 3 == 2) add_copy(&c);
  return c;
}

/* With momentum and without, in the first update and later. */
static kernel_case sgd_of_many(int i) {
  const int64_t n = lengths[i % 7];
  const double momentum = i >= 45 && i % 2 ? 0.0 : i % 3 ? 0.9 : 0.5;
  kernel_case c = optimizer_case(MS_OP_sgd, n, 1, momentum == 0.0 ? 0 : n);
  c.call.attrs = (ms_op_attrs){.update = {.nesterov = i % 4 == 3,
                                          .lr_scale = 1.0 / (1 + i),
                                          .weight_decay = 0.01 * i,
                                          .momentum = momentum,
                                          .dampening = 0.1}};
  for (int64_t e = 0; e < ms_numel(&c.call.out[1]); e++) set_element(c.call.out_data[1], MS_F32, e, 0.25 * (e % 5));
  set_input(&c, 2, 0, 1 + i % 3);
  if (i % 3 == 2) add_copy(&c);
  return c;
}

static void updates_together_have_the_bits_of_each_alone(kernel_case (*one_of_many)(int)) {
  kernel_case alone[MS_RUN_TOGETHER], together[MS_RUN_TOGETHER];
  ms_kernel_call calls[MS_RUN_TOGETHER];
  for (int i = 0; i < MS_RUN_TOGETHER; i++) {
    alone[i] = one_of_many(i);
    together[i] = one_of_many(i);
    run_once(&alone[i], alone[i].call, 1);
    calls[i] = together[i].call;
    calls[i].scalars = &together[i].scalars;
  }
  run_together(calls, MS_RUN_TOGETHER);
  for (int i = 0; i < MS_RUN_TOGETHER; i++) {
    assert_same_outputs(&alone[i], together[i].call.out_data, 0, "together");
    free_case(&alone[i]);
    free_case(&together[i]);
  }
}

static void parameters_updated_together_have_the_bits_of_each_alone(void **state) {
  (void)state;
  updates_together_have_the_bits_of_each_alone(adamw_of_many);
  updates_together_have_the_bits_of_each_alone(lion_of_many);
  updates_together_have_the_bits_of_each_alone(sgd_of_many);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(lion_matches),
      TEST(totals_and_norms_of_groups),
      TEST(gradients_are_clipped_by_value),
      TEST(a_copy_is_the_weights_rounded),
#ifdef MS_TEST_CUDA
      TEST(parameters_updated_together_have_the_bits_of_each_alone),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
