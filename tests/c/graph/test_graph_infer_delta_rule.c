/* test_graph_infer_delta_rule.c - shapes of the gated delta rule and of its gradient, what they refuse, and their cost.
 */
#include "tests/c/graph/graph_attempt.h"

#include <math.h>

/* q and k [2,6,2,8], v [2,6,4,12] */
static void shapes_and_refusals(void **state) {
  (void)state;
  const int k = half(SHAPE(2, 6, 2, 8)), k3 = half(SHAPE(2, 6, 3, 8)), k5 = half(SHAPE(2, 5, 2, 8));
  const int v = half(SHAPE(2, 6, 4, 12)), number = tensor(SHAPE(2, 6, 4)), kept = tensor(SHAPE(2, 4, 8, 12));
  const int tokens = ints("tokens", SHAPE(2, 6)), few = ints("few", SHAPE(2, 5));
  int out[MS_MAX_OUTPUTS];
  apply(&f, MS_OP_gated_delta_rule, 6, (int[]){k, k, v, number, number, kept}, NULL, out);
  assert_value(out[0], MS_BF16, "[2,6,4,12]");
  assert_value(out[1], MS_F32, "[2,4,8,12]");
  apply(&f, MS_OP_gated_delta_rule_backward, 6, (int[]){k, k, v, number, number, v}, NULL, out);
  assert_value(out[1], MS_BF16, "[2,6,2,8]");
  assert_value(out[3], MS_F32, "[2,6,4]");
  apply(&f, MS_OP_document_gated_delta_rule, 6, (int[]){k, k, v, number, number, tokens}, NULL, out);
  assert_value(out[0], MS_BF16, "[2,6,4,12]");
  REFUSED(MS_OP_gated_delta_rule, NULL, MS_ESHAPE, "v | 4 heads | k | 3", k3, k3, v, number, number);
  REFUSED(MS_OP_gated_delta_rule, NULL, MS_ESHAPE, "k | [2,6,2,8] | v | [2,5,2,8]", k, k, k5, number, number);
  REFUSED(MS_OP_gated_delta_rule, NULL, MS_ESHAPE, "beta | [2,6,4,12] | [B,T,H]", k, k, v, number, v);
  REFUSED(MS_OP_gated_delta_rule, NULL, MS_ESHAPE, "state | [2,4,8,12] | [2,6,4]", k, k, v, number, number, number);
  REFUSED(MS_OP_gated_delta_rule, NULL, MS_EDTYPE, "k | bf16 | v | f32", k, k, kept, number, number);
  REFUSED(MS_OP_document_gated_delta_rule, NULL, MS_ESHAPE, "tokens | [2,5] | [B,T]", k, k, v, number, number, few);
}

/* A position of a head of 8 x 4: three products with its state, and half of two products of keys and two of values with
 * the 64 positions of its chunk. The gradient has twice as many operations. */
static void cost_grows_with_the_length(void **state) {
  (void)state;
  const double each = 3 * 2 * 8 * 4 + 64 * (2 * 8 + 2 * 4);
  for (int64_t t = 64; t <= 640; t += 576) {
    const ms_value_info k = {.dtype = MS_F32, .ndim = 4, .dims = {1, t, 2, 8}},
                        v = {.dtype = MS_F32, .ndim = 4, .dims = {1, t, 2, 4}},
                        g = {.dtype = MS_F32, .ndim = 3, .dims = {1, t, 2}};
    const ms_value_info in[6] = {k, k, v, g, g, v}, out[5] = {v, k, v, g, g};
    const ms_op_attrs attrs = {0};
    const ms_cost_case forward = {MS_OP_gated_delta_rule, &attrs, 5, 1, in, out},
                       backward = {MS_OP_gated_delta_rule_backward, &attrs, 6, 5, in, out};
    assert_true(fabs(ms_op_flops(&forward) / ((double)t * 2 * each) - 1) < 1e-12);
    assert_true(fabs(ms_op_flops(&backward) / ((double)t * 4 * each) - 1) < 1e-12);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(shapes_and_refusals),
      CASE(cost_grows_with_the_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
