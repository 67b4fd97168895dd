/* verify.h - what the proofs of the verifier share: a phase's accesses and when its buffers are in use. */
#ifndef MS_PLAN_VERIFY_H
#define MS_PLAN_VERIFY_H

#include "plan/intervals.h"
#include "plan/plan.h"

/* An access; its bytes stand in `range`. */
typedef struct ms_touch {
  int instr;
  unsigned char arena, stream, write;
} ms_touch;

/* When a buffer is in use. What follows `last` is set when that is known of all. */
typedef struct ms_span {
  int buffer, first, last; /* last: INT_MAX for what outlives the phase */
} ms_span;

typedef struct ms_verifier {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int phase_id;
  int64_t base[MS_ARENAS];  /* bytes are counted through all arenas, one behind the other */
  int (*clock)[MS_STREAMS]; /* [instr] of ms_plan_clocks */
  ms_touch *touch;          /* in program order */
  ms_range *range;          /* of each touch */
  int n, touch_capacity, range_capacity;
  ms_span *span; /* [buffers] */
} ms_verifier;

enum { MS_INSTR_TEXT = 192 };
/* An instruction in words, in text [MS_INSTR_TEXT]. */
const char *ms_verify_describe(const ms_instr *instr, char *text);

int ms_verify_order(ms_verifier *v);       /* verify_order.c; uses up the touches */
int ms_verify_reuse(const ms_verifier *v); /* verify_reuse.c */

#endif
