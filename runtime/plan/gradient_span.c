/* gradient_span.c - when gradient chunks hold anything. Between a step's update and the first sums of the next step's
** gradients nobody reads them, and forward keeps most activations in just that time: so these lie there too (layout.c).
*/
#include "plan/lower.h"

int ms_instr_needs(const ms_instr *instr, int buffer) {
  if (instr->kind == MS_INSTR_COLLECTIVE) {
    for (int i = 0; i < instr->coll->parts; i++) {
      const ms_plan_part *part = &instr->coll->part[i];
      int sums = instr->coll->kind != MS_COLL_ALL_GATHER;
      if (part->src.buffer == buffer || (sums && part->shared.buffer == buffer)) return 1;
      if (part->accumulate && part->dst.buffer == buffer) return 1;
    }
    return 0;
  }
  if (instr->kind != MS_INSTR_KERNEL) return 0;
  for (int i = 0; i < instr->call->inputs; i++)
    if (instr->in[i].buffer == buffer) return 1;
  for (int o = 0; o < instr->call->outputs; o++)
    if (instr->out[o].buffer == buffer && ms_op_reads_outputs(instr->call->op, &instr->call->attrs)) return 1;
  return 0;
}

static inline void note(const ms_plan *plan, const ms_instr *instr, int buffer, int position, int *begin) {
  if (buffer < 0 || buffer >= MS_STATE_BUFFERS * plan->model->units || buffer % MS_STATE_BUFFERS != MS_STATE_GRADIENT)
    return;
  int unit = buffer / MS_STATE_BUFFERS;
  if (ms_instr_needs(instr, buffer)) begin[unit] = 0;
  else if (begin[unit] < 0) begin[unit] = position;
}

void ms_gradients_begin(const ms_plan *plan, int phase, int *begin) {
  const ms_plan_phase *p = &plan->phase[phase];
  for (int u = 0; u < plan->model->units; u++) begin[u] = -1;
  for (int i = 0, position = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_COLLECTIVE) {
      for (int k = 0; k < instr->coll->parts; k++) note(plan, instr, instr->coll->part[k].dst.buffer, position, begin);
      for (int k = 0; k < instr->coll->parts; k++)
        note(plan, instr, instr->coll->part[k].shared.buffer, position, begin);
    } else if (instr->kind == MS_INSTR_KERNEL) {
      for (int k = 0; k < instr->call->inputs; k++) note(plan, instr, instr->in[k].buffer, position, begin);
      for (int k = 0; k < instr->call->outputs; k++) note(plan, instr, instr->out[k].buffer, position, begin);
    } else {
      continue;
    }
    position++;
  }
  for (int u = 0; u < plan->model->units; u++)
    if (begin[u] < 0) begin[u] = 0;
}
