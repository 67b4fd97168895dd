/* dump.h - what the text of a plan and its JSON object have in common. */
#ifndef MS_PLAN_DUMP_H
#define MS_PLAN_DUMP_H

#include "base/config.h"
#include "plan/plan.h"

enum { MS_LISTED_LOSSES = 8 }; /* no recipe has more than a few */

/* Collects the dimensions along which there are collectives, in the order of the mesh: the number of them. Without a
 * dimension that shards, that of context is named once. */
int ms_plan_dims_in_order(const ms_plan *plan, int dim[MS_DIMS]);
/* The bytes of all parts of a collective that have a dtype. */
double ms_plan_bytes_in(const ms_plan_coll *coll, int dtype);
/* What this rank counts of copies of masters in bf16. */
int64_t ms_plan_copy_bytes(const ms_plan *plan, int unit);
int64_t ms_plan_all_copies(const ms_plan *plan);
/* 1 when a collective joins groups of neighbours, each of which is on a node of its own; 0 when two of them share a
 * node, and for a collective among neighbours. */
int ms_plan_joins_nodes(const ms_plan *plan, const ms_plan_coll *coll);
/* Lists the losses that are made in chunks. */
int ms_plan_listed_losses(const ms_plan *plan, ms_chunked_loss loss[MS_LISTED_LOSSES], int *n);
/* Adds what the collectives of a phase move for a unit. */
void ms_plan_unit_traffic(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost);
/* Add the rows of ms_plan_list. */
int ms_plan_add_losses(const ms_plan *plan, ms_row_list *rows);
int ms_plan_add_memory(const ms_plan *plan, ms_row_list *rows);
int ms_plan_add_peak_buffers(const ms_plan *plan, ms_row_list *rows);
/* Finds where the most bytes are in use. */
int ms_plan_find_peak(const ms_plan *plan, struct ms_peak *peak);
/* What a step moves over a dimension of the mesh: by this rank, and by all ranks of its node. */
int ms_plan_traffic_of(const ms_plan *plan, int mesh_dim, ms_traffic *rank, ms_traffic *node);
/* Appends the JSON object. */
int ms_plan_json(const ms_plan *plan, ms_text *text);

#endif
