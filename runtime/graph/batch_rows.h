/* batch_rows.h - which elements of a value belong to which row of the batch. */
#ifndef MS_GRAPH_BATCH_ROWS_H
#define MS_GRAPH_BATCH_ROWS_H

#include "graph/graph.h"

/* In place of an axis number. ENDS: the axis does not appear in the output (it was reduced or contracted). TORN: its
 * indices appear, but no longer along one output axis. */
enum ms_axis_end { MS_AXIS_ENDS = -1, MS_AXIS_TORN = -2 };

#define MS_OP(name, low, high, outputs, attrs, rule, axes, ...) \
  int ms_axes_##axes(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis);
#include "kernels/ops.def"
#undef MS_OP

/* Returns the rows of a node's first output, computed from the shapes and rows of its inputs. in, rows: [inputs]. */
ms_batch_rows ms_follow_rows(const ms_node *node, const ms_value_info *in, const ms_batch_rows *rows,
                             const ms_value_info *out);

#endif
