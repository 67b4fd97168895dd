/* lower.h - from graph and sharding to instructions: declarations shared by the files that build a plan.
 *
 * unshard_schedule.c decides when units are gathered, builder.c appends buffers and instructions, lower_graph.c builds
 * the phases that have a graph, lower_norm.c and lower_step.c those that have none.
 */
#ifndef MS_PLAN_LOWER_H
#define MS_PLAN_LOWER_H

#include "plan/plan.h"
#include "plan/layout/state_layout.h"
#include "plan/optimizer.h"

/* The graph nodes between which a phase uses a unit's weights; -1: not used (unshard_schedule.c). */
typedef struct ms_unit_use {
  int forward_first, forward_last, backward_first, backward_last;
  int gradient_last; /* the node that completes the unit's gradients */
  int keep;          /* 1: the weights stay gathered from forward to backward */
} ms_unit_use;
/* One unshard of a unit: issued before node `issue`, needed by node `need`. */
typedef struct ms_unshard {
  int unit, need, issue;
  int rank; /* order among the unshards issued before the same node */
} ms_unshard;
/* use: [units]. boundary: the first backward node, or the number of nodes. keep_all: do not reshard any unit after
 * forward. */
int ms_unit_uses(const ms_model *model, const ms_plan_config *config, const ms_graph *graph, const int *root,
                 int keep_all, ms_unit_use *use, int *boundary);
/* Fills `list` with the unshards of a phase in order of issue, at most 2*units; returns their number, or -1 without
 * memory. */
int ms_unshard_schedule(const ms_model *model, const ms_unit_use *use, int boundary, int prefetch, ms_unshard *list);
/* 1 when kernels read what this rank keeps: one shard, and all of the unit in f32, stored, or kept as a copy. */
int ms_unit_is_direct(const ms_model *model, int unit);

/* The builder (builder.c). ms_plan_buffer returns the index of the new buffer in *buffer. */
int ms_plan_buffer(ms_plan *plan, int phase, int arena, int category, int64_t bytes, const char *label, int *buffer);
/* Finds the plan's copy of a scope string, which it makes at the first use. */
int ms_plan_own_scope(ms_plan *plan, const char *from, const char **own);
/* Keeps what ms_plan_list tells of them. */
int ms_plan_keep_conversions(ms_plan *plan, const ms_graph *graph);
/* Appends an instruction to the phase's program and extends the lifetimes of the buffers it names. A kernel
 * without an element to write is appended, too: ranks that share memory must lay out their arenas alike. */
int ms_plan_kernel(ms_plan *plan, int phase, int op, const ms_op_attrs *attrs, int inputs, const ms_ref *in,
                   int outputs, const ms_ref *out, const char *scope, int backward);
/* Gives an instruction its prepared call, which the plan owns and all equal instructions share, with its hash and
 * sizes (prepare.c). */
int ms_plan_prepare(ms_plan *plan, int op, const ms_op_attrs *attrs, int inputs, const ms_ref *in, int outputs,
                    const ms_ref *out, ms_instr *instr);
/* Gives it another that spares the plan's multiprocessors, and a hash that says so. */
int ms_plan_prepare_spared(ms_plan *plan, ms_instr *instr);
int64_t ms_plan_prepared_bytes(const ms_plan *plan); /* without what kernels have prepared */
void ms_plan_release_prepared(ms_plan *plan);
/* ranks: number of neighbours in the dimension that take part; 0: all. */
int ms_plan_collective(ms_plan *plan, int phase, int stream, int kind, int dim, int ranks, int unit, int parts,
                       const ms_plan_part *part);
/* One that is a node of the graph, over all ranks of the dimension. */
int ms_plan_collective_of(ms_plan *plan, int phase, int stream, int kind, int dim, const char *scope,
                          const ms_plan_part *part);
/* The all_reduce just appended takes the largest of the ranks' numbers. */
void ms_plan_takes_largest(ms_plan *plan, int phase);
/* The all_gather just appended is of sums of gradients. */
void ms_plan_gathers_sums(ms_plan *plan, int phase);
/* The collective just appended is of ranks that are `stride` places apart in the dimension. */
void ms_plan_set_stride(ms_plan *plan, int phase, int stride);
/* The kernel just appended has attributes that depend on this rank's place: what ranks compare of it is an op and
 * attributes that say the same on all of them. */
void ms_plan_hash_alike(ms_plan *plan, int phase, int op, const ms_op_attrs *attrs);
/* Appends the end of a unit's collective that UPDATE leaves in flight; the caller sets `coll` when that is lowered. */
int ms_plan_join(ms_plan *plan, int phase, int stream, int unit);
/* Adds the replicas of a node to the phase's last collective over the shards, which is a copying all_gather or a
 * sum. */
int ms_plan_take_replicas(ms_plan *plan, int phase);
/* A collective among the ranks that have the same place in each copy of the state; nothing where there is one copy. */
int ms_plan_between_copies(ms_plan *plan, int phase, int kind, int unit, int parts, const ms_plan_part *part);
/* Makes each rank receive only the slice that the parts describe from the phase's last collective, an all_reduce. */
void ms_plan_slice_sum(ms_plan *plan, int phase);
void ms_plan_touch(ms_plan *plan, int buffer, int position);
/* Lets a collective, the phase's instruction `instr`, hand over bytes (ms_plan_coll.opens). */
int ms_plan_open(ms_plan *plan, int phase, int instr, ms_ref bytes);
/* The buffers of the training state come first in a plan: MS_SLOTS of each unit, then the step's scalars. A buffer that
 * a unit does not need is empty. */
/* Creates names and buffers for a traced graph's inputs, and names for its outputs. */
int ms_plan_take_slots(ms_plan *plan, const ms_graph *graph);
int ms_plan_state_buffers(ms_plan *plan);
int ms_state_buffer(int unit, int which);
int ms_squares_buffer(const ms_plan *plan);
int ms_loss_sum_buffer(const ms_plan *plan);
int ms_norm_buffer(const ms_plan *plan);
int ms_updates_buffer(const ms_plan *plan);
ms_ref ms_ref_vector(int buffer, int64_t offset, int dtype, int64_t n);
ms_ref ms_ref_scalar(int buffer, int64_t offset);

/* Source or destination of a sum over ranks: whole reduce buffers or chunks, in one dtype. */
typedef struct ms_gradients {
  int buffer, dtype, chunked;
  int sliced; /* chunks only: just this rank's slice of them */
} ms_gradients;

/* What is left of a sum in few bits, whose steps are lowered apart, one after the other: over the shards the TOTAL,
 * between nodes after what they PASS_ON (lower_quantised_shards.c), over the replicas the others (lower_quantised.c).
 */
enum ms_quantised_step {
  MS_QUANTISED_PASS_ON,
  MS_QUANTISED_TOTAL,
  MS_QUANTISED_WAIT,
  MS_QUANTISED_SEND,
  MS_QUANTISED_SUM,
  MS_QUANTISED_RESTORE,
  MS_QUANTISED_DONE
};

typedef struct ms_quantised {
  int unit, step;
  ms_gradients from;                 /* PASS_ON, TOTAL: where the chunks go */
  int adds;                          /* there: 1: the sum is added to what they have */
  int sent, received, own, gathered; /* buffers */
} ms_quantised;

typedef struct ms_lowering {
  ms_plan *plan;
  int phase;
  const ms_graph *graph;
  const ms_model *model;
  const ms_node *reader; /* the node that is lowered; NULL after the last one */
  int *root;             /* [values] the value that owns its bytes */
  int *last_use;         /* [values] last node that reads it; INT_MAX: kept until the end of the phase */
  ms_place *at;          /* [values] place of each root */
  char *read;            /* [values] 1 for roots that a node or the caller reads */
  char *sent;            /* [values] 1 for roots that peers read */
  int *gather;         /* [values] the first all_gather of a root whose result is the ranks' parts one after the other,
                        * or -1 */
  char *begun;         /* [values] 1 for roots that a kernel has read */
  char *chunk;         /* [values] 1 for roots that are this rank's chunk of what that all_gather makes */
  int *readers;        /* [values] of each root: nodes that read it, and 1 if it is kept until the end */
  char *added;         /* [values] 1 for roots that are gradients which the matrix product itself adds to the sums of
                        * earlier micro-batches, and for the first product of such a gradient that is a sum of several */
  ms_unit_use *use;    /* [units] */
  char *ends;          /* [nodes] 1: the node ends a unit's forward pass or completes its gradients */
  ms_unshard *unshard; /* [2 units] in order of issue */
  int unshards, next_unshard, boundary;
  int *gathered;           /* [units] buffer that currently holds the unit's unsharded weights, or -1 */
  int *slice;              /* [units] buffer of the shard kept for gathering in a smaller group, or -1 */
  ms_ref weights[2];       /* of all micro-batches so far: of all replicas, and of this one; buffer -1: none */
  int *reduce;             /* [units] buffer that the unit's gradients are written to, or -1 */
  int *scale;              /* [params] index of the scale of codes in `scales`, or -1 */
  int scales;              /* buffer of those scales, or -1 */
  ms_plan_part *part;      /* [most segments in any unit] scratch: the parts of one collective */
  ms_quantised *quantised; /* [2 units] sums in few bits, in the order in which they start */
  int quantised_started, quantised_begun; /* their number; the first one that is not lowered to its end */
  int sending[MS_DIMS]; /* [enum ms_model_dim] buffer of the latest collective, kept until the next one starts */
  int latest[MS_DIMS];  /* [enum ms_model_dim] instruction of the latest collective that is a node, or -1 */
} ms_lowering;

/* Units of residuals (gradients/lower_residuals.c): at forward's end, from the weight of the micro-batch's loss; before
 * a kernel that adds residuals, `rest`; and after a unit's update. */
int ms_lower_weights(ms_lowering *l, ms_ref weight);
int ms_lower_rescale(ms_lowering *l, int unit, const ms_segment *seg, int over_replicas, ms_ref rest);
int ms_lower_keep_divisors(ms_plan *plan, int unit);

/* QK-clip (lower_logits.c): takes the largest scores from an output of the graph, if it is of them; and joins those of
 * all ranks, in NORM. */
int ms_lower_take_logits(ms_lowering *l, const char *name, ms_ref scores);
int ms_lower_join_logits(ms_plan *plan);

/* Where a segment's gathered weights are; buffer -1: it is not gathered. */
static inline ms_place ms_lower_gathered(const ms_lowering *l, int unit, const ms_segment *segment) {
  const int resident = ms_segment_is_resident(l->model, &l->model->unit[unit], segment);
  const ms_place of = resident ? l->plan->resident[unit] : (ms_place){l->gathered[unit], 0};
  return (ms_place){of.buffer, of.offset + segment->gathered};
}

/* Ops across ranks (lower_across.c): not those of one rank, which are kernels. */
static inline int ms_is_across(const ms_node *node) {
  return (ms_op_row_of(node->op)->flags & MS_OP_COLLECTIVE) && node->attrs.across.ranks > 1;
}
/* 1 when the output of such a node is its input. */
int ms_across_is_alias(const ms_node *node);
/* 1 when peers read its input where it is. */
int ms_across_sends(const ms_graph *graph, const ms_node *node);
/* Fails when a graph has an op over ranks that the mesh does not have. */
int ms_across_check(const ms_model *model, const ms_graph *graph);
/* What an op moves of a value between ranks, counted as its collective is. */
double ms_across_bytes(int op, const ms_value_info *whole, int64_t ranks);
int ms_lower_across(ms_lowering *l, const ms_node *node, ms_ref in, ms_ref out);
/* An all_gather, which decides where its result is. */
int ms_lower_gather(ms_lowering *l, const ms_node *node, ms_ref in, ms_place *at);
/* 1 when an all_gather's result is the ranks' inputs one after the other. */
int ms_across_joins_chunks(const ms_graph *graph, const ms_node *node);
/* Places a root that is to be gathered at this rank's chunk of the result, so that the gather moves nothing of it;
 * leaves *at as it is where that is not possible. */
int ms_lower_chunk(ms_lowering *l, int root, ms_place *at);
/* Products that begin before their first input is gathered (lower_products.c). The value that is this rank's part of
 * the input, or -1 where the product is computed whole. */
int ms_lower_gathered_part(const ms_lowering *l, const ms_node *node);
/* Multiplies this rank's part of the rows first: own. */
int ms_lower_product(ms_lowering *l, const ms_node *node, ms_ref own, const ms_ref *in, ms_ref out);
/* The attributes of a node's kernel; *local = 1 when they depend on this rank's place in a dimension. */
ms_op_attrs ms_across_attrs(const ms_lowering *l, const ms_node *node, const ms_ref *in, const ms_ref *out, int *local);

/* Issue the unshards that are scheduled before a node; keep slices of the units whose forward pass ends with it
 * (lower_unshards.c). */
int ms_lower_unshards(ms_lowering *l, int node);
int ms_lower_keep_slices(ms_lowering *l, int node);
/* Gathers, or with one shard casts, those segments of a unit that are resident, or those that are not. to: where the
 * whole unit would begin. */
int ms_lower_unshard(ms_lowering *l, int unit, ms_place to, int ranks, int resident);
/* Places the weights that are resident, and makes the phase GATHER if there are any (lower_resident.c). */
int ms_lower_resident(ms_plan *plan);

/* Weights that are gathered as codes (lower_codes.c). Begins a phase: scales of all of them that its units have. */
int ms_lower_scales(ms_lowering *l);
ms_ref ms_lower_scale(const ms_lowering *l, int param);
/* With one shard: makes the codes of segment s from its masters. */
int ms_lower_codes(ms_lowering *l, int unit, int s, ms_ref in, ms_ref out);
/* A matmul_f8 whose second input is such a weight. */
int ms_lower_coded_product(ms_lowering *l, const ms_node *node, const ms_ref *in, ms_ref out);

/* Weights that are gathered in blocks of i8 (lower_blocks.c). Makes the blocks of this rank's chunk of segment s, for a
 * gather or, with one shard, where kernels find them; restores a parameter before the kernel that reads it. */
int ms_lower_blocks(ms_lowering *l, int unit, int s, ms_ref to);
int ms_lower_sent_blocks(ms_lowering *l, int unit, int s, ms_ref *blocks);
int ms_lower_restore_blocks(ms_lowering *l, const ms_param *p, const ms_segment *seg, ms_place *at);

int64_t ms_gradients_offset(const ms_gradients *g, const ms_segment *seg);

/* Where gradients are written (lower_gradients.c). 1 when other ranks have gradients of the same parameters. */
int ms_lower_communicates(const ms_lowering *l, int unit);
/* The effective enum ms_sync on this mesh. */
int ms_lower_sync(const ms_lowering *l, int unit);
/* 1 when unsharded gradients wait for the last micro-batch; 1 when kernels write them directly to the waiting
 * buffer. */
int ms_lower_defers_unsharded(const ms_lowering *l, int unit);
int ms_lower_writes_deferred(const ms_lowering *l, int unit);
/* Returns the unit's buffer of f32 elements that wait for the last micro-batch; the first micro-batch creates it. */
int ms_lower_deferred_buffer(ms_lowering *l, int unit, int64_t elements, int *buffer);
int64_t ms_lower_reduce_elements(const ms_lowering *l, const ms_unit *u);
/* 1 when kernels write gradients directly to the state's chunk. */
int ms_lower_writes_state(const ms_lowering *l, int unit);
/* grad_unit: [values] the unit that the gradient belongs to, or -1 for other values. */
int ms_lower_open_gradients_of(ms_lowering *l, int node, const int *grad_unit);
int ms_lower_first_summand(const ms_lowering *l, int value);
int ms_lower_zero_unreached(ms_lowering *l);
/* Clears the bytes of a unit's gradients that belong to no segment, once its sums are written. Ranks have different
 * ones, so this must not be what begins the gradients' lifetime, which decides how large shared arenas are. */
int ms_lower_zero_between_segments(ms_lowering *l, int unit);
/* Reduces the units whose gradients this node completes (lower_reductions.c). */
int ms_lower_reduce_completed(ms_lowering *l, int node);

/* Takes all sums in few bits that were started a step further. */
int ms_lower_advance_quantised(ms_lowering *l);

/* Sums over the shards in few bits (lower_quantised_shards.c). */
/* Starts the sum of whole gradients into chunks, which a later step completes. */
int ms_lower_send_to_shards(ms_lowering *l, int unit, const ms_gradients *from, const ms_gradients *to, int accumulate);
int ms_lower_pass_on(ms_lowering *l, ms_quantised *q);
int ms_lower_total_of_shards(ms_lowering *l, const ms_quantised *q);

/* Sums over the replicas in few bits (lower_quantised.c). */
/* Starts the sum of a unit's gradients; takes one that was started a step further. */
int ms_lower_quantised(ms_lowering *l, int unit, const ms_gradients *from);
int ms_lower_step_quantised(ms_lowering *l, ms_quantised *q);

/* Sliced units (lower_replica_slices.c). In the last sum of a unit's gradients, each replica receives its slice. */
int ms_lower_scatter_slices(ms_lowering *l, int unit, const ms_gradients *from, int accumulate);
/* Clears the bytes of this rank's slice of gradients that belong to no segment. */
int ms_lower_clear_slice(ms_plan *plan, int unit);
/* Gives a unit's squares the weight that they have where every copy of the state contributes them. */
int ms_lower_weigh_squares(ms_plan *plan, int unit, ms_ref squares);
/* Gathers what each replica has updated. Such gathers can outlast UPDATE: ms_lower_join_gathers, before everything else
 * in FIRST, waits for them there, in the order of units. */
int ms_lower_gather_slices(ms_plan *plan, int unit);
int ms_lower_join_gathers(ms_plan *plan);

/* One rank's program (divide.c). Replaces a graph by that of one rank of the tensor dimension; it has no backward pass
 * yet. summed: [n_params] filled with 1 where each rank computes a summand of a parameter's gradient. */
int ms_plan_divide(const ms_model *model, ms_graph **graph, unsigned char *summed);
/* After differentiation: sums those gradients over the dimension. */
int ms_plan_sum_divided(const ms_model *model, ms_graph *graph, const unsigned char *summed);

/* Lowering: a graph becomes FIRST, NEXT, LAST or EVALUATE (lower_graph.c); NORM and UPDATE need no graph (lower_norm.c,
 * lower_step.c). */
int ms_lower_graph(ms_plan *plan, int phase, const ms_graph *graph);
/* weighted: the step's losses have weights. */
int ms_lower_norm(ms_plan *plan, int weighted);
/* f32 [4]: the output of step_norm by which a parameter's update is clipped. */
ms_ref ms_lower_norm_of(const ms_plan *plan, int param);
int ms_lower_update(ms_plan *plan);
/* Sums f32 [n] over all ranks of the mesh, or only over those of this replica, in place. */
int ms_lower_totals(ms_plan *plan, int phase, ms_ref totals, int over_replicas);

/* The part of [begin, end) whose gradients this rank holds and which it updates (lower_state.c). */
ms_stretch ms_lower_own_part(const ms_plan *plan, int unit, int64_t begin, int64_t end);
/* What a slot (enum ms_slot) has of such a part, which is of segment s: elements, or the words of records. */
ms_ref ms_lower_slot(const ms_plan *plan, int slot, int unit, int s, ms_stretch own);
/* Copies of masters that the unit keeps in bf16 (ms_unit_keeps_copies). 1 when segment `s` has one. Where a kernel
 * has changed the masters of a range alone, ms_lower_copy writes it. */
int ms_lower_has_copy(const ms_plan *plan, int unit, int s);
int ms_lower_copy(ms_plan *plan, int phase, int unit, int s, ms_stretch own, const char *scope);
/* Updates the averages of a unit's weights after all of them are updated. */
int ms_lower_average(ms_plan *plan, int phase, int unit);

/* The outer step of local SGD (lower_outer.c). 1 when this plan does parts of it for the unit; when its phase OUTER
 * changes the unit's weights. */
static inline int ms_outer_has(const ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  return u->config.fragment && u->config.fragment == plan->config.outer_fragment && u->trainable_count;
}
static inline int ms_outer_applies(const ms_plan *plan, int unit) {
  return ms_outer_has(plan, unit) && (plan->config.outer_parts & MS_OUTER_APPLY);
}
/* Checks a plan's outer_fragment and outer_parts. */
int ms_outer_check(const ms_plan *plan);
/* With a delay: begins FIRST with the sums over the replicas. ms_outer_keep, after the rest of FIRST, keeps their
 * buffers to its end, so that no kernel waits for a sum. */
int ms_outer_send(ms_plan *plan);
void ms_outer_keep(ms_plan *plan);
int ms_lower_outer(ms_plan *plan);
/* Bytes that differences need in OUTER of any fragment, without a delay: those of two units that follow each other. All
 * plans of local SGD reserve them, so that the memory of a run is that of each, and the first sync needs no more. */
int64_t ms_outer_bytes(const ms_plan *plan, int64_t alignment);

#endif
