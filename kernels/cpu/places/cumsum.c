/* cumsum.c - sums up to each element of one axis, from its start or from its end (lines.h). Each line has a sum in
 * double, so that long lines lose no digits. An element is read before its place is written. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/lines.h"
#include "kernels/cpu/parallel.h"

/* Lines next to each other, of which there are `width` in each row of `inner`; pass a constant width. */
MS_INLINE void sum_lines(const void *x, void *y, ms_axis_view view, ms_line_group group, int64_t width, int reverse,
                         int bf16) {
  double total[MS_LINES] = {0};
  for (int64_t j = 0; j < view.n; j++) {
    const int64_t at = reverse ? view.n - 1 - j : j;
    const int64_t first = (group.outer * view.n + at) * view.inner + group.column;
#pragma omp simd
    for (int64_t c = 0; c < width; c++) {
      total[c] += (double)ms_simd_load(x, first + c, bf16);
      ms_simd_store(y, first + c, (float)total[c], bf16);
    }
  }
}

MS_INLINE void sum_groups(const ms_kernel_call *call, int64_t begin, int64_t end, int bf16) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cumsum.axis);
  const int reverse = call->attrs.cumsum.reverse != 0;
  const void *x = call->in_data[0];
  void *y = call->out_data[0];
  for (int64_t g = begin; g < end; g++) {
    const ms_line_group group = ms_lines_of(view, g);
    if (group.width == 1) sum_lines(x, y, view, group, 1, reverse, bf16);
    else if (group.width == MS_LINES) sum_lines(x, y, view, group, MS_LINES, reverse, bf16);
    else sum_lines(x, y, view, group, group.width, reverse, bf16);
  }
}

MS_CLONES static void cumsum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (call->in[0].dtype == MS_BF16) sum_groups(call, begin, end, 1);
  else sum_groups(call, begin, end, 0);
}

static int run(const ms_kernel_call *call) {
  if (ms_numel(&call->in[0]) == 0) return MS_OK;
  const int64_t groups = ms_groups_of_lines(ms_view_axis(&call->in[0], call->attrs.cumsum.axis));
  ms_run_parts(call, ms_part_count(call, groups, ms_call_bytes(call)), groups, 1, cumsum_part);
  return MS_OK;
}

const ms_kernel ms_cpu_cumsum = {.run = run, .in_place = MS_OVER(0, 0)};
