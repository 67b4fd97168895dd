/* batch_rows.h - which elements of a value belong to which row of the batch. */
#ifndef MS_GRAPH_BATCH_ROWS_H
#define MS_GRAPH_BATCH_ROWS_H

#include "graph/graph.h"

/* Returns the rows of a node's first output, computed from the shapes and rows of its inputs. in, rows: [inputs]. */
ms_batch_rows ms_follow_rows(const ms_node *node, const ms_value_info *in, const ms_batch_rows *rows,
                             const ms_value_info *out);

#endif
