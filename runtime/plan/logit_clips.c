/* logit_clips.c - checks what QK-clip scales (ms_logit_clip). */
#include <stddef.h>

#include "base/config.h"
#include "plan/optimizer.h"

static int check_clip(const ms_model *model, const ms_logit_clip *c) {
  if (c->param < 0 || c->param >= model->params || !c->output)
    return MS_FAIL(MS_EINVAL, "logit_clip: parameter %d of %d, output %s", c->param, model->params,
                   c->output ? c->output : "NULL");
  const ms_param *p = &model->param[c->param];
  int64_t rows = 1;
  for (int d = 0; d < p->ndim - (p->ndim > 1); d++) rows *= p->whole[d];
  if (p->config.frozen)
    return MS_FAIL(MS_EUNSUPPORTED, "parameter '%s' is frozen: qk_clip scales it; let it train, or leave qk_clip out",
                   p->name);
  if (model->unit[p->unit].config.fragment)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "parameter '%s': its unit '%s' takes local steps, in which replicas share no scores: qk_clip does "
                   "not go with replicate_sync",
                   p->name, model->unit[p->unit].name);
  if (p->ndim > 2 || c->heads < 1 || c->shared < 1 || c->at < 0 || rows % c->heads || c->from < 0 ||
      c->middle < c->from || c->to < c->middle || c->to > rows / c->heads)
    return MS_FAIL(MS_ESHAPE,
                   "parameter '%s': qk_clip of %lld heads in %lld rows, of each the rows %lld, %lld to %lld, with %lld "
                   "scores a head",
                   p->name, (long long)c->heads, (long long)rows, (long long)c->from, (long long)c->middle,
                   (long long)c->to, (long long)c->shared);
  return MS_OK;
}

int ms_plan_check_logit_clips(const ms_model *model, const ms_plan_config *config) {
  if ((config->logit_clips > 0) != (config->logit_clip != NULL) ||
      (config->logit_clips > 0) != (config->qk_clip_threshold > 0))
    return MS_FAIL(MS_EINVAL, "%d logit_clips: set logit_clip and qk_clip_threshold, too, or none of the three",
                   config->logit_clips);
  const int least = (int)(offsetof(ms_logit_clip, rest_power) + sizeof config->logit_clip->rest_power);
  if (config->logit_clips && config->logit_clip_size < least)
    return MS_FAIL(MS_EINVAL, "logit_clip_size is %d: give the sizeof of an ms_logit_clip", config->logit_clip_size);
  for (int i = 0; i < config->logit_clips; i++) {
    ms_logit_clip clip = {0};
    MS_TRY(ms_info_take(&clip, sizeof clip, ms_plan_logit_clip(config, i), config->logit_clip_size, "logit_clip"));
    MS_TRY(check_clip(model, &clip));
  }
  return MS_OK;
}
