/* config.c - the settings of a plan: defaults, and checks that they are in range. */
#include <math.h>

#include "base/config.h"
#include "base/dtype.h"
#include "plan/optimizer.h"

enum { MOST_THREADS = 1024 };

void ms_plan_config_default(ms_plan_config *config, int size) {
  static const ms_plan_config defaults = {.optimizer = MS_OPT_ADAMW,
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .eps = 1e-8,
                                          .prefetch = 1,
                                          .reshard_after_backward = 1,
                                          .train = 1,
                                          .fuse = 1,
                                          .rematerialize = 1,
                                          .shared_masters = 1,
                                          .muon_momentum = 0.95,
                                          .muon_nesterov = 1,
                                          .muon_steps = 5};
  ms_config_give(config, size, &defaults, sizeof defaults, "ms_plan_config");
}

/* The negated comparisons in these checks also reject NaN. */
int ms_plan_check_optimizer(const ms_plan_config *c) {
  const ms_optimizer *optimizer = ms_optimizer_of(c);
  if (!optimizer && c->optimizer != MS_OPT_NONE)
    return MS_FAIL(MS_EINVAL, "optimizer must be none (0), sgd (1), adamw (2) or muon (3), not %d", c->optimizer);
  if (optimizer) MS_TRY(optimizer->check(c));
  MS_TRY(ms_muon_check(c));
  if (c->nesterov && (c->momentum <= 0 || c->dampening != 0))
    return MS_FAIL(MS_EINVAL, "nesterov needs momentum above 0 and dampening 0, not %g and %g", c->momentum,
                   c->dampening);
  MS_TRY(ms_dtype_check(c->moment_dtype, MS_DTYPE_MOMENT, "moment_dtype"));
  if (c->moment_dtype != MS_F32 && !(optimizer && optimizer->packs))
    return MS_FAIL(MS_EINVAL, "moment_dtype must be f32 (0) without adamw, not %d", c->moment_dtype);
  if (!(c->max_norm >= 0)) return MS_FAIL(MS_EINVAL, "max_norm must be 0 (no clipping) or more, not %g", c->max_norm);
  if (!(c->ema_decay >= 0 && c->ema_decay < 1))
    return MS_FAIL(MS_EINVAL, "ema_decay must be at least 0 (0: no averages) and below 1, not %g", c->ema_decay);
  if (!(c->outer_momentum >= 0 && c->outer_momentum < 1))
    return MS_FAIL(MS_EINVAL, "outer_momentum must be at least 0 and below 1, not %g", c->outer_momentum);
  if (c->outer_nesterov && c->outer_momentum == 0)
    return MS_FAIL(MS_EINVAL, "outer_nesterov needs outer_momentum above 0");
  if (!(c->outer_alpha >= 0 && c->outer_alpha <= 1))
    return MS_FAIL(MS_EINVAL, "outer_alpha must be 0 (the synced weights) to 1 (the local ones), not %g",
                   c->outer_alpha);
  return MS_OK;
}

int ms_plan_check_config(const ms_plan_config *c) {
  MS_TRY(ms_plan_check_optimizer(c));
  if (c->threads < 0 || c->threads > MOST_THREADS)
    return MS_FAIL(MS_EINVAL, "threads must be 0 (the environment's setting) to %d, not %d", MOST_THREADS, c->threads);
  if (c->prefetch < 0) return MS_FAIL(MS_EINVAL, "prefetch must be 0 or more units, not %d", c->prefetch);
  if (c->sync < MS_SYNC_EVERY || c->sync > MS_SYNC_LAST)
    return MS_FAIL(MS_EINVAL, "sync must be every (0), shard (1) or last (2), not %d", c->sync);
  if (c->sync != MS_SYNC_EVERY && !c->accumulate)
    return MS_FAIL(MS_EINVAL, "sync = shard or last needs accumulate = 1");
  return MS_OK;
}
