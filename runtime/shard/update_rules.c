/* update_rules.c - rules of a sharded model that can change during training: when units are resharded and gathered,
 * whether activations are divided between layers, and the optimizer's groups. They affect what plans do, but not where
 * state is stored, so the state stays valid.
 * ms_model_shard fixes everything else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/settings/settings.h"
#include "shard/model.h"
#include "shard/param_group.h"

static int check_sharded(const ms_model *model) {
  if (model->sharded) return MS_OK;
  return MS_FAIL(MS_EINVAL, "the model is not sharded yet: set these rules when you add its units and parameters");
}

/* Checks all units before it changes one, so that an error leaves the model as it was. */
int ms_model_set_reshard(ms_model *model, const int *reshard, const int *size) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(reshard);
  MS_TRY(check_sharded(model));
  for (int u = 0; u < model->units; u++)
    if (reshard[u] < MS_RESHARD_KEEP || reshard[u] > MS_RESHARD_RUN)
      return MS_FAIL(MS_EINVAL, "unit '%s': reshard must be keep (0), always (1), default (2) or run (3), not %d",
                     model->unit[u].name, reshard[u]);
  for (int u = 0; u < model->units; u++) MS_TRY(ms_unit_check_reshard(model, u, reshard[u], size ? size[u] : 0));
  for (int u = 0; u < model->units; u++) {
    model->unit[u].config.reshard = reshard[u];
    model->unit[u].config.reshard_size = size ? size[u] : 0;
  }
  return MS_OK;
}

static int check_unit(const ms_model *model, int unit) {
  if (unit >= 0 && unit < model->units) return MS_OK;
  return MS_FAIL(MS_EINVAL, "prefetch: unit %d does not exist; the model has %d units", unit, model->units);
}

static int check_list(const ms_model *model, int unit, int n, const int *units) {
  if (n < (units ? 0 : -1))
    return MS_FAIL(MS_EINVAL, "unit '%s': prefetch: n must be 0 or more, or -1 without units, not %d",
                   model->unit[unit].name, n);
  for (int i = 0; units && i < n; i++) {
    MS_TRY(check_unit(model, units[i]));
    for (int earlier = 0; earlier < i; earlier++)
      if (units[earlier] == units[i])
        return MS_FAIL(MS_EINVAL, "unit '%s': units has %d twice, at %d and %d", model->unit[unit].name, units[i],
                       earlier, i);
  }
  return MS_OK;
}

int ms_model_set_prefetch(ms_model *model, int unit, int backward, int n, const int *units) {
  MS_HANDLE(model, MODEL);
  int *order = NULL;
  MS_TRY(check_unit(model, unit));
  if (backward != 0 && backward != 1)
    return MS_FAIL(MS_EINVAL, "unit '%s': backward must be 0 or 1, not %d", model->unit[unit].name, backward);
  MS_TRY(check_list(model, unit, n, units));
  if (units && n > 0) {
    order = ms_calloc(n, sizeof *order);
    if (!order) return MS_ENOMEM;
    memcpy(order, units, (size_t)n * sizeof *order);
  }
  ms_ahead *ahead = &model->unit[unit].ahead[backward];
  free(ahead->unit);
  *ahead = units ? (ms_ahead){.unit = order, .n = n, .depth = -1} : (ms_ahead){.n = -1, .depth = n};
  return MS_OK;
}

int ms_model_set_sequence_parallel(ms_model *model, int on) {
  MS_HANDLE(model, MODEL);
  MS_TRY(check_sharded(model));
  if (on != 0 && on != 1) return MS_FAIL(MS_EINVAL, "sequence_parallel must be 0 or 1, not %d", on);
  model->sequence_parallel = on;
  return MS_OK;
}

/* They are in one segment because they are of one group, and stay so. */
static int check_segment(const ms_model *model, const ms_unit *unit, const ms_segment *segment,
                         const ms_param_group *group) {
  int first = unit->order[segment->first_param];
  for (int i = 1; i < segment->params; i++) {
    int p = unit->order[segment->first_param + i];
    char names[MS_GROUP_NAMES];
    if (ms_group_compare(&group[p], &group[first]))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "parameters '%s' and '%s' share a segment of unit '%s' (layout ragged), so they cannot differ in "
                     "%s; shard the model with layout rows to set them apart",
                     model->param[first].name, model->param[p].name, unit->name, ms_group_names(names));
  }
  return MS_OK;
}

/* own: [params] */
static int take_groups(const ms_model *model, const ms_param_group *given, int size, ms_param_group *own) {
  for (int p = 0; p < model->params; p++) {
    const void *row = (const char *)given + (int64_t)p * size;
    ms_settings_default(ms_settings_of("ms_param_group"), &own[p]);
    MS_TRY(ms_info_take(&own[p], sizeof *own, row, size, "ms_model_set_groups"));
    MS_TRY(ms_model_check_group(model->param[p].name, &own[p]));
  }
  return MS_OK;
}

/* Checks everything first, so that an error leaves the model as it was. */
int ms_model_set_groups(ms_model *model, const ms_param_group *groups, int size) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(groups);
  MS_TRY(check_sharded(model));
  ms_param_group *own = ms_calloc(model->params, sizeof *own);
  int rc = own ? MS_OK : MS_ENOMEM;
  if (rc) return rc;
  MS_GOTO(take_groups(model, groups, size, own));
  for (int u = 0; u < model->units; u++)
    for (int s = 0; s < model->unit[u].segments; s++)
      if (!model->unit[u].segment[s].frozen)
        MS_GOTO(check_segment(model, &model->unit[u], &model->unit[u].segment[s], own));
  for (int p = 0; p < model->params; p++) model->param[p].config.group = own[p];
fail:
  free(own);
  return rc;
}
