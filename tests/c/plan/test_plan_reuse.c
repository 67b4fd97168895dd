/* test_plan_reuse.c - what plans of one graph, and of one process, have in common: it is made once, and it changes no
 * plan.
 */
#include "tests/c/support/networks/planned.h"

#include <stdlib.h>

#include "kernels/cpu/shared.h"
#include "plan/lower/lower.h"
#include "plan/layout/pack.h"

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
  assert_fails(ms_shared_take(make_nothing, free_number, &(int){7}, sizeof(int), &a), MS_ENOMEM, "made");
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

static void R4_a_changed_rule_reuses_the_prepared_graph(void **state) {
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
  ms_free(before); /* what both share stays with the other */
  set_reshard(&net, MS_RESHARD_DEFAULT);
  ms_plan *again = compile(&net, &config);
  assert_true(ms_shared_made() == made);
  ms_free(after);
  ms_free(again);
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
static void R4_reuse_changes_no_plan(void **state) {
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
        ms_free(a);
        ms_free(b);
        mlp_free(&fresh);
      }
  mlp_free(&used);
}

static void a_graph_that_grows_is_compiled_again(void **state) {
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
  ms_free(before);
  ms_free(after);
  mlp_free(&net);
}

/* More packings than are kept come and go. */
static void many_packings_come_and_go(void **state) {
  (void)state;
  enum { SETS = 100 };
  mlp_config c = network();
  mlp net = mlp_make(&c);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < SETS; i++) {
      const int64_t room[MS_PACK_ARENAS] = {64}, more[MS_PACK_ARENAS] = {128};
      ms_packing_item before[2] = {{64 * (i + 1), 0, 1, 0, -1, 0}, {64, 1, 2, 0, 0, 0}}, after[2];
      memcpy(after, before, sizeof after);
      after[0].arena = 1;
      after[0].offset = 64 * i;
      assert_null(ms_cached_packing(net.graph, before, 2, room));
      must(ms_cache_packing(net.graph, before, after, 2, room));
      const ms_packing_item *known = ms_cached_packing(net.graph, before, 2, room);
      assert_non_null(known);
      assert_memory_equal(known, after, sizeof after);
      assert_null(ms_cached_packing(net.graph, before, 2, more));
      assert_null(ms_cached_packing(net.graph, before, 1, room));
      before[1].offset = 64;
      assert_null(ms_cached_packing(net.graph, before, 2, room));
      before[1].offset = 0;
      before[1].last = 3;
      assert_null(ms_cached_packing(net.graph, before, 2, room));
    }
  mlp_free(&net);
}

/* ---- places ---- */

static int random_below(uint32_t *seed, int n) {
  *seed = *seed * 1664525u + 1013904223u;
  return (int)((uint64_t)(*seed >> 8) * (uint64_t)n >> 24);
}

static int clash(const ms_packing_item *a, const ms_packing_item *b) {
  int at_once = a->ranks != b->ranks || (a->first <= b->last && b->first <= a->last);
  return a->arena == b->arena && at_once && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static int64_t end_in(const ms_packing_item *item, int n, int arena) {
  int64_t end = 0;
  for (int i = 0; i < n; i++)
    if (item[i].arena == arena && item[i].offset + item[i].bytes > end) end = item[i].offset + item[i].bytes;
  return end;
}

/* Items of two arenas, some of which have places: none clashes, none is moved, none leaves the room that there is. */
static void packed_items_share_no_byte_and_keep_to_their_room(void **state) {
  (void)state;
  enum { ITEMS = 60, TIMES = 40, ROUNDS = 50 };
  uint32_t seed = 7;
  int moved_in = 0, lower = 0;
  for (int round = 0; round < ROUNDS; round++) {
    ms_packing_item item[ITEMS], before[ITEMS];
    int64_t room[MS_PACK_ARENAS] = {0};
    for (int i = 0; i < ITEMS; i++) {
      int first = random_below(&seed, TIMES), last = first + random_below(&seed, TIMES / 4);
      int64_t bytes = 64 * (1 + random_below(&seed, 50));
      item[i] = (ms_packing_item){bytes, first, last, random_below(&seed, 8) ? 0 : 2, -1, 0};
      if (i < 8) { /* side by side */
        item[i].arena = 0;
        item[i].offset = room[0];
        room[0] += bytes;
      }
    }
    memcpy(before, item, sizeof item);
    ms_packing_item first[ITEMS];
    memcpy(first, item, sizeof item);
    must(ms_pack(item, ITEMS, 2, room));
    room[1] = INT64_MAX;
    must(ms_pack(first, ITEMS, 2, room));
    assert_true(end_in(item, ITEMS, 1) <= end_in(first, ITEMS, 1));
    lower += end_in(item, ITEMS, 1) < end_in(first, ITEMS, 1);
    for (int i = 0; i < ITEMS; i++) {
      assert_in_range(item[i].arena, 0, 1);
      assert_true(item[i].offset >= 0);
      if (!item[i].arena) assert_true(item[i].offset + item[i].bytes <= room[0]);
      if (i < 8) assert_memory_equal(&item[i], &before[i], sizeof item[i]);
      else moved_in += item[i].arena == 0;
      for (int k = 0; k < i; k++) assert_false(clash(&item[i], &item[k]));
    }
  }
  assert_true(moved_in > ROUNDS);
  assert_true(lower > 0);
}

/* What a rank's own memory holds of a plan: private buffers lie where peers read at other times. */
static void private_buffers_use_communicated_memory(void **state) {
  (void)state;
  mlp_config c = network();
  c.recompute = 0;
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  int inside = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    const ms_buffer *buffer = &p.plan->buffer[b];
    inside += buffer->arena == MS_ARENA_COMM && buffer->category == MS_CAT_ACTIVATIONS && buffer->bytes > 0;
    if (buffer->category == MS_CAT_COMMUNICATION) assert_int_equal(buffer->arena, MS_ARENA_COMM);
  }
  assert_true(inside > 0);
  ms_plan_summary summary;
  must(ms_plan_summarize(p.plan, &summary, sizeof summary));
  const struct ms_peak peak = summary.peak;
  assert_true(peak.total_bytes <= peak.min_bytes);
  assert_true(peak.min_bytes <= ms_plan_peak(p.plan));
  assert_true((double)ms_plan_peak(p.plan) <= 1.05 * (double)peak.min_bytes);
  drop(&p);
}

/* How many buffers of a phase lie in gradient chunks; the one that is used last through `latest`, if there is any. */
static int count_lent(const ms_plan *plan, int phase, ms_buffer **latest) {
  int lent = 0;
  *latest = NULL;
  for (int b = 0; b < plan->buffers; b++) {
    ms_buffer *buffer = &plan->buffer[b];
    if (buffer->arena != MS_ARENA_STATE || buffer->phase != phase) continue;
    assert_int_equal(buffer->category, MS_CAT_ACTIVATIONS);
    if (buffer->first < 0 || !buffer->bytes) continue;
    if (!*latest || buffer->last > (*latest)->last) *latest = buffer;
    lent++;
  }
  return lent;
}

/* Moved onto the gradients of any unit that are written before its last use, a buffer is in use together with them. */
static void expect_refused_in_written_gradients(planned *p, ms_buffer *buffer, const int *begin) {
  const int64_t place = buffer->offset;
  int tried = 0;
  for (int u = 0; u < p->plan->model->units; u++) {
    const ms_buffer *gradient = &p->plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)];
    if (!gradient->bytes || begin[u] > buffer->last) continue;
    buffer->offset = gradient->offset;
    assert_int_equal(ms_plan_verify(p->plan, MS_PHASE_FIRST), MS_ERACE);
    ms_error_clear();
    tried++;
  }
  buffer->offset = place;
  must(ms_plan_verify(p->plan, MS_PHASE_FIRST));
  assert_true(tried > 0);
}

/* What forward keeps lies in gradient chunks as long as nothing is written there; gradients that are added to hold
 * something all the time. */
static void gradient_chunks_lend_their_bytes(void **state) {
  (void)state;
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    mlp_config c = network();
    c.recompute = 0;
    ms_plan_config config = planned_config();
    config.accumulate = accumulate;
    planned p = plan_with(&c, &config);
    ms_buffer *latest, *none;
    int *begin = calloc((size_t)p.plan->model->units, sizeof *begin);
    assert_non_null(begin);
    assert_true(count_lent(p.plan, MS_PHASE_FIRST, &latest) > 0);
    ms_gradients_begin(p.plan, MS_PHASE_FIRST, begin);
    expect_refused_in_written_gradients(&p, latest, begin);
    for (int phase = MS_PHASE_NEXT; phase < MS_PHASES; phase++) {
      assert_int_equal(count_lent(p.plan, phase, &none), 0);
      ms_gradients_begin(p.plan, phase, begin);
      for (int u = 0; u < p.plan->model->units; u++) assert_int_equal(begin[u], 0);
    }
    ms_plan_summary summary;
    must(ms_plan_summarize(p.plan, &summary, sizeof summary));
    const struct ms_peak peak = summary.peak;
    assert_true(peak.total_bytes <= peak.min_bytes && peak.min_bytes <= ms_plan_peak(p.plan));
    free(begin);
    drop(&p);
  }
}

/* Chunks between reduce-scatter and all-reduce are no place for them: compute would wait for replicas in every unit. */
static void M5_compute_waits_for_no_replica(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    mlp_config c = network();
    c.block.param_dtype = c.root.param_dtype = dtype;
    ms_plan_config config = planned_config();
    config.shared_masters = 0; /* else one collective sums over both */
    planned p = plan_with(&c, &config);
    const ms_plan_phase *first = &p.plan->phase[MS_PHASE_FIRST];
    char *of_replicas = calloc((size_t)first->events, 1);
    int recorded = 0;
    assert_non_null(of_replicas);
    for (int i = 0; i < first->n; i++) {
      const ms_instr *instr = &first->instr[i];
      if (instr->kind == MS_INSTR_RECORD && instr->stream == MS_STREAM_REPLICATE) of_replicas[instr->event] = 1;
      if (instr->kind == MS_INSTR_WAIT && instr->stream == MS_STREAM_COMPUTE) assert_false(of_replicas[instr->event]);
    }
    for (int e = 0; e < first->events; e++) recorded += of_replicas[e];
    assert_true(recorded > 0);
    free(of_replicas);
    drop(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(equal_keys_share_one_object),
      TEST(R4_a_changed_rule_reuses_the_prepared_graph),
      TEST(equal_calls_of_a_plan_are_prepared_once),
      TEST(R4_reuse_changes_no_plan),
      TEST(a_graph_that_grows_is_compiled_again),
      TEST(many_packings_come_and_go),
      TEST(packed_items_share_no_byte_and_keep_to_their_room),
      TEST(private_buffers_use_communicated_memory),
      TEST(gradient_chunks_lend_their_bytes),
      TEST(M5_compute_waits_for_no_replica),
  };
  return cmocka_run_group_tests_name("plan reuse", tests, NULL, NULL);
}
