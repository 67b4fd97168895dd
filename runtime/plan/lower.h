/* lower.h - from graph and sharding to instructions: what the files that build a plan share.
**
** unshard_schedule.c tells when units are needed, builder.c appends buffers and instructions, lower.c does the phases
** that have a graph, lower_step.c those that have none.
*/
#ifndef MS_PLAN_LOWER_H
#define MS_PLAN_LOWER_H

#include "plan/plan.h"

/* The use of a unit's weights in one phase, by graph node; -1: none (unshard_schedule.c). */
typedef struct ms_unit_use {
  int forward_first, forward_last, backward_first, backward_last;
  int gradient_last; /* node that completes the unit's gradients */
  int keep;          /* gathered weights stay from forward to backward */
} ms_unit_use;
/* One unsharding of a unit: issued before node issue, needed by node need. */
typedef struct ms_unshard {
  int unit, need, issue;
  int rank; /* among those that are issued before the same node */
} ms_unshard;
/* use: [units]. boundary: the first backward node (or the number of nodes). keep_all: no unit is resharded after
** forward. */
int ms_unit_uses(const ms_model *model, const ms_plan_config *config, const ms_graph *graph, const int *root,
                 int keep_all, ms_unit_use *use, int *boundary);
/* The unshards of a phase in order of issue; at most 2*units; returns how many. */
int ms_unshard_schedule(const ms_model *model, const ms_unit_use *use, int boundary, int prefetch, ms_unshard *list);
/* 1 when kernels read the master chunk itself: one shard, f32. */
int ms_unit_is_direct(const ms_model *model, int unit);

/* Building (builder.c). Each returns a status, or the new buffer's index through out. */
int ms_plan_buffer(ms_plan *plan, int phase, int arena, int category, int64_t bytes, const char *label, int *buffer);
/* Appends an instruction at the end of the phase's program and extends the lifetimes of the buffers it names. */
int ms_plan_kernel(ms_plan *plan, int phase, int op, const ms_attrs *attrs, int inputs, const ms_ref *in, int outputs,
                   const ms_ref *out, const char *scope, int backward);
/* Gives an instruction the plan's own, prepared call, shared by all that equal it, its hash and its bytes
** (prepare.c). */
int ms_plan_prepare(ms_plan *plan, int op, const ms_attrs *attrs, int inputs, const ms_ref *in, int outputs,
                    const ms_ref *out, ms_instr *instr);
void ms_plan_release_prepared(ms_plan *plan);
/* ranks: how many of the dimension's group take part, neighbours; 0: all. */
int ms_plan_collective(ms_plan *plan, int phase, int stream, int kind, int dim, int ranks, int unit, int parts,
                       const ms_plan_part *part);
/* The replicas of a node take part in the phase's last collective over the shards, a copying all_gather or a sum. */
int ms_plan_take_replicas(ms_plan *plan, int phase);
/* Where replicas share within several nodes: sums what each node has summed. */
int ms_plan_sum_between_nodes(ms_plan *plan, int phase, int unit, const ms_plan_part *part);
/* Of the phase's last collective, an all_reduce, each rank has the slice that its parts say. */
void ms_plan_slice_sum(ms_plan *plan, int phase);
void ms_plan_touch(ms_plan *plan, int buffer, int position);
/* The STATE buffers of a plan: its first ones, unit by unit, then the step's scalars. A buffer that a unit does not
** have is empty. */
enum ms_state_buffer {
  MS_STATE_MASTER = 0,
  MS_STATE_GRADIENT = 1,
  MS_STATE_EXP_AVG = 2,
  MS_STATE_EXP_AVG_SQ = 3,
  MS_STATE_EMA = 4,
  MS_STATE_BUFFERS = 5
};
/* Names and buffers for a traced graph's inputs, and names for its outputs. */
int ms_plan_take_slots(ms_plan *plan, const ms_graph *graph);
int ms_plan_state_buffers(ms_plan *plan, const ms_state_layout *layout);
int ms_state_buffer(int unit, int which);
int ms_squares_buffer(const ms_plan *plan);
int ms_loss_sum_buffer(const ms_plan *plan);
int ms_norm_buffer(const ms_plan *plan);
int ms_updates_buffer(const ms_plan *plan);
/* Refs. */
ms_ref ms_ref_vector(int buffer, int64_t offset, int dtype, int64_t n);
ms_ref ms_ref_scalar(int buffer, int64_t offset);

typedef struct ms_lowering {
  ms_plan *plan;
  int phase;
  const ms_graph *graph;
  const ms_model *model;
  int *root;           /* [values] the value whose bytes it is */
  int *last_use;       /* [values] last node that reads it; INT_MAX: kept to the end */
  ms_place *at;        /* [values] of roots */
  char *read;          /* [values] of roots: 1 where a node reads it, or the caller */
  char *added;         /* [values] of roots: 1 for a gradient that its product adds to those of earlier micro-batches */
  ms_unit_use *use;    /* [units] */
  char *ends;          /* [nodes] 1: a unit's forward, or its gradients, end with it */
  ms_unshard *unshard; /* [2 units] in order of issue */
  int unshards, next_unshard, boundary;
  int *gathered;      /* [units] buffer that holds the unit's unsharded weights now, or -1 */
  int *slice;         /* [units] buffer of the shard that is kept for a smaller group, or -1 */
  int *reduce;        /* [units] buffer that the unit's gradients are written to, or -1 */
  ms_plan_part *part; /* [segments of the unit that has most] scratch for the parts of one collective */
  int sending[2];     /* buffers of the latest collective by dimension: kept until the next one starts */
} ms_lowering;

/* Unshards that the schedule issues before a node, and slices of units whose forward ends with it
** (lower_unshards.c). */
int ms_lower_unshards(ms_lowering *l, int node);
int ms_lower_keep_slices(ms_lowering *l, int node);

/* Where a sum over ranks is read or written: whole reduce buffers, or chunks, in one dtype. */
typedef struct ms_gradients {
  int buffer, dtype, chunked;
  int sliced; /* of chunks, this rank's slice alone */
} ms_gradients;
int64_t ms_gradients_offset(const ms_gradients *g, const ms_segment *seg);

/* Where gradients are written (lower_gradients.c). 1 when any other rank has gradients of the same parameters. */
int ms_lower_communicates(const ms_lowering *l);
/* What the configured enum ms_sync means on this mesh. */
int ms_lower_sync(const ms_lowering *l);
/* 1 when unsharded gradients wait for the last micro-batch; when they are also written where they wait. */
int ms_lower_defers_unsharded(const ms_lowering *l);
int ms_lower_writes_deferred(const ms_lowering *l, int unit);
/* The unit's buffer of f32 elements that wait for the last micro-batch, made in the first. */
int ms_lower_deferred_buffer(ms_lowering *l, int unit, int64_t elements, int *buffer);
int64_t ms_lower_reduce_elements(const ms_unit *u);
/* 1 when gradients go straight to the state's chunk. */
int ms_lower_writes_state(const ms_lowering *l, int unit);
int ms_lower_fill_zero(ms_lowering *l, int buffer, int64_t offset, int dtype, int64_t n, const char *scope);
/* grad_unit: [values] the unit whose gradient a value is, or -1. */
int ms_lower_open_gradients_of(ms_lowering *l, int node, const int *grad_unit);
int ms_lower_first_summand(const ms_lowering *l, int value);
int ms_lower_zero_unreached(ms_lowering *l);
/* Reduces the units whose last gradient a node has written (lower_reductions.c). */
int ms_lower_reduce_completed(ms_lowering *l, int node);

/* Lowering: graph -> FIRST, NEXT or EVALUATE (lower.c); NORM and UPDATE need no graph (lower_step.c). */
int ms_lower_graph(ms_plan *plan, int phase, const ms_graph *graph);
/* weighted: the step's losses have weights. */
int ms_lower_norm(ms_plan *plan, int weighted);
int ms_lower_update(ms_plan *plan);
/* Sums f32 [n] over the mesh in place. */
int ms_lower_totals(ms_plan *plan, int phase, ms_ref totals);

#endif
