/* chunked_loss.c - what a plan tells of losses whose logits are made in chunks (graph/rewrite/linear_loss.c). */
#include "kernels/products/linear_cross_entropy.h"

#include "base/numbers/dtype.h"
#include "plan/report/dump.h"

/* 1 when the instruction makes logits for the first time. */
static int makes_logits(const ms_instr *instr, ms_loss_sizes *sizes) {
  if (instr->kind != MS_INSTR_KERNEL || ms_op_row_of(instr->call->op)->work != ms_work_chunked_loss) return 0;
  *sizes = ms_loss_sizes_of(instr->call->op, &instr->call->attrs, instr->call->in);
  return sizes->logits && !sizes->again;
}

/* A kernel that makes no gradient from the logits leaves that to one that makes them again. */
static ms_chunked_loss describe(const ms_kernel_call *call, const ms_loss_sizes *s, int trains) {
  const int64_t row = s->classes * ms_dtype_size(call->in[0].dtype);
  return (ms_chunked_loss){.rows = s->rows,
                           .classes = s->classes,
                           .chunks = s->chunks,
                           .chunk = s->chunk,
                           .logits_bytes = s->chunk * row,
                           .whole_bytes = s->rows * row,
                           .again = trains && !s->dx};
}

int ms_plan_add_losses(const ms_plan *plan, ms_row_list *rows) {
  const int trains = plan->phase[MS_PHASE_FIRST].present;
  const ms_plan_phase *phase = &plan->phase[trains ? MS_PHASE_FIRST : MS_PHASE_EVALUATE];
  for (int i = 0; i < phase->n; i++) {
    ms_loss_sizes sizes;
    if (!makes_logits(&phase->instr[i], &sizes)) continue;
    const ms_chunked_loss loss = describe(phase->instr[i].call, &sizes, trains);
    ms_rows_add(rows, &loss, sizeof loss);
  }
  return MS_OK;
}
