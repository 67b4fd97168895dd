/* adamw.h - a step of AdamW for one element (adamw.c), whatever its moments are kept in. */
#ifndef MS_KERNELS_CPU_ADAMW_H
#define MS_KERNELS_CPU_ADAMW_H

#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"

typedef struct ms_adamw {
  float keep, step_size, inverse_root, eps, beta1, rest1, beta2, rest2, factor, most, coupled;
  int couples; /* Adam: the decay, `coupled`, is in the gradient */
} ms_adamw;

MS_INLINE ms_adamw ms_adamw_of(const ms_kernel_call *call) {
  const ms_scalars *now = call->scalars;
  const double lr_scale = call->attrs.update.lr_scale, weight_decay = call->attrs.update.weight_decay;
  const double beta1 = call->attrs.update.beta1, beta2 = call->attrs.update.beta2;
  const int couples = call->attrs.update.coupled != 0;
  const double step = ((const float *)call->in_data[2])[0];
  const double lr_value = now->lr * lr_scale, correction1 = 1.0 - pow(beta1, step),
               correction2 = 1.0 - pow(beta2, step);
  return (ms_adamw){.keep = couples ? 1.0f : (float)(1.0 - lr_value * weight_decay),
                    .step_size = (float)(lr_value / correction1),
                    .inverse_root = (float)(1.0 / sqrt(correction2)),
                    .eps = (float)call->attrs.update.eps,
                    .beta1 = (float)beta1,
                    .rest1 = (float)(1.0 - beta1),
                    .beta2 = (float)beta2,
                    .rest2 = (float)(1.0 - beta2),
                    .factor = ((const float *)call->in_data[1])[2],
                    .most = ms_clip_of(call->attrs.update.clip),
                    .coupled = (float)weight_decay,
                    .couples = couples};
}

/* Updates one element: stores the new moments in *m and *v and returns the new weight. */
MS_INLINE float ms_adamw_update(const ms_adamw *s, float gradient, float p, float *m, float *v) {
  const float clipped = ms_clipped(gradient * s->factor, s->most);
  const float g = s->couples ? clipped + s->coupled * p : clipped;
  *m = s->beta1 * *m + s->rest1 * g;
  *v = s->beta2 * *v + s->rest2 * (g * g);
  return p * s->keep - s->step_size * *m / (sqrtf(*v) * s->inverse_root + s->eps);
}

/* The part of an update whose moments are records of 256 elements (adamw_records.c): records [begin, end). */
ms_part_fn ms_adamw_of_records;

#endif
