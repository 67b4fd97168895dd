/* attention_options.h - the options of an attention op and of its gradient, read from its attributes in one place.
 *
 * An added option is a field here and a line of attention_options.c; the kernels of both devices carry the struct in
 * the sizes of their calls, and shape rules, costs, plans and prices read it, too.
 */
#ifndef MS_KERNELS_ATTENTION_OPTIONS_H
#define MS_KERNELS_ATTENTION_OPTIONS_H

#include "kernels/op.h"
#include "kernels/part.h"

typedef struct ms_attention_options {
  int backward;  /* the op is a gradient */
  int documents; /* no query sees keys before its document; causal. Each token `start` begins one */
  int32_t start;
  int causal;     /* query i sees keys 0 to i + s - t, or where it is in the axis that it is a part of */
  int64_t window; /* keys that a query sees: its own and those right before it, and if not causal after it; 0: all */
  int64_t prefix; /* first keys that every query of causal attention sees */
  float scale;
  float softcap; /* scores s, scaled, are softcap tanh(s / softcap); 0: they are s */
  ms_part part;  /* which of the queries these are, if ranks divide them; the keys are all there */
} ms_attention_options;

/* in: the op's inputs, of shapes that its rule allows; q [B,T,H,D] and k [B,S,G,D] come first. A window that hides no
 * key is 0, and the scale is never "the usual one". */
ms_attention_options ms_attention_options_of(int op, const ms_op_attrs *attrs, const ms_value_info *in);

/* MS_EINVAL, with `name` for the op, if a number among the attributes is none that its option can have. */
int ms_attention_options_check(const char *name, int op, const ms_op_attrs *attrs);

/* All queries, of which `t` are here. */
static inline int64_t ms_attention_queries(const ms_attention_options *o, int64_t t) {
  return o->part.ranks ? t * o->part.ranks : t;
}

#endif
