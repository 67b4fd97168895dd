/* infer.h - shape rules: they compute the shapes and dtypes of a node's outputs from its inputs, or report what would
 * fit.
 *
 * A rule writes every output of the row and reads no other node. Messages start with the op's name; the builder
 * prepends the module path. This header also declares the checks that many rules share; `what` is the input's name in
 * the op's formula.
 */
#ifndef MS_GRAPH_INFER_H
#define MS_GRAPH_INFER_H

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "graph/graph.h"

#define MS_OP(name, low, high, outputs, members, attrs, rule, ...) \
  int ms_infer_##rule(const ms_node *node, const ms_value_info *in, ms_value_info *out);
#include "kernels/ops.def"
#undef MS_OP

enum { MS_SHAPE_TEXT = 128 }; /* largest output of ms_shape_text */

static inline const char *ms_node_name(const ms_node *node) { return ms_op_row_of(node->op)->name; }
static inline int ms_is_float(int dtype) { return ms_dtype_may(dtype, MS_DTYPE_FLOAT); }

int ms_same_shape(const ms_value_info *a, const ms_value_info *b);
/* The number of rows: the product of all sizes but the last. */
int64_t ms_rows(const ms_value_info *x);

int ms_check_float(const ms_node *node, const ms_value_info *x, const char *what);
int ms_check_dtype(const ms_node *node, const ms_value_info *x, int dtype, const char *what);
int ms_check_ndim(const ms_node *node, const ms_value_info *x, int ndim, const char *what, const char *form);
int ms_check_same_shape(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b);
int ms_check_same_dtype(const ms_node *node, const ms_value_info *a, const char *what_a, const ms_value_info *b,
                        const char *what_b);
/* Checks that v is [D], with D the size of x's last axis, and has dtype f32 or x's dtype. */
int ms_check_channels(const ms_node *node, const ms_value_info *x, const ms_value_info *v, const char *what);
/* The attribute axis; negative numbers count from the end. */
int ms_check_axis(const ms_node *node, int ndim, int *axis);
/* The attribute out_dtype, which must support `uses`; `otherwise`, unchecked, if it is 0. */
int ms_asked_dtype(const ms_node *node, int otherwise, int uses, int *dtype);
/* The shape in slots d0..d5 and ndim; every size is at least `smallest`. Does not touch the dtype. */
int ms_asked_shape(const ms_node *node, int64_t smallest, ms_value_info *shape);

#endif
