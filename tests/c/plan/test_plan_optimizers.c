/* test_plan_optimizers.c - the table of optimizers: each has a program that can be lowered. */
#include "plan/optimizer.h"
#include "shard/param_group.h"
#include "tests/c/support/networks/planned.h"

/* Kernels have all inputs and outputs of their ops, sums and vectors name each other's buffers, and what goes to an
 * owner comes back. */
static void assert_program(const ms_optimizer *optimizer) {
  int vectors = 0, summed = 0, buffers = 0, ways = 0;
  for (const ms_update_vector *v = optimizer->vector; v && v->buffer; v++, vectors++)
    if (v->buffer > buffers) buffers = v->buffer;
  assert_in_range(vectors, 0, MS_VECTORS);
  for (const ms_update_step *s = optimizer->step; s->kind; s++) {
    if (s->kind == MS_STEP_SUM) assert_in_range(s->buffer, 1, buffers), summed++;
    if (s->kind == MS_STEP_TO_OWNER) assert_int_equal(++ways, 1);
    if (s->kind == MS_STEP_FROM_OWNER) assert_int_equal(ways++, 1);
    if (s->kind != MS_STEP_KERNEL && s->kind != MS_STEP_CONTRIBUTE) continue;
    const ms_op_row *op = ms_op_row_of(s->op);
    int inputs = 0, outputs = 0;
    while (inputs < op->max_inputs && s->in[inputs]) inputs++;
    while (outputs < op->outputs && s->out[outputs]) outputs++;
    assert_in_range(inputs, op->min_inputs, op->max_inputs);
    assert_int_equal(s->in[inputs], MS_OF_NOTHING);
    assert_int_equal(outputs, op->outputs);
  }
  assert_true(ways == 0 || (ways == 2 && optimizer->flops && !summed));
  assert_int_equal(summed > 0, vectors > 0);
}

static void every_optimizer_fits_its_ops(void **state) {
  (void)state;
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  int optimizers = 0;
  for (config.optimizer = -1; config.optimizer < 16; config.optimizer++) {
    const ms_optimizer *optimizer = ms_optimizer_of(&config);
    assert_int_equal(ms_plan_check_config(&config), optimizer || !config.optimizer ? MS_OK : MS_EINVAL);
    config.train = 1;
    assert_in_range(ms_optimizer_keeps(&config, MS_OPT_NONE).moments, 0, optimizer ? optimizer->moments : 0);
    config.train = 0;
    assert_int_equal(ms_optimizer_keeps(&config, MS_OPT_NONE).moments, 0);
    if (!optimizer) continue;
    optimizers++;
    assert_true(optimizer->moments <= MS_MOMENTS);
    const char *name = ms_optimizer_name(config.optimizer);
    assert_string_equal(optimizer->name, name);
    assert_program(optimizer);
    if (optimizer->step[1].kind) continue; /* several steps */
    assert_int_equal(ms_op_row_of(optimizer->step->op)->outputs, 1 + optimizer->moments);
    assert_string_equal(ms_op_row_of(optimizer->step->op)->name, config.optimizer == MS_OPT_ADAM ? "adamw" : name);
  }
  ms_error_clear();
  assert_int_equal(optimizers, 6);
  const ms_optimizer *others[] = {&ms_balance, &ms_ema, &ms_outer_difference, &ms_outer_step};
  for (int i = 0; i < 4; i++) assert_program(others[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_optimizer_fits_its_ops)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
