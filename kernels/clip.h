/* clip.h - clipping of each element of a gradient, as torch.nn.utils.clip_grad_value_: an attribute of the ops that
 * update parameters, which all have in the same place. Elements that are not a number stay so.
 */
#ifndef MS_KERNELS_CLIP_H
#define MS_KERNELS_CLIP_H

#include <string.h>

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_CLIP_FUNCTION static inline __host__ __device__
#else
  #define MS_CLIP_FUNCTION static inline __attribute__((always_inline))
#endif

enum { MS_CLIP_BITS = 4 }; /* the attribute: the bits of a double; 0: no clipping */

static inline void ms_clip_set(ms_attrs *attrs, double most) { memcpy(&attrs->i[MS_CLIP_BITS], &most, sizeof most); }

/* The largest magnitude; infinite without clipping. */
static inline float ms_clip_of(const ms_attrs *attrs) {
  double most;
  memcpy(&most, &attrs->i[MS_CLIP_BITS], sizeof most);
  return most > 0 ? (float)most : __builtin_inff();
}

MS_CLIP_FUNCTION float ms_clipped(float g, float most) { return g > most ? most : g < -most ? -most : g; }

#endif
