/* test_plan_reuse.c - what plans of one graph, and of one process, have in common: it is made once, and it changes no plan.
*/
#include "tests/c/support/planned.h"

#include <stdlib.h>

#include "kernels/cpu/shared.h"
#include "plan/kept.h"

/* ---- what is shared ---- */

static int freed;

static int make_number(const void *key, void **object) {
  int *number = malloc(sizeof *number);
  assert_non_null(number);
  memcpy(number, key, sizeof *number);
  *object = number;
  return MS_OK;
}

static int make_nothing(const void *key, void **object) {
  (void)key;
  (void)object;
  return MS_FAIL(MS_ENOMEM, "nothing is made");
}

static void free_number(void *object) {
  freed++;
  free(object);
}

static void equal_keys_share_one_object(void **state) {
  (void)state;
  void *a, *b, *c;
  int64_t made = ms_shared_made();
  must(ms_shared_take(make_number, free_number, &(int){7}, sizeof(int), &a));
  must(ms_shared_take(make_number, free_number, &(int){7}, sizeof(int), &b));
  must(ms_shared_take(make_number, free_number, &(int){8}, sizeof(int), &c));
  assert_true(ms_shared_made() == made + 2);
  assert_ptr_equal(a, b);
  assert_ptr_not_equal(a, c);
  ms_shared_drop(a);
  assert_int_equal(freed, 0);
  assert_int_equal(*(int *)b, 7);
  ms_shared_drop(b);
  assert_int_equal(freed, 1);
  ms_shared_drop(c);
  assert_int_equal(freed, 2);
  ms_shared_drop(NULL);
  assert_fails(ms_shared_take(make_nothing, free_number, &(int){7}, sizeof(int), &a), MS_ENOMEM, "nothing is made");
  must(ms_shared_take(make_number, free_number, &(int){7}, sizeof(int), &a));
  assert_true(ms_shared_made() == made + 3);
  ms_shared_drop(a);
}

/* ---- plans ---- */

static ms_plan *compile(const mlp *net, const ms_plan_config *config) {
  ms_plan *plan;
  must(ms_plan_compile(net->graph, config, &plan));
  return plan;
}

/* Both as text, and what is prepared for them. */
static void assert_same_plan(ms_plan *a, ms_plan *b) {
  const char *text;
  must(ms_plan_dump(a, 1, &text));
  char *first = strdup(text);
  must(ms_plan_dump(b, 1, &text));
  assert_string_equal(first, text);
  assert_string_equal(a->manifest, b->manifest);
  assert_true(a->fingerprint == b->fingerprint);
  free(first);
}

static void set_reshard(const mlp *net, int reshard) {
  int units[16];
  for (int u = 0; u < net->model->units; u++) units[u] = reshard;
  must(ms_model_set_reshard(net->model, units, NULL));
}

static mlp_config network(void) {
  mlp_config c = mlp_default(2, 2, 0);
  c.blocks = 12;
  c.recompute = 1;
  c.block.param_dtype = c.root.param_dtype = MS_BF16;
  return c;
}

static void R4_a_changed_rule_prepares_nothing_anew(void **state) {
  (void)state;
  mlp_config c = network();
  mlp net = mlp_make(&c);
  ms_plan_config config = planned_config();
  ms_plan *before = compile(&net, &config);
  int64_t made = ms_shared_made();
  set_reshard(&net, MS_RESHARD_ALWAYS);
  ms_plan *after = compile(&net, &config);
  assert_true(before->fingerprint != after->fingerprint);
  assert_true(ms_shared_made() == made);
  ms_plan_free(before); /* what both share stays with the other */
  set_reshard(&net, MS_RESHARD_DEFAULT);
  ms_plan *again = compile(&net, &config);
  assert_true(ms_shared_made() == made);
  ms_plan_free(after);
  ms_plan_free(again);
  mlp_free(&net);
}

/* Layers repeat: a plan of twice the layers has no more kernels to prepare. */
static void equal_calls_of_a_plan_are_prepared_once(void **state) {
  (void)state;
  int prepared[2], kernels[2];
  for (int i = 0; i < 2; i++) {
    mlp_config c = network();
    c.blocks = i ? 6 : 3;
    ms_plan_config config = planned_config();
    planned p = plan_with(&c, &config);
    prepared[i] = p.plan->prepared.n;
    kernels[i] = p.plan->phase[MS_PHASE_FIRST].n;
    drop(&p);
  }
  assert_true(prepared[0] > 0 && kernels[1] > kernels[0]);
  assert_int_equal(prepared[0], prepared[1]);
}

/* Whatever was compiled of a graph before, its plan is that of a graph that was never compiled. */
static void R4_what_is_kept_changes_no_plan(void **state) {
  (void)state;
  static const int policies[] = {MS_RESHARD_DEFAULT, MS_RESHARD_KEEP, MS_RESHARD_ALWAYS};
  mlp_config c = network();
  mlp used = mlp_make(&c);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < 3; i++)
      for (int prefetch = 0; prefetch < 3; prefetch++) {
        ms_plan_config config = planned_config();
        config.prefetch = prefetch;
        config.fuse = i != 1;
        config.train = prefetch != 2;
        set_reshard(&used, policies[i]);
        mlp fresh = mlp_make(&c);
        set_reshard(&fresh, policies[i]);
        ms_plan *a = compile(&used, &config), *b = compile(&fresh, &config);
        assert_same_plan(a, b);
        ms_plan_free(a);
        ms_plan_free(b);
        mlp_free(&fresh);
      }
  mlp_free(&used);
}

static void a_graph_that_grows_is_compiled_anew(void **state) {
  (void)state;
  mlp_config c = network();
  mlp net = mlp_make(&c);
  ms_plan_config config = planned_config();
  ms_plan *before = compile(&net, &config);
  int doubled, values[2] = {net.graph->outputs[0].value, net.graph->outputs[0].value};
  must(ms_graph_op(net.graph, "add", 2, values, NULL, &doubled));
  must(ms_graph_output(net.graph, "doubled", doubled));
  ms_plan *after = compile(&net, &config);
  assert_int_equal(before->outputs, 1);
  assert_int_equal(after->outputs, 2);
  assert_true(after->output[1].at[MS_PHASE_EVALUATE].buffer >= 0);
  assert_true(after->output[1].at[MS_PHASE_FIRST].buffer >= 0);
  ms_plan_free(before);
  ms_plan_free(after);
  mlp_free(&net);
}

/* More shapes of arenas than are kept, each twice. */
static void many_packings_come_and_go(void **state) {
  (void)state;
  enum { SETS = 100 };
  mlp_config c = network();
  mlp net = mlp_make(&c);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < SETS; i++) {
      ms_packing_item item[2] = {{64 * (i + 1), 0, 1, 0}, {64, 1, 2, 0}};
      const int64_t *known = ms_kept_packing(net.graph, item, 2);
      assert_null(known);
      must(ms_kept_add_packing(net.graph, item, (int64_t[]){64, 64 * i}, 2));
      known = ms_kept_packing(net.graph, item, 2);
      assert_non_null(known);
      assert_true(known[0] == 64 && known[1] == 64 * i);
      item[1].last = 3;
      assert_null(ms_kept_packing(net.graph, item, 2));
      assert_null(ms_kept_packing(net.graph, item, 1));
    }
  mlp_free(&net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(equal_keys_share_one_object),
      TEST(R4_a_changed_rule_prepares_nothing_anew),
      TEST(equal_calls_of_a_plan_are_prepared_once),
      TEST(R4_what_is_kept_changes_no_plan),
      TEST(a_graph_that_grows_is_compiled_anew),
      TEST(many_packings_come_and_go),
  };
  return cmocka_run_group_tests_name("plan reuse", tests, NULL, NULL);
}
