/* test_plan_passes.c - the passes of the compiler, what they report of a plan that grows, what a second plan of the
 * same graph takes from the first, and streams as many as a plan has.
 */
#include "tests/c/support/networks/planned.h"

#include <string.h>

static const char *const names[] = {"trace",    "divide",        "rewrite", "differentiate",  "rewrite backward",
                                    "regather", "rematerialize", "prune",   "fuse epilogues", "lower",
                                    "lay out",  "synchronize",   "verify",  "fingerprint"};
enum { DIFFERENTIATE = 3, FUSE_EPILOGUES = 8, LOWER = 9, LAY_OUT = 10, SYNCHRONIZE = 11 };

static void read_passes(const ms_plan *plan, ms_plan_pass *pass) {
  int n;
  must(ms_plan_list(plan, MS_PLAN_PASSES, pass, sizeof *pass, MS_COMPILER_PASSES, &n));
  assert_int_equal(n, MS_COMPILER_PASSES);
}

static void every_pass_is_named_and_begins_where_the_last_one_ended(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 1);
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  ms_plan_pass pass[MS_COMPILER_PASSES];
  ms_plan_summary summary;
  double ms = 0;
  read_passes(p.plan, pass);
  must(ms_plan_summarize(p.plan, &summary, sizeof summary));
  for (int i = 0; i < MS_COMPILER_PASSES; i++) {
    assert_string_equal(pass[i].name, names[i]);
    assert_int_equal(pass[i].cached, 0);
    ms += pass[i].ms;
    if (i == 0) continue;
    assert_int_equal(pass[i].nodes[0], pass[i - 1].nodes[1]);
    assert_int_equal(pass[i].instructions[0], pass[i - 1].instructions[1]);
    assert_int_equal(pass[i].events[0], pass[i - 1].events[1]);
    assert_int_equal(pass[i].buffers[0], pass[i - 1].buffers[1]);
    if (i != LAY_OUT) assert_true(pass[i].bytes[0] == pass[i - 1].bytes[1]);
  }
  assert_true(ms > 0 && ms <= summary.compile_ms);
  assert_int_equal(pass[0].nodes[0], 0);
  assert_int_equal(pass[0].nodes[1], 2 * p.net.graph->n_nodes);
  assert_true(pass[DIFFERENTIATE].nodes[1] > pass[DIFFERENTIATE].nodes[0]); /* backward */
  assert_int_equal(pass[LOWER].instructions[0], 0);
  assert_int_equal(pass[LAY_OUT].instructions[1], pass[LOWER].instructions[1]);
  assert_true(pass[LAY_OUT].bytes[1] < pass[LAY_OUT].bytes[0]);
  assert_true(pass[SYNCHRONIZE].events[1] > 0);
  assert_int_equal(pass[MS_COMPILER_PASSES - 1].instructions[1], summary.instructions);
  assert_true(pass[MS_COMPILER_PASSES - 1].bytes[1] == summary.peak_bytes);
  int n;
  ms_plan_pass one;
  must(ms_plan_list(p.plan, MS_PLAN_PASSES, &one, sizeof one, 1, &n));
  assert_fails(ms_plan_list(p.plan, MS_PLAN_PASSES, NULL, sizeof one, 1, &n), MS_EINVAL, "rows is NULL");
  assert_string_equal(one.name, "trace");
  assert_int_equal(n, MS_COMPILER_PASSES);
  drop(&p);
}

static void a_second_plan_takes_the_graphs_of_the_first_and_is_the_same(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 4, 0);
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  ms_plan *again;
  ms_plan_pass first[MS_COMPILER_PASSES], second[MS_COMPILER_PASSES];
  must(ms_plan_compile(p.net.graph, &config, &again));
  read_passes(p.plan, first);
  read_passes(again, second);
  for (int i = 0; i < MS_COMPILER_PASSES; i++) assert_int_equal(second[i].cached, i <= FUSE_EPILOGUES);
  assert_int_equal(second[0].nodes[0], first[FUSE_EPILOGUES].nodes[1]);
  assert_int_equal(second[LOWER].instructions[1], first[LOWER].instructions[1]);
  assert_true(again->fingerprint == p.plan->fingerprint);
  ms_free(again);
  config.fuse = 0; /* other graphs */
  must(ms_plan_compile(p.net.graph, &config, &again));
  read_passes(again, second);
  for (int i = 0; i < MS_COMPILER_PASSES; i++) assert_int_equal(second[i].cached, 0);
  ms_free(again);
  drop(&p);
}

/* Compiles the model on one mesh, then on another, whose graph takes what the first compilation left; returns whether
 * it did. The second plan must be the one that a compilation from the trace makes. */
static int takes(const mlp_config *c, const mlp_config *other) {
  ms_plan_config config = planned_config();
  planned p = plan_with(c, &config), fresh = plan_with(other, &config);
  mlp net = mlp_make(other);
  ms_plan *plan;
  ms_plan_pass pass[MS_COMPILER_PASSES];
  int taken, again;
  must(ms_graph_take_compiled(net.graph, p.net.graph, &taken));
  must(ms_graph_take_compiled(net.graph, p.net.graph, &again));
  assert_int_equal(again, 0);
  drop(&p); /* nothing that was taken belongs to the first model */
  must(ms_plan_compile(net.graph, &config, &plan));
  read_passes(plan, pass);
  for (int i = 0; i < MS_COMPILER_PASSES; i++) assert_int_equal(pass[i].cached, taken && i <= FUSE_EPILOGUES);
  assert_true(plan->fingerprint == fresh.plan->fingerprint);
  const char *text, *expected;
  must(ms_plan_dump(plan, 1, &text));
  must(ms_plan_dump(fresh.plan, 1, &expected));
  assert_string_equal(text, expected);
  ms_free(plan);
  mlp_free(&net);
  drop(&fresh);
  return taken;
}

static void a_graph_takes_the_graphs_of_one_that_is_alike_on_another_mesh(void **state) {
  (void)state;
  mlp_config a = mlp_default(1, 4, 0), b = mlp_default(2, 2, 3), c;
  assert_true(takes(&a, &b));
  assert_true(takes(&b, &a));
  b.block.reshard = MS_RESHARD_ALWAYS; /* lowering reads it */
  assert_true(takes(&a, &b));
  c = a;
  c.batch = 4;
  assert_false(takes(&a, &c));
  c = a;
  c.blocks = 2;
  assert_false(takes(&a, &c));
  c = a;
  c.frozen_block = 1;
  assert_false(takes(&a, &c));
  c = mlp_default(2, 1, 0);
  c.tensor = c.world = 2;
  c.replicate = 1;
  assert_false(takes(&a, &c));
  b = mlp_default(2, 1, 0);
  b.tensor = 2;
  b.world = 4;
  assert_true(takes(&b, &c));
}

static void what_cannot_be_taken_is_refused(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  mlp net = mlp_make(&c);
  int taken = 1;
  assert_fails(ms_graph_take_compiled(NULL, p.net.graph, &taken), MS_EINVAL, "graph is NULL");
  assert_fails(ms_graph_take_compiled(net.graph, p.net.graph, NULL), MS_EINVAL, "taken is NULL");
  must(ms_graph_take_compiled(p.net.graph, p.net.graph, &taken));
  assert_int_equal(taken, 0);
  must(ms_graph_take_compiled(p.net.graph, net.graph, &taken)); /* nothing was compiled */
  assert_int_equal(taken, 0);
  ms_model *unsharded;
  ms_graph *graph;
  must(ms_model_new(0, &unsharded));
  must(ms_graph_new(unsharded, &graph));
  assert_fails(ms_graph_take_compiled(graph, p.net.graph, &taken), MS_EINVAL, "ms_model_shard");
  ms_free(graph);
  ms_free(unsharded);
  mlp_free(&net);
  drop(&p);
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static void a_plan_has_the_streams_that_it_uses(void **state) {
  (void)state;
  static const int shapes[][3] = {{1, 1, 1}, {1, 2, 1 + MS_STREAM_REDUCE}, {2, 2, 1 + MS_STREAM_REPLICATE}};
  for (int i = 0; i < 3; i++) {
    mlp_config c = mlp_default(shapes[i][0], shapes[i][1], 0);
    ms_plan_config config = planned_config();
    config.shared_masters = 0;
    planned p = plan_with(&c, &config);
    int most = 0;
    for (int phase = 0; phase < MS_PHASES; phase++)
      for (int k = 0; k < p.plan->phase[phase].n; k++)
        if (p.plan->phase[phase].instr[k].stream > most) most = p.plan->phase[phase].instr[k].stream;
    assert_int_equal(p.plan->streams, 1 + most);
    if (i > 0) assert_int_equal(p.plan->streams, shapes[i][2]);
    drop(&p);
  }
}

/* Takes the events out of a phase, and puts each collective on a stream of its own. */
static void scatter_over_streams(ms_plan *plan, ms_plan_phase *p) {
  int n = 0;
  for (int i = 0; i < p->n; i++) {
    if (p->instr[i].kind == MS_INSTR_RECORD || p->instr[i].kind == MS_INSTR_WAIT) continue;
    p->instr[n] = p->instr[i];
    if (p->instr[n].kind == MS_INSTR_COLLECTIVE) p->instr[n].stream = plan->streams++;
    n++;
  }
  p->n = n;
  p->events = 0;
}

/* More mesh dimensions will need more streams than there are today: nothing but the plan says how many. */
static void any_number_of_streams_is_ordered_and_proved(void **state) {
  (void)state;
  mlp_config c = mlp_default(2, 2, 0);
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  ms_plan_phase *first = &p.plan->phase[MS_PHASE_FIRST];
  p.plan->streams = 1;
  scatter_over_streams(p.plan, first);
  assert_true(p.plan->streams > MS_NAMED_STREAMS + 3);
  assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "phase first | both touch");
  must(ms_plan_synchronize(p.plan, MS_PHASE_FIRST));
  must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
  int waits = 0;
  for (int i = 0; i < first->n; i++) {
    if (first->instr[i].kind != MS_INSTR_WAIT) continue;
    waits++;
    first->instr[i].kind = MS_INSTR_KERNEL; /* of no inputs or outputs: nothing that orders */
    static const ms_kernel_call nothing;
    first->instr[i].call = &nothing;
    assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "phase first | both touch");
    first->instr[i].kind = MS_INSTR_WAIT;
  }
  assert_true(waits > MS_NAMED_STREAMS);
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_pass_is_named_and_begins_where_the_last_one_ended),
      TEST(a_second_plan_takes_the_graphs_of_the_first_and_is_the_same),
      TEST(a_graph_takes_the_graphs_of_one_that_is_alike_on_another_mesh),
      TEST(what_cannot_be_taken_is_refused),
      TEST(a_plan_has_the_streams_that_it_uses),
      TEST(any_number_of_streams_is_ordered_and_proved),
  };
  return cmocka_run_group_tests_name("plan passes", tests, NULL, NULL);
}
