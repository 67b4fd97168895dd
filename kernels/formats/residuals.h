/* residuals.h - the units of residuals (ms_unit_config.error_feedback). What rounding left of a sum of gradients is in
 * the units of that sum, which the end of its step divided by its counted targets, or by its terms. Before the next
 * step adds it to a sum with another divisor, it is multiplied by the ratio of the two. Devices share this.
 */
#ifndef MS_KERNELS_RESIDUALS_H
#define MS_KERNELS_RESIDUALS_H

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_RESIDUALS_FUNCTION static inline __host__ __device__
#else
  #define MS_RESIDUALS_FUNCTION static inline
#endif

enum { MS_NORM_DIVISOR = 3 }; /* the element of step_norm's output that the step divides by */

/* before: the divisor of the step that left the residual, 0: there is none. total: the weights of this step, or with
 * `estimate` of its first micro-batch; NULL: each of `ranks` ranks and micro-batches weighs 1. */
MS_RESIDUALS_FUNCTION float ms_residual_factor(const void *before, const void *total, const ms_op_attrs *attrs,
                                               int micro_batches) {
  const float divisor = *(const float *)before;
  float now = (float)attrs->residuals.ranks * (float)micro_batches;
  if (total) now = *(const float *)total * (attrs->residuals.estimate ? (float)micro_batches : 1.0f);
  return divisor > 0 && now > 0 ? now / divisor : 1.0f;
}

#endif
