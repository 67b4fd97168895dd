/* partition.h - divides a traced graph over the ranks of one mesh dimension: from where parameters and inputs lie, the
 * pass finds where every value lies, gives each node the shapes of one rank, and inserts the collectives between.
 *
 * The result is the program of one rank, the same on all ranks of the dimension; differentiating it gives the gradients
 * as their placements say. It keeps the ids of the traced graph's values; conversions append new ones. A mesh of
 * several dimensions is divided along one after the other, outer ones first: the pass meets the collectives of earlier
 * dimensions as ordinary ops. It runs before autodiff, on a graph whose identities are bypassed and whose dead nodes
 * are pruned, and before rewrites, since only rows with axes can be divided.
 *
 * The rules, for each node in program order:
 *   1. A divided parameter, or a value made of such parameters alone, stays as it is: its divided axis says how the
 *      node is divided, and two that disagree are an error.
 *   2. Otherwise the divided input with the most bytes says it, among those whose axis the node can divide. A weight
 *      that is multiplied in 8 bits is not cut for that: its product is computed whole.
 *   3. Inputs that are all partial pass through a linear op; parameters and constants that are added to them count on
 *      coordinate 0 alone. So a bias stays with its product, and parallel branches share one sum. Some ops also pass a
 *      partial first input while the others are given: the rows of experts are summed where they are combined.
 *   4. Otherwise, with sequence_parallel, a partial input is summed to a shard of its first axis but the last that the
 *      ranks divide and the node can divide. What meets a parameter of the list `splits`, such as the gain of the first
 *      norm, is split likewise.
 *   5. Otherwise every rank computes the whole node.
 * A divided axis that the node's outputs lack was summed over: they are partial. Inputs that have the axis are divided
 * along it too; if they have fewer indices there than ranks, as heads of keys can, ranks share an index. A reshape
 * moves the division to the axis where its parts are whole, or is an error: heads are never cut. But a division that no
 * placement asks for, as rule 4 makes them, ends there: every rank has the whole again. A conversion is made once for a
 * value. A partial value that was summed stands for the value from then on.
 *
 * A trainable parameter without a placement is invariant. Where a divided value meets it, or a value made of parameters
 * alone, it is replicate instead, everywhere: its gradient is then a summand, which the caller sums over the ranks.
 *
 * Between the ops to_local and from_local a recipe divides by hand: nodes are computed as they stand, and only their
 * gradients are the pass's (partition_by_hand.c).
 *
 * A hint of the recipe, the op redistribute, converts its value as it says, before these rules. Sizes that the
 * ranks do not divide are refused. The axis of max and min is needed whole: it is gathered, or a parameter cannot be
 * divided along it. cross_entropy is divided as the logits are, by classes or rows (partition_loss.c). Dropout, rope
 * and attention know which part of an axis they have (kernels/part.h): their attributes contain all but the
 * rank's place, which is set when a kernel is prepared, also for gradients. An embedding whose table is divided by rows
 * knows its part in the same way, from the attributes parts, dim and first.
 */
#ifndef MS_GRAPH_PARTITION_H
#define MS_GRAPH_PARTITION_H

#include "graph/graph.h"
#include "graph/partition/placement.h"

typedef struct ms_placed_input {
  const char *name;
  ms_placement placement;
  int given_whole; /* 1: each rank is given all of it, and the graph begins by taking the rank's part */
} ms_placed_input;

typedef struct ms_partition_spec {
  int dim;               /* enum ms_model_dim, which collectives carry */
  const char *name;      /* of the mesh dimension, for messages */
  int64_t ranks;         /* at least 2 */
  int sequence_parallel; /* 1: partial values are summed to shards (rule 4) */
  /* 1: the ranks have different parts of each sample, as along a context dimension. Trainable parameters without a
   * placement are then replicate from the start, and the loss is left partial: the sum over the ranks is the whole. */
  int divides_samples;
  const unsigned char *splits; /* [n_params of the graph], or NULL: 1 for parameters of rule 4 */
  const ms_placement *params;  /* [n_params of the graph]: MS_INVARIANT for none, or MS_SHARD */
  const ms_placed_input *inputs;
  int n_inputs; /* inputs that are not named are the same on every rank */
} ms_partition_spec;

typedef struct ms_partition {
  ms_graph *graph; /* one rank's, which lists the conversions; ms_partition_free frees it unless the caller takes it
                      and sets NULL */
  ms_placement *params; /* [n_params]; what it says of a parameter that the graph does not use has no meaning */
  ms_placement loss;    /* MS_INVARIANT or, with divides_samples, MS_PARTIAL */
} ms_partition;

/* The traced graph does not change. On failure nothing is to be freed; the error names the node's scope. */
int ms_graph_partition(const ms_graph *traced, const ms_partition_spec *spec, ms_partition *partition);
void ms_partition_free(ms_partition *partition);
/* After differentiation: sums the gradients of which each rank has a summand. group: [n_params] parameters with the
 * same number can be summed together; -1: not summed (partition_sums.c). */
int ms_partition_sum_gradients(ms_graph *graph, int dim, int64_t ranks, const int *group);
enum { MS_CONVERSION_TEXT = 512 }; /* largest output of ms_conversion_text */
/* Writes e.g. "layers.0: all_gather [8,256,64] f32, ..." to text and returns text. */
char *ms_conversion_text(const ms_conversion *conversion, char *text);

#endif
