/* gated_delta_rule.h - the workspace of the gated delta rule's gradient on a GPU, in f32 arrays of all heads: as plain
 * C, for the kernel and for plans. */
#ifndef MS_KERNELS_CUDA_PLAN_GATED_DELTA_RULE_H
#define MS_KERNELS_CUDA_PLAN_GATED_DELTA_RULE_H

#include "kernels/gated_delta_rule.h"

/* Where the arrays begin, in floats, and how many there are. chunks: of a chunk x, u and z [C][e], and P and the
 * gradients of two products [C][C]; states [chunks][d][e]: before chunks; state [d][e]: the gradient of the state;
 * begin [d][e]: the state while states are made, then that of a document's beginning; keys [2][t][d]: dq and dk. */
typedef struct ms_delta_places {
  int64_t chunks, states, state, begin, keys, all;
} ms_delta_places;

ms_delta_places ms_delta_places_of(const ms_delta_rule *r);

#endif
