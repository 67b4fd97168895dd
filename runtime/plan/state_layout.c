/* state_layout.c - the STATE arena: what lives as long as training does. The same for every plan of a model and optimizer;
** masters and scalars come first, so that a plan that only evaluates reads the state of one that trains. */
#include <stdlib.h>

#include "plan/plan.h"

static int64_t take(ms_state_layout *layout, int category, int64_t bytes) {
  int64_t at = layout->bytes, size = (bytes + 63) / 64 * 64;
  layout->bytes += size;
  layout->category_bytes[category] += size;
  return at;
}

int ms_state_layout_make(const ms_model *model, const ms_plan_config *config, ms_state_layout *layout) {
  *layout = (ms_state_layout){0};
  layout->unit = ms_calloc(model->units, sizeof *layout->unit);
  if (!layout->unit) return MS_ENOMEM;
  int first = config->train &&
              (config->optimizer == MS_OPT_ADAMW || (config->optimizer == MS_OPT_SGD && config->momentum != 0));
  int second = config->train && config->optimizer == MS_OPT_ADAMW;
  for (int u = 0; u < model->units; u++)
    layout->unit[u].master = take(layout, MS_CAT_PARAMETERS, 4 * model->unit[u].master_count);
  layout->squares = take(layout, MS_CAT_WORKSPACE, 4 * model->units);
  layout->loss_sum = take(layout, MS_CAT_WORKSPACE, 4);
  layout->norm = take(layout, MS_CAT_WORKSPACE, 16);
  for (int u = 0; u < model->units; u++) {
    int64_t trainable = 4 * model->unit[u].trainable_count;
    layout->unit[u].gradient = config->train && trainable ? take(layout, MS_CAT_GRADIENTS, trainable) : -1;
  }
  for (int u = 0; u < model->units; u++) {
    int64_t trainable = 4 * model->unit[u].trainable_count;
    layout->unit[u].state0 = first && trainable ? take(layout, MS_CAT_OPTIMIZER, trainable) : -1;
    layout->unit[u].state1 = second && trainable ? take(layout, MS_CAT_OPTIMIZER, trainable) : -1;
  }
  return MS_OK;
}

void ms_state_layout_free(ms_state_layout *layout) {
  free(layout->unit);
  layout->unit = NULL;
}
