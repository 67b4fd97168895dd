/* lower_clips.c - the update of QK-clip, after a unit's own: lower_logits.c finds the scores that it reads. */
#include "plan/lower/optimizers/update.h"

int ms_lower_clip_logits(ms_plan *plan, int unit) {
  for (int i = 0; i < plan->config.logit_clips; i++) {
    const ms_logit_clip *c = ms_plan_logit_clip(&plan->config, i);
    if (plan->model->param[c->param].unit != unit) continue;
    const ms_ref scores = ms_ref_vector(plan->logits.buffer, 4 * plan->logit_at[i], MS_F32, c->heads * c->shared);
    const ms_update_item item = ms_update_item_of(plan, c->param);
    MS_TRY(ms_lower_update_item(plan, MS_PHASE_UPDATE, &ms_qk_clip, &item, &scores));
  }
  return MS_OK;
}
