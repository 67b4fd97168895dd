/* test_plan_memory.c - the bounds that sharded training promises for its memory, from buffers and their lifetimes. */
#include "device/device.h"
#include "plan/lower/lower.h"
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/networks/planned.h"

/* Sizes of a planned model in bytes of f32, as PyTorch's FSDP2 states its bounds: what a rank owns of the parameters,
 * all of them, the largest block unsharded, the root unsharded. */
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

/* Instructions of a phase as lifetimes count them, before synchronisation: events are none. boundary: the first of
 * backward. */
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
    if (begin[u] <= at) live += plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)].bytes;
  return live;
}

/* The most bytes of gathered weights, of gradients on their way and of gradient chunks that hold something, at one
 * instruction of forward, or of backward. */
static int64_t max_transient(const ms_plan *plan, int backward) {
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
static planned plan_of_six(int shards, int reshard, int shared_masters, int batch) {
  mlp_config c = mlp_default(1, shards, 0);
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

/* The bounds are those of FSDP2 for f32 and AdamW. One thing is ours: a gradient that is being reduced is held until
 * the next reduction starts, so that compute need not wait for it. */
static void check_bounds(int shards, int reshard, int shared_masters, int64_t held) {
  planned p = plan_of_six(shards, reshard, shared_masters, 8);
  sizes s = sizes_of(p.net.model);
  int64_t initial = p.plan->category_bytes[MS_CAT_PARAMETERS], forward = initial + max_transient(p.plan, 0);
  int64_t backward = initial + max_transient(p.plan, 1);
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
  for (int shards = 2; shards <= 8; shards *= 2) {
    check_bounds(shards, MS_RESHARD_ALWAYS, 1, 0);
    check_bounds(shards, MS_RESHARD_KEEP, 1, 0);
  }
}

static void M2_gathered_copies_cost_one_block_more(void **state) {
  (void)state;
  for (int shards = 2; shards <= 8; shards *= 2) {
    check_bounds(shards, MS_RESHARD_ALWAYS, 0, 1);
    check_bounds(shards, MS_RESHARD_KEEP, 0, 1);
  }
}

/* What lives from step to step: parameters, two moments, and gradients from their first write to the update. */
static int64_t lasting(const ms_plan *plan, int phase, int at) {
  const int64_t *bytes = plan->category_bytes;
  return bytes[MS_CAT_PARAMETERS] + bytes[MS_CAT_OPTIMIZER] + live_gradients(plan, phase, at);
}

static void M2_state_is_4S_from_gradients_to_the_update_and_3S_before_the_next_ones(void **state) {
  (void)state;
  for (int shared_masters = 0; shared_masters < 2; shared_masters++) {
    planned p = plan_of_six(2, MS_RESHARD_ALWAYS, shared_masters, 8);
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
  planned p = plan_of_six(2, MS_RESHARD_ALWAYS, 1, 256);
  const ms_buffer *first = &p.plan->buffer[ms_state_buffer(0, MS_SLOT_GRADIENT)];
  int units = p.net.model->units;
  const ms_buffer *last = &p.plan->buffer[ms_state_buffer(units - 1, MS_SLOT_GRADIENT)];
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

/* ---- probabilities ---- */

enum { CLASSES = 4096 }; /* more than anything else of the network has */

/* The only tensors of a number for each row and class are the logits, and their gradient in their place. */
static void check_kernel(const ms_plan *plan, const ms_instr *instr, int rows) {
  const ms_kernel_call *call = instr->call;
  const char *name = ms_op_row_of(call->op)->name;
  const int forward = call->op == MS_OP_cross_entropy, step = call->op == MS_OP_cross_entropy_step;
  for (int i = 0; i < call->outputs; i++) {
    const ms_value_info *out = &call->out[i];
    if (!out->ndim || out->dims[out->ndim - 1] != CLASSES || ms_numel(out) < rows * CLASSES) continue;
    const int in_place = instr->out[i].buffer == instr->in[0].buffer && instr->out[i].offset == instr->in[0].offset;
    if (call->op != MS_OP_matmul && !(step && in_place))
      fail_msg("%s, %s: output %d has a number for each row and class", ms_device_name(plan->config.device), name, i);
  }
  if ((forward || step) && call->workspace_bytes >= rows * CLASSES)
    fail_msg("%s, %s: a workspace of %lld bytes", ms_device_name(plan->config.device), name,
             (long long)call->workspace_bytes);
}

static void check_probabilities(int device, int dtype, int rows) {
  mlp_config c = mlp_default(1, 2, 0);
  c.batch = rows;
  c.classes = CLASSES;
  c.private_logits = 1;
  c.root.param_dtype = c.block.param_dtype = dtype;
  ms_plan_config config = planned_config();
  config.device = device;
  planned p = plan_with(&c, &config);
  int losses = 0;
  for (int phase = MS_PHASE_FIRST; phase < MS_PHASES; phase++)
    for (int i = 0; i < p.plan->phase[phase].n; i++) {
      const ms_instr *instr = &p.plan->phase[phase].instr[i];
      if (instr->kind != MS_INSTR_KERNEL) continue;
      check_kernel(p.plan, instr, rows);
      losses += instr->call->op == MS_OP_cross_entropy || instr->call->op == MS_OP_cross_entropy_step;
    }
  assert_true(losses >= 2); /* a step's, and an evaluation's */
  drop(&p);
}

static void M2_no_plan_has_room_for_probabilities(void **state) {
  (void)state;
  const ms_device_api *cuda;
  emulate_cuda_kernels("inline");
  must(ms_device_find(MS_DEVICE_CUDA, &cuda));
  for (int device = MS_DEVICE_CPU; device <= MS_DEVICE_CUDA; device++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) check_probabilities(device, dtype, 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M2_weights_read_in_place_keep_the_bounds),
      TEST(M2_gathered_copies_cost_one_block_more),
      TEST(M2_state_is_4S_from_gradients_to_the_update_and_3S_before_the_next_ones),
      TEST(M2_what_gradients_leave_is_lent),
      TEST(M2_no_plan_has_room_for_probabilities),
  };
  return cmocka_run_group_tests_name("plan memory", tests, NULL, NULL);
}
