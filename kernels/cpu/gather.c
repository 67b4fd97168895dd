/* gather.c - elements of x [outer][n][inner] by an index [outer][m][inner] along the middle axis, and the reverse,
 * which adds elements of src to those that the index names.
 *
 * Sums go to a copy of up to MS_LINES lines in f32, in the workspace, in the order of the index: the result does not
 * depend on how lines are divided among threads, and bf16 is rounded once.
 */
#include "kernels/cpu/block.h"

#include "base/error.h"
#include "kernels/cpu/lines.h"
#include "kernels/cpu/parallel.h"

static int check_index(const ms_kernel_call *call) {
  const int64_t n = ms_view_axis(&call->in[0], call->attrs.i[0]).n, count = ms_numel(&call->in[1]);
  const int32_t *index = call->in_data[1];
  for (int64_t i = 0; i < count; i++)
    if (index[i] < 0 || index[i] >= n)
      return MS_FAIL(MS_EINVAL, "%s: index %d at position %lld is not in [0,%lld), the elements of axis %d of x",
                     call->op == MS_OP_gather ? "gather" : "scatter_add", (int)index[i], (long long)i, (long long)n,
                     ms_axis_of(&call->in[0], call->attrs.i[0]));
  return MS_OK;
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Rows [begin, end) of y [outer m][inner], whose elements have this type. */
#define GATHER(type)                                                                            \
  static void gather_##type(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                 \
    const ms_axis_view x_view = ms_view_axis(&call->in[0], call->attrs.i[0]);                   \
    const ms_axis_view y_view = ms_view_axis(&call->out[0], call->attrs.i[0]);                  \
    const int32_t *index = call->in_data[1];                                                    \
    const int64_t inner = x_view.inner;                                                         \
    for (int64_t row = begin; row < end; row++) {                                               \
      const type *x = (const type *)call->in_data[0] + row / y_view.n * x_view.n * inner;       \
      type *y = (type *)call->out_data[0] + row * inner;                                        \
      for (int64_t i = 0; i < inner; i++) y[i] = x[index[row * inner + i] * inner + i];         \
    }                                                                                           \
  }

GATHER(uint8_t)
GATHER(uint16_t)
GATHER(uint32_t)

static int run_gather(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  const ms_axis_view view = ms_view_axis(&call->out[0], call->attrs.i[0]);
  const int64_t rows = view.outer * view.n, size = ms_dtype_size(call->out[0].dtype);
  MS_TRY(check_index(call));
  ms_run_parts(call, ms_part_count(call, rows, ms_numel(&call->out[0]) * (2 * size + (int64_t)sizeof(int32_t))), rows,
               1,
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

static int prepare_scatter_add(ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.i[0]);
  call->workspace_bytes = call->threads * copy_stride(view) * (int64_t)sizeof(float);
  return MS_OK;
}

/* A group of lines of y = those of x + what the index adds; lines: f32 [n][width]. */
MS_INLINE void scatter_lines(const ms_kernel_call *call, ms_axis_view view, int64_t m, ms_line_group group,
                             float *lines, int bf16) {
  const int32_t *index = call->in_data[1];
  const int64_t first = group.outer * view.n * view.inner + group.column;
  for (int64_t j = 0; j < view.n; j++)
    for (int64_t c = 0; c < group.width; c++)
      lines[j * group.width + c] = ms_simd_load(call->in_data[0], first + j * view.inner + c, bf16);
  for (int64_t j = 0; j < m; j++) {
    const int64_t from = (group.outer * m + j) * view.inner + group.column;
    for (int64_t c = 0; c < group.width; c++)
      lines[index[from + c] * group.width + c] += ms_simd_load(call->in_data[2], from + c, bf16);
  }
  for (int64_t j = 0; j < view.n; j++)
    for (int64_t c = 0; c < group.width; c++)
      ms_simd_store(call->out_data[0], first + j * view.inner + c, lines[j * group.width + c], bf16);
}

static void scatter_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.i[0]);
  const int64_t m = ms_view_axis(&call->in[1], call->attrs.i[0]).n;
  float *lines = (float *)call->workspace + part * copy_stride(view);
  for (int64_t g = begin; g < end; g++) {
    const ms_line_group group = ms_lines_of(view, g);
    if (call->out[0].dtype == MS_BF16) scatter_lines(call, view, m, group, lines, 1);
    else scatter_lines(call, view, m, group, lines, 0);
  }
}

static int run_scatter_add(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  const int64_t groups = ms_groups_of_lines(ms_view_axis(&call->in[0], call->attrs.i[0]));
  MS_TRY(check_index(call));
  ms_run_parts(call, ms_part_count(call, groups, ms_call_bytes(call)), groups, 1, scatter_part);
  return MS_OK;
}

const ms_kernel ms_cpu_scatter_add = {
    .prepare = prepare_scatter_add, .run = run_scatter_add, .in_place = MS_OVER(0, 0)};
