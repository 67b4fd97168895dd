/* graph_attempt.h - small operands, and what an op of them gives or in which words it is refused; for tests of the
 * builder and of shape rules.
 */
#ifndef MS_TESTS_GRAPH_ATTEMPT_H
#define MS_TESTS_GRAPH_ATTEMPT_H

#include "tests/c/graph/graph_case.h"

static inline int attempt(int op, int inputs, const int *in, const ms_op_attrs *attrs) {
  int out[MS_MAX_OUTPUTS];
  return ms_graph_emit(f.graph, op, inputs, in, attrs, out);
}

#define REFUSED(op, attrs, status, text, ...) \
  assert_fails(attempt(op, sizeof((int[]){__VA_ARGS__}) / sizeof(int), (int[]){__VA_ARGS__}, attrs), status, text)

static inline int tensor(int ndim, const int64_t *dims) { return param(&f, MS_F32, ndim, dims); }
static inline int half(int ndim, const int64_t *dims) { return param(&f, MS_BF16, ndim, dims); }
static inline int ints(const char *name, int ndim, const int64_t *dims) { return input(&f, name, MS_I32, ndim, dims); }

static inline void assert_value(int value, int dtype, const char *shape) {
  assert_int_equal(dtype_of(&f, value), dtype);
  assert_string_equal(shape_of(&f, value), shape);
}

#endif
