/* config.c - the settings of a plan: defaults, and checks that they are in range. */
#include <float.h>
#include <math.h>

#include "base/config.h"
#include "base/numbers/dtype.h"
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
                                          .muon_steps = 5,
                                          .adafactor_beta2_decay = -0.8,
                                          .adafactor_eps1 = FLT_EPSILON,
                                          .adafactor_eps2 = 1e-3,
                                          .adafactor_d = 1};
  ms_config_give(config, size, &defaults, sizeof defaults, "ms_plan_config");
}

static int check_packing(const ms_plan_config *c, const ms_optimizer *optimizer) {
  const int packs = optimizer ? optimizer->packs : 0, wanted = c->moment_dtype == MS_I8 ? 2 : c->moment_dtype != MS_F32;
  if (wanted <= packs) return MS_OK;
  return MS_FAIL(MS_EINVAL, "moment_dtype must be f32 (%d)%s with %s, not %s", MS_F32, packs ? " or bf16" : "",
                 optimizer ? optimizer->name : "no optimizer", ms_dtype_name(c->moment_dtype));
}

static int check_norm_groups(const ms_plan_config *c) {
  if (c->norm_groups < 0 || c->norm_groups > MS_MAX_NORM_GROUPS)
    return MS_FAIL(MS_EINVAL, "norm_groups must be 0 to %d, not %d", MS_MAX_NORM_GROUPS, c->norm_groups);
  if ((c->norm_groups > 0) != (c->norm_group && c->max_norms))
    return MS_FAIL(MS_EINVAL, "%d norm_groups: set norm_group and max_norms, too, or none of the three",
                   c->norm_groups);
  if (c->norm_groups && c->max_norm != 0)
    return MS_FAIL(MS_EINVAL, "max_norm is %g; with norm_groups it must be 0: max_norms clips", c->max_norm);
  for (int g = 0; g < c->norm_groups; g++)
    if (!(c->max_norms[g] >= 0))
      return MS_FAIL(MS_EINVAL, "max_norms[%d] must be 0 (no clipping) or more, not %g", g, c->max_norms[g]);
  return MS_OK;
}

/* The negated comparisons in these checks also reject NaN. */
int ms_plan_check_optimizer(const ms_plan_config *c) {
  const ms_optimizer *optimizer = ms_optimizer_of(c);
  if (!optimizer && c->optimizer != MS_OPT_NONE)
    return MS_FAIL(
        MS_EINVAL,
        "optimizer must be none (0), sgd (1), adamw (2), muon (3), adam (4), lion (5) or adafactor (6), not %d",
        c->optimizer);
  if (optimizer) MS_TRY(optimizer->check(c));
  MS_TRY(ms_muon_check(c));
  if (c->nesterov && (c->momentum <= 0 || c->dampening != 0))
    return MS_FAIL(MS_EINVAL, "nesterov needs momentum above 0 and dampening 0, not %g and %g", c->momentum,
                   c->dampening);
  MS_TRY(ms_dtype_check(c->moment_dtype, MS_DTYPE_MOMENT, "moment_dtype"));
  MS_TRY(check_packing(c, optimizer));
  if (!(c->max_norm >= 0)) return MS_FAIL(MS_EINVAL, "max_norm must be 0 (no clipping) or more, not %g", c->max_norm);
  MS_TRY(check_norm_groups(c));
  if (!(c->max_value >= 0))
    return MS_FAIL(MS_EINVAL, "max_value must be 0 (no clipping) or more, not %g", c->max_value);
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

/* How many multiprocessors the GPU has, only its device knows (device/cuda/open.c). */
int ms_plan_check_carveout(const ms_plan_config *c) {
  if (c->sm_carveout < 0)
    return MS_FAIL(MS_EINVAL, "sm_carveout must be 0 (products use all) or more multiprocessors, not %d",
                   c->sm_carveout);
  if (c->sm_carveout && c->device != MS_DEVICE_CUDA)
    return MS_FAIL(MS_EINVAL,
                   "sm_carveout is %d, but the %s has no multiprocessors to leave to collectives: choose the "
                   "device cuda (--device cuda), or leave sm_carveout (--sm-carveout) out",
                   c->sm_carveout, ms_device_name(c->device));
  return MS_OK;
}

int ms_plan_check_config(const ms_plan_config *c) {
  MS_TRY(ms_plan_check_optimizer(c));
  if (c->threads < 0 || c->threads > MOST_THREADS)
    return MS_FAIL(MS_EINVAL, "threads must be 0 (the environment's setting) to %d, not %d", MOST_THREADS, c->threads);
  MS_TRY(ms_plan_check_carveout(c));
  if (c->prefetch < 0) return MS_FAIL(MS_EINVAL, "prefetch must be 0 or more units, not %d", c->prefetch);
  if (c->sync < MS_SYNC_EVERY || c->sync > MS_SYNC_LAST)
    return MS_FAIL(MS_EINVAL, "sync must be every (0), shard (1) or last (2), not %d", c->sync);
  if (c->sync != MS_SYNC_EVERY && !c->accumulate)
    return MS_FAIL(MS_EINVAL, "sync = shard or last needs accumulate = 1");
  return MS_OK;
}
