/* lines.h - kernels along one axis, viewed as [outer][n][inner]: a line is the n elements of one outer and one inner
 * index. Work is divided by groups of up to MS_LINES neighbouring lines, whose elements are in the same cache lines. */
#ifndef MS_KERNELS_CPU_LINES_H
#define MS_KERNELS_CPU_LINES_H

#include "kernels/shape.h"

enum { MS_LINES = 16 };

/* Lines [column, column + width) of one outer index. */
typedef struct ms_line_group {
  int64_t outer, column, width;
} ms_line_group;

static inline int64_t ms_groups_of_lines(ms_axis_view view) {
  return view.outer * ((view.inner + MS_LINES - 1) / MS_LINES);
}

static inline ms_line_group ms_lines_of(ms_axis_view view, int64_t group) {
  const int64_t each = (view.inner + MS_LINES - 1) / MS_LINES, column = group % each * MS_LINES;
  const int64_t left = view.inner - column;
  return (ms_line_group){group / each, column, left < MS_LINES ? left : MS_LINES};
}

#endif
