/* model.h - what to train: rules over names, parameters and units, the op table, and graphs of ops.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_MODEL_H
#define MOONSHARD_MODEL_H

#include <moonshard/base.h>
#include <moonshard/settings.h>
#include <moonshard/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- rules ------------------------------------------------------------------------------------------------------ */

typedef struct ms_rules ms_rules;

/* An ordered list of patterns for names; the first match decides. policy: what errors call the list. */
MS_API int ms_rules_new(const char *policy, ms_rules **rules);
/* is_regex 1: a PCRE2 pattern that can match anywhere in a name (anchor it with ^ and $); 0: a name, or the first parts
 * of a dotted name. where: "recipe.lua:12", quoted in errors. optional 1: the rule may match no name. */
MS_API int ms_rules_add(ms_rules *rules, const char *pattern, int is_regex, int optional, const char *where);
/* Applies the rules to n names: decided is [n], the index of the rule that wins, or -1. MS_ERULE if a rule that is not
 * optional matches no name. A rule that matches but never wins causes a warning. */
MS_API int ms_rules_resolve(ms_rules *rules, int n, const char *const *names, int *decided);
/* The i-th warning of the last resolve; NULL after the last one. */
MS_API const char *ms_rules_warning(const ms_rules *rules, int i);

/* ---- model: parameters and units -------------------------------------------------------------------------------- */

typedef struct ms_model ms_model;

enum ms_init { MS_INIT_ZEROS = 0, MS_INIT_ONES = 1, MS_INIT_NORMAL = 2, MS_INIT_UNIFORM = 3, MS_INIT_CONSTANT = 4 };
/* ROWS: each parameter is split into whole rows. RAGGED: all parameters of a unit are split together, at any element.
 */
enum ms_layout { MS_LAYOUT_ROWS = 0, MS_LAYOUT_RAGGED = 1 };
/* Whether a unit's gathered weights are freed after forward. DEFAULT: ALWAYS, except that the root unit
 * (ms_unit_config.root) and the last unit of forward KEEP theirs, because backward would gather them again at once; in
 * a stage of a pipeline (ms_plan_config.pipeline_stage) all units KEEP theirs, because every micro-batch would gather
 * them again. RUN: frozen weights stay gathered from step to step (MS_PHASE_GATHER); what trains in such a unit follows
 * DEFAULT. */
enum ms_reshard { MS_RESHARD_KEEP = 0, MS_RESHARD_ALWAYS = 1, MS_RESHARD_DEFAULT = 2, MS_RESHARD_RUN = 3 };

/* How the matrix products of a weight round their operands to 8 bits, by torchao's names: each tensor has one scale;
 * each row and column has one; or so, but for the weight's gradient, which is not rounded; or each 32 elements have
 * one. BLOCKWISE (DeepSeek-V3, TransformerEngine): each 128 summed elements have one, and each 128 x 128 of the weight,
 * or POWER_2_SCALE: the power of two below. A TENSORWISE matrix that is stored in f32 is gathered as f8e4m3, with the
 * scale of its f32 master; each weight of a stack of experts has scales of its own, and is gathered in its
 * param_dtype. */
enum ms_fp8 {
  MS_FP8_NONE = 0,
  MS_FP8_TENSORWISE = 1,
  MS_FP8_ROWWISE = 2,
  MS_FP8_ROWWISE_WITH_GW_HP = 3,
  MS_FP8_MXFP8 = 4,
  MS_FP8_BLOCKWISE = 5,
  MS_FP8_BLOCKWISE_POWER_2_SCALE = 6
};

/* What a dimension of the mesh is for. The first ones are the grid of the model's ranks, in which a rank of shard is
 * one of the shard dimension or, of the mesh's dimensions shard and context, one of both: ranks of context own parts of
 * parameters, too. */
enum ms_model_dim {
  MS_DIM_REPLICATE = 0,
  MS_DIM_SHARD = 1,
  MS_DIM_TENSOR = 2,
  MS_GRID_DIMS = 3,
  MS_DIM_CONTEXT = MS_GRID_DIMS,
  MS_DIMS = 4
};

/* What each rank has of a value at the ops to_local and from_local, between which a recipe divides by hand. */
enum ms_local_kind {
  MS_LOCAL_REPLICATE = 0, /* all of it */
  MS_LOCAL_SHARD = 1,     /* its part of an axis */
  MS_LOCAL_PARTIAL = 2    /* a summand */
};

/* What the dimensions of a mesh are for: a dimension of the mesh for each role, or -1 (default): none. */
typedef struct ms_model_dims {
  int struct_size; /* set by ms_config_default */
  int replicate;   /* ranks have the same shards, and sum their gradients */
  int shard;       /* ranks own parts of every parameter, which are gathered for use */
  int tensor;      /* ranks divide the work of a layer: each has parts of the parameters that have a tensor_axis */
  int sequence_parallel; /* 1: between layers, the ranks of the tensor dimension divide activations, too; default 0 */
  /* Ranks divide the positions of each sample: axis 1 of every input with two axes or more, folded, so twice the number
   * of ranks must divide its size. They own different parts of parameters, as more ranks of the shard dimension would,
   * which must be the dimension before this one if it has more than one rank. */
  int context;
} ms_model_dims;

/* Which elements of a flattened parameter make up a part of it: element e of the part is element
 * e / run * stride + origin + e % run of the parameter. For a parameter that is not divided, run and stride are
 * its elements, and origin is 0. */
typedef struct ms_division {
  int64_t run, stride, origin;
} ms_division;

/* What a parameter that is stored in a dtype (ms_param_config.storage_dtype) is made of: records of so many elements,
 * each of so many 32-bit words, which ranks do not cut. run: ms_division.run if a tensor dimension divides it, else 0;
 * records of parts can be shorter than those of a whole parameter. MS_EDTYPE for dtypes in which parameters cannot be
 * stored, MS_EUNSUPPORTED for runs that would cut a block. */
MS_API int ms_storage_record(int dtype, int64_t run, int64_t *elements, int64_t *words);
/* Elements [first, first + count) of an array of records of so many elements, as f32. */
MS_API int ms_storage_read(int dtype, int64_t elements, const void *records, int64_t first, int64_t count, float *out);
/* Copies these elements of an array of records of codes to one of records of another length, from element to_first
 * on, bit for bit. first and to_first begin blocks. */
MS_API int ms_storage_copy(int dtype, int64_t elements, const void *records, int64_t first, int64_t count,
                           int64_t to_elements, void *to, int64_t to_first);

/* ---- model ------------------------------------------------------------------------------------------------------ */

MS_API int ms_model_new(uint64_t seed, ms_model **model);
/* A unit is gathered as a whole; *unit is its index, from 0. Each parameter belongs to one unit. */
MS_API int ms_model_add_unit(ms_model *model, const char *name, const ms_unit_config *config, int *unit);
MS_API int ms_model_add_param(ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                              const ms_param_config *config, int *param);
/* Decides what rank `rank` of the mesh owns. Dimensions of the mesh without a role must have size 1; dims NULL: none
 * has one. If the mesh is a slice, each copy trains a model of its own: collectives, comparisons and means involve only
 * the ranks of ms_mesh_ranks. Needs no device and no other rank. */
MS_API int ms_model_shard(ms_model *model, const ms_mesh *mesh, int rank, const ms_model_dims *dims);
/* What a rank has of a tensor of a parameter: elements [first, first + count) of it flattened, or of the part of it
 * that the rank's place in the tensor dimension has. */
typedef struct ms_tensor_info {
  int64_t first, count;
  int sliced;       /* 1: no other replica has them; 0: all replicas have the same */
  ms_division part; /* of the parameter */
  /* In a state; else 0. The number of updates that the parameter has had, the same on all ranks. An update skips
   * parameters that the loss does not depend on: neither they, nor their optimizer state, nor this number change. */
  int64_t updates;
} ms_tensor_info;
/* What this rank owns of a parameter; after ms_model_shard. What states and plans have of it can be a slice of that
 * (ms_state_describe, ms_plan_describe), so `sliced` is 0 here. */
MS_API int ms_model_describe(const ms_model *model, int param, ms_tensor_info *info, int size);
/* These change settings for plans compiled from now on, over the same state; earlier plans keep theirs. After an error,
 * nothing has changed. reshard and reshard_size are [units], as in ms_unit_config; reshard_size can be NULL: zeros. */
MS_API int ms_model_set_reshard(ms_model *model, const int *reshard, const int *reshard_size);
/* Which units are gathered ahead while `unit` is the latest one that has started, in forward (backward 0) or backward
 * (1): units is [n], in this order. units NULL: the next n by number; with n -1: as many as ms_plan_config says. A unit
 * that no other unit gathers ahead is gathered when it is needed. */
MS_API int ms_model_set_prefetch(ms_model *model, int unit, int backward, int n, const int *units);
/* Sets ms_model_dims.sequence_parallel; on: 0 or 1. A traced graph keeps the setting that it was first compiled with:
 * trace again. */
MS_API int ms_model_set_sequence_parallel(ms_model *model, int on);
/* Replaces ms_param_config.group of all parameters: groups is [params], `size` bytes each. MS_EUNSUPPORTED if
 * parameters of one segment of a `ragged` unit differ. */
MS_API int ms_model_set_groups(ms_model *model, const ms_param_group *groups, int size);
/* Computes the initial elements [first, first + count) of a parameter from its name and distribution (enum ms_init, a,
 * b); out is [count]. The values depend only on the arguments, so any part of a tensor can be computed anywhere
 * (Philox4x32-10). */
MS_API int ms_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first,
                             int64_t count, float *out);

/* ---- ops -------------------------------------------------------------------------------------------------------- */

typedef struct ms_op_info {
  const char *name;
  const char *attrs; /* "name=default ..."; a default with a point, an exponent or inf is a real number's, any other an
                        integer's, a flag's or an axis's */
  const char *doc;   /* formula and shapes, on one line */
  int min_inputs, max_inputs, outputs;
  int differentiable; /* 1: has a gradient */
  int internal;       /* 1: inserted by the compiler, not meant for programs */
  int kernel_shape;   /* enum ms_kernel_shape: what the work of its kernels is counted in */
} ms_op_info;

MS_API int ms_op_count(void);
MS_API int ms_op_describe(int op, ms_op_info *info, int size);
MS_API int ms_op_find(const char *name); /* the op's index, or -1 */

/* ---- graph ------------------------------------------------------------------------------------------------------ */

typedef struct ms_graph ms_graph;

typedef struct ms_value_info {
  int dtype, ndim;
  int64_t dims[MS_MAX_DIMS];
} ms_value_info;

/* A graph over the parameters of a model. Values of a graph are ints >= 0. */
MS_API int ms_graph_new(const ms_model *model, ms_graph **graph);
/* Sets the module path of the nodes that follow ("layers.3.attn"); "" or NULL: none. */
MS_API int ms_graph_set_scope(ms_graph *graph, const char *path);
/* Activation checkpointing: nodes that follow belong to recompute region `region`; 0: none. Only values that leave the
 * region are kept for backward, which computes the others again. ops: the names, separated by spaces, of the ops to
 * compute again, while results of other ops are kept; NULL: all ops. */
MS_API int ms_graph_set_recompute(ms_graph *graph, int region, const char *ops);
/* Whether backward repeats the gathers of activations from the ranks of a dimension that divides layers or samples,
 * instead of keeping their results. By default it does if each rank would keep its own copy, but not if the ranks of
 * the dimension share one on a host. */
enum ms_regather { MS_REGATHER_DEFAULT = 0, MS_REGATHER_ALWAYS = 1, MS_REGATHER_NEVER = 2 };
MS_API int ms_graph_set_regather(ms_graph *graph, int when);
/* An input that the program writes before each phase (tokens, targets, ...), by name. rows: how many rows of the batch
 * it has along its first axis, which each take size / rows indices; -1: the axis's size; 0: none, the input is the same
 * for all rows and ranks. Results have the rows of their inputs as long as the ops keep rows separate. Dropout depends
 * on the row's place in the global batch, so it does not depend on which rank computes the row; a value without rows
 * has the same mask everywhere. */
MS_API int ms_graph_input(ms_graph *graph, const char *name, int dtype, int ndim, const int64_t *dims, int64_t rows,
                          int *value);
/* The unsharded parameter, in the dtype that kernels read. Calls with the same parameter return the same value. */
MS_API int ms_graph_param(ms_graph *graph, int param, int *value);
/* Adds a node; outputs is [ms_op_info.outputs]. attrs: attributes that differ from those of ms_op_info.attrs, in the
 * same spelling and any order, "axis=1 keepdim=1"; NULL or "": none. Numbers are written as C writes them, with a
 * decimal point in every locale; 17 digits give a double exactly. MS_ENAME if the op has no such attribute, MS_EINVAL
 * if a value is no number, or an integer's is none. */
MS_API int ms_graph_op(ms_graph *graph, const char *op, int n_inputs, const int *inputs, const char *attrs,
                       int *outputs);
MS_API int ms_graph_describe(const ms_graph *graph, int value, ms_value_info *info, int size);
/* Sets the f32 scalar to differentiate. A graph without a loss has only the phase evaluate. weight: that of this
 * micro-batch's loss among those of all ranks and micro-batches, an f32 scalar, not negative, without a gradient; -1:
 * none. With weights the loss of a step, which is differentiated, is sum(weight * loss) / sum(weight), or 0 if all
 * weights are 0. Without, all losses count equally. */
MS_API int ms_graph_set_loss(ms_graph *graph, int loss, int weight);
/* Makes a value readable after a phase, by name (ms_exec_output). */
MS_API int ms_graph_output(ms_graph *graph, const char *name, int value);
/* The bytes of memory that a graph takes, with what compilations have left in it for the next one. */
MS_API int ms_graph_host_bytes(const ms_graph *graph, int64_t *bytes);
/* Compares what was traced with an earlier trace of the same function: *difference says what first differs, such as
 * "scale in layers.3: alpha was 1 and is 0.5"; "" if both are the same program. The text is the calling thread's, and
 * valid until its next call. */
MS_API int ms_graph_difference(const ms_graph *graph, const ms_graph *before, const char **difference);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
