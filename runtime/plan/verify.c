/* verify.c - refuses a plan that can race. It knows instructions, streams, events and bytes, and nothing of how the plan
** was made: no lifetimes, no intentions.
**
** Three proofs a phase. Bounds: every access lies inside its buffer's place in the arena. Order (verify_order.c): two
** accesses of one byte from different streams, one of them a write, are ordered through events (vector clocks). Reuse
** (verify_reuse.c): two buffers that share bytes are not in use at the same time, in program order; with the proof of
** order that is the order they run in.
*/
#include "plan/verify.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

const char *ms_verify_describe(const ms_instr *instr, char *text) {
  const char *what = instr->kind == MS_INSTR_KERNEL       ? ms_op_row_of(instr->call->op)->name
                     : instr->kind == MS_INSTR_COLLECTIVE ? ms_coll_name(instr->coll->kind)
                                                          : "event";
  snprintf(text, MS_INSTR_TEXT, "%s %s on stream %s", what, instr->scope ? instr->scope : "",
           ms_stream_name(instr->stream));
  return text;
}

static int check_bounds(const ms_verifier *v, int i, const ms_access *a) {
  const ms_buffer *b = &v->plan->buffer[a->buffer];
  if (a->begin >= 0 && a->begin >= b->offset && a->end <= b->offset + b->bytes &&
      a->end <= v->plan->arena_bytes[a->arena])
    return MS_OK;
  char text[MS_INSTR_TEXT];
  return MS_FAIL(
      MS_ERACE, "phase %s: instruction %d (%s) touches bytes [%lld, %lld) of arena %s, outside its buffer [%lld, %lld)",
      ms_phase_name(v->phase_id), i, ms_verify_describe(&v->phase->instr[i], text), (long long)a->begin,
      (long long)a->end, ms_arena_name(a->arena), (long long)b->offset, (long long)(b->offset + b->bytes));
}

/* A buffer of all phases holds what was there before, unless the phase writes it anew: then no instruction needs it. */
static void extend_span(const ms_verifier *v, int i, int buffer) {
  ms_span *s = &v->span[buffer];
  if (s->first < 0) s->first = i;
  s->last = i;
  int lasting = v->plan->buffer[buffer].phase < 0;
  if (lasting && s->first > 0 && ms_instr_needs(&v->phase->instr[i], buffer)) s->first = 0;
}

static int collect_instr(ms_verifier *v, int i, const ms_access *access, int n) {
  for (const ms_access *a = access; a < access + n; a++) {
    MS_TRY(check_bounds(v, i, a));
    v->touch[v->n] = (ms_touch){i, (unsigned char)a->arena, (unsigned char)v->phase->instr[i].stream, a->write != 0};
    v->range[v->n++] = (ms_range){v->base[a->arena] + a->begin, v->base[a->arena] + a->end};
    extend_span(v, i, a->buffer);
  }
  return MS_OK;
}

static int collect(ms_verifier *v) {
  ms_access *access = NULL;
  int capacity = 0, rc = MS_OK;
  const int most = ms_phase_access_limit(v->phase);
  MS_TRY(ms_grow((void **)&v->touch, &v->touch_capacity, most, sizeof *v->touch));
  MS_TRY(ms_grow((void **)&v->range, &v->range_capacity, most, sizeof *v->range));
  for (int i = 0; i < v->phase->n; i++) {
    const ms_instr *instr = &v->phase->instr[i];
    MS_GOTO(ms_grow((void **)&access, &capacity, ms_instr_access_limit(instr), sizeof *access));
    MS_GOTO(collect_instr(v, i, access, ms_instr_accesses(v->plan, instr, access, capacity)));
  }
fail:
  free(access);
  return rc;
}

/* What outlives the phase: buffers of all phases (the host writes inputs between them), and outputs, which it reads. */
static void hold_lasting(ms_verifier *v) {
  for (int b = 0; b < v->plan->buffers; b++) {
    if (v->plan->buffer[b].phase >= 0) continue;
    v->span[b].last = INT_MAX;
    if (v->span[b].first < 0) v->span[b].first = 0;
  }
  for (int o = 0; o < v->plan->outputs; o++) {
    const ms_ref *at = &v->plan->output[o].at[v->phase_id];
    if (at->buffer >= 0 && v->span[at->buffer].first >= 0) v->span[at->buffer].last = INT_MAX;
  }
}

int ms_plan_verify(const ms_plan *plan, int phase) {
  ms_verifier v = {.plan = plan, .phase = &plan->phase[phase], .phase_id = phase};
  int rc = MS_ENOMEM;
  for (int arena = 1; arena < MS_ARENAS; arena++) v.base[arena] = v.base[arena - 1] + plan->arena_bytes[arena - 1];
  v.clock = ms_calloc(v.phase->n, sizeof *v.clock);
  v.span = ms_calloc(plan->buffers, sizeof *v.span);
  if (!v.clock || !v.span) goto fail;
  for (int b = 0; b < plan->buffers; b++) v.span[b] = (ms_span){b, -1, -1};
  MS_GOTO(ms_plan_clocks(v.plan, phase, v.clock));
  MS_GOTO(collect(&v));
  hold_lasting(&v);
  MS_GOTO(ms_verify_order(&v));
  MS_GOTO(ms_verify_reuse(&v));
fail:
  free(v.clock);
  free(v.touch);
  free(v.range);
  free(v.span);
  return rc;
}
