/* infer.h - shape rules: from the inputs of a node to its outputs' shapes and dtypes, or an error that tells what would fit.
**
** A rule writes every output of the row and reads no other node. Messages start with the op's name; the builder puts the
** module path in front. The checks that many rules share stand here too; `what` is the input's name in the op's formula.
*/
#ifndef MS_GRAPH_INFER_H
#define MS_GRAPH_INFER_H

#include "base/dtype.h"
#include "base/error.h"
#include "graph/graph.h"

#define MS_OP(name, low, high, outputs, attrs, rule, ...) \
  int ms_infer_##rule(const ms_node *node, const ms_value_info *in, ms_value_info *out);
#include "kernels/ops.def"
#undef MS_OP

enum { MS_SHAPE_TEXT = 128 }; /* bytes that ms_shape_text may need */

static inline const char *ms_node_name(const ms_node *node) { return ms_op_row_of(node->op)->name; }
static inline int ms_is_float(int dtype) { return ms_dtype_may(dtype, MS_DTYPE_FLOAT); }

int ms_same_shape(const ms_value_info *a, const ms_value_info *b);
/* Elements but those of the last axis: what normalisations call rows. */
int64_t ms_rows(const ms_value_info *x);

int ms_check_float(const ms_node *node, const ms_value_info *x, const char *what);
int ms_check_dtype(const ms_node *node, const ms_value_info *x, int dtype, const char *what);
int ms_check_ndim(const ms_node *node, const ms_value_info *x, int ndim, const char *what, const char *form);
int ms_check_same_shape(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b);
int ms_check_same_dtype(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b);
/* v is [D], D the last axis of x; f32 or of x's dtype. */
int ms_check_channels(const ms_node *node, const ms_value_info *x, const ms_value_info *v, const char *what);
/* The axis of slot i0, counted from the end when negative. */
int ms_check_axis(const ms_node *node, int ndim, int *axis);
/* The dtype that slot i7 (out_dtype) asks for, which must have these uses; `kept`, whatever it is, when it asks for none. */
int ms_asked_dtype(const ms_node *node, int kept, int uses, int *dtype);
/* The shape in the slots d0..d5 and ndim; sizes at least `smallest`. Leaves the dtype alone. */
int ms_asked_shape(const ms_node *node, int64_t smallest, ms_value_info *shape);

#endif
