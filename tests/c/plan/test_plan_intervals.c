/* test_plan_intervals.c - bytes as the planner counts them: ranges cut into intervals, parts in a row that are one
 * access, and the orders in which buffers get their places.
 */
#include "tests/c/support/networks/planned.h"

#include <stdlib.h>

#include "plan/layout/pack.h"
#include "plan/layout/intervals.h"

static int random_below(uint32_t *seed, int n) {
  *seed = *seed * 1664525u + 1013904223u;
  return (int)((uint64_t)(*seed >> 8) * (uint64_t)n >> 24);
}

/* Cuts n ranges with ends that are multiples of `unit`, and compares them with what they were. */
static void check_cuts(uint32_t *seed, int n, int64_t unit) {
  ms_range was[64], range[64];
  int64_t *byte;
  int pieces;
  assert_in_range(n, 0, 64);
  for (int i = 0; i < n; i++) {
    was[i].begin = unit * random_below(seed, 40);
    was[i].end = was[i].begin + unit * (1 + random_below(seed, 8));
    range[i] = was[i];
  }
  must(ms_cut_intervals(range, n, &byte, &pieces));
  for (int p = 1; p < pieces; p++) assert_true(byte[p - 1] < byte[p]);
  for (int i = 0; i < n; i++) {
    assert_true(range[i].begin < range[i].end && range[i].end < pieces);
    assert_true(byte[range[i].begin] == was[i].begin && byte[range[i].end] == was[i].end);
    for (int k = 0; k < i; k++) {
      int share = was[i].begin < was[k].end && was[k].begin < was[i].end;
      assert_int_equal(range[i].begin < range[k].end && range[k].begin < range[i].end, share);
    }
  }
  free(byte);
}

static void ranges_share_bytes_where_they_share_pieces(void **state) {
  (void)state;
  static const int64_t units[] = {1, 64, 4095, (int64_t)1 << 40};
  uint32_t seed = 3;
  for (int u = 0; u < 4; u++)
    for (int n = 0; n <= 64; n++) check_cuts(&seed, n, units[u]);
}

/* More ends than a digit tells apart, and all of them found again. */
static void many_ranges_are_cut(void **state) {
  (void)state;
  enum { RANGES = 20000 };
  ms_range *range = calloc(RANGES, sizeof *range);
  int64_t *byte;
  int pieces;
  assert_non_null(range);
  for (int64_t i = 0; i < RANGES; i++) {
    int64_t at = i * 7919 % RANGES;
    range[i] = (ms_range){64 * at, 64 * at + 32};
  }
  must(ms_cut_intervals(range, RANGES, &byte, &pieces));
  assert_int_equal(pieces, 2 * RANGES);
  for (int64_t i = 0; i < RANGES; i++) {
    assert_true(range[i].begin == 2 * (i * 7919 % RANGES) && range[i].end == range[i].begin + 1);
    assert_true(byte[range[i].begin] == 32 * range[i].begin);
  }
  free(byte);
  free(range);
}

static void ranges_too_far_out_are_refused(void **state) {
  (void)state;
  ms_range range[2] = {{0, 1}, {1, INT64_MAX / 2}};
  int64_t *byte;
  int pieces;
  assert_fails(ms_cut_intervals(range, 2, &byte, &pieces), MS_EUNSUPPORTED, "2 accesses | byte");
  assert_null(byte);
}

/* A gather reads most of its own chunks in a row, whatever gaps there are between the gathered tensors. */
static void parts_in_a_row_are_one_access(void **state) {
  (void)state;
  mlp_config c = mlp_default(1, 2, 0);
  c.block.param_dtype = c.root.param_dtype = MS_BF16;
  ms_plan_config config = planned_config();
  planned p = plan_with(&c, &config);
  const ms_plan_phase *phase = &p.plan->phase[MS_PHASE_FIRST];
  int gathers = 0;
  for (int i = 0; i < phase->n; i++) {
    const ms_instr *instr = &phase->instr[i];
    if (instr->kind != MS_INSTR_COLLECTIVE || instr->coll->kind != MS_COLL_ALL_GATHER) continue;
    ms_access access[64];
    assert_true(instr->coll->parts > 1 && ms_instr_access_limit(instr) <= 64);
    int n = ms_instr_accesses(p.plan, instr, access, 64), reads = 0;
    int64_t read = 0, chunks = 0, written = 0, gathered = 0;
    for (int a = 0; a < n; a++) {
      reads += !access[a].write;
      *(access[a].write ? &written : &read) += access[a].end - access[a].begin;
    }
    int rows = 0;
    int64_t end = -1;
    for (int k = 0; k < instr->coll->parts; k++) {
      rows += instr->coll->part[k].src.offset != end;
      end = instr->coll->part[k].src.offset + 4 * instr->coll->part[k].count;
      chunks += 4 * instr->coll->part[k].count;
      gathered += 2 * 2 * instr->coll->part[k].count;
    }
    assert_true(reads == rows && rows < instr->coll->parts);
    assert_true(read == chunks && written == gathered);
    gathers++;
  }
  assert_true(gathers > 1);
  drop(&p);
}

/* What is never in use at once makes the last arena as large as the largest that finds no room elsewhere, and no
 * larger. */
static void scratch_shares_one_place(void **state) {
  (void)state;
  enum { TIMES = 30, ITEMS = TIMES + 2 };
  uint32_t seed = 11;
  for (int round = 0; round < 100; round++) {
    ms_packing_item item[ITEMS] = {{4096, 0, TIMES / 2, 0, 0, 0}, {8192, TIMES / 2 + 1, TIMES, 0, 0, 0}};
    const int64_t room[MS_PACK_ARENAS] = {8192};
    int64_t largest = 0, end = 0;
    for (int i = 2; i < ITEMS; i++) {
      int64_t bytes = 64 * (1 + random_below(&seed, 120)), free_then = i - 2 <= TIMES / 2 ? 4096 : 0;
      item[i] = (ms_packing_item){bytes, i - 2, i - 2, 0, -1, 0};
      if (bytes > free_then && bytes > largest) largest = bytes;
    }
    must(ms_pack(item, ITEMS, 2, room));
    for (int i = 2; i < ITEMS; i++) {
      assert_in_range(item[i].arena, 0, 1);
      assert_true(item[i].arena || (item[i].offset == 4096 && item[i].last <= TIMES / 2));
      if (item[i].arena && item[i].offset + item[i].bytes > end) end = item[i].offset + item[i].bytes;
    }
    assert_true(end == largest);
  }
}

/* A gap of ten closes from above, six, two and two at a time. Three items that live while it does, and a large one of a
 * moment. The largest first would leave two of them outside (4), the longest lived first the large one (6); ahead of
 * the others at the top, it leaves one outside. */
static void what_lives_on_lies_beneath_gaps_that_close(void **state) {
  (void)state;
  enum { ITEMS = 7, LARGE = 5 };
  const ms_packing_item wanted[ITEMS] = {
      {6 * 64, 10, 20, 0, 0, 4 * 64}, {2 * 64, 12, 20, 0, 0, 2 * 64}, {2 * 64, 14, 20, 0, 0, 0},
      {2 * 64, 0, 13, 0, -1, 0},      {2 * 64, 1, 11, 0, -1, 0},      {6 * 64, 3, 5, 0, -1, 0},
      {1 * 64, 2, 8, 0, -1, 0},
  };
  const struct {
    int64_t enough, end, large_at;
  } found[] = {{0, 1 * 64, 4 * 64}, {3 * 64, 1 * 64, 4 * 64}, {4 * 64, 4 * 64, 0}, {INT64_MAX, 4 * 64, 0}};
  for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
    ms_packing_item item[ITEMS];
    memcpy(item, wanted, sizeof item);
    const int64_t room[MS_PACK_ARENAS] = {10 * 64, found[i].enough};
    must(ms_pack(item, ITEMS, 2, room));
    assert_int_equal(item[LARGE].arena, 0);
    assert_true(item[LARGE].offset == found[i].large_at);
    int64_t end = 0;
    for (int k = 0; k < ITEMS; k++)
      if (item[k].arena == 1 && item[k].offset + item[k].bytes > end) end = item[k].offset + item[k].bytes;
    assert_true(end == found[i].end);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(ranges_share_bytes_where_they_share_pieces),
      TEST(many_ranges_are_cut),
      TEST(ranges_too_far_out_are_refused),
      TEST(parts_in_a_row_are_one_access),
      TEST(scratch_shares_one_place),
      TEST(what_lives_on_lies_beneath_gaps_that_close),
  };
  return cmocka_run_group_tests_name("plan pieces", tests, NULL, NULL);
}
