/* config_defaults.c - the defaults of every struct that programs give to the engine: of those with a table of settings
 * as their rows say, of the others as written here.
 */
#include <string.h>

#include "base/settings/settings.h"

static const ms_world_config world_config = {0};
static const ms_model_dims model_dims = {.replicate = -1, .shard = -1, .tensor = -1, .context = -1};
static const ms_cluster cluster = {.ranks_per_node = 1,
                                   .cores = 1,
                                   .clock = 1,
                                   .product = {.efficiency = 1, .half_tile = 1},
                                   .attention = {.forward = 1, .backward = 1, .causal = 1}};
static const ms_safetensors_config safetensors_config = {.atomic = 1};
static const ms_step_inputs step_inputs = {.step = 1, .micro_batches = 1, .row_step = 1};
static const ms_safetensors_view safetensors_view = {.column_stride = 1};
static const ms_tokenize_config tokenize_config = {.begin = -1, .end = -1};
static const ms_save_config save_config = {0};

#define MS_DEFAULTS(name) \
  { "ms_" #name, &name, (int)sizeof name }
static const struct {
  const char *type;
  const void *defaults;
  int bytes;
} others[] = {MS_DEFAULTS(world_config),       MS_DEFAULTS(model_dims),      MS_DEFAULTS(cluster),
              MS_DEFAULTS(safetensors_config), MS_DEFAULTS(tokenize_config), MS_DEFAULTS(save_config),
              MS_DEFAULTS(safetensors_view),   MS_DEFAULTS(step_inputs)};

int ms_config_default(const char *type, void *config, int size) {
  MS_GIVEN(type);
  MS_GIVEN(config);
  const ms_settings *settings = ms_settings_of(type);
  if (settings && settings->row[0].kind == MS_SETTING_SIZE) return ms_settings_give(settings, config, size);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (!strcmp(others[i].type, type)) return ms_config_give(config, size, others[i].defaults, others[i].bytes, type);
  return MS_FAIL(MS_ENAME, "no struct that begins with its size is called '%s'", type);
}
