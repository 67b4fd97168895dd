/* test_plan_memory.c - the bounds that sharded training promises for its memory, from buffers and their lifetimes. */
#include "plan/lower.h"
#include "tests/c/support/planned.h"

/* Sizes of a planned model in bytes of f32, as PyTorch's FSDP2 states its bounds: what a rank owns of the parameters, all
** of them, the largest block unsharded, the root unsharded. */
typedef struct sizes {
  int64_t sharded, unsharded, block, root;
} sizes;

static sizes sizes_of(const ms_model *model) {
  sizes s = {0};
  for (int u = 0; u < model->units; u++) {
    int64_t whole = model->unit[u].reduce_bytes;
    s.sharded += 4 * model->unit[u].master_count;
    s.unsharded += whole;
    if (u == 0) s.root = whole;
    else if (whole > s.block) s.block = whole;
  }
  return s;
}

/* Instructions of a phase as lifetimes count them, before synchronisation: events are none. boundary: the first of backward. */
static int positions_of(const ms_plan *plan, int phase, int *boundary) {
  const ms_plan_phase *p = &plan->phase[phase];
  int n = 0;
  *boundary = 0;
  for (int i = 0; i < p->n; i++) {
    if (p->instr[i].kind == MS_INSTR_RECORD || p->instr[i].kind == MS_INSTR_WAIT) continue;
    if (!*boundary && p->instr[i].kind == MS_INSTR_KERNEL && p->instr[i].backward) *boundary = n;
    n++;
  }
  return n;
}

/* Bytes of gradient chunks that hold something at an instruction: they lend their bytes until they are written. */
static int64_t live_gradients(const ms_plan *plan, int phase, int at) {
  int begin[16];
  int64_t live = 0;
  assert_true(plan->model->units <= 16);
  ms_gradients_begin(plan, phase, begin);
  for (int u = 0; u < plan->model->units; u++)
    if (begin[u] <= at) live += plan->buffer[ms_state_buffer(u, MS_STATE_GRADIENT)].bytes;
  return live;
}

/* The most bytes of gathered weights, of gradients on their way and of gradient chunks that hold something, at one
** instruction of forward, or of backward. */
static int64_t most_transient(const ms_plan *plan, int backward) {
  int boundary, positions = positions_of(plan, MS_PHASE_FIRST, &boundary);
  int64_t most = 0;
  for (int at = backward ? boundary : 0; at < (backward ? positions : boundary); at++) {
    int64_t live = live_gradients(plan, MS_PHASE_FIRST, at);
    for (int b = 0; b < plan->buffers; b++) {
      const ms_buffer *buffer = &plan->buffer[b];
      int transient = buffer->category == MS_CAT_GATHERED || buffer->category == MS_CAT_COMMUNICATION;
      if (transient && buffer->phase == MS_PHASE_FIRST && buffer->first <= at && at <= buffer->last)
        live += buffer->bytes;
    }
    if (live > most) most = live;
  }
  return most;
}

/* Nothing is padded. */
static planned plan_of_six(int reshard, int shared_masters, int batch) {
  mlp_config c = mlp_default(1, 2, 0);
  c.blocks = 6;
  c.batch = batch;
  c.inputs = c.width = c.classes = 32;
  c.hidden = 64;
  c.block.reshard = reshard;
  ms_plan_config config = planned_config();
  config.accumulate = 0;
  config.shared_masters = shared_masters;
  return plan_with(&c, &config);
}

/* The bounds are those of FSDP2 for f32 and AdamW. One thing is ours: a gradient that is being reduced is held until the next
** reduction starts, so that compute need not wait for it. */
static void check_bounds(int reshard, int shared_masters, int64_t held) {
  planned p = plan_of_six(reshard, shared_masters, 8);
  sizes s = sizes_of(p.net.model);
  int64_t initial = p.plan->category_bytes[MS_CAT_PARAMETERS], forward = initial + most_transient(p.plan, 0);
  int64_t backward = initial + most_transient(p.plan, 1);
  assert_true(initial <= s.sharded + s.block);
  if (reshard == MS_RESHARD_ALWAYS) {
    assert_true(forward <= s.sharded + 3 * s.block + s.root);
    assert_true(backward <= 2 * s.sharded + 3 * s.block + s.root + held * s.block);
  } else {
    assert_true(forward <= s.sharded + s.unsharded + s.block);
    assert_true(backward <= s.sharded + s.unsharded + 3 * s.block / 2 + held * s.block);
  }
  drop(&p);
}

static void M2_weights_read_in_place_keep_the_bounds(void **state) {
  (void)state;
  check_bounds(MS_RESHARD_ALWAYS, 1, 0);
  check_bounds(MS_RESHARD_KEEP, 1, 0);
}

static void M2_gathered_copies_cost_one_block_more(void **state) {
  (void)state;
  check_bounds(MS_RESHARD_ALWAYS, 0, 1);
  check_bounds(MS_RESHARD_KEEP, 0, 1);
}

/* What lives from step to step: parameters, two moments, and gradients from their first write to the update. */
static int64_t lasting(const ms_plan *plan, int phase, int at) {
  const int64_t *bytes = plan->category_bytes;
  return bytes[MS_CAT_PARAMETERS] + bytes[MS_CAT_OPTIMIZER] + live_gradients(plan, phase, at);
}

static void M2_state_is_4S_from_gradients_to_the_update_and_3S_before_the_next_ones(void **state) {
  (void)state;
  for (int shared_masters = 0; shared_masters < 2; shared_masters++) {
    planned p = plan_of_six(MS_RESHARD_ALWAYS, shared_masters, 8);
    int64_t sharded = sizes_of(p.net.model).sharded;
    int forward, positions = positions_of(p.plan, MS_PHASE_FIRST, &forward), none;
    for (int at = 0; at < forward; at++) {
      assert_int_equal(live_gradients(p.plan, MS_PHASE_FIRST, at), 0);
      assert_true(lasting(p.plan, MS_PHASE_FIRST, at) <= 3 * sharded);
    }
    assert_true(lasting(p.plan, MS_PHASE_FIRST, positions - 1) > 3 * sharded);
    for (int phase = MS_PHASE_NORM; phase <= MS_PHASE_UPDATE; phase++)
      for (int at = 0; at < positions_of(p.plan, phase, &none); at++) {
        assert_int_equal(lasting(p.plan, phase, at), lasting(p.plan, MS_PHASE_FIRST, positions - 1));
        assert_true(lasting(p.plan, phase, at) <= 4 * sharded);
      }
    drop(&p);
  }
}

/* That nothing is there means that something else can be: activations take those bytes, and the peak has them once. */
static void M2_what_gradients_leave_is_lent(void **state) {
  (void)state;
  planned p = plan_of_six(MS_RESHARD_ALWAYS, 1, 256);
  const ms_buffer *first = &p.plan->buffer[ms_state_buffer(0, MS_STATE_GRADIENT)];
  int units = p.net.model->units;
  const ms_buffer *last = &p.plan->buffer[ms_state_buffer(units - 1, MS_STATE_GRADIENT)];
  int64_t lent_until = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    const ms_buffer *buffer = &p.plan->buffer[b];
    if (buffer->category != MS_CAT_ACTIVATIONS || buffer->arena != MS_ARENA_STATE) continue;
    int64_t end = buffer->offset + buffer->bytes;
    assert_true(buffer->offset >= first->offset && end <= last->offset + (last->bytes + 63) / 64 * 64);
    if (end - first->offset > lent_until) lent_until = end - first->offset;
  }
  assert_true(2 * lent_until > sizes_of(p.net.model).sharded);
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M2_weights_read_in_place_keep_the_bounds),
      TEST(M2_gathered_copies_cost_one_block_more),
      TEST(M2_state_is_4S_from_gradients_to_the_update_and_3S_before_the_next_ones),
      TEST(M2_what_gradients_leave_is_lent),
  };
  return cmocka_run_group_tests_name("plan memory", tests, NULL, NULL);
}
