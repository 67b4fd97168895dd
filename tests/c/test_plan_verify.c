/* test_plan_verify.c - the verifier against mutants: a plan that lacks any one of its waits, or whose buffers share
 * bytes while both are in use, is refused; the plan as it was made is accepted.
 */
#include "tests/c/support/planned.h"

/* What a plan is made of: one of the lines below. */
typedef struct variant {
  const char *what;
  int replicate, shard, prefetch, sync;
  int own_copies; /* no shared masters: f32 weights are gathered like all others */
  int stays;      /* weights are not resharded after backward */
  int dtype, reshard, groups;
  int recompute, frozen_block, frozen_weights, f32_biases, ragged, eval_only;
  int fragment, outer_parts, outer_delay; /* of the blocks */
  int tensor;                             /* with sequence parallelism; 0: no such dimension */
  int quantised;                          /* replicate_dtype; 0: none */
  int muon, sliced;                       /* shard_over_replicate */
} variant;

static mlp_config network(const variant *v) {
  mlp_config c = mlp_default(v->replicate, v->shard, 0);
  c.blocks = 2;
  c.block.param_dtype = c.root.param_dtype = v->dtype;
  c.block.reshard = c.root.reshard = v->reshard;
  c.block.layout = c.root.layout = v->ragged ? MS_LAYOUT_RAGGED : MS_LAYOUT_ROWS;
  c.block.reshard_size = v->groups;
  c.recompute = v->recompute;
  c.frozen_block = v->frozen_block - 1;
  c.frozen_weights = v->frozen_weights;
  c.block.fragment = v->fragment;
  c.block.replicate_dtype = c.root.replicate_dtype = v->quantised;
  c.f32_biases = v->f32_biases;
  c.muon = v->muon;
  c.block.shard_over_replicate = c.root.shard_over_replicate = v->sliced;
  if (v->tensor) c.tensor = v->tensor, c.world *= v->tensor, c.sequence_parallel = 1;
  return c;
}

static ms_plan_config settings(const variant *v) {
  ms_plan_config config = planned_config();
  config.prefetch = v->prefetch;
  config.sync = v->sync;
  config.reshard_after_backward = !v->stays;
  config.shared_masters = !v->own_copies;
  config.train = !v->eval_only;
  config.outer_fragment = v->outer_parts ? v->fragment : 0;
  config.outer_parts = v->outer_parts;
  config.outer_delay = v->outer_delay;
  config.outer_momentum = 0.9;
  return config;
}

/* Takes out one wait and puts it back; returns what the verifier said in between. */
static int without_wait(ms_plan *plan, int phase, int at) {
  ms_plan_phase *p = &plan->phase[phase];
  ms_instr wait = p->instr[at];
  size_t behind = (size_t)(p->n - at - 1) * sizeof wait;
  memmove(&p->instr[at], &p->instr[at + 1], behind);
  p->n--;
  int rc = ms_plan_verify(plan, phase);
  ms_error_clear();
  memmove(&p->instr[at + 1], &p->instr[at], behind);
  p->instr[at] = wait;
  p->n++;
  return rc;
}

static planned plan_of(const variant *v) {
  mlp_config c = network(v);
  ms_plan_config config = settings(v);
  return plan_with(&c, &config);
}

/* waits: [phases] how many each phase has. */
static void check_mutants(const variant *v, int *waits) {
  planned p = plan_of(v);
  for (int phase = 0; phase < MS_PHASES; phase++) {
    const ms_plan_phase *ph = &p.plan->phase[phase];
    waits[phase] = 0;
    for (int i = 0; i < ph->n; i++) {
      if (ph->instr[i].kind != MS_INSTR_WAIT) continue;
      waits[phase]++;
      int event = ph->instr[i].event;
      if (without_wait(p.plan, phase, i) != MS_ERACE)
        fail_msg("%s, phase %s: wait %d (event %d) is not missed", v->what, ms_phase_name(phase), i, event);
    }
    if (ph->present) must(ms_plan_verify(p.plan, phase));
  }
  drop(&p);
}

enum { KEEP = MS_RESHARD_KEEP, ALWAYS = MS_RESHARD_ALWAYS };

static void M4_every_wait_of_every_mesh_and_prefetch_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {2, 2}, {4, 1}, {1, 3}};
  for (int m = 0; m < 4; m++)
    for (int prefetch = 0; prefetch < 3; prefetch++)
      for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
        variant v = {.what = "meshes",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = prefetch,
                     .dtype = dtype,
                     .reshard = ALWAYS};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_FIRST] > 1 && waits[MS_PHASE_NEXT] > 1 && waits[MS_PHASE_NORM] > 0);
        assert_true(v.shard == 1 || waits[MS_PHASE_EVALUATE] > 2);
      }
}

static void M4_every_wait_is_needed_when_gradients_wait(void **state) {
  (void)state;
  static const int meshes[][2] = {{1, 2}, {2, 2}, {4, 1}};
  for (int m = 0; m < 3; m++)
    for (int sync = MS_SYNC_SHARD; sync <= MS_SYNC_LAST; sync++)
      for (int stays = 0; stays < 2; stays++)
        for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
          variant v = {.what = "gradient sync",
                       .replicate = meshes[m][0],
                       .shard = meshes[m][1],
                       .prefetch = 1,
                       .sync = sync,
                       .stays = stays,
                       .dtype = dtype,
                       .reshard = ALWAYS};
          int waits[MS_PHASES];
          check_mutants(&v, waits);
          assert_true(waits[MS_PHASE_LAST] > 2);
        }
}

static void M4_every_wait_is_needed_whatever_the_policies(void **state) {
  (void)state;
  static const variant policies[] = {
      {.what = "own copies", .own_copies = 1, .reshard = ALWAYS},
      {.what = "kept", .dtype = MS_BF16, .reshard = KEEP},
      {.what = "default", .dtype = MS_BF16, .reshard = MS_RESHARD_DEFAULT},
      {.what = "groups of 2", .dtype = MS_BF16, .reshard = ALWAYS, .groups = 2},
      {.what = "groups of 2 of own copies", .own_copies = 1, .reshard = ALWAYS, .groups = 2},
      {.what = "groups of 2 of shared masters", .reshard = ALWAYS, .groups = 2},
      {.what = "recomputed", .dtype = MS_BF16, .reshard = ALWAYS, .recompute = 1},
      {.what = "recomputed in groups of 2", .dtype = MS_BF16, .reshard = ALWAYS, .recompute = 1, .groups = 2},
      {.what = "a frozen block", .dtype = MS_BF16, .reshard = ALWAYS, .frozen_block = 1},
      {.what = "frozen weights", .dtype = MS_BF16, .reshard = ALWAYS, .frozen_weights = 1},
      {.what = "f32 biases", .dtype = MS_BF16, .reshard = ALWAYS, .f32_biases = 1},
      {.what = "f32 biases, frozen weights, ragged",
       .dtype = MS_BF16,
       .reshard = ALWAYS,
       .f32_biases = 1,
       .frozen_weights = 1,
       .ragged = 1},
      {.what = "recomputed, f32 biases, gradients wait",
       .dtype = MS_BF16,
       .reshard = ALWAYS,
       .f32_biases = 1,
       .recompute = 1,
       .sync = MS_SYNC_SHARD},
      {.what = "evaluation alone", .dtype = MS_BF16, .reshard = ALWAYS, .eval_only = 1},
  };
  static const int meshes[][2] = {{1, 4}, {2, 2}};
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
    for (int m = 0; m < 2; m++)
      for (int prefetch = 0; prefetch < 3; prefetch++) {
        variant v = policies[i];
        v.replicate = meshes[m][0];
        v.shard = meshes[m][1];
        v.prefetch = prefetch;
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_EVALUATE] > 0);
      }
}

static void M4_Q6_every_wait_of_sums_in_few_bits_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{2, 2}, {4, 1}, {3, 1}};
  for (int m = 0; m < 3; m++)
    for (int sync = MS_SYNC_EVERY; sync <= MS_SYNC_LAST; sync++)
      for (int own = 0; own < 2; own++) {
        variant v = {.what = "sums in few bits",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = 1,
                     .sync = sync,
                     .ragged = m == 1,
                     .own_copies = own,
                     .reshard = ALWAYS,
                     .quantised = sync == MS_SYNC_LAST ? MS_I4 : MS_I8};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_true(waits[MS_PHASE_LAST] + waits[MS_PHASE_FIRST] > 8);
      }
}

static void M4_every_wait_of_divided_layers_is_needed(void **state) {
  (void)state;
  for (int shard = 1; shard <= 2; shard++)
    for (int recompute = 0; recompute < 2; recompute++) {
      variant v = {
          .what = "tensor", .replicate = 1, .shard = shard, .tensor = 2, .reshard = ALWAYS, .recompute = recompute};
      int waits[MS_PHASES];
      check_mutants(&v, waits);
      assert_true(waits[MS_PHASE_FIRST] > 8);
    }
}

/* Matrices are exchanged over one dimension after the other, in as many buckets as there are blocks. */
static void M4_Q9_every_wait_of_exchanges_with_owners_is_needed(void **state) {
  (void)state;
  static const int meshes[][3] = {{1, 2, 0}, {2, 1, 0}, {2, 2, 0}, {1, 1, 2}, {2, 2, 2}};
  for (int m = 0; m < 5; m++)
    for (int copies = 0; copies < 3; copies++) {
      variant v = {.what = "owners",
                   .replicate = meshes[m][0],
                   .shard = meshes[m][1],
                   .tensor = meshes[m][2],
                   .prefetch = 1,
                   .own_copies = copies > 0,
                   .sliced = copies > 1,
                   .ragged = m == 2,
                   .reshard = ALWAYS,
                   .muon = 1};
      int waits[MS_PHASES];
      check_mutants(&v, waits);
      assert_true(waits[MS_PHASE_UPDATE] > 3);
    }
}

static void M4_every_wait_of_an_outer_step_is_needed(void **state) {
  (void)state;
  static const int meshes[][2] = {{2, 1}, {2, 2}, {1, 2}};
  for (int m = 0; m < 3; m++)
    for (int delay = 0; delay < 2; delay++)
      for (int own_copies = 0; own_copies < 2; own_copies++) {
        variant v = {.what = "outer step",
                     .replicate = meshes[m][0],
                     .shard = meshes[m][1],
                     .prefetch = 1,
                     .own_copies = own_copies,
                     .frozen_weights = own_copies,
                     .reshard = ALWAYS,
                     .fragment = 1,
                     .outer_parts = MS_OUTER_SEND | MS_OUTER_APPLY,
                     .outer_delay = delay};
        int waits[MS_PHASES];
        check_mutants(&v, waits);
        assert_int_equal(waits[MS_PHASE_OUTER] > 0, v.replicate > 1 && !delay);
      }
}

/* A phase without communication has one stream, and so nothing to wait for; replicas that update slices of one
 * copy meet behind the last. */
static void M4_the_update_waits_once_for_replicas_with_one_copy(void **state) {
  (void)state;
  static const struct {
    int replicate, shard, own_copies, waits;
  } of[] = {{1, 4, 0, 0}, {2, 2, 1, 0}, {2, 2, 0, 1}, {4, 1, 0, 1}};
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    variant v = {.what = "update",
                 .replicate = of[i].replicate,
                 .shard = of[i].shard,
                 .own_copies = of[i].own_copies,
                 .prefetch = 1,
                 .dtype = MS_BF16,
                 .reshard = ALWAYS};
    int waits[MS_PHASES];
    check_mutants(&v, waits);
    assert_int_equal(waits[MS_PHASE_UPDATE], of[i].waits);
  }
}

/* ---- reuse of bytes ---- */

/* Two buffers of a phase that are in use at once, in one arena; returns 0 when there are none. */
static int find_pair(const ms_plan *plan, int phase, int arena, int *first, int *second) {
  for (*first = 0; *first < plan->buffers; ++*first) {
    const ms_buffer *a = &plan->buffer[*first];
    if (a->arena != arena || a->phase != phase || !a->bytes || a->first < 0) continue;
    for (*second = *first + 1; *second < plan->buffers; ++*second) {
      const ms_buffer *b = &plan->buffer[*second];
      if (b->arena != arena || b->phase != phase || !b->bytes || b->first < 0) continue;
      if (a->first < b->last && b->first < a->last) return 1;
    }
  }
  return 0;
}

/* Every buffer that is in use with another is moved over it, from below, from above and by a cache line. */
static void M4_shared_bytes_are_refused(void **state) {
  (void)state;
  variant v = {.what = "reuse", .replicate = 2, .shard = 2, .prefetch = 1, .dtype = MS_BF16, .reshard = ALWAYS};
  planned p = plan_of(&v);
  static const int arenas[] = {MS_ARENA_ACTIVATIONS, MS_ARENA_GATHERED, MS_ARENA_COMM};
  for (int a = 0; a < 3; a++) {
    int one = -1, other = -1;
    assert_true(find_pair(p.plan, MS_PHASE_FIRST, arenas[a], &one, &other));
    ms_buffer *moved = &p.plan->buffer[one];
    const ms_buffer *still = &p.plan->buffer[other];
    const int64_t offset = moved->offset, over[] = {still->offset, still->offset + still->bytes - 1};
    p.plan->arena_bytes[arenas[a]] += moved->bytes; /* so that it lies within the arena wherever it is moved */
    for (int i = 0; i < 2; i++) {
      moved->offset = over[i];
      assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "arena");
    }
    moved->offset = offset;
    must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
  }
  drop(&p);
}

/* Moves a buffer onto another one's bytes and back; returns what the verifier said in between. */
static int moved_onto(ms_plan *plan, int phase, int buffer, int other) {
  ms_buffer kept = plan->buffer[buffer];
  plan->buffer[buffer].arena = plan->buffer[other].arena;
  plan->buffer[buffer].offset = plan->buffer[other].offset;
  int rc = ms_plan_verify(plan, phase);
  ms_error_clear();
  plan->buffer[buffer] = kept;
  return rc;
}

/* Whether a phase touches it or not, and before it does. */
static void M4_state_shares_no_bytes_with_what_a_phase_needs(void **state) {
  (void)state;
  variant v = {.what = "state", .replicate = 2, .shard = 2, .prefetch = 1, .dtype = MS_BF16, .reshard = ALWAYS};
  planned p = plan_of(&v);
  int tried = 0;
  for (int s = 0; s < p.plan->buffers; s++) {
    const ms_buffer *lasting = &p.plan->buffer[s];
    if (lasting->phase >= 0 || !lasting->bytes) continue;
    if (lasting->category != MS_CAT_PARAMETERS && lasting->category != MS_CAT_OPTIMIZER) continue;
    for (int b = 0; b < p.plan->buffers; b++) {
      const ms_buffer *moved = &p.plan->buffer[b];
      if (moved->phase < 0 || !moved->bytes || moved->first < 0 || moved->bytes > lasting->bytes) continue;
      if (moved_onto(p.plan, moved->phase, b, s) != MS_ERACE)
        fail_msg("phase %s: %s over %s is not refused", ms_phase_name(moved->phase), moved->label, lasting->label);
      tried++;
    }
  }
  assert_true(tried > 50);
  drop(&p);
}

/* Buffers beyond either end of their arena, and accesses of more than the buffer has. */
static void M4_bytes_outside_arenas_and_buffers_are_refused(void **state) {
  (void)state;
  variant v = {.what = "bounds", .replicate = 1, .shard = 2, .prefetch = 1, .dtype = MS_BF16, .reshard = ALWAYS};
  planned p = plan_of(&v);
  int checked = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    ms_buffer *buffer = &p.plan->buffer[b];
    if (buffer->phase != MS_PHASE_FIRST || !buffer->bytes) continue;
    const ms_buffer was = *buffer;
    const int64_t outside[] = {-64, p.plan->arena_bytes[buffer->arena]};
    /* Scratch is touched in all the bytes that it has. */
    for (int i = 0; i < (buffer->category == MS_CAT_WORKSPACE ? 2 : 3); i++) {
      if (i < 2) buffer->offset = outside[i];
      else buffer->bytes = 0;
      assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "outside | buffer");
      *buffer = was;
    }
    checked++;
  }
  assert_true(checked > 0);
  must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
  drop(&p);
}

/* A buffer that is larger than its arena, though nothing touches its end. */
static void M4_buffers_larger_than_their_arena_are_refused(void **state) {
  (void)state;
  variant v = {.what = "larger", .replicate = 1, .shard = 2, .prefetch = 1, .dtype = MS_BF16, .reshard = ALWAYS};
  planned p = plan_of(&v);
  int checked = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    ms_buffer *buffer = &p.plan->buffer[b];
    if (buffer->phase != MS_PHASE_FIRST || !buffer->bytes || buffer->category == MS_CAT_WORKSPACE) continue;
    const int64_t bytes = buffer->bytes;
    buffer->bytes = p.plan->arena_bytes[buffer->arena] - buffer->offset + 1;
    assert_fails(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE, "outside | arena");
    buffer->bytes = bytes;
    checked++;
  }
  assert_true(checked > 0);
  must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
  drop(&p);
}

/* What groups of different sizes gather into may never share bytes, in use at once or not. */
static void M4_groups_of_other_sizes_share_no_bytes(void **state) {
  (void)state;
  variant v = {
      .what = "groups", .replicate = 1, .shard = 4, .prefetch = 1, .dtype = MS_BF16, .reshard = ALWAYS, .groups = 2};
  planned p = plan_of(&v);
  int moved = 0;
  for (int b = 0; b < p.plan->buffers; b++) {
    ms_buffer *slice = &p.plan->buffer[b];
    if (slice->arena != MS_ARENA_GROUPED || slice->phase != MS_PHASE_FIRST || slice->ranks || !slice->bytes) continue;
    for (int g = 0; g < p.plan->buffers; g++) {
      const ms_buffer *gathered = &p.plan->buffer[g];
      int apart = slice->last < gathered->first || gathered->last < slice->first;
      if (gathered->arena != MS_ARENA_GROUPED || gathered->phase != MS_PHASE_FIRST || !gathered->ranks || !apart)
        continue;
      int64_t offset = slice->offset;
      slice->offset = gathered->offset;
      assert_int_equal(ms_plan_verify(p.plan, MS_PHASE_FIRST), MS_ERACE);
      ms_error_clear();
      slice->offset = offset;
      moved++;
    }
  }
  assert_true(moved > 0);
  must(ms_plan_verify(p.plan, MS_PHASE_FIRST));
  drop(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(M4_every_wait_of_every_mesh_and_prefetch_is_needed),
      TEST(M4_every_wait_is_needed_when_gradients_wait),
      TEST(M4_every_wait_is_needed_whatever_the_policies),
      TEST(M4_every_wait_of_divided_layers_is_needed),
      TEST(M4_every_wait_is_needed_whatever_the_policies),
      TEST(M4_Q9_every_wait_of_exchanges_with_owners_is_needed),
      TEST(M4_every_wait_of_an_outer_step_is_needed),
      TEST(M4_Q6_every_wait_of_sums_in_few_bits_is_needed),
      TEST(M4_the_update_waits_once_for_replicas_with_one_copy),
      TEST(M4_shared_bytes_are_refused),
      TEST(M4_state_shares_no_bytes_with_what_a_phase_needs),
      TEST(M4_bytes_outside_arenas_and_buffers_are_refused),
      TEST(M4_buffers_larger_than_their_arena_are_refused),
      TEST(M4_groups_of_other_sizes_share_no_bytes),
  };
  return cmocka_run_group_tests_name("plan verify", tests, NULL, NULL);
}
