/* chunked_loss.c - what a plan tells of losses whose logits are made in chunks (graph/linear_loss.c). */
#include "kernels/linear_cross_entropy.h"
#include "base/error.h"
#include "plan/plan.h"

/* 1 when the instruction makes logits for the first time. */
static int makes_logits(const ms_instr *instr) {
  if (instr->kind != MS_INSTR_KERNEL) return 0;
  return instr->call->op == MS_OP_linear_cross_entropy_part || instr->call->op == MS_OP_linear_cross_entropy_step;
}

static ms_chunked_loss describe(const ms_kernel_call *call) {
  const ms_loss_sizes s = ms_loss_sizes_of(call->op, &call->attrs, call->in);
  const int64_t row = s.classes * ms_dtype_size(call->in[0].dtype);
  return (ms_chunked_loss){.rows = s.rows,
                           .classes = s.classes,
                           .chunks = s.chunks,
                           .chunk = s.chunk,
                           .logits_bytes = s.chunk * row,
                           .whole_bytes = s.rows * row,
                           .again = call->op != MS_OP_linear_cross_entropy_step};
}

int ms_plan_chunked_losses(const ms_plan *plan, int capacity, ms_chunked_loss *list, int *n) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(n);
  if (capacity > 0) MS_GIVEN(list);
  const int trains = plan->phase[MS_PHASE_FIRST].present;
  const ms_plan_phase *phase = &plan->phase[trains ? MS_PHASE_FIRST : MS_PHASE_EVALUATE];
  *n = 0;
  for (int i = 0; i < phase->n; i++) {
    if (!makes_logits(&phase->instr[i])) continue;
    if (*n < capacity) list[*n] = describe(phase->instr[i].call);
    if (*n < capacity && !trains) list[*n].again = 0;
    ++*n;
  }
  return MS_OK;
}
