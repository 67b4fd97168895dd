/* simulated_ranks.h - the ops across ranks, computed on several interpreters of one graph in turn: what ranks would
 * send each other is in the same memory.
 */
#ifndef MS_TESTS_SIMULATED_RANKS_H
#define MS_TESTS_SIMULATED_RANKS_H

#include "base/numbers/dtype.h"
#include "tests/c/graph/graph_interpreter.h"

static inline int is_collective(const ms_node *node) { return (ms_op_row_of(node->op)->flags & MS_OP_COLLECTIVE) != 0; }

/* How an axis is divided. */
typedef struct division {
  int axis;
  int64_t outer;
  int folded;
} division;

static inline division division_of(const ms_op_attrs *a) {
  return (division){(int)a->across.along, a->across.outer, a->across.folded != 0};
}

/* Copies part `index` of `ranks` of an axis, which has `outer` blocks, out of a whole of this shape or into it. */
static inline void move_part(char *whole, char *part, const ms_value_info *x, division by, int64_t ranks, int64_t index,
                             int into_whole) {
  const int axis = by.axis;
  int64_t outer = by.outer;
  int64_t run = ms_dtype_size(x->dtype);
  for (int d = 0; d < axis; d++) outer *= x->dims[d];
  run *= ms_numel(x) / outer / ranks;
  for (int64_t o = 0; o < outer; o++) {
    const int64_t at = by.folded && o % 2 ? ranks - 1 - index : index;
    char *in_whole = whole + (o * ranks + at) * run, *in_part = part + o * run;
    memcpy(into_whole ? in_whole : in_part, into_whole ? in_part : in_whole, (size_t)run);
  }
}

/* One node on a group of ranks: all that goes through memory shared by them, [bytes] of the whole value. */
typedef struct simulated_node {
  interpreter **rank; /* [ranks] by coordinate */
  int ranks;
  const ms_node *node;
  ms_value_info x, y;
  int64_t x_bytes, y_bytes;
} simulated_node;

static inline char *simulated_x(const simulated_node *s, int r) { return s->rank[r]->data[s->node->in[0]]; }
static inline char *simulated_y(const simulated_node *s, int r) { return s->rank[r]->data[s->node->out[0]]; }

/* sum [elements of x], f32 */
static inline void simulate_sum(const simulated_node *s, float *sum) {
  for (int r = 0; r < s->ranks; r++)
    for (int64_t i = 0; i < ms_numel(&s->x); i++) {
      const double x = interpreter_get(s->rank[r], s->node->in[0], i);
      sum[i] = (float)(!r                                                             ? x
                       : s->node->op == MS_OP_all_reduce && s->node->attrs.across.max ? fmax(sum[i], x)
                                                                                      : sum[i] + x);
    }
}

static inline void simulate_reduction(const simulated_node *s) {
  const ms_op_attrs *a = &s->node->attrs;
  float *sum = interpreter_allocate(ms_numel(&s->x) * (int64_t)sizeof *sum);
  char *rounded = interpreter_allocate(s->x_bytes);
  simulate_sum(s, sum);
  for (int64_t i = 0; i < ms_numel(&s->x); i++) {
    if (s->x.dtype == MS_BF16) ((ms_bf16 *)rounded)[i] = ms_f32_to_bf16(sum[i]);
    else ((float *)rounded)[i] = sum[i];
  }
  for (int r = 0; r < s->ranks; r++) {
    if (s->node->op == MS_OP_all_reduce) memcpy(simulated_y(s, r), rounded, (size_t)s->y_bytes);
    else move_part(rounded, simulated_y(s, r), &s->x, division_of(a), s->ranks, r, 0);
  }
  free(sum);
  free(rounded);
}

/* Gathers an axis that is divided in x, then divides another, or none (-1). */
static inline void simulate_exchange(const simulated_node *s, division gathered, int divided) {
  ms_value_info whole = s->x;
  whole.dims[gathered.axis] *= s->ranks;
  char *all = interpreter_allocate(s->x_bytes * s->ranks);
  for (int r = 0; r < s->ranks; r++) move_part(all, simulated_x(s, r), &whole, gathered, s->ranks, r, 1);
  for (int r = 0; r < s->ranks; r++) {
    if (divided < 0) memcpy(simulated_y(s, r), all, (size_t)s->y_bytes);
    else move_part(all, simulated_y(s, r), &whole, (division){divided, 1, 0}, s->ranks, r, 0);
  }
  free(all);
}

/* Each rank gets the value of the rank `by` places before it. */
static inline void simulate_shift(const simulated_node *s) {
  const int64_t ranks = s->ranks, by = (s->node->attrs.across.by % ranks + ranks) % ranks;
  for (int r = 0; r < s->ranks; r++)
    memcpy(simulated_y(s, r), simulated_x(s, (int)((r - by + ranks) % ranks)), (size_t)s->y_bytes);
}

/* Ops that communicate nothing. */
static inline void simulate_local(const simulated_node *s, int r) {
  const ms_op_attrs *a = &s->node->attrs;
  if (s->node->op == MS_OP_split) {
    move_part(simulated_x(s, r), simulated_y(s, r), &s->x, division_of(a), s->ranks, r, 0);
  } else if (s->node->op == MS_OP_unsplit) {
    memset(simulated_y(s, r), 0, (size_t)s->y_bytes);
    move_part(simulated_y(s, r), simulated_x(s, r), &s->y, division_of(a), s->ranks, r, 1);
  } else if (s->node->op == MS_OP_once && r) {
    memset(simulated_y(s, r), 0, (size_t)s->y_bytes);
  } else {
    memcpy(simulated_y(s, r), simulated_x(s, r), (size_t)s->y_bytes);
  }
}

/* Runs a collective node on the interpreters of the ranks of its dimension, by coordinate. */
static inline void simulate_collective(interpreter **rank, int ranks, const ms_node *node) {
  const ms_value *values = rank[0]->graph->values;
  simulated_node s = {rank, ranks, node, values[node->in[0]].info, values[node->out[0]].info, 0, 0};
  s.x_bytes = ms_numel(&s.x) * ms_dtype_size(s.x.dtype), s.y_bytes = ms_numel(&s.y) * ms_dtype_size(s.y.dtype);
  assert_int_equal(node->attrs.across.ranks, ranks);
  if (node->op == MS_OP_all_reduce || node->op == MS_OP_reduce_scatter) simulate_reduction(&s);
  else if (node->op == MS_OP_shift) simulate_shift(&s);
  else if (node->op == MS_OP_all_gather) simulate_exchange(&s, division_of(&node->attrs), -1);
  else if (node->op == MS_OP_all_to_all)
    simulate_exchange(&s, (division){(int)node->attrs.across.concat_axis, 1, 0}, (int)node->attrs.across.split_axis);
  else
    for (int r = 0; r < ranks; r++) simulate_local(&s, r);
}

#endif
