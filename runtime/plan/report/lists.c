/* lists.c - what a plan lists, by enum ms_plan_rows. */
#include "plan/report/dump.h"

static int add_passes(const ms_plan *plan, ms_row_list *rows) {
  for (int i = 0; i < MS_COMPILER_PASSES; i++) ms_rows_add(rows, &plan->pass[i], sizeof plan->pass[i]);
  return MS_OK;
}

static int add_conversions(const ms_plan *plan, ms_row_list *rows) {
  for (int i = 0; i < plan->conversions; i++) ms_rows_add(rows, &plan->conversion[i], sizeof plan->conversion[i]);
  return MS_OK;
}

static int (*const lists[])(const ms_plan *plan, ms_row_list *rows) = {
    [MS_PLAN_PASSES] = add_passes,
    [MS_PLAN_CONVERSIONS] = add_conversions,
    [MS_PLAN_CHUNKED_LOSSES] = ms_plan_add_losses,
    [MS_PLAN_PEAK] = ms_plan_add_peak_buffers,
    [MS_PLAN_MEMORY] = ms_plan_add_memory,
};
enum { LISTS = sizeof lists / sizeof *lists };

int ms_plan_list(const ms_plan *plan, int what, void *rows, int size, int capacity, int *n) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(n);
  ms_row_list all;
  if (what < 0 || what >= LISTS)
    return MS_FAIL(MS_EINVAL, "ms_plan_list: what is %d; enum ms_plan_rows has 0 to %d", what, LISTS - 1);
  MS_TRY(ms_rows_open(&all, rows, size, capacity, __func__));
  MS_TRY(lists[what](plan, &all));
  *n = all.n;
  return MS_OK;
}
