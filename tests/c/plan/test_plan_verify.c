/* test_plan_verify.c - the verifier against mutants: a plan whose buffers share bytes while both are in use, or whose
 * accesses leave them, is refused; the plan as it was made is accepted.
 */
#include "tests/c/support/networks/plan_variant.h"

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
      TEST(M4_shared_bytes_are_refused),
      TEST(M4_state_shares_no_bytes_with_what_a_phase_needs),
      TEST(M4_bytes_outside_arenas_and_buffers_are_refused),
      TEST(M4_buffers_larger_than_their_arena_are_refused),
      TEST(M4_groups_of_other_sizes_share_no_bytes),
  };
  return cmocka_run_group_tests_name("plan verify", tests, NULL, NULL);
}
