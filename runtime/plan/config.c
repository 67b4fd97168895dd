/* config.c - the settings of a plan: checks that their rows cannot say (settings.def). */
#include "base/settings/settings.h"
#include "plan/optimizer.h"

static int check_norm_groups(const ms_plan_config *c) {
  if ((c->norm_groups > 0) != (c->norm_group && c->max_norms))
    return MS_FAIL(MS_EINVAL, "%d norm_groups: set norm_group and max_norms, too, or none of the three",
                   c->norm_groups);
  for (int g = 0; g < c->norm_groups; g++)
    if (!(c->max_norms[g] >= 0)) /* nor NaN */
      return MS_FAIL(MS_EINVAL, "max_norms[%d] must be 0 (no clipping) or more, not %g", g, c->max_norms[g]);
  return MS_OK;
}

int ms_plan_check_config(const ms_plan_config *c) {
  MS_TRY(ms_settings_check("ms_plan_config", c));
  return check_norm_groups(c);
}
