/* gather.c - elements of x [outer][n][inner] by an index [outer][m][inner] along the middle axis, and the reverse,
 * which adds elements of src to those that the index names.
 *
 * Sums go to a copy of up to MS_LINES lines in f32, in the workspace, in the order of the index: the result does not
 * depend on how lines are divided among threads, and bf16 is rounded once.
 */
#include "kernels/cpu/block.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/parallel.h"

static int check_index(const ms_kernel_call *call) {
  const int64_t n = ms_view_axis(&call->in[0], call->attrs.cut.axis).n, count = ms_numel(&call->in[1]);
  const int32_t *index = call->in_data[1];
  for (int64_t i = 0; i < count; i++)
    if (index[i] < 0 || index[i] >= n)
      return MS_FAIL(MS_EINVAL, "%s: index %d at position %lld is not in [0,%lld), the elements of axis %d of x",
                     call->op == MS_OP_gather ? "gather" : "scatter_add", (int)index[i], (long long)i, (long long)n,
                     ms_axis_of(&call->in[0], call->attrs.cut.axis));
  return MS_OK;
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Elements [begin, end) of y [outer][m][inner], which have this type: runs of one outer index, in which the index of
 * the inner axis counts on. */
#define GATHER(type)                                                                            \
  static void gather_##type(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                 \
    const ms_axis_view x_view = ms_view_axis(&call->in[0], call->attrs.cut.axis);               \
    const ms_axis_view y_view = ms_view_axis(&call->out[0], call->attrs.cut.axis);              \
    const int64_t inner = x_view.inner, slab = y_view.n * inner;                                \
    const int32_t *index = call->in_data[1];                                                    \
    type *y = call->out_data[0];                                                                \
    for (int64_t at = begin, stop; at < end; at = stop) {                                       \
      const type *x = (const type *)call->in_data[0] + at / slab * x_view.n * inner;            \
      int64_t i = at % inner;                                                                   \
      stop = (at / slab + 1) * slab;                                                            \
      if (stop > end) stop = end;                                                               \
      for (int64_t e = at; e < stop; e++) {                                                     \
        y[e] = x[index[e] * inner + i];                                                         \
        if (++i == inner) i = 0;                                                                \
      }                                                                                         \
    }                                                                                           \
  }

GATHER(uint8_t)
GATHER(uint16_t)
GATHER(uint32_t)

static int run_gather(const ms_kernel_call *call) {
  const int64_t count = ms_numel(&call->out[0]), size = ms_dtype_size(call->out[0].dtype);
  if (count == 0) return MS_OK;
  MS_TRY(check_index(call));
  ms_run_parts(call, ms_part_count(call, count, count * (2 * size + (int64_t)sizeof(int32_t))), count, 64,
               size == 4   ? gather_uint32_t
               : size == 2 ? gather_uint16_t
                           : gather_uint8_t);
  return MS_OK;
}

const ms_kernel ms_cpu_gather = {.run = run_gather};

/* ---- scatter_add ------------------------------------------------------------------------------------------------- */

static int64_t copy_stride(ms_axis_view view) {
  const int64_t elements = view.n * (view.inner < MS_LINES ? view.inner : MS_LINES);
  return (elements + 15) / 16 * 16;
}

static int parts_of(const ms_kernel_call *call) {
  const int64_t groups = ms_groups_of_lines(ms_view_axis(&call->in[0], call->attrs.cut.axis));
  return ms_part_count(call, groups, ms_call_bytes(call));
}

static int prepare_scatter_add(ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cut.axis);
  call->workspace_bytes = parts_of(call) * copy_stride(view) * (int64_t)sizeof(float);
  return MS_OK;
}

/* A group of lines of y = those of x + what the index adds; lines: f32 [n][width]. Pass a constant width. */
MS_INLINE void scatter_lines(const ms_kernel_call *call, ms_axis_view view, int64_t m, ms_line_group group,
                             int64_t width, float *restrict lines, int bf16) {
  const int32_t *index = call->in_data[1];
  const int64_t first = group.outer * view.n * view.inner + group.column;
  for (int64_t j = 0; j < view.n; j++)
    for (int64_t c = 0; c < width; c++)
      lines[j * width + c] = ms_simd_load(call->in_data[0], first + j * view.inner + c, bf16);
  for (int64_t j = 0; j < m; j++) {
    const int64_t from = (group.outer * m + j) * view.inner + group.column;
    for (int64_t c = 0; c < width; c++)
      lines[index[from + c] * width + c] += ms_simd_load(call->in_data[2], from + c, bf16);
  }
  for (int64_t j = 0; j < view.n; j++)
    for (int64_t c = 0; c < width; c++)
      ms_simd_store(call->out_data[0], first + j * view.inner + c, lines[j * width + c], bf16);
}

MS_INLINE void scatter_groups(const ms_kernel_call *call, int64_t begin, int64_t end, float *lines, int bf16) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cut.axis);
  const int64_t m = ms_view_axis(&call->in[1], call->attrs.cut.axis).n;
  for (int64_t g = begin; g < end; g++) {
    const ms_line_group group = ms_lines_of(view, g);
    if (group.width == 1 && view.inner == 1) {
      const ms_axis_view alone = {view.outer, view.n, 1}; /* a constant stride */
      scatter_lines(call, alone, m, group, 1, lines, bf16);
    } else if (group.width == MS_LINES) scatter_lines(call, view, m, group, MS_LINES, lines, bf16);
    else scatter_lines(call, view, m, group, group.width, lines, bf16);
  }
}

MS_CLONES static void scatter_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  float *lines = (float *)call->workspace + part * copy_stride(ms_view_axis(&call->in[0], call->attrs.cut.axis));
  if (call->out[0].dtype == MS_BF16) scatter_groups(call, begin, end, lines, 1);
  else scatter_groups(call, begin, end, lines, 0);
}

static int run_scatter_add(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  const int64_t groups = ms_groups_of_lines(ms_view_axis(&call->in[0], call->attrs.cut.axis));
  MS_TRY(check_index(call));
  ms_run_parts(call, parts_of(call), groups, 1, scatter_part);
  return MS_OK;
}

const ms_kernel ms_cpu_scatter_add = {
    .prepare = prepare_scatter_add, .run = run_scatter_add, .in_place = MS_OVER(0, 0)};
