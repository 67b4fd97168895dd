/* test_plan_memory.c - the bounds that sharded training promises for its memory, from buffers and their lifetimes. */
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

/* The most bytes of gathered weights and of gradients on their way that live at one instruction of forward, or of backward. */
static int64_t most_transient(const ms_plan *plan, int backward) {
  const ms_plan_phase *first = &plan->phase[MS_PHASE_FIRST];
  int64_t most = 0;
  int kernels = 0, boundary = 0;
  /* Lifetimes are positions before synchronisation: events do not count. */
  for (int i = 0; i < first->n; i++) {
    if (first->instr[i].kind == MS_INSTR_RECORD || first->instr[i].kind == MS_INSTR_WAIT) continue;
    if (!boundary && first->instr[i].kind == MS_INSTR_KERNEL && first->instr[i].backward) boundary = kernels;
    kernels++;
  }
  for (int at = backward ? boundary : 0; at < (backward ? kernels : boundary); at++) {
    int64_t live = 0;
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

/* The bounds are those of FSDP2 for f32 and AdamW. Two things are ours: gradient chunks are there all the time, and a
** gradient that is being reduced is held until the next reduction starts, so that compute need not wait for it. */
static void check_bounds(int reshard, int shared_masters, int64_t gradients, int64_t held) {
  mlp_config c = mlp_default(1, 2, 0);
  c.blocks = 6;
  c.inputs = c.width = c.classes = 32; /* nothing is padded */
  c.hidden = 64;
  c.block.reshard = reshard;
  ms_plan_config config = planned_config();
  config.shared_masters = shared_masters;
  planned p = plan_with(&c, &config);
  sizes s = sizes_of(p.net.model);
  const int64_t *bytes = p.plan->category_bytes;
  int64_t initial = bytes[MS_CAT_PARAMETERS], forward = initial + most_transient(p.plan, 0);
  int64_t backward = initial + bytes[MS_CAT_GRADIENTS] + most_transient(p.plan, 1);
  assert_true(initial <= s.sharded + s.block);
  if (reshard == MS_RESHARD_ALWAYS) {
    assert_true(forward <= s.sharded + 3 * s.block + s.root);
    assert_true(backward <= 2 * s.sharded + 3 * s.block + s.root + held * s.block);
  } else {
    assert_true(forward <= s.sharded + s.unsharded + s.block);
    assert_true(backward <= s.sharded + s.unsharded + 3 * s.block / 2 + gradients * s.sharded);
  }
  assert_true(bytes[MS_CAT_PARAMETERS] + bytes[MS_CAT_GRADIENTS] + bytes[MS_CAT_OPTIMIZER] <= 4 * s.sharded);
  drop(&p);
}

static void M2_weights_read_in_place_keep_the_bounds(void **state) {
  (void)state;
  check_bounds(MS_RESHARD_ALWAYS, 1, 0, 0);
  check_bounds(MS_RESHARD_KEEP, 1, 0, 0);
}

static void M2_gathered_copies_cost_one_block_and_the_gradient_chunks_more(void **state) {
  (void)state;
  check_bounds(MS_RESHARD_ALWAYS, 0, 0, 1);
  check_bounds(MS_RESHARD_KEEP, 0, 1, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M2_weights_read_in_place_keep_the_bounds),
      TEST(M2_gathered_copies_cost_one_block_and_the_gradient_chunks_more),
  };
  return cmocka_run_group_tests_name("plan memory", tests, NULL, NULL);
}
