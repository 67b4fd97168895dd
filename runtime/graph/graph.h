/* graph.h - the traced computation: values and nodes, in the order in which they were created.
 *
 * A graph is built once per shape (builder.c), rewritten (rewrite.c), differentiated (autodiff.c) and then lowered to
 * a plan. Values are contiguous tensors; a node applies one row of the op table. Nodes are in program order: every
 * node comes after the nodes that produce its inputs. Autodiff appends the backward nodes to the same graph, so one
 * list describes the whole micro-batch. A graph belongs to one thread at a time.
 */
#ifndef MS_GRAPH_GRAPH_H
#define MS_GRAPH_GRAPH_H

#include "base/handle.h"
#include "graph/partition/placement.h"
#include "kernels/op.h"
#include "moonshard.h"

enum ms_value_kind { MS_VALUE_NODE = 0, MS_VALUE_INPUT = 1, MS_VALUE_PARAM = 2 };

/* A value seen as [outer, rows, inner]: axis 1 holds rows [first, first + rows) of the micro-batch. rows 0: the value
 * does not depend on a row; -1: its rows can no longer be identified. */
typedef struct ms_batch_rows {
  int64_t outer, rows, first;
} ms_batch_rows;

typedef struct ms_value {
  ms_value_info info;
  ms_batch_rows rows;
  int kind;         /* enum ms_value_kind */
  int node, output; /* the node that produces it and the number of that output; -1 for inputs and parameters */
  int param;        /* index in the model for MS_VALUE_PARAM, else -1 */
  const char *name; /* name of an input, otherwise "" */
} ms_value;

typedef struct ms_node {
  int op;
  ms_op_attrs attrs;
  int inputs, outputs;
  int in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  const char *scope; /* module path, interned in the graph */
  int backward;      /* 1: created by autodiff, or recomputed for backward */
  int region;        /* recomputation region (recompute.c), or 0 */
  int recompute;     /* 1: backward can recompute its outputs */
  int recomputed;    /* 1: this node is such a recomputed copy */
  int regather;      /* enum ms_regather: of what is gathered for this node, or by it */
} ms_node;

typedef struct ms_named_value {
  const char *name;
  int value;
} ms_named_value;

/* The facts about a parameter that the builder needs; a small interface, so that this floor does not depend on
 * sharding. */
typedef struct ms_param_info {
  const char *name;
  ms_value_info info; /* its dtype is the one that kernels read */
  int grad_dtype;     /* dtype of the gradient */
  int frozen;
  int fp8; /* enum ms_fp8: how its products round their operands */
} ms_param_info;
typedef int (*ms_param_lookup)(const void *model, int param, ms_param_info *info);

/* Data that a user of the graph attaches to it (plan/compile_cache.c); released with the graph. */
typedef struct ms_graph_cache {
  void *data;
  void (*release)(void *data);
  int64_t (*bytes)(const void *data);
} ms_graph_cache;

/* A change of placement that the partition pass has inserted (partition.h). */
typedef struct ms_conversion {
  int op, backward;  /* in forward, and what it takes in backward: MS_OP_*; backward is -1 if it moves nothing */
  const char *scope; /* of the node in the local graph */
  int value, reader; /* value of the traced graph; node of the traced graph that reads it, -1: loss or output */
  int dim;           /* enum ms_model_dim */
  int64_t ranks;
  ms_placement from, to;
  ms_value_info whole; /* the value in the traced graph: what a collective moves, all ranks' parts together */
  int local;           /* the value of the local graph that it makes */
  int regathered;      /* 1: backward gathers it again (regather.c) */
} ms_conversion;

struct ms_graph {
  ms_handle handle;
  ms_graph_cache *cache; /* can be filled even if the graph is const */
  const void *model;
  ms_param_lookup lookup;
  ms_value *values;
  ms_node *nodes;
  int n_values, n_nodes, values_capacity, nodes_capacity;
  int loss;        /* value, or -1 */
  int loss_weight; /* value, f32 []: the loss's weight among all ranks and micro-batches; -1: all weigh the same */
  ms_named_value *outputs; /* values that stay readable after a run */
  int n_outputs, outputs_capacity;
  int *param_values; /* [n_params] value of each parameter, or -1 if unused */
  int *param_grads;  /* [n_params] gradient after autodiff; -1: frozen or not reached */
  int n_params;
  const char *scope;                       /* current */
  int region;                              /* current */
  int regather;                            /* current, enum ms_regather */
  unsigned char recompute_op[MS_OP_COUNT]; /* 1: nodes of this op are recomputed in the current region */
  ms_conversion *conversions;              /* in program order; scopes belong to the graph */
  int n_conversions, conversions_capacity;
  char **interned; /* hash table with interned_capacity slots; NULL: empty slot */
  int n_interned, interned_capacity;
};

/* The functions of an op's row. First the shape rule: fills out[outputs] from in[inputs]. */
typedef int (*ms_infer_fn)(const ms_node *node, const ms_value_info *in, ms_value_info *out);
/* Gradient rule: appends the nodes that compute d loss / d inputs. dy: [outputs], gradient values, -1 if an output
 * has none. dx: [inputs], all -1 on entry; the rule sets each input with needs[i]. */
typedef int (*ms_grad_fn)(ms_graph *graph, int node, const int *dy, const int *needs, int *dx);
/* One use of an op, described by its shapes. */
typedef struct ms_cost_case {
  int op;
  const ms_op_attrs *attrs;
  int inputs, outputs;
  const ms_value_info *in, *out; /* [inputs], [outputs] */
} ms_cost_case;
/* flops counts a multiplication and an addition as two operations; bytes counts every tensor once. */
typedef struct ms_work {
  double flops, bytes;
} ms_work;
typedef ms_work (*ms_work_fn)(const ms_cost_case *c);
typedef struct ms_op_row {
  const char *name, *attrs, *doc;
  int min_inputs, max_inputs, outputs, flops, flags;
  ms_infer_fn infer;
  const char *axes; /* axes.h */
  ms_grad_fn grad;  /* NULL: not differentiable */
  ms_work_fn work;
} ms_op_row;
#define MS_OP(name, low, high, outputs, members, attrs, rule, axes, gradient, flops, work, ...) \
  ms_work ms_work_##work(const ms_cost_case *c);
#include "kernels/ops.def"
#undef MS_OP

const ms_op_row *ms_op_row_of(int op); /* NULL when there is no such op */

/* An attribute of an op's row, in the row's order (attributes.c). */
typedef struct ms_attribute {
  const char *name; /* of `length` letters */
  int length;
  int real;     /* 1: a double, otherwise int64_t */
  int word;     /* where it is in ms_op_attrs, in 8 bytes */
  double value; /* the default */
} ms_attribute;
const ms_attribute *ms_op_attributes(int op, int *n); /* [n] */
double ms_attribute_value(const ms_attribute *attribute, const ms_op_attrs *attrs);
void ms_attribute_set(const ms_attribute *attribute, ms_op_attrs *attrs, double value);
int ms_op_row_defaults(int op, ms_op_attrs *attrs);
/* The row's defaults, and what a text "axis=1 keepdim=1" says; NULL: no more than those. */
int ms_op_read_attrs(int op, const char *text, ms_op_attrs *attrs);
int ms_op_has(int op, const char *name); /* 1: its row has such an attribute, e.g. "part" */
/* The integer of this name among an op's attributes; NULL: its row has none. */
int64_t *ms_op_integer(int op, ms_op_attrs *attrs, const char *name);
int64_t ms_node_axis(const ms_node *node); /* the attribute axis, which the node's row must have */
/* MS_EDTYPE if the op's kernels have no code for a dtype of an operand: "add: input 0 is f8e4m3, ...". */
int ms_op_check_dtype(int op, int dtype, const char *kind, int number);
/* 1: a call with these attributes reads the contents of its outputs before it writes them. */
int ms_op_reads_outputs(int op, const ms_op_attrs *attrs);
/* The enum ms_activation that an op computes (maker MS_OP_PUBLIC) or is the gradient of (MS_OP_INTERNAL). */
int ms_op_activation(int op, int maker);

int ms_graph_create(const void *model, ms_param_lookup lookup, int n_params, ms_graph **graph);
int64_t ms_graph_bytes(const ms_graph *graph); /* of memory, with its cache */
/* A deep copy: compilation changes the copy and leaves the caller's graph as traced. */
int ms_graph_copy(const ms_graph *graph, ms_graph **copy);
/* 1: both are the same program, over parameters that passes over graphs cannot distinguish (alike.c). */
int ms_graph_is_alike(const ms_graph *a, const ms_graph *b);
/* ms_graph_op by op id, for gradient rules and lowering. */
int ms_graph_emit(ms_graph *graph, int op, int inputs, const int *in, const ms_op_attrs *attrs, int *out);
/* Puts "in <scope>: " before the pending error; returns rc. */
int ms_graph_in_scope(const ms_graph *graph, int rc);
const char *ms_graph_intern(ms_graph *graph, const char *text);

/* Fuses matmul + add of a vector into matmul with bias, add + norm into add_norm, silu * x into swiglu, and matmul +
 * relu into a matmul with activation. With evaluate = 1 it also fuses matmul + gelu/silu and bypasses dropout.
 * Removes unused nodes. Value ids do not change; a value that no node produces any more has node -1. */
int ms_graph_rewrite(ms_graph *graph, int evaluate);
/* The part of ms_graph_rewrite that evaluate phases need even without fusion: bypasses ops that are the identity in
 * evaluation (dropout). ms_graph_rewrite with evaluate = 1 includes it. hints: 1 to bypass hints of placements, too,
 * when the graph has been divided. */
int ms_graph_pass_identities(ms_graph *graph, int evaluate, int hints);
/* The part of ms_graph_rewrite that must come before the graph is divided: the loss reads padded logits itself. */
int ms_graph_fuse_classes(ms_graph *graph);
/* The last part of ms_graph_rewrite: a cross entropy that asks for it (attribute fused) reads x and w instead of the
 * logits x w' (linear_loss.c). MS_EUNSUPPORTED if it must, and cannot. */
int ms_graph_fuse_linear_loss(ms_graph *graph);
/* The part of ms_graph_rewrite_backward that makes a loss and its gradient one node, where the gradient of the loss is
 * known before the loss (loss_step.c). */
int ms_graph_fuse_loss_steps(ms_graph *graph);
/* The part of ms_graph_rewrite_backward that makes products add themselves to gradients (product_sums.c). */
int ms_graph_fuse_product_sums(ms_graph *graph);
/* Runs before autodiff, whatever is fused: products of weights that ask for 8 bits become matmul_f8 (float8.c).
 * backward: 1 if their gradients follow. MS_EUNSUPPORTED or MS_ESHAPE if one cannot. */
int ms_graph_round_products(ms_graph *graph, int backward);
/* Runs after autodiff. Fuses activation backward + bias gradient into activation_backward_bias, makes the other
 * addend of a norm's gradient its fifth input, and turns a sum of pads that tile an axis (the gradient of slices)
 * into concat. Removes unused nodes. */
int ms_graph_rewrite_backward(ms_graph *graph);
/* Runs after both rewrites. What forward gathers from the ranks of a mesh dimension, and backward reads, is gathered
 * again for backward instead of kept (regather.c): where the trace says so, and by default along dimensions with
 * by_default[dim] = 1, an array of MS_DIMS. */
int ms_graph_regather(ms_graph *graph, const unsigned char *by_default);
/* Runs after that. Results that only weight gradients read are recomputed by the gradient's kernel instead
 * of stored. Appends new values and reorders nodes within backward. */
int ms_graph_rematerialize(ms_graph *graph);
/* Removes nodes whose outputs reach neither the loss, a named output nor a parameter gradient; keeps the order. */
int ms_graph_prune(ms_graph *graph);
/* Appends the backward pass and fills param_grads, each in the parameter's grad_dtype. A parameter's gradient is a
 * separate value (or a reshape of one): no other node reads it and no other parameter shares it, so the caller can
 * bind its storage freely. */
int ms_graph_differentiate(ms_graph *graph);

/* Recomputes in backward what the regions of the trace do not keep (recompute.c). Runs after autodiff and its
 * rewrites. */
int ms_graph_insert_recomputation(ms_graph *graph);

/* Runs last, for devices that support it: moves gelu and its gradient into the epilogues of adjacent products
 * (epilogues.c). */
int ms_graph_fuse_epilogues(ms_graph *graph);

/* FLOPs of one call: 2 M N K for a matmul, 4 B H T S D for attention (not halved if causal), 2.5 times that for its
 * gradient. With a window, S is the keys of causal attention without one in which queries see as many keys in all;
 * if it is not causal, the keys that a query sees on average. */
double ms_op_flops(const ms_cost_case *c);
double ms_attention_keys(const ms_cost_case *c);
double ms_op_bytes(const ms_cost_case *c);
double ms_node_flops(const ms_graph *graph, const ms_node *node);
double ms_node_bytes(const ms_graph *graph, const ms_node *node);
/* Writes e.g. "[8,256,128]" to text (at least MS_SHAPE_TEXT bytes, infer.h) and returns text. */
char *ms_shape_text(const ms_value_info *info, char *text);

#endif
