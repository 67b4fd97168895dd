/* clip.h - clipping of each element of a gradient, as torch.nn.utils.clip_grad_value_: the attribute `clip`
 * of ops that update parameters. Elements that are not a number stay so.
 */
#ifndef MS_KERNELS_CLIP_H
#define MS_KERNELS_CLIP_H

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_CLIP_FUNCTION static inline __host__ __device__
#else
  #define MS_CLIP_FUNCTION static inline __attribute__((always_inline))
#endif

/* The largest magnitude, from the attribute; infinite without clipping. */
static inline float ms_clip_of(double clip) { return clip > 0 ? (float)clip : __builtin_inff(); }

MS_CLIP_FUNCTION float ms_clipped(float g, float most) { return g > most ? most : g < -most ? -most : g; }

#endif
