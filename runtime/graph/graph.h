/* graph.h - the traced computation: values and nodes, in the order in which they were made.
**
** A graph is built once per shape (builder.c), rewritten (rewrite.c), differentiated (autodiff.c) and then lowered to a plan.
** Values are contiguous tensors; a node applies one row of the op table. Order of nodes is program order: inputs of a node
** are made before it. Autodiff appends the backward nodes to the same graph, so one list describes the whole micro-batch.
*/
#ifndef MS_GRAPH_GRAPH_H
#define MS_GRAPH_GRAPH_H

#include "base/handle.h"
#include "kernels/op.h"
#include "moonshard.h"

enum ms_value_kind { MS_VALUE_NODE = 0, MS_VALUE_INPUT = 1, MS_VALUE_PARAM = 2 };

/* The elements are [outer, rows, inner], of which axis 1 holds rows [first, first + rows) of the micro-batch. rows 0: they belong
** to no row; -1: rows cannot be told apart any more. */
typedef struct ms_batch_rows {
  int64_t outer, rows, first;
} ms_batch_rows;

typedef struct ms_value {
  ms_value_info info;
  ms_batch_rows rows;
  int kind;         /* enum ms_value_kind */
  int node, output; /* which node made it, as which output; -1 for inputs and parameters */
  int param;        /* index in the model for MS_VALUE_PARAM, else -1 */
  const char *name; /* of inputs; "" otherwise */
} ms_value;

typedef struct ms_node {
  int op;
  ms_attrs attrs;
  int inputs, outputs;
  int in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  const char *scope; /* module path, interned in the graph */
  int backward;      /* 1: made by autodiff, or again for it */
  int region;        /* of recompute.c, or 0 */
  int recompute;     /* 1: what it makes may be made again in backward */
  int recomputed;    /* 1: it is the copy that does so */
} ms_node;

typedef struct ms_named_value {
  const char *name;
  int value;
} ms_named_value;

/* What the builder asks of the model: kept small so that the graph floor does not know sharding. */
typedef struct ms_param_info {
  const char *name;
  ms_value_info info; /* dtype: what kernels read */
  int grad_dtype;     /* what the gradient is wanted in */
  int frozen;
} ms_param_info;
typedef int (*ms_param_lookup)(const void *model, int param, ms_param_info *info);

/* What a user of the graph keeps with it (plan/compile_cache.c); freed with the graph. */
typedef struct ms_graph_cache {
  void *data;
  void (*release)(void *data);
} ms_graph_cache;

struct ms_graph {
  ms_handle handle;
  ms_graph_cache *cache; /* its place; also of a const graph it may be filled */
  const void *model;
  ms_param_lookup lookup;
  ms_value *values;
  ms_node *nodes;
  int n_values, n_nodes, values_capacity, nodes_capacity;
  int loss;        /* value, or -1 */
  int loss_weight; /* value, f32 []: what the loss counts among those of all ranks and micro-batches; -1: as each does */
  ms_named_value *outputs; /* values kept readable */
  int n_outputs, outputs_capacity;
  int *param_values; /* [n_params] value of each parameter, or -1 */
  int *param_grads;  /* [n_params] gradient value after autodiff, or -1 (frozen, or not reached) */
  int n_params;
  const char *scope;                       /* current */
  int region;                              /* current */
  unsigned char recompute_op[MS_OP_COUNT]; /* which ops of the current region are recomputed */
  char **interned;                         /* a hash table: interned_capacity slots, NULL where empty */
  int n_interned, interned_capacity;
};

/* The row behind an op id. */
typedef int (*ms_infer_fn)(const ms_node *node, const ms_value_info *in, ms_value_info *out);
/* Appends the nodes that give d loss / d inputs. dy: [outputs] gradient values, -1 where none; dx: [inputs], to be set
** where the input needs one (needs[i]), -1 otherwise. */
typedef int (*ms_grad_fn)(ms_graph *graph, int node, const int *dy, const int *needs, int *dx);
/* The axis of output 0 that an axis of an input becomes: 0.. or one of enum ms_axis_end. */
typedef int (*ms_axes_fn)(const ms_node *node, const ms_value_info *in, const ms_value_info *out, int input, int axis);
/* One use of an op, by shapes. */
typedef struct ms_cost_case {
  int op;
  const ms_attrs *attrs;
  int inputs, outputs;
  const ms_value_info *in, *out; /* [inputs], [outputs] */
} ms_cost_case;
/* Floating-point operations (a multiplication and an addition are two), and bytes, each tensor touched once. */
typedef struct ms_work {
  double flops, bytes;
} ms_work;
typedef ms_work (*ms_work_fn)(const ms_cost_case *c);
typedef struct ms_op_row {
  const char *name, *attrs, *doc;
  int min_inputs, max_inputs, outputs, flops, flags;
  ms_infer_fn infer;
  ms_axes_fn axes; /* NULL: untracked */
  ms_grad_fn grad; /* NULL: not differentiable */
  ms_work_fn work;
} ms_op_row;
#define MS_OP(name, low, high, outputs, attrs, rule, axes, gradient, flops, work, ...) \
  ms_work ms_work_##work(const ms_cost_case *c);
#include "kernels/ops.def"
#undef MS_OP

const ms_op_row *ms_op_row_of(int op); /* NULL when there is no such op */
int ms_op_row_defaults(int op, ms_attrs *attrs);
int ms_op_has(int op, const char *attribute); /* 1: its row has such an attribute, e.g. "out_dtype:i7" */
/* 1: a call with these attributes reads what its outputs hold before it writes them. */
int ms_op_reads_outputs(int op, const ms_attrs *attrs);
/* The enum ms_activation that an op computes (maker MS_OP_PUBLIC) or is the gradient of (MS_OP_INTERNAL). */
int ms_op_activation(int op, int maker);

int ms_graph_create(const void *model, ms_param_lookup lookup, int n_params, ms_graph **graph);
/* A deep copy: compile works on one and leaves the caller's graph as it was traced. */
int ms_graph_copy(const ms_graph *graph, ms_graph **copy);
/* ms_graph_op by id; what gradient rules and lowering use. */
int ms_graph_emit(ms_graph *graph, int op, int inputs, const int *in, const ms_attrs *attrs, int *out);
/* Puts "in <scope>: " before the pending error; returns rc. */
int ms_graph_in_scope(const ms_graph *graph, int rc);
const char *ms_graph_intern(ms_graph *graph, const char *text);

/* Fuses: matmul + add of a vector -> matmul with bias; add + norm -> add_norm; silu * x -> swiglu; matmul + relu -> activation.
** With evaluate = 1 also matmul + gelu/silu -> activation, and dropout is passed through. Removes nodes nothing needs.
** Value ids stay what they were; a value that nothing makes any more has node -1. */
int ms_graph_rewrite(ms_graph *graph, int evaluate);
/* What an evaluate phase needs even when nothing is fused: ops that are the identity in evaluation (dropout) are passed
** through. ms_graph_rewrite with evaluate = 1 does it too. */
int ms_graph_pass_identities(ms_graph *graph, int evaluate);
/* After autodiff: activation backward + bias gradient -> activation_backward_bias; norm backward + add -> its fifth input;
** a sum of pads that tile an axis (the gradient of slices) -> concat. Removes nodes nothing needs. */
int ms_graph_rewrite_backward(ms_graph *graph);
/* After those: results that only gradients of weights read are made again by the gradient's kernel, not kept. Fresh values
** are appended; nodes change their order within backward. */
int ms_graph_rematerialize(ms_graph *graph);
/* Removes nodes whose outputs reach neither the loss, a named output nor a parameter gradient; keeps order. */
int ms_graph_prune(ms_graph *graph);
/* Appends the backward pass and fills param_grads, each in the parameter's grad_dtype. A parameter's gradient is a value of
** its own (or a reshape of one): nothing else reads it and no other parameter shares it, so its storage may be bound freely. */
int ms_graph_differentiate(ms_graph *graph);

/* Lets backward make again what the trace's regions do not keep (recompute.c). After autodiff and its rewrites. */
int ms_graph_insert_recomputation(ms_graph *graph);

/* Last, for devices whose products do it: gelu and its gradient in the epilogues of the products beside them (epilogues.c). */
int ms_graph_fuse_epilogues(ms_graph *graph);

/* 2 M N K for a matmul, 4 B H T S D for attention (not halved when causal), 2.5 times that for its gradient. */
double ms_op_flops(const ms_cost_case *c);
double ms_op_bytes(const ms_cost_case *c);
double ms_node_flops(const ms_graph *graph, const ms_node *node);
double ms_node_bytes(const ms_graph *graph, const ms_node *node);
/* "[8,256,128]" into text of at least 128 bytes; returns text. */
char *ms_shape_text(const ms_value_info *info, char *text);

#endif
