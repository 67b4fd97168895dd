/* clip_heads.h - QK-clip (Kimi K2): by what factor a row of a projection of queries or keys is scaled. A head whose
 * largest attention score is m, above the threshold, has its rows times (threshold / m)^power. Devices share this.
 */
#ifndef MS_KERNELS_CLIP_HEADS_H
#define MS_KERNELS_CLIP_HEADS_H

#include <math.h>

#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_CLIP_HEADS_FUNCTION static inline __host__ __device__
#else
  #define MS_CLIP_HEADS_FUNCTION static inline
#endif

typedef struct ms_clip_heads {
  int64_t first, columns; /* the first element's place in a matrix [heads rows,columns] */
  int64_t head;           /* rows of a head, of which those in [from, middle) and [middle, to) are scaled */
  int64_t from, middle, to;
  int64_t shared; /* scores of a head: of the query heads that share a head of keys */
  float threshold, power, rest_power;
} ms_clip_heads;

static inline ms_clip_heads ms_clip_heads_of(const ms_op_attrs *attrs) {
  return (ms_clip_heads){attrs->heads.first,        attrs->heads.columns,
                         attrs->heads.head,         attrs->heads.from,
                         attrs->heads.middle,       attrs->heads.to,
                         attrs->heads.shared,       (float)attrs->heads.threshold,
                         (float)attrs->heads.power, (float)attrs->heads.rest_power};
}

/* largest: [heads shared]. A score that is not a number clips nothing: such a step is refused. */
MS_CLIP_HEADS_FUNCTION float ms_clip_heads_factor(const ms_clip_heads *c, const void *largest, int64_t row) {
  const int64_t within = row % c->head;
  const float *of_head = (const float *)largest + row / c->head * c->shared;
  float most = of_head[0];
  if (within < c->from || within >= c->to) return 1;
  for (int64_t i = 1; i < c->shared; i++) most = of_head[i] > most ? of_head[i] : most;
  if (!(most > c->threshold)) return 1;
  return powf(c->threshold / most, within < c->middle ? c->power : c->rest_power);
}

#endif
